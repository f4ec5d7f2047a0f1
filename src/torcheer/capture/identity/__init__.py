"""Which record a tensor stands for: by the tensor itself, by the memory it lives in."""
