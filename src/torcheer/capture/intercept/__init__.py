"""Sees torch calls: the function mode, where in the source a call is, fused paths, autocast, collectives, device time."""
