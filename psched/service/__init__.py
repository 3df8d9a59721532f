"""A master and its workers put together: from a configuration file, or from a user's program."""
