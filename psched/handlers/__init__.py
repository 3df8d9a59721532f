"""The handlers that psched brings along, and those that a configuration names."""
