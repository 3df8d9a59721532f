"""Trying what we may do with a table, without changing it."""

from collections.abc import Callable, Mapping

from sqlalchemy import TextClause

from psched.errors import SchemaError, StoreError, StoreUnavailableError


def try_rights(
    attempts: Mapping[str, TextClause], send: Callable[[TextClause], object], table: str
) -> None:
    """See `psched.backend.Backend.try_rights`.

    Args:
        attempts: for each right a statement that needs it, and changes nothing.
        send: sends one.
        table: the table's name, for people.
    """
    refused: dict[str, str] = {}
    for right, statement in attempts.items():
        try:
            send(statement)
        except (SchemaError, StoreUnavailableError):
            raise
        except StoreError as error:
            refused[right] = str(error)
    if refused:
        rights, reason = ", ".join(refused), next(iter(refused.values()))
        raise StoreError(f"cannot {rights} in the table {table!r}: {reason}")
