"""Which operations are the same layer, and how layers are named."""
