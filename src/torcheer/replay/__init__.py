"""Runs a history again from its inputs alone, and compares."""
