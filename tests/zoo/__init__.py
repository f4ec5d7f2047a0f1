"""The zoo: real models and whole procedures that every log is validated on. `python -m zoo` runs the sweep."""
