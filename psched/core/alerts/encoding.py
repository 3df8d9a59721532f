"""The JSON texts in which stores keep those fields of an alert that are no plain values."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import MappingProxyType, NoneType
from typing import Any

from psched.base.texts import storable
from psched.core.alerts.alert import Delivery

_TYPES: Mapping[str, tuple[type, ...]] = {
    "tries": (int,),
    "next_try": (int, NoneType),
    "done": (bool,),
    "problem": (str, NoneType),
}
"""The types of the values of a delivery's fields."""


def names_text(names: Iterable[str]) -> str:
    """The names of hooks, as a JSON list."""
    return _text([*names])


def names_in(text: str) -> tuple[str, ...]:
    """The names in a text of `names_text`; none if somebody has written another text."""
    found = _value(text)
    if not isinstance(found, list):
        return ()
    return tuple(name for name in found if isinstance(name, str))


def deliveries_text(deliveries: Mapping[str, Delivery]) -> str:
    """Deliveries, as a JSON object."""
    return _text({name: asdict(delivery) for name, delivery in deliveries.items()})


def deliveries_in(text: str) -> Mapping[str, Delivery]:
    """The deliveries in a text of `deliveries_text`.

    A delivery that somebody has written in another form is left out, so that it is tried again.
    """
    found = _value(text)
    if not isinstance(found, dict):
        return MappingProxyType({})
    read = {name: _delivery(each) for name, each in found.items()}
    return MappingProxyType({name: each for name, each in read.items() if each is not None})


def _delivery(found: Any) -> Delivery | None:  # noqa: ANN401  # any JSON value
    if not isinstance(found, dict):
        return None
    # Another version of psched may have written more fields than this one knows.
    values = {name: found[name] for name in _TYPES if name in found}
    are_valid = all(type(value) in _TYPES[name] for name, value in values.items())
    return Delivery(**values) if are_valid else None


def _text(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _value(text: str) -> Any:  # noqa: ANN401  # any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
