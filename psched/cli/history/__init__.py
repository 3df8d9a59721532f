"""The command history, and how other commands show runs."""
