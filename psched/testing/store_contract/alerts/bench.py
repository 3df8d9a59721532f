"""Functions for the tests of alerts."""

from collections.abc import Sequence
from math import floor
from typing import Any, cast

from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LONG_AGO, wait_until

SINCE = LONG_AGO * 1000
"""When the first incident of a test began, in milliseconds."""

MANY = 450
"""More alerts than a store reads or writes in one request."""

LEASE = 60.0
"""The length of a lease, in seconds; such a lease does not end during a test."""

MOMENT = 0.001
"""The length of a lease that ends at once."""

LATER = 4_000_000_000_000
"""A time far in the future, in milliseconds."""


def alerts_of(store: Store) -> KeepsAlerts:
    """The store, which has the capability."""
    return cast("KeepsAlerts", store)


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
    return [*alerts_of(store).alerts(AlertSelection(**conditions))]


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
