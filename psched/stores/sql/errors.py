"""The kinds of database errors, by their meaning for the request, and psched's exception for each.

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
    """Not applied, for a temporary reason (a lock, a deadlock): send the request again."""

    UNAVAILABLE = "unavailable"
    """Not applied, and the connection is unusable: drop it, and try again later."""

    READ_ONLY = "read-only"
    """Not applied: the server is not a primary. Drop the connection, and find the primary."""

    UNKNOWN = "unknown"
    """The connection broke during the request, which may have been applied."""

    SCHEMA = "schema"
    """Not applied: the table or one of its columns does not exist."""

    DUPLICATE = "duplicate"
    """Not applied: a row with this key exists."""

    INVALID_VALUE = "invalid value"
    """Not applied: a value does not fit its column, or violates a constraint. Do not repeat."""

    MISCONFIGURED = "misconfigured"
    """Not applied, because of the server's configuration; that must be changed first."""

    UNSUPPORTED = "unsupported"
    """Not applied: the server does not support this kind of statement."""

    REFUSED = "refused"
    """Not applied, for any other permanent reason, such as missing rights. Do not repeat."""


class UnsupportedStatementError(StoreError):
    """The server does not support this kind of statement."""


class InvalidValueError(StoreError):
    """A value does not fit its column. Other rows can still be written."""


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
    """Turn an `InvalidValueError` within the block into an error about the argument ``data``.

    Raises:
        InvalidError: a value did not fit its column.
    """
    try:
        yield
    except InvalidValueError as error:
        raise InvalidError("data", str(error)) from None
