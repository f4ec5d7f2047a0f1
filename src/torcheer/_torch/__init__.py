"""What is known of torch alone: nothing here knows what a log is."""
