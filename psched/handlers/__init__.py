"""Handlers: the built-in ones (exec, push) and those that the configuration names."""
