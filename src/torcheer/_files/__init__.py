"""Writes and reads files safely: whole or not at all, safetensors, typed JSON."""
