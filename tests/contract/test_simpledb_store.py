"""The store contract on SimpleDB's protocol: on a fake that holds what is documented."""

from dataclasses import replace

import pytest

from psched.stores.simpledb.encoding import encode
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


class TestSimpleDBStore(
    BackendContract,
    BacklogContract,
    HoldsContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
):
    @pytest.fixture
    def table(self, simpledb):
        return simpledb.new_domain()

    @pytest.fixture
    def backend_factory(self, simpledb, table):
        with store_factory(simpledb.url(), table=table) as open_store:
            open_store().init()
            yield open_store

    @pytest.fixture
    def set_status(self, backend_factory):
        domain = backend_factory()._domain

        def set_status(key, status):
            domain.begin()
            item = domain.read([key])[key]
            written = encode(replace(item, row=replace(item.row, status=status)))
            parameters = {"ItemName": key}
            for number, (name, value) in enumerate(written.items(), 1):
                attribute = f"Attribute.{number}"
                parameters |= {f"{attribute}.Name": name, f"{attribute}.Value": value}
                parameters[f"{attribute}.Replace"] = "true"
            domain._connector.ask("PutAttributes", parameters)

        return set_status

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(
        self, backend_factory, simpledb, table
    ):
        with store_factory(simpledb.url(), table=table, only=SOME) as open_some:
            takes_some_types(backend_factory(), open_some())

    def test_what_the_service_cannot_hold_is_not_there(self, backend_factory):
        store = backend_factory()
        assert (store.history, store.output, store.alerts) == (None, None, None)
        assert store.announcements is store.light_reads is store.recorded_changes is None
