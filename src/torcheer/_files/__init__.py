"""Whole files, safetensors files and typed JSON."""
