"""Views of a history as a graph."""
