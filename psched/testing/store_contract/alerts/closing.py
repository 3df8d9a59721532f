"""Tests of closing alerts."""

from dataclasses import replace as changed
from itertools import chain

from psched.core.store_protocol import Store
from psched.testing.store_contract.alerts.bench import (
    LATER,
    MANY,
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
)
from psched.testing.store_contract.bench import BackendFactory
from psched.testing.store_contract.contention import at_once

WHY = "it has run"


class Closing:
    """Tests that each alert is closed once, and that its hooks are told."""

    def test_a_closed_alert_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        opened = one_raised(store, label="a label")
        before = let_time_pass(store)
        (closed,) = alerts_of(store).close_alerts([opened], WHY)
        assert closed.closed is not None
        assert before <= closed.closed <= now_ms(store) + 1
        assert closed == changed(opened, closed=closed.closed, closed_text=WHY)
        assert stored(store) == [closed]
        assert stored(backend_factory(), only_open=True) == []

    def test_no_alert_is_closed_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        opened = one_raised(store)
        assert [*alerts_of(store).close_alerts([], WHY)] == []
        assert stored(store) == [opened]

    def test_an_alert_that_was_closed_stays_as_it_is(self, backend_factory: BackendFactory) -> None:
        store, other = backend_factory(), backend_factory()
        opened = one_raised(store, on_close=("mail",))
        (closed,) = alerts_of(store).close_alerts([opened], WHY)
        let_time_pass(store)
        assert [*alerts_of(other).close_alerts([opened, closed], "another reason")] == []
        assert stored(store) == [closed]

    def test_an_alert_that_does_not_exist_is_not_closed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        opened = one_raised(store)
        others = [
            changed(opened, since=SINCE + 1),
            changed(opened, key="K"),
            changed(opened, host="h"),
            changed(opened, rule="longest"),
        ]
        assert [*alerts_of(store).close_alerts(others, WHY)] == []
        assert stored(store) == [opened]

    def test_the_same_alert_twice_in_one_request_is_closed_once(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        opened = one_raised(store)
        assert len(alerts_of(store).close_alerts([opened, opened], WHY)) == 1

    def test_a_text_of_any_origin_does_not_prevent_the_end(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        (closed,) = alerts_of(store).close_alerts([one_raised(store)], "\0 \ud800" + "x" * 100_000)
        assert "x" * 900 in (closed.closed_text or "")
        assert stored(store) == [closed]

    def test_many_alerts_are_closed_and_the_others_stay_open(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        many = raised(store, *(alert(f"k{number}") for number in range(MANY)))
        alerts_of(store).close_alerts(many[:3], WHY)
        closed = alerts_of(store).close_alerts(many[: MANY // 2], WHY)
        assert identities(closed) == identities(many[3 : MANY // 2])
        assert identities(stored(store, only_open=True)) == identities(many[MANY // 2 :])

    def test_the_delivery_of_a_closed_alert_is_due_if_a_hook_is_named(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        told = one_closed(store, "told", on_close=("mail",))
        assert told.next_try == told.closed
        assert one_closed(store, "not told").next_try is None
        assert identities(taken(store)) == identities([told])

    def test_a_delivery_that_is_due_already_stays_due(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for hooks in (), ("mail",):
            key = f"k{len(hooks)}"
            opened = one_raised(store, key, on_raise=("mail",), on_close=hooks)
            let_time_pass(store)
            (closed,) = alerts_of(store).close_alerts([opened], WHY)
            assert closed.next_try == opened.next_try

    def test_a_later_delivery_is_due_now_if_a_hook_is_told_of_the_end(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for hooks in (), ("mail",):
            key = f"k{len(hooks)}"
            one_raised(store, key, on_raise=("mail",), on_close=hooks)
            held = one_taken(store)
            assert alerts_of(store).note_deliveries(changed(held, next_try=LATER))
            (closed,) = alerts_of(store).close_alerts([held], WHY)
            assert closed.next_try == (closed.closed if hooks else LATER)

    def test_a_lease_does_not_end_when_the_alert_is_closed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        one_raised(store, on_raise=("mail",), on_close=("mail",))
        held = one_taken(store)
        (closed,) = alerts_of(backend_factory()).close_alerts([held], WHY)
        assert (closed.next_try, closed.owner) == (held.next_try, held.owner)
        assert closed.fence == held.fence
        assert taken(store, "monitor.2") == []

    def test_of_several_monitors_one_closes_an_alert(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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
        self, backend_factory: BackendFactory
    ) -> None:
        opened = raised(backend_factory(), *(alert(f"k{number}") for number in range(40)))

        def work(store: Store, number: int) -> None:
            for each in opened:
                if number == 0:
                    alerts_of(store).close_alerts([each], WHY)
                else:
                    alerts_of(store).raise_alerts([changed(each, since=SINCE + number)])

        at_once(backend_factory, work)
        store = backend_factory()
        open_now = [each.subject for each in stored(store, only_open=True)]
        assert len({*open_now}) == len(open_now)
        assert len(stored(store)) == len(opened) + len(open_now)
