"""Tests of alerts: a store's part `psched.core.alerts.protocol.KeepsAlerts`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from itertools import chain, product
from math import ceil, floor
from types import MappingProxyType
from typing import Any

from psched.core.alerts.alert import Alert, Delivery, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LONG_AGO, BackendFactory, WithStore, wait_until
from psched.testing.store_contract.contention import at_once

SINCE = LONG_AGO * 1000  # when the first incident of a test began, in milliseconds
MANY = 450  # more alerts than a store reads or writes in one request
LEASE = 60.0  # the length of a lease, in seconds; such a lease does not end during a test
MOMENT = 0.001  # the length of a lease that ends at once
LATER = 4_000_000_000_000  # a time far in the future, in milliseconds


def alerts_of(store: Store) -> KeepsAlerts:
    """The alerts of the store, which must keep some."""
    assert store.alerts is not None
    return store.alerts


def alert(key: str = "k", **fields: Any) -> Alert:  # noqa: ANN401  # an alert's
    """An alert about a schedule that is late, with these changes."""
    given = {"rule": Rule.LATE, "since": SINCE, "text": "it is late", **fields}
    return Alert(key=key, **given)


def raised(store: Store, *alerts: Alert) -> list[Alert]:
    """Raise alerts, all of which must be new."""
    found = [*alerts_of(store).raise_alerts(alerts)]
    assert len(found) == len(alerts)
    return found


def one_raised(store: Store, key: str = "k", **fields: Any) -> Alert:  # noqa: ANN401
    """Raise one alert."""
    (found,) = raised(store, alert(key, **fields))
    return found


def one_closed(store: Store, key: str = "k", **fields: Any) -> Alert:  # noqa: ANN401
    """Raise one alert, and close it."""
    (found,) = alerts_of(store).close_alerts([one_raised(store, key, **fields)], "it has run")
    return found


def stored(store: Store, **conditions: Any) -> list[Alert]:  # noqa: ANN401  # a selection's
    """The alerts that fulfil these conditions, those that were raised last first."""
    return [*alerts_of(store).find_alerts(AlertSelection(**conditions))]


def one_stored(store: Store, key: str = "k") -> Alert:
    """The only alert of a key."""
    (found,) = stored(store, key=key)
    return found


def taken(
    store: Store, owner: str = "monitor.1", lease: float = LEASE, limit: int = 1000
) -> list[Alert]:
    """Take the alerts whose deliveries are due."""
    return [*alerts_of(store).take_alerts(owner, lease=lease, limit=limit)]


def taken_at_last(store: Store, owner: str) -> list[Alert]:
    """Wait until deliveries are due, and take their alerts."""
    found: list[Alert] = []

    def take() -> bool:
        found.extend(taken(store, owner))
        return bool(found)

    wait_until(take, "no delivery is due")
    return found


def one_taken(store: Store, owner: str = "monitor.1", lease: float = LEASE) -> Alert:
    """Take the only alert whose deliveries are due."""
    (found,) = taken(store, owner, lease)
    return found


def identities(alerts: Sequence[Alert]) -> list[tuple[str, str, str, int]]:
    """What identifies each of these alerts, in order."""
    return sorted((*each.subject, each.since) for each in alerts)


def now_ms(store: Store) -> int:
    """The store's present time in milliseconds, rounded down."""
    return floor(store.now() * 1000)


def let_time_pass(store: Store) -> int:
    """Wait until the store's clock shows another millisecond; return what it shows."""
    before = now_ms(store) + 1  # some stores round up
    wait_until(lambda: now_ms(store) > before, "the clock of the store stands still")
    return now_ms(store)


class Raising(WithStore):
    """Tests that each alert is raised once, and at most one of each subject is open."""

    def test_a_raised_alert_is_kept(self, store: Store, other: Store) -> None:
        assert alerts_of(store).problem() is None
        assert stored(store) == []
        before = now_ms(store)
        found = one_raised(store)
        assert before <= found.raised <= now_ms(store) + 1
        assert found == changed(alert(), raised=found.raised)
        assert stored(store) == [found]
        assert stored(other) == [found]
        store.try_rights()
        assert stored(store) == [found]

    def test_no_alert_is_raised_at_once(self, store: Store) -> None:
        assert [*alerts_of(store).raise_alerts([])] == []
        assert stored(store) == []

    def test_every_field_is_kept(self, store: Store) -> None:
        given = [
            alert("", host="host.example", rule=Rule.NO_SLOT, since=0, text=""),
            alert(
                "日本語 'k\" \\ %s :a",
                host="h" * 64,
                rule="quarantined",
                since=LATER,
                type="a type",
                label="a label \N{GRINNING FACE}",
                scheduled_time=2**40,
                text='it\'s "late" \\n \N{GRINNING FACE} %s :a ?',
                on_raise=("mail", "日本語", "a/b 'c' \"d\""),
                on_close=("chat",),
            ),
            alert("k" * 255, label="", type=""),
        ]
        found = raised(store, *given)
        for before, after in zip(given, found, strict=True):
            next_try = after.raised if before.on_raise else None
            assert after == changed(before, raised=after.raised, next_try=next_try)
        assert {each.key: each for each in stored(store)} == {each.key: each for each in found}

    def test_a_text_of_any_origin_does_not_prevent_an_alert(self, store: Store) -> None:
        found = one_raised(store, text="\0 \ud800" + "x" * 100_000, label="\0" * 1000)
        assert "x" * 900 in found.text
        assert stored(store) == [found]

    def test_the_delivery_of_a_raised_alert_is_due_if_a_hook_is_named(self, store: Store) -> None:
        told = one_raised(store, "told", on_raise=("mail",))
        assert told.next_try == told.raised
        assert one_raised(store, "not told", on_close=("mail",)).next_try is None
        assert identities(taken(store)) == identities([told])

    def test_what_happens_later_is_not_raised(self, store: Store) -> None:
        given = alert(
            raised=5,
            closed=6,
            closed_text="it has run",
            deliveries=MappingProxyType({"raised/mail": Delivery(tries=1)}),
            next_try=LATER,
            owner="monitor.1",
            fence=7,
        )
        (found,) = raised(store, given)
        assert found == changed(alert(), raised=found.raised)
        assert found.raised != given.raised
        assert stored(store, only_open=True) == [found]

    def test_an_alert_that_exists_is_not_raised(self, store: Store, other: Store) -> None:
        first = one_raised(store, text="first")
        assert [*alerts_of(other).raise_alerts([alert(text="second")])] == []
        assert stored(store) == [first]
        (closed,) = alerts_of(other).close_alerts([first], "it has run")
        assert [*alerts_of(store).raise_alerts([alert(text="third")])] == []
        assert stored(store) == [closed]

    def test_an_alert_whose_subject_has_an_open_one_is_not_raised(self, store: Store) -> None:
        first = one_raised(store)
        later = alert(since=SINCE + 1)
        assert [*alerts_of(store).raise_alerts([later])] == []
        assert stored(store) == [first]
        alerts_of(store).close_alerts([first], "it has run")
        second = raised(store, later)
        assert stored(store, only_open=True) == second
        assert [*alerts_of(store).raise_alerts([alert(since=SINCE + 2), alert()])] == []

    def test_of_one_subject_any_number_of_alerts_can_be_closed(self, store: Store) -> None:
        closed = [one_closed(store, since=SINCE + number) for number in range(5)]
        assert identities(stored(store)) == identities(closed)
        assert stored(store, only_open=True) == []

    def test_key_host_rule_and_since_identify_an_alert(self, store: Store) -> None:
        others = [
            alert("a"),
            alert("A"),
            alert("a", host="a"),
            alert("a", host="A"),
            alert("", host="a"),
            alert("a", rule="longest"),
            alert("a", rule="LONGEST"),
            alert("ab", host="c"),
            alert("a", host="bc"),
            alert("a b", host="c"),
            alert("a", host="b c"),
        ]
        assert identities(raised(store, *others)) == identities(others)
        (closed,) = alerts_of(store).close_alerts([alert("a")], "it has run")
        assert closed.subject == ("a", "", "late")
        assert len(stored(store, only_open=True)) == len(others) - 1

    def test_the_same_alert_twice_in_one_request_is_raised_once(self, store: Store) -> None:
        several = [alert(), alert(), alert(since=SINCE + 1), alert("other"), alert()]
        found = alerts_of(store).raise_alerts(several)
        assert sorted(each.key for each in found) == ["k", "other"]
        assert {each.key: each for each in stored(store)} == {each.key: each for each in found}

    def test_those_that_are_new_are_raised_beside_those_that_exist(self, store: Store) -> None:
        many = [alert(f"k{number}") for number in range(MANY)]
        raised(store, *many[::2])
        found = alerts_of(store).raise_alerts(many)
        assert identities(found) == identities(many[1::2])
        assert identities(stored(store)) == identities(many)

    def test_of_several_monitors_one_raises_an_alert(self, backend_factory: BackendFactory) -> None:
        many = [alert(f"k{number}") for number in range(120)]
        found = at_once(
            backend_factory,
            lambda store, number: [
                each
                for start in range(0, len(many), 10)
                for each in alerts_of(store).raise_alerts(
                    many[start : start + 10][:: 1 if number % 2 else -1]
                )
            ],
        )
        assert identities([*chain.from_iterable(found)]) == identities(many)
        assert identities(stored(backend_factory())) == identities(many)

    def test_of_several_alerts_of_a_subject_one_is_raised(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        keys = [f"k{number}" for number in range(40)]
        found = at_once(
            backend_factory,
            lambda store, number: [
                each
                for key in keys
                for each in alerts_of(store).raise_alerts([alert(key, since=SINCE + number)])
            ],
        )
        assert sorted(each.key for each in chain.from_iterable(found)) == sorted(keys)
        assert sorted(each.key for each in stored(store, only_open=True)) == sorted(keys)
        assert one_stored(store, keys[0]) in [*chain.from_iterable(found)]


WHY = "it has run"


class Closing(WithStore):
    """Tests that each alert is closed once, and that its hooks are told."""

    def test_a_closed_alert_is_kept(self, store: Store, other: Store) -> None:
        opened = one_raised(store, label="a label")
        before = let_time_pass(store)
        (closed,) = alerts_of(store).close_alerts([opened], WHY)
        assert closed.closed is not None
        assert before <= closed.closed <= now_ms(store) + 1
        assert closed == changed(opened, closed=closed.closed, closed_text=WHY)
        assert stored(store) == [closed]
        assert stored(other, only_open=True) == []

    def test_no_alert_is_closed_at_once(self, store: Store) -> None:
        opened = one_raised(store)
        assert [*alerts_of(store).close_alerts([], WHY)] == []
        assert stored(store) == [opened]

    def test_an_alert_that_was_closed_stays_as_it_is(self, store: Store, other: Store) -> None:
        opened = one_raised(store, on_close=("mail",))
        (closed,) = alerts_of(store).close_alerts([opened], WHY)
        let_time_pass(store)
        assert [*alerts_of(other).close_alerts([opened, closed], "another reason")] == []
        assert stored(store) == [closed]

    def test_an_alert_that_does_not_exist_is_not_closed(self, store: Store) -> None:
        opened = one_raised(store)
        others = [
            changed(opened, since=SINCE + 1),
            changed(opened, key="K"),
            changed(opened, host="h"),
            changed(opened, rule="longest"),
        ]
        assert [*alerts_of(store).close_alerts(others, WHY)] == []
        assert stored(store) == [opened]

    def test_the_same_alert_twice_in_one_request_is_closed_once(self, store: Store) -> None:
        opened = one_raised(store)
        assert len(alerts_of(store).close_alerts([opened, opened], WHY)) == 1

    def test_a_text_of_any_origin_does_not_prevent_the_end(self, store: Store) -> None:
        (closed,) = alerts_of(store).close_alerts([one_raised(store)], "\0 \ud800" + "x" * 100_000)
        assert "x" * 900 in (closed.closed_text or "")
        assert stored(store) == [closed]

    def test_many_alerts_are_closed_and_the_others_stay_open(self, store: Store) -> None:
        many = raised(store, *(alert(f"k{number}") for number in range(MANY)))
        alerts_of(store).close_alerts(many[:3], WHY)
        closed = alerts_of(store).close_alerts(many[: MANY // 2], WHY)
        assert identities(closed) == identities(many[3 : MANY // 2])
        assert identities(stored(store, only_open=True)) == identities(many[MANY // 2 :])

    def test_the_delivery_of_a_closed_alert_is_due_if_a_hook_is_named(self, store: Store) -> None:
        told = one_closed(store, "told", on_close=("mail",))
        assert told.next_try == told.closed
        assert one_closed(store, "not told").next_try is None
        assert identities(taken(store)) == identities([told])

    def test_a_delivery_that_is_due_already_stays_due(self, store: Store) -> None:
        for hooks in (), ("mail",):
            key = f"k{len(hooks)}"
            opened = one_raised(store, key, on_raise=("mail",), on_close=hooks)
            let_time_pass(store)
            (closed,) = alerts_of(store).close_alerts([opened], WHY)
            assert closed.next_try == opened.next_try

    def test_a_later_delivery_is_due_now_if_a_hook_is_told_of_the_end(self, store: Store) -> None:
        for hooks in (), ("mail",):
            key = f"k{len(hooks)}"
            one_raised(store, key, on_raise=("mail",), on_close=hooks)
            held = one_taken(store)
            assert alerts_of(store).note_deliveries(changed(held, next_try=LATER))
            (closed,) = alerts_of(store).close_alerts([held], WHY)
            assert closed.next_try == (closed.closed if hooks else LATER)

    def test_a_lease_does_not_end_when_the_alert_is_closed(
        self, store: Store, other: Store
    ) -> None:
        one_raised(store, on_raise=("mail",), on_close=("mail",))
        held = one_taken(store)
        (closed,) = alerts_of(other).close_alerts([held], WHY)
        assert (closed.next_try, closed.owner) == (held.next_try, held.owner)
        assert closed.fence == held.fence
        assert taken(store, "monitor.2") == []

    def test_of_several_monitors_one_closes_an_alert(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        many = raised(store, *(alert(f"k{number}") for number in range(120)))
        closed = at_once(
            backend_factory,
            lambda other, number: [
                each
                for start in range(0, len(many), 10)
                for each in alerts_of(other).close_alerts(
                    many[start : start + 10][:: 1 if number % 2 else -1], f"monitor {number}"
                )
            ],
        )
        assert identities([*chain.from_iterable(closed)]) == identities(many)
        for number, own in enumerate(closed):
            assert {each.closed_text for each in own} <= {f"monitor {number}"}
        assert one_stored(store, "k0") in [*chain.from_iterable(closed)]

    def test_an_alert_that_is_closed_and_raised_at_once_is_open_once(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        opened = raised(backend_factory(), *(alert(f"k{number}") for number in range(40)))

        def work(store: Store, number: int) -> None:
            for each in opened:
                if number == 0:
                    alerts_of(store).close_alerts([each], WHY)
                else:
                    alerts_of(store).raise_alerts([changed(each, since=SINCE + number)])

        at_once(backend_factory, work)
        open_now = [each.subject for each in stored(store, only_open=True)]
        assert len({*open_now}) == len(open_now)
        assert len(stored(store)) == len(opened) + len(open_now)


KEYS = ("a", "A", "b", "")
RULES = (Rule.LATE, Rule.SILENT, Rule.UNUSUAL)


class Listing(WithStore):
    """Tests that a selection has the alerts that fulfil it, in the order of their times."""

    def test_those_that_were_raised_last_come_first(self, store: Store) -> None:
        keys = ["b", "c", "a", "d"]
        for key in keys:
            one_raised(store, key)
            let_time_pass(store)
        assert [each.key for each in stored(store)] == keys[::-1]
        # An alert that was closed keeps its place.
        alerts_of(store).close_alerts([alert("c")], "it has run")
        assert [each.key for each in stored(store)] == keys[::-1]

    def test_a_selection_has_the_alerts_that_fulfil_it(self, store: Store) -> None:
        for number in range(3):
            found = raised(
                store,
                *(
                    alert(key, rule=rule, since=SINCE + number, host="" if key else "h")
                    for key, rule in product(KEYS, RULES)
                ),
            )
            if number < 2:  # noqa: PLR2004  # those of the last round stay open, and one more
                alerts_of(store).close_alerts(found, "it has run")
            let_time_pass(store)
        everything = stored(store)
        assert len(everything) == 3 * len(KEYS) * len(RULES)
        times = sorted({each.raised for each in everything})
        selections: list[dict[str, Any]] = [
            {"key": key, "rules": frozenset(rules), "only_open": only_open, "since": since}
            for key, rules, only_open, since in product(
                (None, *KEYS, "none"),
                ((), (Rule.LATE,), (Rule.LATE, Rule.UNUSUAL), ("none",)),
                (False, True),
                (None, times[0], times[len(times) // 2], times[-1], times[-1] + 1),
            )
        ]
        for conditions in selections:
            expected = [each for each in everything if _fulfils(each, **conditions)]
            assert stored(store, **conditions) == expected, conditions
        for conditions in selections[::7]:
            expected = [each for each in everything if _fulfils(each, **conditions)]
            for limit in 0, 1, 2, len(expected), MANY:
                assert stored(store, **conditions, limit=limit) == expected[:limit], conditions

    def test_many_alerts_are_read_in_pages(self, store: Store) -> None:
        many = raised(store, *(alert(f"k{number:03}") for number in range(MANY)))
        found = stored(store)
        assert identities(found) == identities(many)
        times = [each.raised for each in found]
        assert times == sorted(times, reverse=True)
        assert stored(store, only_open=True) == found
        assert stored(store, limit=MANY - 7) == found[:-7]
        assert stored(store, rules=frozenset({Rule.LATE})) == found

    def test_many_alerts_of_one_key_are_read_in_pages(self, store: Store) -> None:
        many = raised(store, *(alert(host=f"h{number:03}") for number in range(MANY)))
        one_raised(store, "other")
        found = stored(store, key="k")
        assert identities(found) == identities(many)
        assert stored(store, key="k", only_open=True) == found
        assert stored(store, key="k", limit=MANY - 7) == found[:-7]

    def test_an_alert_that_is_raised_meanwhile_does_not_disturb_a_listing(
        self, store: Store, other: Store
    ) -> None:
        many = raised(store, *(alert(f"k{number:03}") for number in range(MANY)))
        let_time_pass(store)
        listing = alerts_of(store).find_alerts()
        first = next(listing)
        raised(other, *(alert(f"new{number:03}") for number in range(MANY)))
        assert identities([first, *listing]) == identities(many)


def _fulfils(
    found: Alert, *, key: str | None, rules: frozenset[str], only_open: bool, since: int | None
) -> bool:
    return (
        key in {None, found.key}
        and (not rules or found.rule in rules)
        and not (only_open and found.closed is not None)
        and (since is None or found.raised >= since)
    )


DELIVERIES = MappingProxyType(
    {
        "raised/mail": Delivery(tries=1, done=True),
        "raised/日本語 'x' \"y\"": Delivery(tries=3, next_try=LATER, problem="refused: '\" \\ %s"),
        "closed/mail": Delivery(),
    }
)

HOOKS: Mapping[str, Any] = {"on_raise": ("mail",), "on_close": ("mail",)}


class Delivering(WithStore):
    """Tests that each event is delivered under a lease, and that none is forgotten."""

    def test_a_taken_alert_is_leased(self, store: Store, other: Store) -> None:
        opened = one_raised(store, on_raise=("mail",))
        before = now_ms(store)
        held = one_taken(store, "m" * 64, LEASE)
        length = ceil(LEASE * 1000)
        assert held.next_try is not None
        assert before + length <= held.next_try <= now_ms(store) + length + 1
        assert held == changed(opened, owner="m" * 64, fence=1, next_try=held.next_try)
        assert stored(other) == [held]
        assert taken(other, "monitor.2") == []
        assert taken(store, "m" * 64) == []

    def test_what_is_not_due_is_not_taken(self, store: Store) -> None:
        assert taken(store) == []
        one_raised(store, "not told")
        one_closed(store, "closed")
        one_raised(store, "later", on_raise=("mail",))
        held = one_taken(store)
        assert alerts_of(store).note_deliveries(changed(held, next_try=now_ms(store) + 60_000))
        assert taken(store) == []

    def test_an_alert_is_due_again_when_its_lease_has_ended(self, store: Store) -> None:
        one_raised(store, on_raise=("mail",))
        first = one_taken(store, "monitor.1", MOMENT)
        found = taken_at_last(store, "monitor.2")
        (second,) = found
        assert (second.owner, second.fence) == ("monitor.2", first.fence + 1)
        assert taken(store, "monitor.1") == []

    def test_no_more_alerts_are_taken_than_the_limit_those_due_longest_first(
        self, store: Store
    ) -> None:
        keys = ["d", "a", "c", "b", "e"]
        for key in keys:
            one_raised(store, key, on_raise=("mail",))
            let_time_pass(store)
        assert [each.key for each in taken(store, limit=2)] == keys[:2]
        assert [each.key for each in taken(store, limit=0)] == []
        assert [each.key for each in taken(store)] == keys[2:]

    def test_many_alerts_are_taken(self, store: Store) -> None:
        many = raised(store, *(alert(f"k{n}", on_raise=("mail",)) for n in range(MANY)))
        held: list[Alert] = []
        while found := taken(store, limit=MANY):
            held += found
        assert identities(held) == identities(many)
        assert {(each.owner, each.fence) for each in held} == {("monitor.1", 1)}

    def test_noted_deliveries_are_kept_and_end_the_lease(self, store: Store) -> None:
        for number, next_try in enumerate((None, LATER, SINCE)):
            key = f"k{number}"
            one_raised(store, key, **HOOKS)
            held = one_taken(store)
            noted = changed(held, deliveries=DELIVERIES, next_try=next_try)
            assert alerts_of(store).note_deliveries(noted)
            assert one_stored(store, key) == changed(noted, owner=None)
        (again,) = taken(store, "monitor.2")
        assert (again.key, again.fence, again.deliveries) == ("k2", 2, DELIVERIES)

    def test_only_deliveries_and_next_try_are_noted(self, store: Store) -> None:
        one_raised(store, **HOOKS)
        held = one_taken(store)
        other = changed(held, text="another", label="another", type="another", on_raise=())
        assert alerts_of(store).note_deliveries(changed(other, next_try=None))
        assert one_stored(store) == changed(held, next_try=None, owner=None)

    def test_a_lease_ends_once(self, store: Store, other: Store) -> None:
        """As after a lost answer: the second request changes nothing."""
        one_raised(store, **HOOKS)
        held = one_taken(store)
        noted = changed(held, deliveries=DELIVERIES, next_try=SINCE)
        assert alerts_of(store).note_deliveries(noted)
        assert not alerts_of(other).note_deliveries(changed(held, next_try=None))
        assert one_stored(store) == changed(noted, owner=None)
        again = one_taken(store, "monitor.1")
        assert not alerts_of(store).note_deliveries(noted)
        assert one_stored(store) == again

    def test_without_the_lease_nothing_is_noted(self, store: Store) -> None:
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

    def test_a_monitor_that_another_one_has_followed_notes_nothing(self, store: Store) -> None:
        one_raised(store, **HOOKS)
        held = one_taken(store, "monitor.1", MOMENT)
        found = taken_at_last(store, "monitor.2")
        assert not alerts_of(store).note_deliveries(changed(held, next_try=None))
        assert stored(store) == found

    def test_a_late_monitor_that_no_other_has_followed_notes(self, store: Store) -> None:
        one_raised(store, **HOOKS)
        held = one_taken(store, "monitor.1", MOMENT)
        wait_until(lambda: now_ms(store) > (held.next_try or 0) + 1, "the lease is over")
        assert alerts_of(store).note_deliveries(changed(held, next_try=None))
        assert taken(store, "monitor.2") == []

    def test_an_alert_that_was_closed_during_the_delivery_is_due_afterwards(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
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
        self, store: Store
    ) -> None:
        for next_try in None, LATER:
            key = f"k{next_try}"
            opened = one_raised(store, key, on_raise=("mail",))
            held = one_taken(store)
            alerts_of(store).close_alerts([opened], "it has run")
            assert alerts_of(store).note_deliveries(changed(held, next_try=next_try))
            assert one_stored(store, key).next_try == next_try

    def test_an_alert_that_was_closed_before_the_delivery_is_not_due_afterwards(
        self, store: Store
    ) -> None:
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
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        raised(store, *(alert(f"k{n}", on_raise=("mail",)) for n in range(20)))
        first = taken(store, "dead", MOMENT)
        last = max(each.next_try or 0 for each in first)
        wait_until(lambda: now_ms(store) > last + 1, "the leases are over")
        held = at_once(backend_factory, lambda other, number: taken(other, f"monitor.{number}"))
        own = [*chain.from_iterable(held), *taken(store, "the last")]
        assert identities(own) == identities(first)
        assert {each.fence for each in own} == {2}

    def test_of_several_requests_one_ends_a_lease(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
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

    def test_the_end_of_an_alert_is_never_forgotten(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        """Whether the alert is closed before, during or after the request that ends its lease."""
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


class Trimming(WithStore):
    """Tests that only what is over and delivered is deleted."""

    def test_alerts_that_were_closed_before_a_time_are_deleted(self, store: Store) -> None:
        closed = []
        for number in range(3):
            closed.append(one_closed(store, f"k{number}"))
            let_time_pass(store)
        assert _trim(store, before=0) == 0
        assert _trim(store, before=_closed(closed[0])) == 0
        assert _trim(store, before=_closed(closed[1])) == 1
        assert identities(stored(store)) == identities(closed[1:])
        assert _trim(store, before=_closed(closed[2]) + 1) == len(closed[1:])
        assert stored(store) == []
        assert _trim(store) == 0

    def test_what_is_open_or_has_a_delivery_left_is_kept(self, store: Store) -> None:
        kept = [one_raised(store, "open")]
        one_closed(store, "delivered", on_close=("mail",))
        assert alerts_of(store).note_deliveries(changed(one_taken(store), next_try=None))
        one_closed(store, "later", on_close=("mail",))
        later = changed(one_taken(store), next_try=LATER)
        assert alerts_of(store).note_deliveries(later)
        kept.append(later)
        one_closed(store, "leased", on_close=("mail",))
        kept.append(one_taken(store))
        kept.append(one_closed(store, "due", on_close=("mail",)))
        assert _trim(store) == 1
        assert identities(stored(store)) == identities(kept)

    def test_no_more_are_deleted_than_the_limit(self, store: Store) -> None:
        many = raised(store, *(alert(f"k{number}") for number in range(MANY)))
        alerts_of(store).close_alerts(many, "it has run")
        assert _trim(store, limit=3) == 3  # noqa: PLR2004  # the limit
        assert _trim(store, limit=0) == 0
        assert len(stored(store)) == MANY - 3
        while deleted := _trim(store, limit=200):
            assert deleted <= 200  # noqa: PLR2004  # the limit
        assert stored(store) == []

    def test_a_deleted_alert_can_be_raised_again(self, store: Store) -> None:
        one_closed(store, on_raise=())
        assert _trim(store) == 1
        again = one_raised(store)
        assert stored(store, key="k", only_open=True) == [again]

    def test_of_several_monitors_one_deletes_an_alert(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        many = raised(store, *(alert(f"k{number}") for number in range(120)))
        alerts_of(store).close_alerts(many, "it has run")

        def work(other: Store, _number: int) -> int:
            return sum(_trim(other, limit=7) for _ in range(len(many)))

        assert sum(at_once(backend_factory, work)) == len(many)
        assert stored(store) == []


def _trim(store: Store, *, before: int = LATER, limit: int = 1000) -> int:
    return alerts_of(store).trim_alerts(before=before, limit=limit)


def _closed(alert: Alert) -> int:
    assert alert.closed is not None
    return alert.closed


class AlertsContract(Raising, Closing, Listing, Delivering, Trimming):
    """Tests of a store that keeps alerts. Needs the fixture ``backend_factory``."""
