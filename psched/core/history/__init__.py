"""The run history: what ran, how it ended, and what became of each occurrence."""
