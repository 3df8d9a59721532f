"""SQL that finds rows by texts, and by their keys with a condition for each.

The texts of the latter are cached, because building them takes longer than the database needs for
the statement.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import TextClause, text

from psched.base.texts import storable

Request = tuple[TextClause, dict[str, Any]]
"""A statement and the values that it binds."""


def by_keys(head: str, keys: Sequence[str]) -> Request:
    """A request: the text ``head``, and a condition that selects the rows with these keys."""
    values = {f"id{i}": key for i, key in enumerate(keys)}
    return _keys_text(head, len(keys)), values


@lru_cache(maxsize=64)
def _keys_text(head: str, count: int) -> TextClause:
    return text(head + _is_one_of(count))


@lru_cache(maxsize=64)
def conditional_text(head: str, condition: str, count: int, place: str = "id") -> TextClause:
    """A statement: the text ``head``, and the condition that `fulfils` returns."""
    return text(head + fulfils(condition, count, place))


def fulfils(condition: str, count: int, place: str = "id") -> str:
    """An SQL condition that selects those of ``count`` rows that fulfil ``condition``.

    Rows are found by the column ``place``. In the condition for row number i, ``{0}`` is replaced
    by i, so that each row is compared with its own values.
    """
    # IN finds the rows, and CASE compares them. An OR of conditions is not used instead, because
    # some planners would not use the index for it.
    cases = " ".join(f"WHEN :{place}{i} THEN {condition.format(i)}" for i in range(count))
    return f"{_is_one_of(count, place)} AND CASE {place} {cases} END"


def _is_one_of(count: int, place: str = "id") -> str:
    return f"{place} IN ({', '.join(f':{place}{i}' for i in range(count))})"


def numbered(name: str, chosen: Iterable[str]) -> dict[str, Any]:
    """Values to bind for some texts; one that no store can contain is equal to none."""
    return {f"{name}{i}": storable(value) for i, value in enumerate(sorted(chosen))}


def placeholders(values: Mapping[str, Any]) -> str:
    """What stands for the values in a list of SQL."""
    return ", ".join(f":{name}" for name in values)
