"""What only reads: why, verify, load, which alerts are on, and what is hidden."""
