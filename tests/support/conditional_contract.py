"""What the stores on conditional writes have in common of the store contract."""

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


class ConditionalContract(
    BackendContract,
    BacklogContract,
    HoldsContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
):
    """A subclass has the fixtures ``url`` and ``table``, and ``set_status`` of `StatusContract`."""

    @pytest.fixture
    def backend_factory(self, url, table):
        with store_factory(url, table=table) as open_store:
            open_store().init()
            yield open_store

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(
        self, backend_factory, url, table
    ):
        with store_factory(url, table=table, only=SOME) as open_some:
            takes_some_types(backend_factory(), open_some())

    def test_what_the_service_cannot_hold_is_not_there(self, backend_factory):
        store = backend_factory()
        assert (store.history, store.output, store.alerts) == (None, None, None)
        assert store.announcements is store.light_reads is store.recorded_changes is None
