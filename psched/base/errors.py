"""Every exception that psched raises on purpose.

The names and families of the first two groups are PerfectSched's, so that a ported
handler's ``except`` clauses keep their meaning.
"""

from collections.abc import Mapping
from typing import Any

from psched.base.texts import brief


class ScheduleError(Exception):
    """A request about a schedule or a task was refused; nothing was changed."""


class AlreadyFinishedError(ScheduleError):
    """This task has been settled already."""


class NotFoundError(ScheduleError):
    """No schedule has this key."""


class PreemptedError(ScheduleError):
    """The lease has ended or belongs to another worker: this task can change nothing."""


class AlreadyExistsError(ScheduleError):
    """A schedule with this key exists (or is being deleted while its task still runs)."""


class NotSupportedError(ScheduleError):
    """This store cannot do what was asked."""


class ConfigError(RuntimeError):
    """A setting is missing, unknown or impossible; the text names it and the mend."""


class ProcessStopError(RuntimeError):
    """Raised once inside a handler that is asked to stop; its text is the reason."""


class InvalidError(ValueError):
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
    """A trigger's code cannot be imported in this process; on another host it may well be there."""


class LoadError(RuntimeError):
    """Handlers could not be loaded: an import failed or a name is missing."""


class CommandError(Exception):
    """A command did not exit with status 0."""


class UnfinishedError(Exception):
    """A handler has returned without having called ``finish()``, and ``on_return`` is ``retry``."""


class NotAllowedError(Exception):
    """A row asks for a program that the operator has not allowed; the text names the setting."""


class StoreError(Exception):
    """The store could not do what was asked."""


class StoreUnavailableError(StoreError):
    """The store did not take the request, for a reason that passes; nothing was applied."""


class StoreBusyError(StoreUnavailableError):
    """Somebody else holds a lock; it was waited for.

    Attributes:
        answered: of a request about many rows, what became of those that are not locked.
    """

    def __init__(self, text: str, answered: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.answered = answered or {}


class StoreSlowError(StoreBusyError):
    """Answers take so long that the rest of a request was not sent."""


class UnknownOutcomeError(StoreUnavailableError):
    """The connection broke while a request was under way: it may have been applied."""


class SchemaError(StoreError):
    """The table is missing, incomplete or from a newer psched; the text names the mend."""


class MissingTableError(SchemaError):
    """The table does not exist."""


def described(error: BaseException) -> str:
    """An error as one short line: its name, and its text if it has one."""
    name, text = type(error).__name__, text_of(error)
    return f"{brief(name)}: {text}" if text else brief(name)


def text_of(error: BaseException) -> str:
    """An error's text as one short line; empty if it has none, or if its ``__str__`` fails."""
    try:
        return brief(str(error))
    except (Exception, SystemExit):  # noqa: BLE001  # its own __str__ raises what it likes
        return ""
