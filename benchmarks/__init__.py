"""What recording costs, in time and memory: `make bench`.

Everything is a ratio to the plain forward pass, measured in the same process and interleaved with it, because the machines
this runs on are shared and their speed drifts. Each measurement has a process of its own, so that none inherits the
allocator, the caches or the patched functions of another.
"""
