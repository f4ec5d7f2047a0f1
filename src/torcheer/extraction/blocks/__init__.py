"""Blocks of features in a folder, wherever that is: written, found, merged."""
