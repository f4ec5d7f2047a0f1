"""Batches of a dataset, and what travels with samples: labels and ids."""
