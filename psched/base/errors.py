"""Every exception that psched raises on purpose.

The names of `ScheduleError`, of its subclasses, and of `ConfigError` and `ProcessStopError` are
PerfectSched's, so that the ``except`` clauses of a ported handler keep their meaning.
"""

from collections.abc import Mapping
from typing import Any

from psched.base.texts import brief


class PschedError(Exception):
    """The base class of all of psched's errors; `ProcessStopError` is a request, not an error."""


class ScheduleError(PschedError):
    """A request about a schedule or a task was refused; nothing was changed."""


class AlreadyFinishedError(ScheduleError):
    """This task has been settled already."""


class NotFoundError(ScheduleError):
    """No schedule has this key."""


class PreemptedError(ScheduleError):
    """The lease has ended or belongs to another worker: this task cannot change anything."""


class AlreadyExistsError(ScheduleError):
    """A schedule with this key exists (or is being deleted while its task still runs)."""


class NotSupportedError(ScheduleError):
    """This store cannot do what was asked."""


class ConfigError(PschedError, RuntimeError):
    """A setting is missing, unknown or impossible; the text names the setting and the fix."""


class ProcessStopError(RuntimeError):
    """Raised once inside a handler that is asked to stop; its text is the reason.

    No `PschedError`, because a handler that catches those around a call must not catch this: it is
    not raised a second time.
    """


class InvalidError(PschedError, ValueError):
    """A field of a schedule makes no sense.

    Attributes:
        field: the field's name (``cron``, ``timezone``, ``data`` …).
        problem: what is wrong with it.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotLoadedError(InvalidError):
    """A trigger's code cannot be imported in this process; another host may be able to."""


class LoadError(PschedError, RuntimeError):
    """Handlers could not be loaded: an import failed or a name is missing."""


class CommandError(PschedError):
    """A command did not exit with status 0."""


class UnfinishedError(PschedError):
    """A handler returned without having called ``finish()``, and ``on_return`` is ``retry``."""


class NotAllowedError(PschedError):
    """A row asks for a program that the operator has not allowed; the text names the setting."""


class StoreError(PschedError):
    """The store could not do what was asked."""


class TransientStoreError(StoreError):
    """The request failed for a reason that passes: it can be repeated later.

    There are two kinds: `StoreUnavailableError` (nothing was applied), and `UnknownOutcomeError`
    (the request may have been applied).
    """


class StoreUnavailableError(TransientStoreError):
    """The store did not take the request, for a reason that passes; nothing was applied."""


class StoreBusyError(StoreUnavailableError):
    """Somebody else holds a lock, and did not release it in time.

    Attributes:
        answered: if the request concerned many rows, the results for those that were not locked.
    """

    def __init__(self, text: str, answered: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.answered = answered or {}


class StoreSlowError(StoreBusyError):
    """The store answers so slowly that the rest of a request was not sent."""


class UnknownOutcomeError(TransientStoreError):
    """The connection broke while a request was under way: it may have been applied."""


class SchemaError(StoreError):
    """The table is missing, incomplete or from a newer psched; the text names the fix."""


class MissingTableError(SchemaError):
    """The table does not exist."""


def described(error: BaseException) -> str:
    """One short line about an error: its name, and its text if there is one."""
    name, text = type(error).__name__, text_of(error)
    return f"{brief(name)}: {text}" if text else brief(name)


def text_of(error: BaseException) -> str:
    """An error's text as one short line; empty if there is none, or if its ``__str__`` raises."""
    try:
        return brief(str(error))
    except (Exception, SystemExit):  # noqa: BLE001  # a user's __str__ may raise anything
        return ""
