"""Runs a handler in the process of a test, with a real `Task`, and tells how the run has ended."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from typing_extensions import override

from psched.application.dispatch import call_handler, check_handler
from psched.application.function import TaskFunction
from psched.application.task import Holder, Task
from psched.base.errors import InvalidError, NotSupportedError, described
from psched.config import from_mapping
from psched.core.arguments import SharedSettings
from psched.core.columns import When, check_number, encode, instant
from psched.core.definition import parse_row
from psched.core.history.records import Outcome
from psched.core.model import Decision, Finish, Release, Retry, Row
from psched.core.schedule import Schedules

KEY, TYPE = "test", "test"
"""The key and the type of a task that is run without a store."""

_MOST_ATTEMPTS = 2**31 - 1

_SCHEDULED_TIME = 1_800_000_000  # the scheduled time of such a task by default, in Unix seconds


class ObservedLease(Holder):
    """Observes what a task does with its lease."""

    def __init__(self, schedules: Schedules | None) -> None:
        self._schedules = schedules
        self.decision: Decision | None = None  # how the task wants its lease to end
        self.result: str | None = None  # the last result that the task has set, as JSON text
        self.reports: list[tuple[float | None, str]] = []  # the progress that it has reported
        self.extensions = 0  # how often it has extended its lease

    @override
    def decide(self, decision: Decision) -> None:
        self.decision = decision

    @override
    def extend(self) -> None:
        self.extensions += 1

    @override
    def update_data(self, data: Mapping[str, Any]) -> None:
        encode("data", data)

    @override
    def progress(self, percent: float | None, text: str) -> None:
        self.reports.append((percent, text))

    @override
    def keep_result(self, result: str | None) -> None:
        self.result = result

    @property
    @override
    def schedules(self) -> Schedules:
        if self._schedules is None:
            raise NotSupportedError(
                "the task is run without a store, so it has no schedules; give some:"
                " run(…, schedules=psched.testing.Schedules())"
            )
        return self._schedules


class RunningLoopError(RuntimeError):
    """A test that runs in an event loop has run an asynchronous handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRun:
    """How the run of a handler has ended.

    Attributes:
        task: the task that was run; ``task.data`` are its data at the end.
        outcome: ``finished``, ``failed`` or ``released``, as in the run history.
        error: the exception that the handler has raised; None if it has returned. A handler can
            raise after it has called ``task.finish()``: then the outcome is ``finished``.
        returned: what the handler has returned; None if it has raised.
        result: the result that the run history would keep.
        wait: the argument of ``task.retry(wait)``, in seconds; None if the usual policy decides.
        progress: the reports of progress, as pairs of percent and text.
        extensions: how often the handler has called ``task.extend()``.
    """

    task: Task
    outcome: Outcome
    error: BaseException | None
    returned: Any
    result: Any
    wait: float | None
    progress: list[tuple[float | None, str]]
    extensions: int


def run(
    handler: Any,  # noqa: ANN401  # whatever can be a handler
    data: Mapping[str, Any] | None = None,
    /,
    *,
    key: str = KEY,
    type: str | None = None,  # noqa: A002  # the table's word
    attempt: int = 1,
    scheduled_time: When = _SCHEDULED_TIME,
    schedules: Schedules | None = None,
    catch_exceptions: bool = False,
    **settings: Unpack[SharedSettings],
) -> HandlerRun:
    """Run a handler as a worker would, but in this process and without a database.

    Nothing limits the time of the run, and no signal stops it. Arguments of a function of a
    `psched.App` are its data.

    Args:
        handler: a function of a `psched.App`, a handler class, a function that takes the task or
            nothing, or an object with ``run()``. A coroutine function is run to its end.
        data: the data of the task, a JSON object.
        key: the key of the task.
        type: the type of the task; default: that of the function, else ``test``.
        attempt: the number of this attempt, from 1.
        scheduled_time: the time for which the task runs.
        schedules: what ``task.schedules`` is, such as a `psched.testing.Schedules`. Functions of an
            app push to it, too. None means that there is no store: its use raises an error.
        catch_exceptions: whether an exception of the handler is returned in the attribute ``error``
            of the result; if not, it is raised here.
        settings: settings that change what a return means: ``on_return`` and ``result``.

    Raises:
        InvalidError: the data are not a JSON object, or another argument is invalid.
        LoadError: the handler cannot be a handler.
        RunningLoopError: the handler is asynchronous, and so is the test.
        UnfinishedError: the handler has returned without a decision, and ``on_return`` is
            ``retry``. `catch_exceptions` applies to it, too.
    """
    if type is None:
        type = handler.type if isinstance(handler, TaskFunction) else TYPE  # noqa: A001
    if check_number("attempt", attempt, _MOST_ATTEMPTS) < 1:
        raise InvalidError("attempt", "must be from 1")
    text = encode("data", {} if data is None else data)
    time = instant("scheduled_time", scheduled_time)
    whole = from_mapping({"url": "sqlite:///unused.db", **settings})
    row = Row(key=key, type=type, next_time=time, owner="test", fence=attempt, attempt=attempt)
    values = {**parse_row(row, whole).assignment(row, time), "data": text}
    found = handler_of(handler, type)
    return call(found, values, ObservedLease(schedules), catch_exceptions=catch_exceptions)


def handler_of(given: Any, name: str) -> Any:  # noqa: ANN401  # whatever can be a handler
    """The handler that takes the task, or the class, of what a test has given."""
    if isinstance(given, TaskFunction):
        return given.handler
    if (
        not isinstance(given, type)
        and not callable(given)
        and callable(getattr(given, "run", None))
    ):
        given = given.run
    check_handler(given, name)
    return given if isinstance(given, type) else _with_task(given)


def call(
    handler: Callable[[Task], Any] | type[Any],
    values: Mapping[str, Any],
    lease: ObservedLease,
    *,
    catch_exceptions: bool,
) -> HandlerRun:
    """Run a handler with a task that is made of these values and this lease."""
    task = Task(values, lease)
    error: BaseException | None = None
    returned = None
    try:
        # Nothing stops the handler, so nobody calls its ``kill``.
        returned = call_handler(
            handler, task, values, offer_kill=lambda _kill: None, run_awaitable=_value_of
        )
    except (Exception, SystemExit, asyncio.CancelledError) as raised:
        if not catch_exceptions or isinstance(raised, RunningLoopError):
            raise
        error = raised
    decision = lease.decision
    if decision is None:
        decision = Finish() if error is None else Retry(reason=described(error))
        lease.decision = decision
    outcomes = {Finish: Outcome.FINISHED, Release: Outcome.RELEASED}
    return HandlerRun(
        task=task,
        outcome=outcomes.get(type(decision), Outcome.FAILED),
        error=error,
        returned=returned,
        result=task.result,
        wait=decision.wait if isinstance(decision, Retry) else None,
        progress=lease.reports,
        extensions=lease.extensions,
    )


def _value_of(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401
    """Run what a handler has returned in an event loop, as a runner does."""

    async def main() -> Any:  # noqa: ANN401
        return await awaitable

    if asyncio._get_running_loop() is None:  # noqa: SLF001  # `get_running_loop` raises an error
        return asyncio.run(main())
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    raise RunningLoopError(
        "an asynchronous handler is run in an event loop of its own, but this test runs in one:"
        " make the test a plain function"
    )


def _with_task(function: Callable[..., Any]) -> Callable[[Task], Any]:
    """The function itself, or one that calls it without the task if it has no parameter for it."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return lambda _task: function()
    except ValueError:  # it has no signature
        pass
    return function
