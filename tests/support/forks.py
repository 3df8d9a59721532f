"""A fork server without a worker, for functions that run isolated."""

from collections.abc import Callable, Sequence

from psched.base.clock import Clock, SystemClock
from psched.process.link import Link
from psched.runner.fork_server import ForkServer
from psched.runner.forker import forked_with


def fork_server(
    main: Callable[[int, Link], int],
    *,
    keep: Sequence[int] = (),
    hold_up: float = 20,
    before_fork: Callable[[], object] = list,
    clock: Clock | None = None,
) -> ForkServer:
    """A fork server whose children run ``main``."""
    return ForkServer(
        forked_with(main, keep=keep, before_fork=before_fork),
        places=200,
        clock=clock or SystemClock(),
        hold_up=hold_up,
        patience=20,
    )
