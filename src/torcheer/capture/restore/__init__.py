"""Leaves everything as it was found: modules, tensors, random states, what Python allows."""
