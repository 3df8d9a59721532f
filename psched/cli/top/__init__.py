"""The command top: what runs now, what is late, what is next and what has failed."""
