"""The kinds of database errors, and the exception of psched that each kind becomes.

Each dialect classifies its driver's errors by number. No other code reads these numbers, and no
code reads the text of an error.
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
    """The request was not applied, for a temporary reason such as a deadlock: repeat it."""

    UNAVAILABLE = "unavailable"
    """The request was not applied: close the unusable connection, and try again later."""

    NO_ROOM = "no room"
    """The request was not applied, because the server lacks disk, memory or space in a table.

    The connection is closed as after `UNAVAILABLE`.
    """

    READ_ONLY = "read-only"
    """The request was not applied, because the server is not a primary: connect to the primary."""

    UNKNOWN = "unknown"
    """The connection broke, so it is unknown whether the request was applied."""

    SCHEMA = "schema"
    """The request was not applied, because the table or a column does not exist."""

    DUPLICATE = "duplicate"
    """The request was not applied, because a row with this key exists."""

    INVALID_VALUE = "invalid value"
    """The request was not applied, because of a value, so repeating the request is useless.

    The value does not fit its column, or violates a constraint.
    """

    MISCONFIGURED = "misconfigured"
    """The request was not applied, because the server's configuration does not allow it."""

    UNSUPPORTED = "unsupported"
    """The request was not applied, because the server does not support this kind of statement."""

    REFUSED = "refused"
    """The request was not applied, for another permanent reason, such as missing rights.

    Repeating the request is useless.
    """


class UnsupportedStatementError(StoreError):
    """The server does not support this kind of statement."""


class InvalidValueError(StoreError):
    """A value does not fit its column, so its row cannot be written; other rows can."""


class StoreFullError(StoreUnavailableError):
    """The request was not applied, because the server's disk, memory or table is full."""


_EXCEPTIONS: dict[ErrorKind, tuple[type[StoreError | ScheduleError], str]] = {
    ErrorKind.TRANSIENT: (StoreBusyError, "the database is busy"),
    ErrorKind.UNAVAILABLE: (StoreUnavailableError, "the database is unavailable"),
    ErrorKind.NO_ROOM: (StoreFullError, "the database is unavailable"),
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
    """Create the exception for an error of this kind; its text ends with ``detail``."""
    exception, text = _EXCEPTIONS[kind]
    return exception(f"{text}: {detail}")


@contextmanager
def refusing_data() -> Iterator[None]:
    """Turn an `InvalidValueError` within the block into an error about the argument ``data``."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidError("data", str(error)) from None
