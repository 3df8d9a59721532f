"""Tests of the columns for a row's state, of individual settings, and of unusual keys."""

from collections.abc import Mapping
from dataclasses import replace as changed
from math import floor
from typing import Any

from psched.base.errors import AlreadyExistsError
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.core.columns import LATEST_TIME
from psched.core.model import FINISHED, QUARANTINED, WAITING, ReasonCode, Row, Settlement, Token
from psched.core.store_protocol import Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    LONG_AGO,
    BackendFactory,
    WithStore,
    add,
    claim,
    claim_all,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
    payload,
    refused,
    wait_for_end,
)
from psched.testing.store_contract.definitions import FULL

TOLD: Mapping[str, Any] = {
    "decided_until": LATEST_TIME,
    "moved_at": 0,
    "local_time": "2027-03-28T03:00:00+02:00 2026b",
    "reason_code": ReasonCode.PAUSED_AFTER_FAILURES,
    "paused_at": 1,
    "paused_until": LATEST_TIME - 1,
    "pause_note": "ann@web1: \u00fc 'x'",
}
"""Columns that a settlement and a change write besides the status and the times."""

NOTHING: Mapping[str, Any] = dict.fromkeys(TOLD)


class Records(WithStore):
    """Tests that a row contains its lease's owner and attempt, and the token of its last settle."""

    def test_a_new_row_is_unclaimed_whatever_its_maker_says(self, store: Store) -> None:
        before = int(store.now())
        used = due("k", owner="w.1", fence=7, attempt=3, status=FINISHED, reason="x", version=9)
        store.add([used], nonce="n")
        row = found(store, "k")
        assert (row.owner, row.fence, row.attempt) == (None, 0, 0)
        assert (row.status, row.reason, row.version) == (WAITING, None, 1)
        assert row.created_at is not None
        assert before <= row.created_at <= store.now()

    def test_the_nonce_of_an_insert_tells_whose_it_was(self, store: Store) -> None:
        store.add([due("k")], nonce="mine")
        with refused(AlreadyExistsError):
            store.add([due("k")], nonce="theirs")
        assert found(store, "k").settled_by == "mine"

    def test_a_replacement_raises_the_version_and_keeps_who_settled(
        self, store: Store, other: Store
    ) -> None:
        add(store, "k")
        seen = found(store, "k")
        new = changed(FULL, key="k", reason="mended", attempt=2)
        assert store.replace(seen, new)
        row = found(other, "k")
        assert row == changed(
            new,
            data=row.data,
            options=row.options,
            version=seen.version + 1,
            settled_by=seen.settled_by,
            created_at=seen.created_at,
        )
        assert payload(row.data) == FULL.data
        assert payload(row.options) == FULL.options

    def test_a_replacement_under_a_lease_may_move_the_cursor(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        held = leased(worker, "k")
        seen = found(person, "k")
        # The replacement must succeed although the holder extends its lease after this read.
        assert worker.extend({"k": held.token}, alive_time=600, shortest=1) == {"k"}
        before = found(person, "k")
        new = changed(seen, type="new", next_time=LONG_AGO + 5, next_run_time=LONG_AGO + 5)
        assert person.replace(seen, new)
        after = found(person, "k")
        assert after.next_run_time == before.next_run_time
        assert (after.token, after.attempt) == (held.token, held.attempt)
        assert (after.type, after.next_time) == ("new", LONG_AGO + 5)
        assert worker.extend({"k": held.token}, alive_time=600, shortest=1) == {"k"}

    def test_a_claim_returns_the_rows_as_it_leaves_them(self, store: Store, other: Store) -> None:
        row = due("k", type="t", data='{"n":1}', cron="@daily", timezone="UTC", options="{}")
        store.add([row], nonce="n")
        before = found(store, "k")
        (held,) = claim(store, "w.1").rows
        after = found(other, "k")
        # A claimed row contains the time at which it fell due, and not the end of its lease. Only a
        # store with a run history notes when the row was claimed.
        assert held.next_run_time == before.next_run_time
        assert (
            changed(held, next_run_time=after.next_run_time, claimed_at=after.claimed_at) == after
        )
        assert held.token == Token("w.1", before.fence + 1)
        assert held.attempt == 1
        free = changed(after, owner=None, fence=0, attempt=0, claimed_at=None)
        assert changed(free, next_run_time=before.next_run_time) == before

    def test_every_claim_of_a_row_raises_its_fence(self, store: Store) -> None:
        fences = []
        held = leased(store, "k", "w.0")
        for number in range(1, 4):
            fences.append(held.fence)
            store.settle([ending(held, attempt=held.attempt)])
            (held,) = claim(store, f"w.{number}").rows
        assert fences == sorted(set(fences))
        assert held.attempt == 4  # noqa: PLR2004  # the fourth attempt

    def test_each_row_of_many_is_claimed_once(self, store: Store) -> None:
        add(store, *(f"k{number}" for number in range(450)))
        claim_all(store, "w")
        assert {row.fence for row in store.rows()} == {1}

    def test_a_lease_that_ran_out_is_taken_over_and_said_to_be(
        self, store: Store, other: Store
    ) -> None:
        (lost,) = leased_for_a_moment(store, "lost")
        add(store, "fresh")
        claimed = claim(other, "w.2")
        assert {row.key for row in claimed.rows} == {"lost", "fresh"}
        assert {key: lease.token for key, lease in claimed.expired.items()} == {"lost": lost.token}
        taken = found(other, "lost")
        assert taken.owner == "w.2"
        assert taken.fence == lost.fence + 1
        assert taken.attempt == lost.attempt + 1
        assert taken.next_time == lost.next_time

    def test_held_tells_what_a_claim_has_really_done(self, store: Store, other: Store) -> None:
        add(store, "mine", "settled")
        mine, settled = sorted(claim(store, "w.1").rows, key=lambda row: row.key)
        leased(store, "theirs", "w.2")
        add(store, "free")
        store.settle([ending(settled)])
        keys = ["mine", "settled", "theirs", "free", "missing"]
        (held,) = other.held("w.1", keys)
        assert held == found(store, "mine")
        assert held.token == mine.token
        assert not store.held("w.3", keys)

    def test_a_settlement_writes_what_it_says_and_ends_the_lease(
        self, store: Store, other: Store
    ) -> None:
        held = leased(store, "k")
        before = found(store, "k")
        end = ending(held, next_time=LATER, not_before=LATER + 30, attempt=2, reason="why é")
        assert store.settle([end]) == {"k": Settled.DONE}
        assert found(other, "k") == changed(
            before,
            next_time=LATER,
            next_run_time=LATER + 30,
            attempt=2,
            reason="why é",
            owner=None,
            claimed_at=None,
            settled_by=str(held.token),
        )

    def test_a_row_can_be_put_to_rest(self, store: Store) -> None:
        add(store, "finished", "quarantined")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        finished = ending(rows["finished"], rest=True, status=FINISHED, not_before=LATER)
        bad = ending(rows["quarantined"], rest=True, status=QUARANTINED, reason="bad", wait=60)
        store.settle([finished, bad])
        resting = found(store, "finished")
        assert (resting.status, resting.next_run_time, resting.owner) == (FINISHED, None, None)
        resting = found(store, "quarantined")
        assert (resting.status, resting.next_run_time, resting.reason) == (QUARANTINED, None, "bad")

    def test_a_row_may_be_left_without_a_time(self, store: Store) -> None:
        """A settlement has no ``next_time`` if the worker cannot compute the next occurrence."""
        add(store, "waits", "rests")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        waits = ending(rows["waits"], next_time=None, wait=60)
        rests = ending(rows["rests"], next_time=None, rest=True, status=QUARANTINED)
        store.settle([waits, rests])
        assert found(store, "rests").next_time is None
        row = found(store, "waits")
        assert (row.next_time, row.status) == (None, WAITING)
        assert (row.next_run_time or 0) > store.now() + 30

    def test_a_repeated_settlement_is_recognised_and_applied_once(
        self, store: Store, other: Store
    ) -> None:
        kept, gone = leased(store, "kept"), leased(store, "gone", "worker.2")
        ends = [ending(kept, not_before=LONG_AGO, reason="once"), ending(gone, remove=True)]
        for sender in store, store, other:
            assert sender.settle(ends) == {"kept": Settled.DONE, "gone": Settled.DONE}
        # The store recognises a repeated settle even while the row has a new lease, and does not
        # change the new lease.
        claim(other, "w.2")
        leased_again = found(other, "kept")
        assert leased_again.owner == "w.2"
        assert store.settle(ends[:1]) == {"kept": Settled.DONE}
        assert found(store, "kept") == leased_again

    def test_each_settlement_of_a_batch_has_an_outcome_of_its_own(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "lost")
        claim(person, "w.2")
        keys = ("finish", "Finish", "removed", "redefined", "repeated", "gone")
        add(worker, *keys)
        rows = {row.key: row for row in claim(worker, "w.3").rows}
        seen = found(person, "redefined")
        person.replace(seen, changed(seen, delay=1))
        worker.settle([ending(rows["repeated"], next_time=7, not_before=LATER)])
        worker.settle([ending(rows["gone"], remove=True)])
        ends = {key: ending(row, next_time=row.fence, wait=60) for key, row in rows.items()}
        ends["removed"] = ending(rows["removed"], remove=True)
        assert worker.settle([ending(lost), *ends.values()]) == {
            "lost": Settled.PREEMPTED,
            "finish": Settled.DONE,
            "Finish": Settled.DONE,
            "removed": Settled.DONE,
            "redefined": Settled.REDEFINED,
            "repeated": Settled.DONE,
            "gone": Settled.PREEMPTED,
        }
        left = {row.key: (row.owner, row.next_time) for row in worker.rows()}
        assert left == {
            "lost": ("w.2", LONG_AGO),
            "finish": (None, 1),
            "Finish": (None, 1),
            "redefined": ("w.3", LONG_AGO),
            "repeated": (None, 7),
        }

    def test_very_many_leases_are_settled_at_once_each_its_own_way(self, store: Store) -> None:
        add(store, *(f"k{number}" for number in range(450)))
        rows = claim_all(store, "w")
        ends = [_numbered(row, number) for number, row in enumerate(rows)]
        results = store.settle(ends)
        assert len(results) == len(rows)
        assert set(results.values()) == {Settled.DONE}
        left = {row.key: row for row in store.rows()}
        for end in ends:
            if end.remove:
                assert end.key not in left
                continue
            row = left[end.key]
            assert (row.next_time, row.reason) == (end.next_time, end.reason)
            assert (row.status, row.owner) == (WAITING, None)
            assert row.settled_by == str(end.token)

    def test_what_is_alike_in_a_batch_is_written_for_each_and_what_is_not_for_its_own(
        self, store: Store
    ) -> None:
        for number, name in enumerate(_ALIKE):
            add(store, *(f"{name}{place}" for place in range(3)))
            ends = [ending(row, **_ALIKE) for row in claim_all(store, f"w.{number}")]
            ends[1] = changed(ends[1], **{name: _UNLIKE[name]})
            assert store.settle(ends) == dict.fromkeys((end.key for end in ends), Settled.DONE)
            for end in ends:
                row = found(store, end.key)
                assert (row.next_time, row.next_run_time) == (end.next_time, end.not_before)
                assert (row.attempt, row.status, row.reason) == (
                    end.attempt,
                    end.status,
                    end.reason,
                )
                assert row.settled_by == str(end.token)

    def test_what_a_settlement_or_a_change_tells_is_stored(self, store: Store) -> None:

        def stored() -> Mapping[str, Any]:
            row = found(store, "k")
            return {name: getattr(row, name) for name in TOLD}

        held = leased(store, "k")
        assert stored() == NOTHING
        assert store.settle([ending(held, next_time=None, **TOLD)]) == {"k": Settled.DONE}
        assert stored() == TOLD
        wait_for_end(store, "k")
        (row,) = claim(store, "w.2").rows
        assert {name: getattr(row, name) for name in TOLD} == TOLD
        assert store.replace(row, changed(row, **NOTHING))
        assert stored() == NOTHING
        row = found(store, "k")
        assert store.replace(row, changed(row, **TOLD))
        assert stored() == TOLD
        row = found(store, "k")
        assert store.settle([ending(row, next_time=60, **NOTHING)]) == {"k": Settled.DONE}
        assert stored() == NOTHING
        store.add([due("added", local_time=TOLD["local_time"])], nonce="n")
        assert found(store, "added").local_time == TOLD["local_time"]

    def test_a_row_that_was_added_again_has_its_old_fences_and_another_owner(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "k")
        person.delete("k")
        add(person, "k")
        (held,) = claim(person, "w.2").rows
        assert held.fence == lost.fence
        assert worker.extend({"k": lost.token}, alive_time=LEASE, shortest=1) == frozenset()
        assert worker.settle([ending(lost)]) == {"k": Settled.PREEMPTED}


_ALIKE: dict[str, Any] = {
    "next_time": 7200,
    "not_before": LATER,
    "attempt": 1,
    "status": WAITING,
    "reason": "as all the others",
}
_UNLIKE: dict[str, Any] = {
    "next_time": 3600,
    "not_before": LATER + 60,
    "attempt": 2,
    "status": QUARANTINED,
    "reason": None,
}


def _numbered(row: Row, number: int) -> Settlement:
    """A settlement that removes its row if 3 divides ``number``, else writes ``number``."""
    if number % 3 == 0:
        return ending(row, remove=True)
    return ending(row, next_time=number, not_before=LATER, reason=f"the {number}th")


_KEYS = ("a", "A", "á", "a\u0301", "ß", "ss", "a.b", "a%", "a_", "ab", "x" * 255, "鍵" * 255)
"""Keys that some collations treat as equal, and keys of the greatest length."""


class Overrides(WithStore):
    """Tests that a row can have its own ``alive_time`` and options, and can have no trigger."""

    def test_all_that_was_declared_is_read_by_every_worker(
        self, store: Store, other: Store
    ) -> None:
        store.add([FULL], nonce="n")
        row = found(other, FULL.key)
        assert payload(row.data) == FULL.data
        assert payload(row.options) == FULL.options
        assert row == changed(
            FULL, data=row.data, options=row.options, settled_by="n", created_at=row.created_at
        )

    def test_a_schedule_that_runs_once_has_no_trigger(self, store: Store) -> None:
        store.add([due("once", cron=None)], nonce="n")
        assert found(store, "once").cron is None
        assert [row.key for row in claim(store, "w.1").rows] == ["once"]

    def test_a_row_may_have_a_lease_of_its_own_length(self, store: Store) -> None:
        own = {"longer": 1000, "short": 3, "zero": 0, "endless": 2**62}
        rows = [due(key, alive_time=alive_time) for key, alive_time in own.items()]
        store.add(rows, nonce="n")
        before = floor(store.now()) + 1
        claim(store, "w.1", alive_time=LEASE, shortest=20)
        after = floor(store.now()) + 1
        lengths = {"longer": 1000, "short": 20, "zero": 20, "endless": LONGEST_ALIVE_TIME}
        for key, length in lengths.items():
            assert before + length <= (found(store, key).next_run_time or 0) <= after + length

    def test_extending_respects_a_rows_own_length_and_the_shortest(self, store: Store) -> None:
        store.add([due("long", alive_time=1000), due("short", alive_time=3)], nonce="n")
        tokens = {row.key: row.token for row in claim(store, "w.1").rows}
        before = floor(store.now()) + 1
        assert store.extend(tokens, alive_time=LEASE, shortest=20) == {"long", "short"}
        after = floor(store.now()) + 1
        for key, length in {"long": 1000, "short": 20}.items():
            assert before + length <= (found(store, key).next_run_time or 0) <= after + length


class ExactKeys(WithStore):
    """Tests that two keys are different if any character differs, whatever the collation is."""

    def test_keys_are_told_apart_character_by_character(self, store: Store) -> None:
        for number, key in enumerate(_KEYS):
            store.add([due(key, delay=number)], nonce="n")
        for number, key in enumerate(_KEYS):
            assert found(store, key).delay == number
        assert [store.look([key]).keys() for key in _KEYS] == [{key} for key in _KEYS]

    def test_a_token_is_worth_nothing_on_a_key_that_looks_alike(self, store: Store) -> None:
        held = leased(store, "K")
        leased(store, "k", "worker.2")
        before = found(store, "k")
        assert store.extend({"k": held.token}, alive_time=LEASE, shortest=1) == frozenset()
        assert store.settle([ending(changed(held, key="k"))]) == {"k": Settled.PREEMPTED}
        assert found(store, "k") == before
