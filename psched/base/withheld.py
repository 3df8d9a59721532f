"""The environment variables that no program of a task inherits; see `psched.config.references`.

They have a module of their own, because a process gets them before it loads what reads them.
"""

VALUES: dict[str, str] = {}
"""Their values by their names."""
