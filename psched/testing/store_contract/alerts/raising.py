"""Tests of raising alerts."""

from dataclasses import replace as changed
from itertools import chain
from types import MappingProxyType

from psched.core.alerts.alert import Delivery, Rule
from psched.core.alerts.protocol import KeepsAlerts
from psched.testing.store_contract.alerts.bench import (
    LATER,
    MANY,
    SINCE,
    alert,
    alerts_of,
    identities,
    now_ms,
    one_closed,
    one_raised,
    one_stored,
    raised,
    stored,
    taken,
)
from psched.testing.store_contract.bench import BackendFactory
from psched.testing.store_contract.contention import at_once


class Raising:
    """Tests that each alert is raised once, and at most one of each subject is open."""

    def test_a_raised_alert_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        assert isinstance(store, KeepsAlerts)
        assert store.alerts_problem() is None
        assert stored(store) == []
        before = now_ms(store)
        found = one_raised(store)
        assert before <= found.raised <= now_ms(store) + 1
        assert found == changed(alert(), raised=found.raised)
        assert stored(store) == [found]
        assert stored(backend_factory()) == [found]
        store.try_rights()
        assert stored(store) == [found]

    def test_no_alert_is_raised_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        assert [*alerts_of(store).raise_alerts([])] == []
        assert stored(store) == []

    def test_every_field_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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

    def test_a_text_of_any_origin_does_not_prevent_an_alert(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        found = one_raised(store, text="\0 \ud800" + "x" * 100_000, label="\0" * 1000)
        assert "x" * 900 in found.text
        assert stored(store) == [found]

    def test_the_delivery_of_a_raised_alert_is_due_if_a_hook_is_named(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        told = one_raised(store, "told", on_raise=("mail",))
        assert told.next_try == told.raised
        assert one_raised(store, "not told", on_close=("mail",)).next_try is None
        assert identities(taken(store)) == identities([told])

    def test_what_happens_later_is_not_raised(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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

    def test_an_alert_that_exists_is_not_raised(self, backend_factory: BackendFactory) -> None:
        store, other = backend_factory(), backend_factory()
        first = one_raised(store, text="first")
        assert [*alerts_of(other).raise_alerts([alert(text="second")])] == []
        assert stored(store) == [first]
        (closed,) = alerts_of(other).close_alerts([first], "it has run")
        assert [*alerts_of(store).raise_alerts([alert(text="third")])] == []
        assert stored(store) == [closed]

    def test_an_alert_whose_subject_has_an_open_one_is_not_raised(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        first = one_raised(store)
        later = alert(since=SINCE + 1)
        assert [*alerts_of(store).raise_alerts([later])] == []
        assert stored(store) == [first]
        alerts_of(store).close_alerts([first], "it has run")
        second = raised(store, later)
        assert stored(store, only_open=True) == second
        assert [*alerts_of(store).raise_alerts([alert(since=SINCE + 2), alert()])] == []

    def test_of_one_subject_any_number_of_alerts_can_be_closed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        closed = [one_closed(store, since=SINCE + number) for number in range(5)]
        assert identities(stored(store)) == identities(closed)
        assert stored(store, only_open=True) == []

    def test_key_host_rule_and_since_identify_an_alert(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_the_same_alert_twice_in_one_request_is_raised_once(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        several = [alert(), alert(), alert(since=SINCE + 1), alert("other"), alert()]
        found = alerts_of(store).raise_alerts(several)
        assert sorted(each.key for each in found) == ["k", "other"]
        assert {each.key: each for each in stored(store)} == {each.key: each for each in found}

    def test_those_that_are_new_are_raised_beside_those_that_exist(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
        self, backend_factory: BackendFactory
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
        store = backend_factory()
        assert sorted(each.key for each in stored(store, only_open=True)) == sorted(keys)
        assert one_stored(store, keys[0]) in [*chain.from_iterable(found)]
