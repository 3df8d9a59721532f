"""The setting ``types``, which holds settings for single types of task.

The settings of a type override those of the installation. The settings of a schedule override those
of its type.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from psched.config.kinds import FrozenMapping, Kind, read_parts
from psched.config.problems import InvalidValueError
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
    "pause_after_failures",
    "on_return",
    "expire",
    "retention_time",
    "kill_timeout",
    "kill_interval",
    "history",
    "output",
    "output_limit",
    "result",
    "expect",
    "alert_on",
    "on_failed",
    "on_late",
    "on_lost",
    "on_recovered",
    "ping",
    "ping_output",
)
"""The names of the settings that can be overridden for a type of task in ``types``, and for a
single schedule in its ``options``. Of ``expect``, each part is overridden by itself."""

OF_A_TYPE = (*OVERRIDES, "alive_time")
"""The names of the settings that can be overridden for a type of task in ``types``. ``alive_time``
is not in `OVERRIDES`, because a schedule stores its own ``alive_time`` in a column, not in its
``options``."""


class Types(FrozenMapping[Mapping[str, Any]]):
    """For the name of each type of task: the settings that override those of the installation."""

    __slots__ = ()

    def __init__(self, by_type: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> None:
        super().__init__({name: MappingProxyType(dict(own)) for name, own in by_type.items()})

    def __repr__(self) -> str:
        return repr({name: dict(own) for name, own in self.items()})


NO_TYPES = Types()


class PerType(Kind):
    """The kind of value of the setting ``types``: a mapping, which `read` converts to `Types`.

    Args:
        kind_of: a function that returns the `Kind` of the setting with a given name.
    """

    def __init__(self, kind_of: Callable[[str], Kind]) -> None:
        self._kind_of = kind_of

    description = "a mapping from types to their own settings"

    @override
    def read(self, value: object, context: Context) -> Types:
        if value is None or isinstance(value, Types):
            return value or NO_TYPES
        if not isinstance(value, Mapping):
            raise self.mismatch(value)

        def read_type(name: object, own: object) -> tuple[str, dict[str, Any]]:
            if not (isinstance(name, str) and name.isprintable() and name.strip() == name != ""):
                raise InvalidValueError("must be the name of a type")
            if not isinstance(own, Mapping):
                raise InvalidValueError("must be a mapping of settings")
            return name, read_parts(own, read_setting)

        def read_setting(setting: object, given: object) -> tuple[str, Any]:
            if setting not in OF_A_TYPE:
                raise InvalidValueError(_unknown(setting))
            return str(setting), self._kind_of(str(setting)).read(given, context)

        return Types(read_parts(value, read_type))


def _unknown(name: object) -> str:
    if near := get_close_matches(str(name), OF_A_TYPE, 1):
        return f"is not a setting of a type; did you mean {near[0]}?"
    return f"is not a setting of a type; these are {', '.join(OF_A_TYPE)}"
