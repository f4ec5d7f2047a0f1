"""Activations of whole datasets: written in blocks as the model runs, and read like arrays."""
