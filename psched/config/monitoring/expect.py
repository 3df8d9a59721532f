"""The setting ``expect``: what is expected of schedules, so that the monitor tells if it fails."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from psched.config.kinds import FrozenMapping, Number, Parts
from psched.config.problems import (
    InvalidPartsError,
    InvalidValueError,
    Problem,
    config_error,
)
from psched.config.references import Context

_DURATION = Number(above=0)

PARTS: Mapping[str, Number] = MappingProxyType(
    {
        "late": _DURATION,
        "longest": _DURATION,
        "silent": _DURATION,
        "unusual": Number(unit="", above=1, most=1_000_000),
    }
)
"""For each part of the setting: the kind of its value."""

_OFF = "off"


class Expectations(FrozenMapping[float | None]):
    """What is expected of schedules, by the names of `PARTS`.

    None means that a part is switched off. A part that is missing is not mentioned: that of the
    type, or of the installation, applies. See `over`.
    """

    __slots__ = ()

    @property
    def late(self) -> float | None:
        """By how many seconds an occurrence may start late; None means by any number."""
        return self.get("late")

    @property
    def longest(self) -> float | None:
        """How many seconds a run may take; None means any number."""
        return self.get("longest")

    @property
    def silent(self) -> float | None:
        """For how many seconds a schedule may be without a success; None means any number."""
        return self.get("silent")

    @property
    def unusual(self) -> float | None:
        """How many times the usual duration a run may take; None means any number."""
        return self.get("unusual")

    @property
    def any(self) -> bool:
        """Whether anything is expected."""
        return any(value is not None for value in self.values())

    def over(self, other: "Expectations") -> "Expectations":
        """These expectations, and those parts of others that these do not mention."""
        return Expectations({**other, **self})

    def to_json(self) -> dict[str, Any]:
        """The expectations as a JSON object, which `Expect` reads."""
        return {name: _plain(value) for name, value in self.items()}

    def __repr__(self) -> str:
        return repr(self.to_json())


NO_EXPECTATIONS = Expectations()
"""The expectations of a configuration or a row that sets no part, to a value or to off."""


class Expect(Parts[Expectations]):
    """The kind of value of the setting ``expect``: a mapping, or the word off for all parts.

    YAML reads ``off`` as false, so false is accepted, and so is null.
    """

    description = (
        "a mapping such as {late: 5m, longest: 1h, silent: 1d, unusual: 3}, in which each part can"
        " be off; or off"
    )
    empty = NO_EXPECTATIONS

    @override
    def read(self, value: object, context: Context) -> Expectations:
        if value is False or value == _OFF:
            return Expectations(dict.fromkeys(PARTS))
        return super().read(value, context)

    @override
    def part(self, context: Context, name: object, value: object) -> tuple[str, float | None]:
        if name not in PARTS:
            raise InvalidValueError(f"is not a part of expect; these are {', '.join(PARTS)}")
        if value is None or value is False or value == _OFF:
            return str(name), None
        try:
            return str(name), PARTS[str(name)].read(value, context)
        except InvalidValueError as error:
            raise InvalidValueError(f"{error}; or off") from None


_KIND = Expect()
_LITERAL = Context({}, Path("/"), literal=True)


def read_expectations(value: object) -> Expectations:
    """Read expectations as `Expectations.to_json` writes them, or as a program gives them."""
    try:
        return _KIND.read(value, _LITERAL)
    except InvalidPartsError as error:
        raise config_error(each._replace(key="expect") for each in error.parts) from None
    except InvalidValueError as error:
        raise config_error([Problem(str(error), "expect")]) from None


def _plain(value: float | None) -> float | str:
    """A part as it is stored in the options of a schedule."""
    if value is None:
        return _OFF
    return int(value) if value == int(value) else value
