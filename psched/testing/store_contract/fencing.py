"""Tests that a store refuses a holder's write if its token is not the row's present token."""

from collections.abc import Iterator

from psched.core.model import QUARANTINED, Row, Token
from psched.core.store_protocol import Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    BackendFactory,
    add,
    claim,
    ending,
    found,
    leased,
    leased_for_a_moment,
)


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


class Fencing:
    """Tests that every write of a holder compares both the owner and the fence of its token."""

    def test_a_worker_whose_lease_was_taken_can_change_nothing(
        self, backend_factory: BackendFactory
    ) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "k")
        claim(other, "w.2")
        _is_powerless(one, "k", lost.token)

    def test_the_right_owner_with_another_fence_can_change_nothing(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        for fence in (held.fence - 1, held.fence + 1):
            _is_powerless(store, "k", Token(held.token.owner, fence))

    def test_the_right_fence_with_another_owner_can_change_nothing(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k", "Worker.1")
        # Comparing the fence is not enough, because a database that has lost its last commits can
        # give one fence to two leases. Owners differ, because no owner is used twice.
        for owner in ("worker.1", "Worker.10", "Worker.1x", ""):
            _is_powerless(store, "k", Token(owner, held.fence))

    def test_a_token_is_worth_nothing_on_another_row(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "mine")
        leased(store, "theirs", "worker.2")
        _is_powerless(store, "theirs", held.token)
        add(store, "free")
        _is_powerless(store, "free", held.token)

    def test_who_has_settled_can_change_nothing_more(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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

    def test_a_free_row_obeys_no_token(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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
