"""What a history is to hold, and how it is filled."""
