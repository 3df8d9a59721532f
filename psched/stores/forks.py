"""Connections that a process has inherited by a fork: it must neither use nor close them.

Two processes that use one connection read each other's answers. If the child closes it, some
drivers send a goodbye to the server, which then ends the parent's session.
"""

import os

_KEPT: list[object] = []
"""Inherited connections, kept because the driver would close one that nobody refers to."""


class Ownership:
    """Tells whether this process is the one that has opened the present connection."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def lost(self) -> bool:
        """Whether this process was forked since this object, or `leave`, noted the process."""
        return self._pid != os.getpid()

    def leave(self, connection: object) -> None:
        """Keep an inherited connection open and unused, and own the connections from now on."""
        self._pid = os.getpid()
        _KEPT.append(connection)
