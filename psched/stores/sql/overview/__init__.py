"""What runs, what is late and what is next, in a few requests."""
