"""A history as text and as a table."""
