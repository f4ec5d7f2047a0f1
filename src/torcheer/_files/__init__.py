"""Writes files whole or not at all, and reads and writes safetensors and typed JSON."""
