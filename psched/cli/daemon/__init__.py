"""Commands that run psched, and commands about what runs."""
