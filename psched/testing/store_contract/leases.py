"""Tests of ``extend`` and ``update_data``, which a worker calls while a task runs."""

from dataclasses import replace as changed
from math import floor

from psched.core.model import FINISHED, Token
from psched.testing.store_contract.bench import (
    LEASE,
    BackendFactory,
    add,
    claim,
    claim_all,
    ending,
    found,
    leased,
    leased_for_a_moment,
    payload,
    wait_for_end,
)


class Leases:
    """Tests that only a request with a lease's whole token extends it or replaces the payload."""

    def test_extending_moves_the_end_and_nothing_else(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
        self, backend_factory: BackendFactory
    ) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "lost")
        claim(other, "w.2")
        held, settled = leased(one, "held"), leased(one, "settled", "worker.2")
        one.settle([ending(settled, rest=True, status=FINISHED)])
        tokens = {row.key: row.token for row in (lost, held, settled)}
        tokens["gone"] = Token("worker.1", 1)
        rows = one.look(["lost", "settled"])
        assert one.extend(tokens, alive_time=LEASE, shortest=1) == {"held"}
        assert one.look(["lost", "settled"]) == rows

    def test_very_many_leases_are_extended_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, *(f"k{number}" for number in range(450)))
        rows = claim_all(store, "w", alive_time=LEASE)
        lost = rows.pop(300)
        tokens = {row.key: row.token for row in rows}
        wrong = {lost.key: Token(lost.token.owner, lost.fence + 1)}
        assert store.extend({**wrong, **tokens}, alive_time=600, shortest=1) == set(tokens)
        soon = store.now() + 2 * LEASE
        ends = {row.key: row.next_run_time or 0 for row in store.rows()}
        assert [key for key, end in ends.items() if end < soon] == [lost.key]

    def test_extending_nothing_is_nothing(self, backend_factory: BackendFactory) -> None:
        assert backend_factory().extend({}, alive_time=LEASE, shortest=1) == frozenset()

    def test_a_payload_is_replaced_under_the_lease(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        before = found(store, "k")
        assert store.update_data("k", held.token, '{"page":"2é"}')
        assert payload(found(backend_factory(), "k").data) == '{"page":"2é"}'
        after = found(store, "k")
        assert changed(after, data=before.data, version=before.version) == before
        store.settle([ending(after)])
        wait_for_end(store, "k")
        (again,) = claim(store, "w.2").rows
        assert payload(again.data) == '{"page":"2é"}'

    def test_replacing_a_payload_changes_the_definition(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        assert store.update_data("k", held.token, '{"page":2}')
        assert found(store, "k").version != held.version
