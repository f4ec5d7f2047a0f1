"""Everything that is known of torch alone. No file in this folder knows what a log is."""
