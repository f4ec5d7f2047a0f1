"""Layers of a model, read batch after batch: how a batch goes into the model, and what becomes of values."""
