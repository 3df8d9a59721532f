"""Converts rows to items of SimpleDB, and back.

All values are texts, of at most 1,024 bytes, and a write cannot remove an attribute. So an item
has: ``token``, which every write changes, and on which it is conditional; ``queue`` and ``at``, its
place in the index, of which the number has leading zeros, because texts are compared; ``parts``,
the numbers of the following; the columns as JSON in the parts ``r0``, ``r1`` …; and the data in the
parts ``d0``, ``d1`` …. Parts beyond these numbers are left over from a longer text.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from psched.base.compression import compress, decompress, in_base64
from psched.base.errors import InvalidError
from psched.core.model import Row
from psched.stores.conditional.items import Item, place_of

_PART = 1024
"""The most bytes of a value."""

_MOST_PARTS = 240
"""The most parts of an item: it can have 256 attributes, and leases and settles add to it."""

_COLUMNS = {each.name for each in fields(Row)} - {"key", "data"}

NOWHERE = "none"
"""The queue of an item that is in none."""

_DIGITS = 20


def digits(number: int) -> str:
    """A number of the index, so that texts are in the order of their numbers."""
    return str(min(max(number, 0), 10**_DIGITS - 1)).zfill(_DIGITS)


def token_of(item: Item) -> str:
    """What every write changes. The status is left out: people change it by hand."""
    row = item.row
    lease = row.owner, row.fence, row.version, row.next_run_time, row.held_by, row.held_until
    return json.dumps([*lease, item.beat, item.adding])


def encode(item: Item) -> dict[str, str]:
    """The attributes of an item."""
    columns = {name: each for name, each in asdict(item.row).items() if name in _COLUMNS}
    columns |= {"beat": item.beat, "lease": item.lease, "adding": item.adding}
    own = {name: _plain(each) for name, each in columns.items() if each is not None}
    rows, data = split(json.dumps(own)), split(_data(item.row.data))
    place = place_of(item)
    return {
        "token": token_of(item),
        "queue": place.queue if place else NOWHERE,
        "at": digits(place.at if place else 0),
        "parts": f"{len(rows)} {len(data)}",
        **{f"r{number}": part for number, part in enumerate(rows)},
        **{f"d{number}": part for number, part in enumerate(data)},
    }


def check_size(attributes: Mapping[str, str]) -> None:
    """Refuse an item that the service would not store, now or after its next runs."""
    if sum(map(int, attributes["parts"].split())) > _MOST_PARTS:
        raise InvalidError(
            "data",
            f"makes the schedule too large for SimpleDB, which stores at most {_MOST_PARTS} kB of"
            " it, compressed; store such large data elsewhere and pass a reference to them",
        )


def decode(key: str, attributes: Mapping[str, str]) -> Item:
    """The item that has these attributes."""
    numbers = [int(each) for each in attributes["parts"].split()]
    rows, data = (
        "".join(attributes[f"{kind}{number}"] for number in range(most))
        for kind, most in zip("rd", numbers, strict=True)
    )
    found = json.loads(rows)
    columns: dict[str, Any] = {name: _stored(found[name]) for name in _COLUMNS if name in found}
    return Item(
        Row(key=key, data=_read_data(data), **columns),
        beat=found.get("beat", 0),
        lease=found.get("lease", 0),
        adding=found.get("adding"),
    )


def split(text: str) -> list[str]:
    """A text of ASCII in parts, each of which is short enough for a value."""
    return [text[start : start + _PART] for start in range(0, len(text), _PART)]


def _data(data: str | bytes | None) -> str:
    """The data as ASCII: compressed if that is shorter."""
    if data is None:
        return ""
    packed = compress(data, _PART, in_base64)
    if packed is not data:
        kind = "z" if isinstance(data, str) else "y"
        return kind + (packed if isinstance(packed, str) else packed.decode())
    return json.dumps(_plain(data))


def _read_data(text: str) -> str | bytes | None:
    if not text:
        return None
    if text[0] not in "zy":
        return _stored(json.loads(text))  # type: ignore[return-value]  # as it was written
    plain = decompress(text[1:])
    content = plain.encode() if isinstance(plain, str) else plain
    return content.decode() if text[0] == "z" else content


def _plain(value: object) -> object:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _stored(value: object) -> object:
    return base64.b64decode(value["bytes"]) if isinstance(value, dict) else value
