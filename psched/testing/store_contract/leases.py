"""Tests of leases: ``claim``, ``held``, ``extend``, ``settle``, ``update_data``, and of fences."""

from collections.abc import Iterator, Mapping
from dataclasses import replace as changed
from math import floor

from psched.core.model import FINISHED, QUARANTINED, WAITING, Row, Settlement, Token
from psched.core.store_protocol import Claimed, Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    LONG_AGO,
    MOMENT,
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
    wait_for_end,
)


class Leases(WithStore):
    """Tests that only a request with a lease's whole token extends it or replaces the payload."""

    def test_extending_moves_the_end_and_nothing_else(self, store: Store) -> None:
        held = leased(store, "k")
        leased(store, "other", "worker.2")
        claimed, other = found(store, "k"), found(store, "other")
        before = floor(store.now()) + 1
        assert store.extend({"k": held.token}, alive_time=600, shortest=1) == {"k"}
        after = floor(store.now()) + 1
        extended = found(store, "k")
        assert before + 600 <= (extended.next_run_time or 0) <= after + 600
        assert changed(extended, next_run_time=claimed.next_run_time) == claimed
        assert found(store, "other") == other

    def test_extending_names_the_leases_that_are_still_held(
        self, store: Store, other: Store
    ) -> None:
        (lost,) = leased_for_a_moment(store, "lost")
        claim(other, "w.2")
        held, settled = leased(store, "held"), leased(store, "settled", "worker.2")
        store.settle([ending(settled, rest=True, status=FINISHED)])
        tokens = {row.key: row.token for row in (lost, held, settled)}
        tokens["gone"] = Token("worker.1", 1)
        rows = store.look(["lost", "settled"])
        assert store.extend(tokens, alive_time=LEASE, shortest=1) == {"held"}
        assert store.look(["lost", "settled"]) == rows

    def test_very_many_leases_are_extended_at_once(self, store: Store) -> None:
        add(store, *(f"k{number}" for number in range(450)))
        rows = claim_all(store, "w", alive_time=LEASE)
        lost = rows.pop(300)
        tokens = {row.key: row.token for row in rows}
        wrong = {lost.key: Token(lost.token.owner, lost.fence + 1)}
        assert store.extend({**wrong, **tokens}, alive_time=600, shortest=1) == set(tokens)
        soon = store.now() + 2 * LEASE
        ends = {row.key: row.next_run_time or 0 for row in store.rows()}
        assert [key for key, end in ends.items() if end < soon] == [lost.key]

    def test_extending_nothing_is_nothing(self, store: Store) -> None:
        assert store.extend({}, alive_time=LEASE, shortest=1) == frozenset()

    def test_a_payload_is_replaced_under_the_lease(self, store: Store, other: Store) -> None:
        held = leased(store, "k")
        before = found(store, "k")
        assert store.update_data("k", held.token, '{"page":"2é"}')
        assert payload(found(other, "k").data) == '{"page":"2é"}'
        after = found(store, "k")
        assert changed(after, data=before.data, version=before.version) == before
        store.settle([ending(after)])
        wait_for_end(store, "k")
        (again,) = claim(store, "w.2").rows
        assert payload(again.data) == '{"page":"2é"}'

    def test_replacing_a_payload_changes_the_definition(self, store: Store) -> None:
        held = leased(store, "k")
        assert store.update_data("k", held.token, '{"page":2}')
        assert found(store, "k").version != held.version


class Claims(WithStore):
    """Tests that a claim leases due rows to one owner, for ``alive_time`` by the store's clock."""

    def test_only_what_is_due_is_claimed(self, store: Store) -> None:
        soon = int(store.now()) + 3600
        store.add([due("past"), due("ancient", 0), due("future", soon)], nonce="n")
        store.add([changed(due("resting"), next_run_time=None)], nonce="n")
        assert {row.key for row in claim(store, "w.1").rows} == {"past", "ancient"}
        assert not claim(store, "w.2").rows

    def test_due_is_a_matter_of_next_run_time_alone(self, store: Store) -> None:
        soon = int(store.now()) + 3600
        early = changed(due("early"), next_time=soon)
        late = changed(due("delayed"), next_run_time=soon)
        store.add([early, late], nonce="n")
        assert [row.key for row in claim(store, "w.1").rows] == ["early"]

    def test_those_due_longest_come_first(self, store: Store) -> None:
        store.add([due(key, LONG_AGO + since) for since, key in enumerate("dbac")], nonce="n")
        first = claim(store, "w.1", limit=3)
        assert [row.key for row in first.rows] == ["d", "b", "a"]
        assert [row.key for row in claim(store, "w.2", limit=3).rows] == ["c"]

    def test_a_claim_says_whether_to_ask_again(self, store: Store) -> None:
        add(store, "a", "b", "c")
        assert claim(store, "w.1", limit=2).more
        assert not claim(store, "w.2", limit=2).more

    def test_a_claim_of_very_many_rows_leases_each_once(self, store: Store) -> None:
        keys = {f"k{number}" for number in range(1100)}
        add(store, *keys)
        rows = claim_all(store, "w")
        assert len(rows) == len(keys)
        assert {row.key for row in rows} == keys

    def test_nothing_due_is_an_empty_answer(self, store: Store) -> None:
        claimed = claim(store, "w.1")
        assert not claimed.rows
        assert not claimed.more
        assert not claimed.expired
        assert claimed.next_due is None

    def test_a_claim_changes_nothing_of_what_was_declared(self, store: Store) -> None:
        row = due("k", type="t", data='{"n":1}', cron="@daily", timezone="UTC")
        store.add([row], nonce="n")
        before = found(store, "k")
        (held,) = claim(store, "w.1").rows
        after = found(store, "k")
        # A claimed row contains the time at which it fell due, and not the end of its lease. Only a
        # store with a run history notes when the row was claimed.
        assert held.next_run_time == before.next_run_time
        assert (
            changed(held, next_run_time=after.next_run_time, claimed_at=after.claimed_at) == after
        )
        assert (held.token.owner, held.attempt) == ("w.1", 1)
        free = changed(after, owner=None, fence=0, attempt=0, claimed_at=None)
        assert changed(free, next_run_time=before.next_run_time) == before

    def test_a_lease_ends_by_the_stores_clock_after_its_whole_length(self, store: Store) -> None:
        add(store, "k")
        before = store.now()
        claim(store, "w.1", alive_time=LEASE)
        end = found(store, "k").next_run_time
        assert end is not None
        # The store rounds the end up, so that the lease is never shorter than its holder assumes.
        assert floor(before) + LEASE + 1 <= end <= floor(store.now()) + LEASE + 1

    def test_a_lease_is_nobody_elses_until_it_ends(self, store: Store, other: Store) -> None:
        leased(store, "k")
        assert not claim(other, "w.2").rows

    def test_the_next_due_row_is_told_if_it_is_near(self, store: Store) -> None:
        far = int(store.now()) + 3600
        store.add([due("far", far)], nonce="n")
        assert claim(store, "w.1", horizon=60).next_due is None
        claimed = claim(store, "w.2", horizon=7200)
        assert claimed.next_due == far
        assert claimed.now is not None
        assert abs(claimed.now - store.now()) < LEASE
        add(store, "due")
        claimed = claim(store, "w.3", horizon=7200)
        assert [row.key for row in claimed.rows] == ["due"]
        assert claimed.next_due == far

    def test_a_lease_that_ran_out_is_taken_over(self, store: Store, other: Store) -> None:
        (lost,) = leased_for_a_moment(store, "lost")
        add(store, "fresh")
        assert {row.key for row in claim(other, "w.2").rows} == {"lost", "fresh"}
        taken = found(other, "lost")
        assert taken.token not in {lost.token, Token("", 0)}
        assert taken.next_time == lost.next_time

    def test_a_row_that_was_settled_is_not_taken_over_but_claimed(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held)])
        wait_for_end(store, "k")
        claimed = claim(store, "w.2")
        assert [row.key for row in claimed.rows] == ["k"]
        assert not claimed.expired

    def test_what_is_at_rest_is_left_alone(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED)])
        resting = found(store, "k")
        assert not claim(store, "w.2", horizon=7200).rows
        assert found(store, "k") == resting

    def test_who_has_claimed_is_told_what_is_held(self, store: Store) -> None:
        add(store, "mine", "settled")
        mine, settled = sorted(claim(store, "w.1").rows, key=lambda row: row.key)
        leased(store, "theirs", "w.2")
        add(store, "free")
        store.settle([ending(settled)])
        (held,) = store.held("w.1", ["mine", "settled", "theirs", "free", "missing"])
        assert held == found(store, "mine")
        assert held.token == mine.token
        assert [row.key for row in store.held("w.1", [])] == ["mine"]
        assert not store.held("w.3", ["mine"])

    def test_a_lease_that_ran_out_is_not_held(self, store: Store) -> None:
        add(store, "k")
        claim(store, "w.1", **MOMENT)
        wait_for_end(store, "k")
        assert not store.held("w.1", ["k"])


class Settlements(WithStore):
    """Tests that a settlement is applied once, completely, and only while its lease is held."""

    def test_a_settlement_writes_the_times_it_names_and_ends_the_lease(
        self, store: Store, other: Store
    ) -> None:
        held = leased(store, "k")
        end = ending(held, next_time=LATER, not_before=LATER + 30)
        assert store.settle([end]) == {"k": Settled.DONE}
        row = found(other, "k")
        assert (row.next_time, row.next_run_time, row.owner) == (LATER, LATER + 30, None)
        assert (row.cron, row.version, row.status) == (held.cron, held.version, WAITING)

    def test_the_next_run_is_by_the_schedule_or_the_outcome_whichever_is_later(
        self, store: Store
    ) -> None:
        add(store, "by schedule", "overdue", "waits", "at once")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        before = floor(store.now())
        results = store.settle(
            [
                ending(rows["by schedule"], not_before=LATER, wait=60),
                ending(rows["overdue"], not_before=LONG_AGO),
                ending(rows["waits"], not_before=LONG_AGO, wait=60),
                ending(rows["at once"]),
            ]
        )
        after = floor(store.now())
        assert set(results.values()) == {Settled.DONE}
        times = {row.key: row.next_run_time or 0 for row in store.rows()}
        assert times["by schedule"] == LATER
        # The store is allowed to add one second, because a store without a column for the fence
        # distinguishes two leases by the second of their claims.
        assert before <= times["overdue"] <= after + 1
        # The wait must last at least 60 seconds, so the store rounds its end up to a whole second.
        assert before + 61 <= times["waits"] <= after + 61
        assert before <= times["at once"] <= after + 1
        for key in ("overdue", "at once"):
            wait_for_end(store, key)
        assert {row.key for row in claim(store, "w.2").rows} == {"overdue", "at once"}

    def test_a_row_that_never_runs_again_is_at_rest(self, store: Store, other: Store) -> None:
        held = leased(store, "k")
        end = ending(held, rest=True, status=FINISHED, not_before=LATER)
        assert store.settle([end]) == {"k": Settled.DONE}
        row = found(other, "k")
        assert (row.status, row.next_run_time, row.owner) == (FINISHED, None, None)

    def test_a_row_can_be_removed(self, store: Store) -> None:
        held = leased(store, "k")
        assert store.settle([ending(held, remove=True)]) == {"k": Settled.DONE}
        assert store.get("k") is None
        add(store, "k")

    def test_who_repeats_a_settlement_is_told_that_it_was_applied(self, store: Store) -> None:
        kept, gone = leased(store, "kept"), leased(store, "gone", "worker.2")
        ends = [ending(kept, not_before=LONG_AGO), ending(gone, remove=True)]
        for _ in range(2):
            assert store.settle(ends) == {"kept": Settled.DONE, "gone": Settled.DONE}

    def test_a_settlement_by_an_older_definition_is_sent_back(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        add(worker, "changed", "removed")
        rows = {row.key: row for row in claim(worker, "w.1").rows}
        seen = found(person, "changed")
        assert person.replace(seen, changed(seen, cron="@hourly"))
        seen = found(person, "removed")
        assert person.replace(seen, changed(seen, cron="@hourly"))
        before = [found(worker, "changed"), found(worker, "removed")]
        results = worker.settle(
            [ending(rows["changed"], next_time=LATER), ending(rows["removed"], remove=True)]
        )
        assert set(results.values()) == {Settled.REDEFINED}
        assert [found(worker, "changed"), found(worker, "removed")] == before
        again = [ending(row, next_time=LATER) for row in before]
        assert set(worker.settle(again).values()) == {Settled.DONE}
        assert found(worker, "changed").next_time == LATER

    def test_a_settlement_after_a_takeover_is_refused(self, store: Store, other: Store) -> None:
        (lost,) = leased_for_a_moment(store, "k")
        claim(other, "w.2")
        taken = found(other, "k")
        for late in (ending(lost, next_time=LATER), ending(lost, remove=True)):
            assert store.settle([late]) == {"k": Settled.PREEMPTED}
            assert found(other, "k") == taken

    def test_settling_a_row_that_is_gone_is_refused(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held, remove=True)])
        assert store.settle([ending(held)]) == {"k": Settled.PREEMPTED}
        assert store.get("k") is None

    def test_each_settlement_has_an_outcome_of_its_own(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "lost")
        claim(person, "w.2")
        add(worker, "finish", "removed", "redefined", "repeated", "gone")
        rows = {row.key: row for row in claim(worker, "w.3").rows}
        seen = found(person, "redefined")
        person.replace(seen, changed(seen, delay=1))
        worker.settle([ending(rows["repeated"], next_time=7, not_before=LATER)])
        worker.settle([ending(rows["gone"], remove=True)])
        ends = {key: ending(row, next_time=1, wait=60) for key, row in rows.items()}
        ends["removed"] = ending(rows["removed"], remove=True)
        assert worker.settle([ending(lost), *ends.values()]) == {
            "lost": Settled.PREEMPTED,
            "finish": Settled.DONE,
            "removed": Settled.DONE,
            "redefined": Settled.REDEFINED,
            "repeated": Settled.DONE,
            "gone": Settled.PREEMPTED,
        }
        left = {row.key: row.next_time for row in worker.rows()}
        assert left == {"lost": LONG_AGO, "finish": 1, "redefined": LONG_AGO, "repeated": 7}

    def test_very_many_leases_are_settled_at_once(self, store: Store) -> None:
        add(store, *(f"k{number}" for number in range(250)))
        rows = claim_all(store, "w")
        ends = [ending(row, next_time=n, not_before=LATER + n) for n, row in enumerate(rows)]
        results = store.settle(ends)
        assert len(results) == len(rows)
        assert set(results.values()) == {Settled.DONE}
        left = {row.key: (row.next_time, row.next_run_time) for row in store.rows()}
        assert left == {end.key: (end.next_time, end.not_before) for end in ends}

    def test_settling_nothing_is_nothing(self, store: Store) -> None:
        assert store.settle([]) == {}


def _attempts(store: Store, key: str, token: Token, version: int) -> Iterator[tuple[str, bool]]:
    """Send each kind of write with this token; yield its name and whether the store refused it."""
    row = Row(key=key, next_time=5, owner=token.owner, fence=token.fence, version=version)
    yield "extend", store.extend({key: token}, alive_time=LEASE, shortest=1) == frozenset()
    yield "update_data", not store.update_data(key, token, '{"stale":true}')
    for name, end in {
        "finish": ending(row, next_time=LATER, not_before=LATER),
        "retry": ending(row, wait=60, attempt=1, reason="failed"),
        "release": ending(row),
        "rest": ending(row, rest=True, status=QUARANTINED),
        "remove": ending(row, remove=True),
    }.items():
        yield name, store.settle([end]) == {key: Settled.PREEMPTED}


def _is_powerless(store: Store, key: str, token: Token) -> None:
    before = found(store, key)
    for name, was_refused in _attempts(store, key, token, before.version):
        assert was_refused, f"{name} was not refused to {token}"
        assert found(store, key) == before, f"{name} of {token} has changed the row"
    assert not [row for row in store.held(token.owner, [key]) if row.token == token]


class EndsAndClaims(WithStore):
    """Tests of ``settle_and_claim``: a store that claims has ended all leases."""

    def test_leases_end_and_what_is_due_is_claimed_by_it_or_by_a_claim(self, store: Store) -> None:
        finished, removed = leased(store, "finished"), leased(store, "removed", "worker.2")
        released = leased(store, "released", "worker.3")
        add(store, "due")
        ends = [
            ending(finished, rest=True, status=FINISHED),
            ending(removed, remove=True),
            ending(released, attempt=0),
        ]
        results, claimed = _end_and_claim(store, ends, "worker.4")
        assert results == dict.fromkeys(("finished", "removed", "released"), Settled.DONE)
        rows = (claimed or claim(store, "worker.4")).rows
        rows = [*rows, *claim(store, "worker.5").rows]
        assert {row.key for row in rows} == {"due", "released"}
        assert {row.owner for row in rows} <= {"worker.4", "worker.5"}
        assert {row.key: row.token for row in store.rows() if row.owner} == {
            row.key: row.token for row in rows
        }
        assert found(store, "finished").status == FINISHED
        assert store.get("removed") is None

    def test_who_repeats_it_is_told_that_the_leases_have_ended(self, store: Store) -> None:
        held = leased(store, "k")
        end = ending(held, rest=True, status=FINISHED)
        for owner in ("worker.2", "worker.3"):
            results, _ = _end_and_claim(store, [end], owner)
            assert results == {"k": Settled.DONE}
        assert found(store, "k").settled_by == str(held.token)

    def test_nothing_is_claimed_if_a_lease_was_lost(self, store: Store, other: Store) -> None:
        (lost,) = leased_for_a_moment(store, "lost")
        claim(other, "w.2")
        held = leased(store, "held", "worker.2")
        add(store, "due")
        ends = [ending(row, rest=True, status=FINISHED) for row in (lost, held)]
        assert _end_and_claim(store, ends, "worker.3") == (
            {"lost": Settled.PREEMPTED, "held": Settled.DONE},
            None,
        )
        assert found(store, "due").owner is None
        assert found(store, "lost").owner == "w.2"

    def test_nothing_is_claimed_if_a_row_was_redefined(self, store: Store) -> None:
        held, other = leased(store, "k"), leased(store, "other", "worker.2")
        seen = found(store, "k")
        assert store.replace(seen, changed(seen, data='{"new":1}'))
        add(store, "due")
        ends = [ending(row, rest=True, status=FINISHED) for row in (held, other)]
        assert _end_and_claim(store, ends, "worker.3") == (
            {"k": Settled.REDEFINED, "other": Settled.DONE},
            None,
        )
        assert (found(store, "k").token, found(store, "due").owner) == (held.token, None)


def _end_and_claim(
    store: Store, ends: list[Settlement], owner: str
) -> tuple[Mapping[str, Settled], Claimed | None]:
    return store.settle_and_claim(ends, owner, limit=10, alive_time=LEASE, shortest=1, horizon=0)


class Fencing(WithStore):
    """Tests that every write of a holder compares both the owner and the fence of its token."""

    def test_a_worker_whose_lease_was_taken_can_change_nothing(
        self, store: Store, other: Store
    ) -> None:
        (lost,) = leased_for_a_moment(store, "k")
        claim(other, "w.2")
        _is_powerless(store, "k", lost.token)

    def test_the_right_owner_with_another_fence_can_change_nothing(self, store: Store) -> None:
        held = leased(store, "k")
        for fence in (held.fence - 1, held.fence + 1):
            _is_powerless(store, "k", Token(held.token.owner, fence))

    def test_the_right_fence_with_another_owner_can_change_nothing(self, store: Store) -> None:
        held = leased(store, "k", "Worker.1")
        # Comparing the fence is not enough, because a database that has lost its last commits can
        # give one fence to two leases. Owners differ, because no owner is used twice.
        for owner in ("worker.1", "Worker.10", "Worker.1x", ""):
            _is_powerless(store, "k", Token(owner, held.fence))

    def test_a_token_is_worth_nothing_on_another_row(self, store: Store) -> None:
        held = leased(store, "mine")
        leased(store, "theirs", "worker.2")
        _is_powerless(store, "theirs", held.token)
        add(store, "free")
        _is_powerless(store, "free", held.token)

    def test_who_has_settled_can_change_nothing_more(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held, not_before=LATER)])
        before = found(store, "k")
        assert store.extend({"k": held.token}, alive_time=LEASE, shortest=1) == frozenset()
        assert not store.update_data("k", held.token, "{}")
        # Further settles by the former holder change nothing. The store answers DONE, because it
        # cannot distinguish them from a repetition of the first settle.
        for end in (ending(held), ending(held, rest=True), ending(held, wait=60)):
            assert store.settle([end]) == {"k": Settled.DONE}
        store.settle([ending(held, remove=True)])
        assert found(store, "k") == before

    def test_a_free_row_obeys_no_token(self, store: Store) -> None:
        add(store, "k")
        for token in (found(store, "k").token, Token("", 1), Token("w.1", 0)):
            _is_powerless(store, "k", token)

    def test_a_row_that_was_deleted_and_added_again_is_another(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "k")
        person.delete("k")
        add(person, "k")
        _is_powerless(worker, "k", lost.token)
        (held,) = claim(person, "w.2").rows
        assert held.token != lost.token
        _is_powerless(worker, "k", lost.token)
