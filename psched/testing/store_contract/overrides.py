"""Tests of rows with individual settings, of rows without a trigger, and of unusual keys."""

from dataclasses import replace as changed
from math import floor

from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LEASE,
    BackendFactory,
    claim,
    due,
    ending,
    found,
    leased,
    payload,
)
from psched.testing.store_contract.definitions import FULL

_KEYS = ("a", "A", "á", "a\u0301", "ß", "ss", "a.b", "a%", "a_", "ab", "x" * 255, "鍵" * 255)
"""Keys that some collations treat as equal, and keys of the greatest length."""


class Overrides:
    """Tests that a row can have its own ``alive_time`` and options, and can have no trigger."""

    def test_all_that_was_declared_is_read_by_every_worker(
        self, backend_factory: BackendFactory
    ) -> None:
        backend_factory().add([FULL], nonce="n")
        row = found(backend_factory(), FULL.key)
        assert payload(row.data) == FULL.data
        assert payload(row.options) == FULL.options
        assert row == changed(
            FULL, data=row.data, options=row.options, settled_by="n", created_at=row.created_at
        )

    def test_a_schedule_that_runs_once_has_no_trigger(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        store.add([due("once", cron=None)], nonce="n")
        assert found(store, "once").cron is None
        assert [row.key for row in claim(store, "w.1").rows] == ["once"]

    def test_a_row_may_have_a_lease_of_its_own_length(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        own = {"longer": 1000, "short": 3, "zero": 0, "endless": 2**62}
        rows = [due(key, alive_time=alive_time) for key, alive_time in own.items()]
        store.add(rows, nonce="n")
        before = floor(store.now()) + 1
        claim(store, "w.1", alive_time=LEASE, shortest=20)
        after = floor(store.now()) + 1
        lengths = {"longer": 1000, "short": 20, "zero": 20, "endless": LONGEST_ALIVE_TIME}
        for key, length in lengths.items():
            assert before + length <= (found(store, key).next_run_time or 0) <= after + length

    def test_extending_respects_a_rows_own_length_and_the_shortest(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        store.add([due("long", alive_time=1000), due("short", alive_time=3)], nonce="n")
        tokens = {row.key: row.token for row in claim(store, "w.1").rows}
        before = floor(store.now()) + 1
        assert store.extend(tokens, alive_time=LEASE, shortest=20) == {"long", "short"}
        after = floor(store.now()) + 1
        for key, length in {"long": 1000, "short": 20}.items():
            assert before + length <= (found(store, key).next_run_time or 0) <= after + length


class ExactKeys:
    """Tests that two keys are different if any character differs, whatever the collation is."""

    def test_keys_are_told_apart_character_by_character(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for number, key in enumerate(_KEYS):
            store.add([due(key, delay=number)], nonce="n")
        for number, key in enumerate(_KEYS):
            assert found(store, key).delay == number
        assert [store.look([key]).keys() for key in _KEYS] == [{key} for key in _KEYS]

    def test_a_token_is_worth_nothing_on_a_key_that_looks_alike(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "K")
        leased(store, "k", "worker.2")
        before = found(store, "k")
        assert store.extend({"k": held.token}, alive_time=LEASE, shortest=1) == frozenset()
        assert store.settle([ending(changed(held, key="k"))]) == {"k": Settled.PREEMPTED}
        assert found(store, "k") == before
