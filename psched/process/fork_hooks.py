"""Forks without what Python's modules `threading` and `logging` do at each fork.

They make their locks anew, because another thread might have held them. In a process that has only
one thread, which holds none of them, this changes nothing, but it is a third of the processor time
of an empty child: this code is the first to touch many pages of its memory.

Only the forks within `without_hooks` leave it out. Those of users' code do not.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_leaves_out = False


_register = os.register_at_fork


def load() -> None:
    """Import these modules, unless they are loaded, so that `without_hooks` has an effect."""
    os.register_at_fork = register  # type: ignore[assignment]
    try:
        import logging  # noqa: F401, PLC0415  # it imports threading
    finally:
        os.register_at_fork = _register


def register(**hooks: Callable[[], object]) -> None:
    """Register hooks as `os.register_at_fork` does, which `without_hooks` leaves out, too."""
    _register(**{when: _optional(hook) for when, hook in hooks.items()})


def _optional(hook: Callable[[], object]) -> Callable[[], object]:
    def call() -> None:
        if not _leaves_out:
            hook()

    return call


@contextmanager
def without_hooks() -> Iterator[None]:
    """Leave out the hooks of these modules in forks within the block; there is one thread."""
    global _leaves_out  # noqa: PLW0603  # the hooks of a process
    _leaves_out = True
    try:
        yield
    finally:
        _leaves_out = False


def forked() -> None:
    """Do in a child that was forked within the block what cannot be left out."""
    global _leaves_out  # noqa: PLW0603
    _leaves_out = False
    sys.modules["threading"].main_thread()._set_native_id()  # noqa: SLF001  # it has a pid of its own
