"""The table in DynamoDB: each method is one request, or one for each page of an answer.

Each write is of one item, because a batch of writes has no conditions. So none can be left
unprocessed; of a batch that is read, some can (`DynamoDBTable._read_batch`).

All names of attributes are sent as placeholders, because hundreds of words are reserved, ``type``,
``status``, ``data`` and ``owner`` among them.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from math import floor
from operator import itemgetter
from typing import Any

from typing_extensions import override

from psched.stores.conditional.aws import ConditionFailedError
from psched.stores.conditional.items import (
    SHARDS,
    Item,
    Table,
    can_be_key,
    check_key,
    part_of,
)
from psched.stores.dynamodb.connector import Connector
from psched.stores.dynamodb.encoding import (
    COMPARED,
    EXPIRES,
    KEY,
    Attributes,
    check_size,
    decode,
    encode,
    value_of,
)
from psched.stores.pages import Page, batched

INDEX = "psched_1"
"""The index. Its number is that of the layout: a later layout has another index."""

_MOST_READ = 100
"""The most keys that one request can read."""

_LONGEST_KEY = 2048
"""The most bytes of a key. The service refuses a request for a longer one."""

_PAUSE = 0.1
"""Seconds before items that were left out are read again for the first time, at most."""

_LARGEST_PAGE = 1_000
"""The most items of an answer from the index. The first answer has as many as are wanted."""


class DynamoDBTable(Table):
    """The table, through a connection."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    @override
    def begin(self) -> None:
        self._connector.begin()

    @property
    def offset(self) -> float | None:  # type: ignore[override]  # nobody sets it
        """See `Table`."""
        return self._connector.offset

    @override
    def read(self, keys: Sequence[str]) -> Mapping[str, Item]:
        found = dict[str, Item]()
        valid = [key for key in dict.fromkeys(keys) if can_be_key(key, _LONGEST_KEY)]
        for batch in batched(valid, _MOST_READ):
            for attributes in self._read_batch([{KEY: value_of(key)} for key in batch]):
                item = decode(attributes)
                found[item.row.key] = item
        return found

    def _read_batch(self, keys: Sequence[Attributes]) -> Iterator[Attributes]:
        """Read items; again those that the service has left out, because they would be too many."""
        pause = _PAUSE
        while keys:
            wanted = {self._connector.table: {"Keys": keys, "ConsistentRead": True}}
            answer = self._connector.send("BatchGetItem", {"RequestItems": wanted})
            found = answer.get("Responses", {}).get(self._connector.table, [])
            yield from found
            left = answer.get("UnprocessedKeys", {}).get(self._connector.table, {})
            keys = left.get("Keys", [])
            if keys and not found:
                self._connector.pause(pause)
                pause *= 2

    @override
    def insert(self, item: Item) -> bool:
        check_key(item.row.key, _LONGEST_KEY)
        attributes = encode(item)
        check_size(attributes)
        # What has expired is as good as gone, although the service may remove it days later.
        return self._write(
            "PutItem",
            Item=attributes,
            ConditionExpression="attribute_not_exists(#id) OR #expires <= :now",
            ExpressionAttributeNames={"#id": KEY, "#expires": EXPIRES},
            ExpressionAttributeValues={":now": value_of(item.row.created_at or 0)},
        )

    @override
    def update(self, seen: Item, new: Item) -> Item | None:
        before, after = {**encode(seen), **seen.odd}, encode(new)
        condition, names, values = _unchanged(before)
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        gone = before.keys() - after.keys()
        if not {"data", "data_gz", "options"}.isdisjoint(changed):
            check_size(after)
        sets = ", ".join(f"#{name} = :{name}" for name in changed)
        removes = ", ".join(f"#{name}" for name in gone)
        names |= {f"#{name}": name for name in (*changed, *gone)}
        values |= {f":{name}": value for name, value in changed.items()}
        expression = f"SET {sets} " * bool(sets) + f"REMOVE {removes}" * bool(removes)
        more = {"UpdateExpression": expression} if expression else {}
        try:
            answer = self._connector.ask(
                "UpdateItem",
                writing=True,
                Key={KEY: before[KEY]},
                ConditionExpression=condition,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
                ReturnValues="ALL_NEW",
                **more,
            )
        except ConditionFailedError:
            return None
        return decode(answer["Attributes"])

    @override
    def remove(self, seen: Item) -> bool:
        before = {**encode(seen), **seen.odd}
        condition, names, values = _unchanged(before)
        return self._write(
            "DeleteItem",
            Key={KEY: before[KEY]},
            ConditionExpression=condition,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )

    @override
    def queue(self, name: str, until: int, size: int) -> Iterator[tuple[int, Item]]:
        parts = (self._part(part_of(name, number), until, size) for number in range(SHARDS))
        yield from heapq.merge(*parts, key=itemgetter(0))

    def _part(self, part: str, until: int, size: int) -> Iterator[tuple[int, Item]]:
        start: Mapping[str, Any] = {}
        while True:
            answer = self._connector.ask(
                "Query",
                IndexName=INDEX,
                KeyConditionExpression="#queue = :queue AND #at <= :at",
                ExpressionAttributeNames={"#queue": "queue", "#at": "at"},
                ExpressionAttributeValues={":queue": value_of(part), ":at": value_of(until)},
                Limit=size,
                **start,
            )
            size = min(4 * size, _LARGEST_PAGE)
            for attributes in answer["Items"]:
                yield floor(float(attributes["at"]["N"])), decode(attributes)
            if not answer.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    @override
    def scan(self, place: Any, most: int, *, holder: str | None = None) -> Page[Item]:
        names, values = {"#version": "version"}, dict[str, Any]()
        condition = "attribute_exists(#version)"  # notes have none
        if holder is not None:
            condition += " AND (begins_with(#owner, :holder) OR begins_with(#held_by, :holder))"
            names |= {"#owner": "owner", "#held_by": "held_by"}
            values = {"ExpressionAttributeValues": {":holder": value_of(holder)}}
        start = {"ExclusiveStartKey": place} if place else {}
        answer = self._connector.ask(
            "Scan",
            ConsistentRead=True,
            FilterExpression=condition,
            ExpressionAttributeNames=names,
            Limit=most,
            **values,
            **start,
        )
        return Page([*map(decode, answer["Items"])], answer.get("LastEvaluatedKey"))

    @override
    def note(self, name: str) -> str | None:
        answer = self._connector.ask("GetItem", Key={KEY: value_of(name)}, ConsistentRead=True)
        found: str | None = answer.get("Item", {}).get("note", {}).get("S")
        return found

    @override
    def replace_note(self, name: str, seen: str | None, new: str) -> bool:
        values = {":new": value_of(new)} | ({} if seen is None else {":seen": value_of(seen)})
        return self._write(
            "UpdateItem",
            Key={KEY: value_of(name)},
            UpdateExpression="SET #note = :new",
            ConditionExpression="attribute_not_exists(#note)" if seen is None else "#note = :seen",
            ExpressionAttributeNames={"#note": "note"},
            ExpressionAttributeValues=values,
        )

    def try_rights(self) -> None:
        """Send each kind of request once, so that nothing is changed."""
        key, names = {KEY: value_of(" rights")}, {"#id": KEY}
        condition: dict[str, Any] = {
            "ConditionExpression": "attribute_exists(#id)",
            "ExpressionAttributeNames": names,
        }
        self._write("PutItem", Item=key, **condition)
        self._write("DeleteItem", Key=key, **condition)
        self._write("UpdateItem", Key=key, **condition)
        self.read([" rights"])
        self.note(" rights")
        self.scan(None, 1)
        next(self.queue("due", 0, 1), None)

    def _write(self, action: str, **body: Any) -> bool:  # noqa: ANN401  # the protocol's
        try:
            self._connector.ask(action, writing=True, **body)
        except ConditionFailedError:
            return False
        return True


def _unchanged(seen: Attributes) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The condition that an item is as it was seen, and the names and values in it."""
    there = [name for name in COMPARED if name in seen]
    missing = [name for name in COMPARED if name not in seen]
    # An item that somebody else has deleted lacks every attribute.
    parts = [
        "attribute_exists(#id)",
        *(f"#{name} = :was_{name}" for name in there),
        *(f"attribute_not_exists(#{name})" for name in missing),
    ]
    names = {"#id": KEY} | {f"#{name}": name for name in COMPARED}
    return " AND ".join(parts), names, {f":was_{name}": seen[name] for name in there}
