"""Processes that run tasks: the forked process itself, and how its worker makes and watches it."""
