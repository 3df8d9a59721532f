"""Tests in which several workers request one change at the same time: exactly one succeeds."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace as changed
from itertools import chain
from threading import Barrier
from typing import TypeVar, cast

from psched.base.errors import AlreadyExistsError, NotFoundError, StoreBusyError
from psched.core.model import Row
from psched.core.store_protocol import Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    BackendFactory,
    add,
    claim,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
)

T = TypeVar("T")

_WORKERS = 4

_TRIES = 30  # how often a call is repeated, at most; a store waits only about a second for a lock


class _Patient:
    """A store that repeats each call that raised `StoreBusyError`: such a call changes nothing."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        method = getattr(self._store, name)
        if not callable(method):
            return None if method is None else _Patient(method)  # a part of the store

        def call(*args: object, **kwargs: object) -> object:
            for _ in range(_TRIES):
                with suppress(StoreBusyError):
                    return method(*args, **kwargs)
            return method(*args, **kwargs)

        return call


def _patient(store: Store) -> Store:
    return cast("Store", _Patient(store))


def at_once(backend_factory: BackendFactory, work: Callable[[Store, int], T]) -> list[T]:
    """Run ``work`` in several threads at the same time; return what each call has returned.

    The arguments of ``work`` are a store instance of the thread and the thread's number.
    """
    start = Barrier(_WORKERS)

    def run(number: int) -> T:
        store = _patient(backend_factory())
        try:
            store.now()  # connects before the barrier, so that all work starts at once
            start.wait(timeout=30)
            return work(store, number)
        finally:
            store.disconnect()

    with ThreadPoolExecutor(_WORKERS) as workers:
        return [*workers.map(run, range(_WORKERS))]


def _claim_all_in_small_lots(store: Store, number: int) -> list[str]:
    taken: list[str] = []
    for count in range(10_000):
        claimed = claim(store, f"w{number}.{count}", limit=7)
        taken += [row.key for row in claimed.rows]
        if not (claimed.rows or claimed.more):
            break
    return taken


def _each_kept_or_taken_over(
    backend_factory: BackendFactory, keep: Callable[[Store, Row], bool]
) -> None:
    """Check that each expired lease is either kept (``keep``) or taken over by one worker."""
    holder = _patient(backend_factory())
    lost = leased_for_a_moment(holder, *(f"k{number}" for number in range(60)))
    holder.disconnect()  # the thread that uses it next needs its own connection

    def work(store: Store, number: int) -> list[str]:
        if number > 0:
            return _claim_all_in_small_lots(store, number)
        kept = [row.key for row in lost if keep(holder, row)]
        holder.disconnect()
        return kept

    done = at_once(backend_factory, work)
    assert sorted(chain.from_iterable(done)) == sorted(row.key for row in lost)


class Contention:
    """Tests that two workers never hold leases of one row, however their requests interleave."""

    def test_of_many_rows_each_is_claimed_by_one_worker(
        self, backend_factory: BackendFactory
    ) -> None:
        keys = [f"k{number}" for number in range(240)]
        add(backend_factory(), *keys)
        taken = at_once(backend_factory, _claim_all_in_small_lots)
        assert sorted(chain.from_iterable(taken)) == sorted(keys)

    def test_leases_that_ran_out_are_each_taken_over_by_one_worker(
        self, backend_factory: BackendFactory
    ) -> None:
        keys = [f"k{number}" for number in range(8)]
        leased_for_a_moment(backend_factory(), *keys)
        taken = at_once(
            backend_factory,
            lambda store, number: [row.key for row in claim(store, f"w{number}.1").rows],
        )
        assert sorted(chain.from_iterable(taken)) == keys

    def test_a_lease_that_ran_out_is_extended_or_taken_over_and_never_both(
        self, backend_factory: BackendFactory
    ) -> None:
        _each_kept_or_taken_over(
            backend_factory,
            lambda holder, row: bool(
                holder.extend({row.key: row.token}, alive_time=LEASE, shortest=1)
            ),
        )

    def test_a_lease_that_ran_out_is_settled_or_taken_over_and_never_both(
        self, backend_factory: BackendFactory
    ) -> None:
        _each_kept_or_taken_over(
            backend_factory,
            lambda holder, row: (
                holder.settle([ending(row, not_before=LATER)])[row.key] is Settled.DONE
            ),
        )

    def test_a_busy_schedule_is_run_once_per_occurrence(
        self, backend_factory: BackendFactory
    ) -> None:
        rounds = 25
        backend_factory().add([due("k", 1)], nonce="n")

        def run(store: Store, number: int) -> list[int]:
            done: list[int] = []
            for count in range(10_000):
                for row in claim(store, f"w{number}.{count}").rows:
                    time = row.next_time or 0
                    done.append(time)
                    store.settle([ending(row, next_time=time + 1, rest=time == rounds)])
                if found(store, "k").next_run_time is None:
                    break
            return done

        done = at_once(backend_factory, run)
        assert sorted(chain.from_iterable(done)) == [*range(1, rounds + 1)]

    def test_a_key_is_added_by_one(self, backend_factory: BackendFactory) -> None:
        def add_it(store: Store, number: int) -> bool:
            try:
                store.add([due("k")], nonce=f"n{number}")
            except AlreadyExistsError:
                return False
            return True

        added = at_once(backend_factory, add_it)
        assert added.count(True) == 1

    def test_a_row_is_deleted_by_one(self, backend_factory: BackendFactory) -> None:
        add(backend_factory(), "k")

        def delete_it(store: Store, _number: int) -> bool:
            try:
                return store.delete("k")
            except NotFoundError:
                return False

        assert at_once(backend_factory, delete_it).count(True) == 1

    def test_a_row_is_replaced_by_one(self, backend_factory: BackendFactory) -> None:
        add(backend_factory(), "k")
        seen = found(backend_factory(), "k")
        done = at_once(
            backend_factory,
            lambda store, number: store.replace(seen, changed(seen, delay=number + 1)),
        )
        assert done.count(True) == 1
        row = found(backend_factory(), "k")
        assert row.delay == done.index(True) + 1

    def test_a_lease_that_is_extended_all_the_time_is_never_lost(
        self, backend_factory: BackendFactory
    ) -> None:
        """While the holder extends, one worker changes the row, and the others try to claim it."""
        holder = _patient(backend_factory())
        held = leased(holder, "k")
        holder.disconnect()  # the thread that uses it next needs its own connection
        leases = {"k": held.token}

        def work(store: Store, number: int) -> bool:
            kept = True
            for count in range(20):
                if number == 0:
                    kept &= holder.extend(leases, alive_time=LEASE, shortest=1) == {"k"}
                elif number == 1:
                    seen = found(store, "k")
                    store.replace(seen, changed(seen, delay=count))
                else:
                    kept &= not claim(store, f"w{number}.{count}").rows
            if number == 0:
                holder.disconnect()
            return kept

        assert all(at_once(backend_factory, work))
        assert found(holder, "k").token == held.token
