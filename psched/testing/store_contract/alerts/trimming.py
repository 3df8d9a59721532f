"""Tests of deleting old alerts."""

from dataclasses import replace as changed

from psched.core.alerts.alert import Alert
from psched.core.store_protocol import Store
from psched.testing.store_contract.alerts.bench import (
    LATER,
    MANY,
    alert,
    alerts_of,
    identities,
    let_time_pass,
    one_closed,
    one_raised,
    one_taken,
    raised,
    stored,
)
from psched.testing.store_contract.bench import BackendFactory
from psched.testing.store_contract.contention import at_once


class Trimming:
    """Tests that only what is over and delivered is deleted."""

    def test_alerts_that_were_closed_before_a_time_are_deleted(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_what_is_open_or_has_a_delivery_left_is_kept(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_no_more_are_deleted_than_the_limit(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        many = raised(store, *(alert(f"k{number}") for number in range(MANY)))
        alerts_of(store).close_alerts(many, "it has run")
        assert _trim(store, limit=3) == 3  # noqa: PLR2004  # the limit
        assert _trim(store, limit=0) == 0
        assert len(stored(store)) == MANY - 3
        while deleted := _trim(store, limit=200):
            assert deleted <= 200  # noqa: PLR2004  # the limit
        assert stored(store) == []

    def test_a_deleted_alert_can_be_raised_again(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        one_closed(store, on_raise=())
        assert _trim(store) == 1
        again = one_raised(store)
        assert stored(store, key="k", only_open=True) == [again]

    def test_of_several_monitors_one_deletes_an_alert(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
