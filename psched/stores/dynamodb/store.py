"""The store on DynamoDB: creates the table, and describes it; the rest is `ConditionalStore`."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import (
    MissingTableError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
)
from psched.config import Config
from psched.stores.conditional.store import ConditionalStore
from psched.stores.dynamodb.connector import Connector
from psched.stores.dynamodb.encoding import EXPIRES, KEY, PARTIAL
from psched.stores.dynamodb.table import INDEX, DynamoDBTable

_PAUSE = 0.2
"""Seconds between two looks at a table that is being created."""

_LONGEST_CREATION = 120.0
"""Seconds that a table may take to become ready."""


class DynamoDBStore(ConditionalStore):
    """Schedules in one table of DynamoDB."""

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        self._name = settings.table
        self._connector = Connector(settings, clock=clock, rng=rng)
        self._dynamodb = DynamoDBTable(self._connector)
        super().__init__(self._dynamodb, settings, clock=clock)
        self._expires: bool | None = None

    @override
    def init(self, *, force: bool = False) -> Sequence[str]:
        try:
            is_new = self._described() is None
            if is_new:
                self._create()
            self._check(self._when_ready())
            return [f"created {self._name} in {self._connector.shown}"] if is_new else []
        finally:
            self.disconnect()

    def _create(self) -> None:
        self._connector.begin()
        try:
            self._connector.ask("CreateTable", writing=True, **_definition())
        except TransientStoreError:
            raise
        except StoreError as error:
            if self._described() is None:  # else another host creates it
                fix = f"let somebody who may create it run: {self._command()}"
                raise StoreError(f"{error}; {fix}") from None

    def _when_ready(self) -> Mapping[str, Any]:
        """The table's description, as soon as the table can be used."""
        give_up_at = self._clock.monotonic() + _LONGEST_CREATION
        while not _is_ready(found := self._described()):
            if self._clock.monotonic() > give_up_at:
                raise StoreUnavailableError(f"the table {self._name} is still being created")
            self._clock.sleep(_PAUSE)
        return found or {}

    @override
    def plan_init(self) -> Sequence[tuple[str, str]]:
        if (found := self._described()) is not None:
            self._check(found)
            return []
        return [(self._command(), "nothing; the table is ready after some seconds")]

    @override
    def try_rights(self) -> None:
        self._connector.begin()
        self._dynamodb.try_rights()

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        before = self._clock.monotonic()
        if (found := self._described()) is None:
            raise self._connector.missing_table()
        took = self._clock.monotonic() - before
        self._check(found)
        size = found.get("TableSizeBytes", 0) / 2**20
        return [
            ("server", self._connector.shown),
            *self.facts,
            ("billing", _billing(found)),
            (
                "ended tasks",
                f"are removed by {'DynamoDB' if self._removes_itself() else 'workers'}",
            ),
            ("size", f"{found.get('ItemCount', 0)} items, {size:.1f} MB (of some hours ago)"),
            ("encrypted", self._connector.encryption or "no"),
            ("round trip", f"{took * 1000:.3f} ms"),
        ]

    @override
    def purge(self, limit: int) -> int:
        return 0 if self._removes_itself() else super().purge(limit)

    def _removes_itself(self) -> bool:
        """Whether somebody has told the service to remove what has expired."""
        if self._expires is None:
            self._connector.begin()
            try:
                found = self._connector.ask("DescribeTimeToLive")["TimeToLiveDescription"]
            except TransientStoreError:
                raise
            except StoreError:  # it may not ask
                found = {}
            state = found.get("TimeToLiveStatus"), found.get("AttributeName")
            self._expires = state == ("ENABLED", EXPIRES)
        return self._expires

    @override
    def disconnect(self) -> None:
        self._connector.disconnect()

    def _described(self) -> Mapping[str, Any] | None:
        self._connector.begin()
        try:
            found: Mapping[str, Any] = self._connector.ask("DescribeTable")["Table"]
        except MissingTableError:
            return None
        if found["TableStatus"] == "DELETING":
            raise StoreUnavailableError(f"the table {self._name} is being deleted")
        return found

    def _check(self, found: Mapping[str, Any]) -> None:
        indexes = {each["IndexName"] for each in found.get("GlobalSecondaryIndexes", ())}
        if INDEX not in indexes:
            raise SchemaError(
                f"the table {self._name!r} in {self._connector.shown} has no index {INDEX}: it is"
                " not psched's, or of another version; choose another table"
            )

    def _command(self) -> str:
        """The command of AWS' command line that creates the table."""
        definition = json.dumps({"TableName": self._name, **_definition()})
        return f"aws dynamodb create-table --cli-input-json '{definition}'"


def _definition() -> Mapping[str, Any]:
    """The table, as DynamoDB wants it described."""
    return {
        "AttributeDefinitions": [
            {"AttributeName": KEY, "AttributeType": "S"},
            {"AttributeName": "queue", "AttributeType": "S"},
            {"AttributeName": "at", "AttributeType": "N"},
        ],
        "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        "BillingMode": "PAY_PER_REQUEST",
        "GlobalSecondaryIndexes": [
            {
                "IndexName": INDEX,
                "KeySchema": [
                    {"AttributeName": "queue", "KeyType": "HASH"},
                    {"AttributeName": "at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": [*PARTIAL]},
            }
        ],
    }


def _is_ready(found: Mapping[str, Any] | None) -> bool:
    if found is None:
        return False
    states = [found["TableStatus"]]
    states += [each.get("IndexStatus") for each in found.get("GlobalSecondaryIndexes", ())]
    return {*states} == {"ACTIVE"}


def _billing(found: Mapping[str, Any]) -> str:
    mode = found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        return "for each request (on demand)"
    limits = found.get("ProvisionedThroughput", {})
    read, written = limits.get("ReadCapacityUnits"), limits.get("WriteCapacityUnits")
    return f"for a capacity: {read} reads and {written} writes a second; more are throttled"
