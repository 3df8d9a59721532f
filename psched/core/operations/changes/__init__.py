"""Changes of schedules by hand: skips and edits, and what they do to the next runs."""
