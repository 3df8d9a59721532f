"""The kinds of database errors, by their meaning for the request, and psched's exception for each.

Each dialect classifies its driver's errors by number; nothing else looks at a number, and nothing
at all at an error's text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    ScheduleError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)


class ErrorKind(Enum):
    """What an error means for the request that failed with it."""

    TRANSIENT = "transient"
    """Not applied, for a reason that passes (a lock, a deadlock): send the request again."""

    UNAVAILABLE = "unavailable"
    """Not applied, and the connection is unusable: drop it, and try again later."""

    READ_ONLY = "read-only"
    """Not applied: the server is no primary. Drop the connection, and look for the primary."""

    UNKNOWN = "unknown"
    """The connection broke while the request was under way: it may have been applied."""

    SCHEMA = "schema"
    """Not applied: the table or one of its columns does not exist."""

    DUPLICATE = "duplicate"
    """Not applied: a row with this key exists."""

    INVALID_VALUE = "invalid value"
    """Not applied, and never will be: a value does not fit its column, or breaks a constraint."""

    MISCONFIGURED = "misconfigured"
    """Not applied, and will not be as long as the server is configured as it is."""

    UNSUPPORTED = "unsupported"
    """Not applied: the server does not understand such a statement."""

    REFUSED = "refused"
    """Not applied, and will not be, for any other reason: rights, the database's name, …"""


class UnsupportedStatementError(StoreError):
    """The server does not understand a statement of this kind."""


class InvalidValueError(StoreError):
    """A value does not fit. Only its own row is at fault, so other rows can still be written."""


_EXCEPTIONS: dict[ErrorKind, tuple[type[StoreError | ScheduleError], str]] = {
    ErrorKind.TRANSIENT: (StoreBusyError, "the database is busy"),
    ErrorKind.UNAVAILABLE: (StoreUnavailableError, "the database is unavailable"),
    ErrorKind.READ_ONLY: (StoreUnavailableError, "the database is read-only"),
    ErrorKind.UNKNOWN: (UnknownOutcomeError, "the connection to the database broke"),
    ErrorKind.SCHEMA: (SchemaError, "the table is not as psched needs it, run `psched init`"),
    ErrorKind.DUPLICATE: (AlreadyExistsError, "a row with this key exists"),
    ErrorKind.INVALID_VALUE: (InvalidValueError, "the database refused"),
    ErrorKind.MISCONFIGURED: (
        StoreError,
        "the database server cannot be used as it is configured",
    ),
    ErrorKind.UNSUPPORTED: (UnsupportedStatementError, "the database cannot do this"),
    ErrorKind.REFUSED: (StoreError, "the database refused"),
}


def exception_for(kind: ErrorKind, detail: str) -> StoreError | ScheduleError:
    """The exception for an error of this kind; its text ends with the detail."""
    exception, text = _EXCEPTIONS[kind]
    return exception(f"{text}: {detail}")


@contextmanager
def refusing_data() -> Iterator[None]:
    """Blame a value that does not fit on the caller's ``data``.

    Raises:
        InvalidError: a value did not fit.
    """
    try:
        yield
    except InvalidValueError as error:
        raise InvalidError("data", str(error)) from None
