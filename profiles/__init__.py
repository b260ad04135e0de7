"""What was tuned by us: a file for each GPU, found by its name."""
