"""Knowledge of torch itself. Nothing here knows what a log is."""
