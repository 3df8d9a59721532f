"""Statements about rows with given keys, and claims of such rows."""
