"""What is written down of a training, by whom, and how it is read."""
