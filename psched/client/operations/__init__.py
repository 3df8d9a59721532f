"""What operators do by hand: extra runs, pauses and skips, by requests to a store."""
