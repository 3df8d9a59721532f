"""The domain in SimpleDB: each method is one request, or one for each page of an answer.

Each write is of one item, because a batch of writes has no conditions.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any
from xml.etree import ElementTree as ET

from typing_extensions import override

from psched.stores.conditional.aws import ConditionFailedError
from psched.stores.conditional.items import (
    SHARDS,
    Item,
    Table,
    can_be_key,
    check_key,
    part_of,
    place_of,
)
from psched.stores.pages import Page, batched
from psched.stores.simpledb.connector import Connector
from psched.stores.simpledb.encoding import (
    check_size,
    decode,
    digits,
    encode,
    split,
    token_of,
)

_MOST_READ = 20
"""The most keys that one request can read."""

_LARGEST_PAGE = 1_000
"""The most items that are asked for at once; the service returns at most 1 MB."""

_LONGEST_KEY = 1024
"""The most bytes of a key."""


class SimpleDBDomain(Table):
    """The domain, through a connection. All reads are consistent."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    @property
    def offset(self) -> float | None:  # type: ignore[override]  # nobody sets it
        """See `Table`."""
        return self._connector.offset

    @override
    def begin(self) -> None:
        self._connector.begin()

    @override
    def read(self, keys: Sequence[str]) -> Mapping[str, Item]:
        found = dict[str, Item]()
        valid = [key for key in dict.fromkeys(keys) if can_be_key(key, _LONGEST_KEY)]
        for batch in batched(valid, _MOST_READ):
            names = ", ".join(map(_quoted, batch))
            # An answer of more than 1 MB has several pages.
            for item in self._select(f"itemName() in ({names})", _MOST_READ):
                found[item.row.key] = item
        return found

    @override
    def insert(self, item: Item) -> bool:
        check_key(item.row.key, _LONGEST_KEY)
        attributes = encode(item)
        check_size(attributes)
        return self._put(item.row.key, attributes, None)

    @override
    def update(self, seen: Item, new: Item) -> Item | None:
        before, after = encode(seen), encode(new)
        if (seen.row.data, seen.row.options) != (new.row.data, new.row.options):
            check_size(after)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        return new if self._put(new.row.key, changed or after, token_of(seen)) else None

    @override
    def remove(self, seen: Item) -> bool:
        return self._write("DeleteAttributes", seen.row.key, {}, token_of(seen))

    @override
    def queue(self, name: str, until: int, size: int) -> Iterator[tuple[int, Item]]:
        parts = ", ".join(_quoted(part_of(name, number)) for number in range(SHARDS))
        which = f"queue in ({parts}) and at <= {_quoted(digits(until))} order by at asc"
        for item in self._select(which, size):
            place = place_of(item)
            yield until if place is None else place.at, item

    @override
    def scan(self, place: Any, most: int, *, holder: str | None = None) -> Page[Item]:
        found, following = self._page("parts is not null", most, place)
        if holder is not None:
            found = [item for item in found if _is_of(item, holder)]
        return Page(found, following)

    @override
    def note(self, name: str) -> str | None:
        answer = self._connector.ask("GetAttributes", {"ItemName": name, "ConsistentRead": "true"})
        found = _attributes(answer.find("GetAttributesResult"))
        if "notes" not in found:
            return None
        return "".join(found[f"n{number}"] for number in range(int(found["notes"])))

    @override
    def replace_note(self, name: str, seen: str | None, new: str) -> bool:
        parts = split(new)
        attributes = {"token": _checksum(new), "notes": str(len(parts))}
        attributes |= {f"n{number}": part for number, part in enumerate(parts)}
        return self._put(name, attributes, None if seen is None else _checksum(seen))

    def try_rights(self) -> None:
        """Send each kind of request once, so that nothing is changed."""
        self._put(" rights", {"token": "x"}, "never")
        self._write("DeleteAttributes", " rights", {}, "never")
        self.note(" rights")
        self.scan(None, 1)

    def _put(self, key: str, attributes: Mapping[str, str], seen: str | None) -> bool:
        body = dict[str, str]()
        for number, (name, value) in zip(count(1), attributes.items(), strict=False):
            body |= {f"Attribute.{number}.Name": name, f"Attribute.{number}.Value": value}
            body[f"Attribute.{number}.Replace"] = "true"
        return self._write("PutAttributes", key, body, seen)

    def _write(self, action: str, key: str, body: Mapping[str, str], seen: str | None) -> bool:
        """Write if the item has the token that was seen; with None, if there is no such item."""
        expected = {"Expected.1.Name": "token"}
        expected |= {"Expected.1.Exists": "false"} if seen is None else {"Expected.1.Value": seen}
        parameters = {"ItemName": key, **expected, **body}
        try:
            self._connector.ask(action, parameters, writing=True)
        except ConditionFailedError:
            return False
        return True

    def _select(self, which: str, size: int) -> Iterator[Item]:
        place: str | None = ""
        while place is not None:
            found, place = self._page(which, size, place)
            size = min(4 * size, _LARGEST_PAGE)
            yield from found

    def _page(self, which: str, size: int, place: str | None) -> tuple[Sequence[Item], str | None]:
        query = f"select * from `{self._connector.table}` where {which} limit {size}"  # noqa: S608
        start = {"NextToken": place} if place else {}
        asked = {"SelectExpression": query, "ConsistentRead": "true", **start}
        answer = self._connector.ask("Select", asked)
        found = [
            decode(each.findtext("Name") or "", _attributes(each)) for each in answer.iter("Item")
        ]
        return found, answer.findtext(".//NextToken")


def _attributes(element: ET.Element | None) -> dict[str, str]:
    if element is None:
        return {}
    found = element.findall("Attribute")
    return {each.findtext("Name") or "": each.findtext("Value") or "" for each in found}


def _is_of(item: Item, holder: str) -> bool:
    return any(
        each is not None and each.startswith(holder) for each in (item.row.owner, item.row.held_by)
    )


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
