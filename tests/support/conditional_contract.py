"""The store contract where leases are taken over by observation."""

import pytest

from psched.base.errors import InvalidError
from psched.core.store_protocol import Settled
from psched.testing import (
    BackendContract,
    BacklogContract,
    HoldsContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
)
from psched.testing.store_contract import CoreContract, EndsAndClaims, Marks, Recovery
from psched.testing.store_contract.bench import claim, due, ending
from support.stores import SOME, store_factory, takes_some_types


class ObservedContract(CoreContract, EndsAndClaims, Marks, Recovery, HoldsContract):
    """For stores with `takeover: observed` that have seen each lease for long when they claim.

    Who deletes, holds, or asks what it holds has seen nothing. So these tests do not hold, see
    `test_takeover`.
    """

    test_a_lease_that_ran_out_is_not_held = None
    test_a_row_whose_lease_ran_out_is_removed = None
    test_a_row_that_was_deleted_and_added_again_is_another = None
    test_a_marked_row_whose_holder_is_gone_is_claimed_to_be_removed = None
    test_a_row_whose_hold_has_ended_is_deleted_at_once = None
    test_a_hold_that_has_ended_gives_way_to_another_and_is_not_extended_then = None


class ConditionalContract(
    BackendContract,
    BacklogContract,
    HoldsContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
):
    """A subclass has the fixtures ``url`` and ``table``, and ``set_status`` of `StatusContract`.

    Attributes:
        longest_key: the most bytes of a key.
    """

    longest_key: int

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

    def test_a_key_that_is_too_long_is_refused_by_its_name(self, backend_factory):
        store, half = backend_factory(), self.longest_key // 2
        store.add([due("\u00e9" * half)], nonce="n")
        [row] = claim(store, "w.1").rows
        assert store.settle([ending(row)]) == {row.key: Settled.DONE}
        told = f"key: has {2 * half + 2} bytes in UTF-8; in this store it may have {2 * half}"
        with pytest.raises(InvalidError, match=told):
            store.add([due("\u00e9" * (half + 1))], nonce="n")

    def test_what_the_service_cannot_hold_is_not_there(self, backend_factory):
        store = backend_factory()
        assert (store.history, store.output, store.alerts) == (None, None, None)
        assert store.announcements is store.light_reads is store.recorded_changes is None
