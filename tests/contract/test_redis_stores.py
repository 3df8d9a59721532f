"""The store contract on Redis: on a single server, and on one behind Sentinels."""

import itertools
from contextlib import ExitStack

import pytest

from psched.testing import (
    AlertsContract,
    AnnouncesContract,
    BackendContract,
    BacklogContract,
    HistoryContract,
    HoldsContract,
    LanesContract,
    LastRunsContract,
    OutputContract,
    OverviewContract,
    PausesContract,
    ReplaceAndRecordContract,
    RunSummaryContract,
    StatusContract,
    WatchingContract,
)
from support.conditional_contract import ObservedContract
from support.stores import SOME, observing_factory, store_factory, takes_some_types

pytestmark = pytest.mark.redis

_numbers = itertools.count(1)


@pytest.mark.parametrize("database", ["redis"], indirect=True)
class TestRedisStore(
    BackendContract,
    BacklogContract,
    HoldsContract,
    HistoryContract,
    ReplaceAndRecordContract,
    LanesContract,
    LastRunsContract,
    OutputContract,
    AlertsContract,
    PausesContract,
    OverviewContract,
    WatchingContract,
    RunSummaryContract,
    StatusContract,
    AnnouncesContract,
):
    @pytest.fixture
    def backend_factory(self, database):
        with store_factory(database.url) as open_store:  # it is ready, see support.tables
            yield open_store

    @pytest.fixture
    def set_status(self, database):
        number = int(database.url.rpartition("/")[2])

        def set_status(key, status):
            row = f"{{psched}}:row:{key}"
            database.server.query("HSET", row, "status", status, db=number)

        return set_status

    @pytest.fixture
    def open_host(self, database):
        with ExitStack() as opened:
            yield lambda name, *labels: opened.enter_context(
                store_factory(database.url, host_name=name, host_labels=[*labels])
            )()

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(
        self, backend_factory, database
    ):
        with store_factory(database.url, only=SOME) as open_some:
            takes_some_types(backend_factory(), open_some())


@pytest.mark.parametrize("database", ["redis"], indirect=True)
class TestRedisStoreThatObserves(ObservedContract):
    @pytest.fixture
    def backend_factory(self, database):
        with observing_factory(database.url) as open_store:
            yield open_store


class TestRedisStoreBehindSentinels(
    BackendContract,
    BacklogContract,
    HoldsContract,
    HistoryContract,
    ReplaceAndRecordContract,
    OutputContract,
    AlertsContract,
    AnnouncesContract,
):
    @pytest.fixture
    def backend_factory(self, watched):
        with store_factory(watched.url(str(next(_numbers)))) as open_store:
            open_store().init()
            yield open_store
