"""Converts rows to items of DynamoDB, and back.

An item has the columns of its row as attributes, of which ``id`` is the key; a column that is NULL
has none. Further attributes: ``queue`` and ``at`` (the place in the index), ``expires`` (when an
item may go), ``beat``, ``lease`` and ``adding`` (see `Item`), and ``data_gz`` in place of ``data``
if the data are compressed.
"""

import base64
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from math import floor
from typing import Any

from psched.base.compression import compress, decompress
from psched.base.errors import InvalidError
from psched.core.model import Row
from psched.stores.conditional.items import ENDED, WATCHED, Item, place_of

Attributes = Mapping[str, Mapping[str, Any]]
"""An item in the form of the protocol: for each attribute, its type and value."""

KEY = "id"

EXPIRES = "expires"
"""The attribute for DynamoDB's "time to live". What waits has none, so that it is never removed."""

COMPARED = (*WATCHED, "beat", "adding")
"""The attributes on which a write is conditional."""

PARTIAL = (
    *WATCHED,
    *("type", "attempt", "claimed_at", "alive_time", "retain_until", "created_at"),
    *("beat", "lease", "adding"),
)
"""The attributes of an item that are also in the index."""

_COLUMNS = {each.name: each for each in fields(Row) if each.name != "key"}
_NUMBERS = {name for name, each in _COLUMNS.items() if "int" in str(each.type)}

_PLAIN = 1024
"""The most bytes of data that are stored as they are. DynamoDB charges for each 1,024 written."""

_LARGEST = 400 * 1024 - 10_000
"""The most bytes of an item: the service's limit, less what leases and settles add to it."""

_pack = partial(compress, above=_PLAIN, form=bytes)


def encode(item: Item) -> Attributes:
    """The attributes of an item."""
    found: dict[str, Any] = {name: getattr(item.row, name) for name in _COLUMNS}
    packed = _pack(item.row.data) if isinstance(item.row.data, str) else item.row.data
    if packed is not item.row.data:
        found |= {"data": None, "data_gz": packed}
    found |= {KEY: item.row.key, "adding": item.adding}
    found |= {"beat": item.beat or None, "lease": item.lease or None}
    if (place := place_of(item)) is not None:
        found |= place._asdict()
        if place.queue.startswith(ENDED):
            found[EXPIRES] = place.at
    return {name: value_of(each) for name, each in found.items() if each is not None}


def check_size(attributes: Attributes) -> None:
    """Refuse an item that the service would not store, now or after its next runs."""
    # A value is a text; bytes are in base64 here, and in the service three quarters of that.
    sizes = (
        len(name) + len(each.encode()) * (3 if kind == "B" else 4) // 4
        for name, value in attributes.items()
        for kind, each in value.items()
    )
    if (size := sum(sizes)) > _LARGEST:
        raise InvalidError(
            "data",
            f"makes the schedule {size} bytes long, compressed; DynamoDB stores at most {_LARGEST},"
            " so store such large data elsewhere and pass a reference to them",
        )


def value_of(plain: str | bytes | int) -> Mapping[str, Any]:
    """A value in the form of the protocol."""
    if isinstance(plain, str):
        return {"S": plain}
    if isinstance(plain, bytes):
        return {"B": base64.b64encode(plain).decode()}
    return {"N": str(plain)}


def decode(attributes: Attributes) -> Item:
    """The item that has these attributes; one of another type than psched writes is left out."""
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        value = _plain(attributes.get(name))
        if value is not None and isinstance(value, int) == (name in _NUMBERS):
            columns[name] = value
    if isinstance(packed := _plain(attributes.get("data_gz")), bytes):
        columns["data"] = _unpacked(packed)
    key, adding = _plain(attributes[KEY]), _plain(attributes.get("adding"))
    beat, lease = _plain(attributes.get("beat")), _plain(attributes.get("lease"))
    item = Item(
        Row(key=str(key), **columns),
        beat=beat if isinstance(beat, int) else 0,
        lease=lease if isinstance(lease, int) else 0,
        adding=None if adding is None else str(adding),
    )
    known = encode(item)
    odd = {n: attributes[n] for n in COMPARED if attributes.get(n, known.get(n)) != known.get(n)}
    return replace(item, odd=odd) if odd else item


def _unpacked(packed: bytes) -> str | bytes:
    """The data; as they are stored if they are broken, so that only their own row fails."""
    try:
        data = decompress(packed)
        return data.decode() if isinstance(data, bytes) else data
    except ValueError:
        return packed


def _plain(value: Mapping[str, Any] | None) -> str | bytes | int | None:
    match value:
        case {"S": str(text)}:
            return text
        case {"N": str(digits)}:
            return int(digits) if digits.lstrip("-").isdigit() else floor(float(digits))
        case {"B": str(encoded)}:
            return base64.b64decode(encoded)
    return None
