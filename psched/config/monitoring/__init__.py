"""The settings of what the monitor does, and the kinds of their values."""
