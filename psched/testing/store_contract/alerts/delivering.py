"""Tests of the leases under which monitors deliver alerts."""

from collections.abc import Mapping
from dataclasses import replace as changed
from itertools import chain
from math import ceil
from types import MappingProxyType
from typing import Any

from psched.core.alerts.alert import Alert, Delivery
from psched.core.store_protocol import Store
from psched.testing.store_contract.alerts.bench import (
    LATER,
    LEASE,
    MANY,
    MOMENT,
    SINCE,
    alert,
    alerts_of,
    identities,
    let_time_pass,
    now_ms,
    one_closed,
    one_raised,
    one_stored,
    one_taken,
    raised,
    stored,
    taken,
    taken_at_last,
)
from psched.testing.store_contract.bench import BackendFactory, wait_until
from psched.testing.store_contract.contention import at_once

DELIVERIES = MappingProxyType(
    {
        "raised/mail": Delivery(tries=1, done=True),
        "raised/日本語 'x' \"y\"": Delivery(tries=3, next_try=LATER, problem="refused: '\" \\ %s"),
        "closed/mail": Delivery(),
    }
)

HOOKS: Mapping[str, Any] = {"on_raise": ("mail",), "on_close": ("mail",)}


class Delivering:
    """Tests that each event is delivered under a lease, and that none is forgotten."""

    def test_a_taken_alert_is_leased(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        opened = one_raised(store, on_raise=("mail",))
        before = now_ms(store)
        held = one_taken(store, "m" * 64, LEASE)
        length = ceil(LEASE * 1000)
        assert held.next_try is not None
        assert before + length <= held.next_try <= now_ms(store) + length + 1
        assert held == changed(opened, owner="m" * 64, fence=1, next_try=held.next_try)
        assert stored(backend_factory()) == [held]
        assert taken(backend_factory(), "monitor.2") == []
        assert taken(store, "m" * 64) == []

    def test_what_is_not_due_is_not_taken(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        assert taken(store) == []
        one_raised(store, "not told")
        one_closed(store, "closed")
        one_raised(store, "later", on_raise=("mail",))
        held = one_taken(store)
        assert alerts_of(store).note_deliveries(changed(held, next_try=now_ms(store) + 60_000))
        assert taken(store) == []

    def test_an_alert_is_due_again_when_its_lease_has_ended(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        one_raised(store, on_raise=("mail",))
        first = one_taken(store, "monitor.1", MOMENT)
        found = taken_at_last(store, "monitor.2")
        (second,) = found
        assert (second.owner, second.fence) == ("monitor.2", first.fence + 1)
        assert taken(store, "monitor.1") == []

    def test_no_more_alerts_are_taken_than_the_limit_those_due_longest_first(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        keys = ["d", "a", "c", "b", "e"]
        for key in keys:
            one_raised(store, key, on_raise=("mail",))
            let_time_pass(store)
        assert [each.key for each in taken(store, limit=2)] == keys[:2]
        assert [each.key for each in taken(store, limit=0)] == []
        assert [each.key for each in taken(store)] == keys[2:]

    def test_many_alerts_are_taken(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        many = raised(store, *(alert(f"k{n}", on_raise=("mail",)) for n in range(MANY)))
        held: list[Alert] = []
        while found := taken(store, limit=MANY):
            held += found
        assert identities(held) == identities(many)
        assert {(each.owner, each.fence) for each in held} == {("monitor.1", 1)}

    def test_noted_deliveries_are_kept_and_end_the_lease(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for number, next_try in enumerate((None, LATER, SINCE)):
            key = f"k{number}"
            one_raised(store, key, **HOOKS)
            held = one_taken(store)
            noted = changed(held, deliveries=DELIVERIES, next_try=next_try)
            assert alerts_of(store).note_deliveries(noted)
            assert one_stored(store, key) == changed(noted, owner=None)
        (again,) = taken(store, "monitor.2")
        assert (again.key, again.fence, again.deliveries) == ("k2", 2, DELIVERIES)

    def test_only_deliveries_and_next_try_are_noted(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        one_raised(store, **HOOKS)
        held = one_taken(store)
        other = changed(held, text="another", label="another", type="another", on_raise=())
        assert alerts_of(store).note_deliveries(changed(other, next_try=None))
        assert one_stored(store) == changed(held, next_try=None, owner=None)

    def test_a_lease_ends_once(self, backend_factory: BackendFactory) -> None:
        """As after a lost answer: the second request changes nothing."""
        store = backend_factory()
        one_raised(store, **HOOKS)
        held = one_taken(store)
        noted = changed(held, deliveries=DELIVERIES, next_try=SINCE)
        assert alerts_of(store).note_deliveries(noted)
        assert not alerts_of(backend_factory()).note_deliveries(changed(held, next_try=None))
        assert one_stored(store) == changed(noted, owner=None)
        again = one_taken(store, "monitor.1")
        assert not alerts_of(store).note_deliveries(noted)
        assert one_stored(store) == again

    def test_without_the_lease_nothing_is_noted(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        one_raised(store, **HOOKS)
        held = one_taken(store)
        for other in (
            changed(held, owner="monitor.2"),
            changed(held, owner="MONITOR.1"),
            changed(held, owner=None),
            changed(held, fence=held.fence + 1),
            changed(held, fence=held.fence - 1),
            changed(held, since=SINCE + 1),
            changed(held, key="K"),
        ):
            noted = changed(other, deliveries=DELIVERIES, next_try=None)
            assert not alerts_of(store).note_deliveries(noted)
        assert stored(store) == [held]

    def test_a_monitor_that_another_one_has_followed_notes_nothing(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        one_raised(store, **HOOKS)
        held = one_taken(store, "monitor.1", MOMENT)
        found = taken_at_last(store, "monitor.2")
        assert not alerts_of(store).note_deliveries(changed(held, next_try=None))
        assert stored(store) == found

    def test_a_late_monitor_that_no_other_has_followed_notes(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        one_raised(store, **HOOKS)
        held = one_taken(store, "monitor.1", MOMENT)
        wait_until(lambda: now_ms(store) > (held.next_try or 0) + 1, "the lease is over")
        assert alerts_of(store).note_deliveries(changed(held, next_try=None))
        assert taken(store, "monitor.2") == []

    def test_an_alert_that_was_closed_during_the_delivery_is_due_afterwards(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for next_try in None, LATER:
            key = f"k{next_try}"
            opened = one_raised(store, key, **HOOKS)
            held = one_taken(store)
            alerts_of(backend_factory()).close_alerts([opened], "it has run")
            assert taken(store, "monitor.2") == []
            before = now_ms(store)
            noted = changed(held, deliveries=DELIVERIES, next_try=next_try)
            assert alerts_of(store).note_deliveries(noted)
            found = one_stored(store, key)
            assert found.deliveries == DELIVERIES
            assert found.owner is None
            assert before <= (found.next_try or 0) <= now_ms(store) + 1
            assert one_taken(store, "monitor.2").closed == found.closed

    def test_without_a_hook_for_the_end_a_closed_alert_is_not_due_afterwards(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for next_try in None, LATER:
            key = f"k{next_try}"
            opened = one_raised(store, key, on_raise=("mail",))
            held = one_taken(store)
            alerts_of(store).close_alerts([opened], "it has run")
            assert alerts_of(store).note_deliveries(changed(held, next_try=next_try))
            assert one_stored(store, key).next_try == next_try

    def test_an_alert_that_was_closed_before_the_delivery_is_not_due_afterwards(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for next_try in None, LATER:
            key = f"k{next_try}"
            one_closed(store, key, **HOOKS)
            held = one_taken(store)
            assert alerts_of(store).note_deliveries(changed(held, next_try=next_try))
            assert one_stored(store, key).next_try == next_try

    def test_of_several_monitors_one_takes_an_alert(self, backend_factory: BackendFactory) -> None:
        many = raised(backend_factory(), *(alert(f"k{n}", on_raise=("mail",)) for n in range(120)))

        def work(store: Store, number: int) -> list[Alert]:
            held: list[Alert] = []
            while found := taken(store, f"monitor.{number}", limit=7):
                held += found
            return held

        held = at_once(backend_factory, work)
        # A monitor finds nothing if the others have taken what it has seen, so some can be left.
        held.append(work(backend_factory(), 9))
        assert identities([*chain.from_iterable(held)]) == identities(many)
        for number, own in enumerate(held[:-1]):
            assert {(each.owner, each.fence) for each in own} <= {(f"monitor.{number}", 1)}

    def test_leases_that_have_ended_are_each_taken_over_by_one_monitor(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        raised(store, *(alert(f"k{n}", on_raise=("mail",)) for n in range(20)))
        first = taken(store, "dead", MOMENT)
        last = max(each.next_try or 0 for each in first)
        wait_until(lambda: now_ms(store) > last + 1, "the leases are over")
        held = at_once(backend_factory, lambda other, number: taken(other, f"monitor.{number}"))
        own = [*chain.from_iterable(held), *taken(store, "the last")]
        assert identities(own) == identities(first)
        assert {each.fence for each in own} == {2}

    def test_of_several_requests_one_ends_a_lease(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        raised(store, *(alert(f"k{n}", on_raise=("mail",)) for n in range(40)))
        held = taken(store)

        def work(other: Store, number: int) -> list[bool]:
            notes = MappingProxyType({"raised/mail": Delivery(tries=number)})
            return [
                alerts_of(other).note_deliveries(changed(each, deliveries=notes, next_try=None))
                for each in held
            ]

        answers = at_once(backend_factory, work)
        for each, done in zip(held, zip(*answers, strict=True), strict=True):
            assert sum(done) == 1
            tries = one_stored(store, each.key).deliveries["raised/mail"].tries
            assert tries == done.index(True)

    def test_the_end_of_an_alert_is_never_forgotten(self, backend_factory: BackendFactory) -> None:
        """Whether the alert is closed before, during or after the request that ends its lease."""
        store = backend_factory()
        raised(store, *(alert(f"k{number}", **HOOKS) for number in range(60)))
        held = taken(store)

        def work(other: Store, number: int) -> int:
            if number == 0:
                return sum(
                    alerts_of(other).note_deliveries(changed(each, next_try=None)) for each in held
                )
            return sum(len(alerts_of(other).close_alerts([each], "it has run")) for each in held)

        noted, *closed = at_once(backend_factory, work)
        assert noted == len(held)
        assert sum(closed) == len(held)
        assert identities(taken(store, "monitor.2")) == identities(held)
