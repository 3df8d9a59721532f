"""Starts a master and its workers, either from a configuration file or from a user's program."""
