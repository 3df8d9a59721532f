"""The setting ``types``: for some types of task, some settings are others than for all.

They hold between the installation's and those that a schedule has of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from psched.config.checking import RawValue
from psched.config.kinds import Kind, unlike
from psched.config.problems import InvalidPartsError, InvalidValueError, Part
from psched.config.references import Context

OVERRIDES = (
    "catchup",
    "catchup_limit",
    "catchup_grace",
    "catchup_window",
    "jitter",
    "dst_policy",
    "retry_wait",
    "retry_backoff",
    "retry_wait_limit",
    "max_attempts",
    "on_return",
    "expire",
    "retention_time",
    "kill_timeout",
    "kill_interval",
)
"""Settings that a type, and a schedule in its ``options``, may have of its own."""

OF_A_TYPE = (*OVERRIDES, "alive_time")
"""A schedule has a column for the last one."""


class Types(Mapping[str, Mapping[str, Any]]):
    """Settings by the names of types. Cannot be changed, and can be a key."""

    __slots__ = ("_by_type",)

    def __init__(self, by_type: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        self._by_type = {name: MappingProxyType(dict(own)) for name, own in by_type.items()}

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self._by_type[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_type)

    def __len__(self) -> int:
        return len(self._by_type)

    def __hash__(self) -> int:
        return hash(frozenset((name, *sorted(own)) for name, own in self.items()))

    def __repr__(self) -> str:
        return repr({name: dict(own) for name, own in self.items()})


NO_TYPES = Types()


class PerType:
    """Types with settings of their own.

    Args:
        kind_of: the kind of a setting's values.
    """

    def __init__(self, kind_of: Callable[[str], Kind]) -> None:
        self._kind_of = kind_of

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "a mapping from types to their own settings"

    def read(self, value: object, around: Context) -> Types:
        """See `Kind.read`."""
        if value is None or isinstance(value, Types):
            return value or NO_TYPES
        if not isinstance(value, Mapping):
            raise unlike(self, value)
        parts: list[Part] = []
        found: dict[str, dict[str, Any]] = {}
        for name, given in value.items():
            own, line = _given(given)
            if not (isinstance(name, str) and name.isprintable() and name.strip() == name != ""):
                parts.append(Part((name,), "must be the name of a type", line))
            elif not isinstance(own, Mapping):
                parts.append(Part((name,), "must be a mapping of settings", line))
            else:
                found[name] = self._read_all(name, own, around, parts)
        if parts:
            raise InvalidPartsError(parts)
        return Types(found)

    def _read_all(
        self, name: str, own: Mapping[Any, object], around: Context, parts: list[Part]
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for setting, given in own.items():
            value, line = _given(given)
            if setting not in OF_A_TYPE:
                parts.append(Part((name, setting), _unknown(setting), line))
                continue
            try:
                values[setting] = self._kind_of(setting).read(value, around)
            except InvalidValueError as refusal:
                parts.append(Part((name, setting), str(refusal), line))
        return values


def _given(value: object) -> RawValue:
    """A value with its line, if it has one."""
    return value if isinstance(value, RawValue) else RawValue(value)


def _unknown(name: object) -> str:
    if near := get_close_matches(str(name), OF_A_TYPE, 1):
        return f"is no setting of a type; did you mean {near[0]}?"
    return f"is no setting of a type; there are {', '.join(OF_A_TYPE)}"
