"""What a fault of a database is to psched: its exception, and what is said about it."""

from collections.abc import Iterator
from contextlib import contextmanager

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
from psched.stores.sql.dialects import Fault

MESSAGES = {
    Fault.NOT_APPLIED: "the database is busy",
    Fault.UNAVAILABLE: "the database is unavailable",
    Fault.READ_ONLY: "the database is read-only",
    Fault.UNKNOWN: "the connection to the database broke",
    Fault.SCHEMA: "the table is not as psched needs it, run `psched init`",
    Fault.DUPLICATE: "a row with this key exists",
    Fault.UNFIT: "the database refused",
    Fault.MISCONFIGURED: "the database server cannot be used as it is configured",
    Fault.UNABLE: "the database cannot do this",
    Fault.REFUSED: "the database refused",
}


class UnableError(StoreError):
    """The server knows no such statement."""


class UnfitError(StoreError):
    """A value does not fit: the row's own fault, and no other row's."""


ERRORS: dict[Fault, type[StoreError | ScheduleError]] = {
    Fault.NOT_APPLIED: StoreBusyError,
    Fault.UNAVAILABLE: StoreUnavailableError,
    Fault.READ_ONLY: StoreUnavailableError,
    Fault.UNKNOWN: UnknownOutcomeError,
    Fault.SCHEMA: SchemaError,
    Fault.DUPLICATE: AlreadyExistsError,
    Fault.UNFIT: UnfitError,
    Fault.MISCONFIGURED: StoreError,
    Fault.UNABLE: UnableError,
    Fault.REFUSED: StoreError,
}


@contextmanager
def refusing_data() -> Iterator[None]:
    """Where data that do not fit are the fault of who gave them, and not the store's.

    Raises:
        InvalidError: they do not fit.
    """
    try:
        yield
    except UnfitError as error:
        raise InvalidError("data", str(error)) from None
