"""The exceptions that psched defines.

`ScheduleError`, its subclasses, `ConfigError` and `ProcessStopError` have the same names as in
PerfectSched, so that the ``except`` clauses of a ported handler keep their meaning.
"""

import errno
from collections.abc import Mapping
from typing import Any, Self

from typing_extensions import override

from psched.base.texts import brief


class PschedError(Exception):
    """The base class of psched's errors. Only `ProcessStopError` is not derived from it."""


class ScheduleError(PschedError):
    """A request about a schedule or a task was refused; nothing was changed."""


class AlreadyFinishedError(ScheduleError):
    """The task has been settled already, or the schedule has ended already."""


class NotFoundError(ScheduleError):
    """No schedule has this key."""


class PreemptedError(ScheduleError):
    """The task's lease has ended or belongs to another worker, so the request was refused."""


class AlreadyExistsError(ScheduleError):
    """A schedule with this key exists already.

    This includes a schedule that psched will delete as soon as its task has stopped.
    """


class NotSupportedError(ScheduleError):
    """This type of store does not support the request."""


class ConfigError(PschedError, RuntimeError):
    """A setting is missing, unknown or impossible; the text names the setting and the fix."""


class ProcessStopError(RuntimeError):
    """A request to stop, raised once inside a handler; the text is the reason.

    psched does not raise the request again. So the class is not derived from `PschedError`: a
    handler that catches `PschedError` around a call must not catch the request.
    """


class InvalidError(PschedError, ValueError):
    """A field of a schedule is invalid.

    Attributes:
        field: the field's name (``cron``, ``timezone``, ``data`` …).
        problem: what is wrong with the field.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    @override
    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        # An exception is otherwise pickled with its text alone, and could not be unpickled: a pool
        # of processes that it ends in would wait for ever.
        return type(self), (self.field, self.problem)


class NotLoadedError(InvalidError):
    """A trigger's code cannot be imported in this process, but perhaps on another host."""


class LoadError(PschedError, RuntimeError):
    """Handlers could not be loaded: an import failed or a name is missing."""


class CommandError(PschedError):
    """A command did not exit with status 0."""


class NoRoomError(PschedError):
    """A task could not begin, because the system had no process or memory left for it."""


class UnfinishedError(PschedError):
    """A handler returned without a call of ``finish()``, and ``on_return`` is ``retry``."""


class NotAllowedError(PschedError):
    """A row specifies a program that the operator has not allowed.

    The text names the setting that allows programs.
    """


class StoreError(PschedError):
    """A request to the store failed."""


class TransientStoreError(StoreError):
    """The request failed for a temporary reason, so it can be repeated later.

    There are two kinds: `StoreUnavailableError` (nothing was applied), and `UnknownOutcomeError`
    (the request may have been applied).
    """


class StoreUnavailableError(TransientStoreError):
    """The store rejected or never received the request, temporarily; nothing was applied."""


class MissingDatabaseError(StoreUnavailableError):
    """The SQLite file does not exist; the text names the file and the fix."""


class StoreBusyError(StoreUnavailableError):
    """Another client held a lock and did not release it in time.

    Attributes:
        answered: the results for those rows of the request that were not locked, by key. Empty if
            there are none, or if the request concerned one row.
    """

    def __init__(self, text: str, answered: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.answered = answered or {}


class StoreSlowError(StoreBusyError):
    """The store answers so slowly that psched did not send the remaining parts of a request."""


class UnknownOutcomeError(TransientStoreError):
    """The connection broke during a request: the request may have been applied."""


class SchemaError(StoreError):
    """The table is missing, incomplete or from a newer psched; the text names the fix."""


class MissingTableError(SchemaError):
    """The table does not exist."""


def of_replica(error: Exception | str) -> str:
    """What to tell of an error of the store that ``read_url`` names."""
    follows = "; the replica gets its tables from url" if isinstance(error, SchemaError) else ""
    return f"read_url: {error}{follows}"


def no_room(error: OSError) -> bool:
    """Whether a fork failed because the limit of processes, or of memory, is reached."""
    return error.errno in {errno.EAGAIN, errno.ENOMEM}


def described(error: BaseException) -> str:
    """One short line about an error: the name of its class, and its text if that is not empty."""
    name, text = type(error).__name__, text_of(error)
    return f"{brief(name)}: {text}" if text else brief(name)


def text_of(error: BaseException) -> str:
    """An error's text as one short line; empty if there is no text, or if ``__str__`` raises."""
    try:
        return brief(str(error))
    except (Exception, SystemExit):  # noqa: BLE001  # a user's __str__ can raise anything
        return ""
