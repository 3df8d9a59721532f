"""What operators do by hand: extra runs, pauses and skips, as pure functions."""
