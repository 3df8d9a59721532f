"""Runs what an asynchronous handler has returned, in an event loop of its own.

TERM does not raise an exception in an event loop that runs, because the exception would end the
loop and not the handler's own code. Instead the handler's asyncio task is cancelled. If the loop
is blocked, because the handler computes without ``await``, the cancellation cannot reach it. Then
a later TERM raises `ProcessStopError` where the code is, as in a handler that is a plain function.
"""

import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from psched.base.errors import ProcessStopError
from psched.runner.failures import without_own
from psched.runner.stop import Stop

if TYPE_CHECKING:
    import asyncio

_BLOCKED = 0.5
"""Seconds after a cancellation; a loop that has not run since then is blocked."""


def run_in_loop(awaitable: Awaitable[Any], stop: Stop) -> Any:  # noqa: ANN401  # the handler's value
    """Run an awaitable to its end in a new event loop, and return its value."""
    # Most installations have no asynchronous handler, so asyncio is not imported at the top. If a
    # handler is known to be asynchronous, `check_handler` imports asyncio before the first fork.
    import asyncio  # noqa: PLC0415

    cancellation: Cancellation | None = None

    async def main() -> Any:  # noqa: ANN401
        nonlocal cancellation
        task = asyncio.ensure_future(awaitable)
        cancellation = Cancellation(asyncio.get_running_loop(), task)
        with stop.cancelling(cancellation.ask):
            return await task

    runner = asyncio.Runner()
    try:
        # The exception of TERM could end the creation of the loop, and nobody would close it.
        with stop.guarded():
            runner.get_loop()
        return runner.run(main())
    except asyncio.CancelledError as error:
        if cancellation is None or not cancellation.reason:
            raise  # the handler has cancelled itself
        # The handler's own frames are kept, because they show what it was waiting for.
        waiting = error.with_traceback(without_own(error.__traceback__))
        raise ProcessStopError(cancellation.reason) from waiting
    finally:
        runner.close()


class Cancellation:
    """Cancels the asyncio task of a handler, once.

    Attributes:
        reason: why the task was cancelled; empty if it was not.
    """

    def __init__(self, loop: "asyncio.AbstractEventLoop", task: "asyncio.Future[Any]") -> None:
        self._loop = loop
        self._task = task
        self._asked = 0.0
        self._is_noticed = False
        self.reason = ""

    def ask(self, reason: str) -> bool:
        """Have the task cancelled, if this is the first call; a signal handler calls this.

        False: the loop has been blocked since the first call, so the task does not know of it.
        """
        if self.reason:
            return self._is_noticed or time.monotonic() < self._asked + _BLOCKED
        self.reason, self._asked = reason, time.monotonic()
        # The loop cancels the task, and not the signal handler: the handler can interrupt asyncio
        # between its check that a future is pending and the change of that future, which would then
        # raise InvalidStateError in another task. The call also wakes a loop that waits.
        self._loop.call_soon_threadsafe(self._cancel)
        return True

    def _cancel(self) -> None:
        self._is_noticed = True
        self._task.cancel()
