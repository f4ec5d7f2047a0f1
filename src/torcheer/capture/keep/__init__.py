"""What is kept of the tensors that are seen, and how it stays what it was."""
