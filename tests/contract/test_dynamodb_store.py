"""The store contract on DynamoDB's protocol: on dynalite, which honours conditions."""

import pytest

from psched.testing import (
    BackendContract,
    BacklogContract,
    HoldsContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
)
from support.stores import SOME, store_factory, takes_some_types

pytestmark = pytest.mark.dynamodb


class TestDynamoDBStore(
    BackendContract,
    BacklogContract,
    HoldsContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
):
    @pytest.fixture
    def table(self, dynalite):
        return dynalite.new_table()

    @pytest.fixture
    def backend_factory(self, dynalite, table):
        with store_factory(dynalite.url(), table=table) as open_store:
            open_store().init()
            yield open_store

    @pytest.fixture
    def set_status(self, dynalite, table):
        def set_status(key, status):
            dynalite.ask(
                "UpdateItem",
                TableName=table,
                Key={"id": {"S": key}},
                UpdateExpression="SET #status = :status",
                ExpressionAttributeNames={"#status": "status"},
                ExpressionAttributeValues={":status": {"S": status}},
            )

        return set_status

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(
        self, backend_factory, dynalite, table
    ):
        with store_factory(dynalite.url(), table=table, only=SOME) as open_some:
            takes_some_types(backend_factory(), open_some())

    def test_what_the_service_cannot_hold_is_not_there(self, backend_factory):
        store = backend_factory()
        assert (store.history, store.output, store.alerts) == (None, None, None)
        assert store.announcements is store.light_reads is store.recorded_changes is None
