"""The part of the contract of a store that PerfectSched's table has room for."""

import pytest

from psched.contrib.perfectsched.store.store import PerfectSchedStore
from psched.core.store_protocol import Settled, Store
from psched.testing import (
    BacklogContract,
    CoreContract,
    HistoryContract,
    LastRunsContract,
    OutputContract,
    ReplaceAndRecordContract,
    RunSummaryContract,
)
from psched.testing.store_contract.bench import leased
from psched.testing.store_contract.history import ending_with, recorded, runs
from support.compat import compat_factory
from support.stores import Sql

pytestmark = [pytest.mark.empty, pytest.mark.stores]


class TestPerfectSchedStore(
    CoreContract,
    BacklogContract,
    HistoryContract,
    ReplaceAndRecordContract,
    LastRunsContract,
    RunSummaryContract,
    OutputContract,
):
    @pytest.fixture
    def backend_factory(self, database):
        if database.kind == "mariadb":
            # PerfectSched leaves the character set to the database; the suite has keys in Chinese.
            Sql(database.url)("ALTER DATABASE CHARACTER SET utf8mb4")
        with compat_factory(database.url) as open_store:
            open_store().init()
            yield open_store

    def test_a_repeated_settlement_is_recorded_once(self, backend_factory):
        """Unlike in the contract, no other store repeats it: the table holds no token."""
        store = backend_factory()
        held = leased(store, "k")
        record = recorded(held)
        for _ in range(2):
            assert store.settle([ending_with(held, record)]) == {"k": Settled.DONE}
        assert runs(store) == [record]


def test_every_method_of_the_protocol_is_written_anew():
    """One that was left out would be the protocol's own, which does nothing, or not much."""
    left_out = {"settle_and_claim", "lanes", "replace_many", "join_transaction", "plan_init"}
    methods = [name for name, value in vars(Store).items() if callable(value) and name[0] != "_"]
    assert {"claim", "settle", "disconnect"} <= {*methods}
    assert {n for n in methods if getattr(PerfectSchedStore, n) is getattr(Store, n)} == left_out


def test_its_rows_cannot_be_leased_by_their_keys(database):
    """The table has no room for what an extra run would have to give back."""
    with compat_factory(database.url) as open_store:
        assert open_store().holds is None
