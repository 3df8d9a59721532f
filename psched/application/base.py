"""The base class of handlers."""

import inspect
from collections.abc import Coroutine
from typing import Any, ClassVar

from psched.application.task import Task
from psched.base.errors import LoadError
from psched.core.schedule import Schedules

_STEPS = ("before_perform", "perform", "after_perform")


class Base:
    """Runs one task, in the main thread of a process of its own.

    Override `run`, or `perform` and the two hooks around it. If `run` returns, the task is
    finished; if it raises, the task is tried again after ``retry_wait``. Calling
    ``task.finish()``, ``task.retry()`` or ``task.release()`` decides explicitly.

    To stop a handler, psched raises `ProcessStopError` once in the handler's running code, so that
    the ``finally`` clauses run. If the handler defines ``kill(reason)``, psched calls ``kill``
    instead: at once, and again every ``kill_interval`` seconds. If ``kill`` raises an exception,
    that exception interrupts the handler's running code. The reason is ``timeout``, ``shutdown``,
    ``deleted``, ``cancelled`` or ``lease``. If the handler has not ended ``graceful_kill_limit``
    seconds later, psched kills the handler's process and all processes that it has started.

    `run`, or `perform` and its hooks, may be coroutine functions (``async def``). psched runs them
    with ``asyncio.run``. To stop such a handler without ``kill``, psched cancels its asyncio task.

    Attributes:
        task: the task to run.
    """

    _is_asynchronous: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401  # of other base classes
        super().__init_subclass__(**options)
        cls._is_asynchronous = any(
            inspect.iscoroutinefunction(getattr(cls, step)) for step in _STEPS
        )

    def __init__(self, task: Task) -> None:
        self.task = task

    @property
    def schedules(self) -> Schedules:
        """The schedules of the store that the task came from, on a separate connection."""
        return self.task.schedules

    def run(self) -> Any:  # noqa: ANN401  # the handler's own value
        """Call `before_perform`; if it returns True, call `perform` and then `after_perform`.

        Returns:
            What `perform` has returned; None if it was not called. If one of the three is a
            coroutine function, a coroutine that returns this value.
        """
        if self._is_asynchronous:
            return self._run_steps()
        if not self._plain(self.before_perform()):
            return None
        try:
            return self._plain(self.perform())
        finally:
            self._plain(self.after_perform())

    def _plain(self, returned: Any) -> Any:  # noqa: ANN401
        """Return what a step has returned, which must not be a coroutine here.

        If it is one, a decorator hides that the step is a coroutine function, so the steps would
        not wait for one another.
        """
        if inspect.iscoroutine(returned):
            returned.close()
            raise LoadError(
                f"{type(self).__name__}: {returned.__qualname__} is a coroutine, but what the class"
                " defines is no coroutine function; make the wrapper of its decorator async def"
            )
        return returned

    async def _run_steps(self) -> Any:  # noqa: ANN401
        """Do what `run` does, and await the steps that are coroutine functions."""
        if not await _value_of(self.before_perform()):
            return None
        try:
            return await _value_of(self.perform())
        finally:
            await _value_of(self.after_perform())

    def before_perform(self) -> bool | Coroutine[Any, Any, bool]:
        """Called first; if it returns False, `perform` and `after_perform` are not called."""
        return True

    def perform(self) -> Any:  # noqa: ANN401
        """Do the work of the task; override this method, or `run`."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither run nor perform")

    def after_perform(self) -> object:
        """Called after `perform`, even if `perform` raised an exception."""


async def _value_of(returned: Any) -> Any:  # noqa: ANN401
    """What a step has returned, or what its coroutine returns."""
    return await returned if inspect.isawaitable(returned) else returned
