"""What operators do by hand: pauses and the like, as changes of a store."""
