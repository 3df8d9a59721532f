"""Tests of reading alerts."""

from itertools import product
from typing import Any

from psched.core.alerts.alert import Alert, Rule
from psched.testing.store_contract.alerts.bench import (
    MANY,
    SINCE,
    alert,
    alerts_of,
    identities,
    let_time_pass,
    one_raised,
    raised,
    stored,
)
from psched.testing.store_contract.bench import BackendFactory

KEYS = ("a", "A", "b", "")
RULES = (Rule.LATE, Rule.SILENT, Rule.UNUSUAL)


class Listing:
    """Tests that a selection has the alerts that fulfil it, in the order of their times."""

    def test_those_that_were_raised_last_come_first(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        keys = ["b", "c", "a", "d"]
        for key in keys:
            one_raised(store, key)
            let_time_pass(store)
        assert [each.key for each in stored(store)] == keys[::-1]
        # An alert that was closed keeps its place.
        alerts_of(store).close_alerts([alert("c")], "it has run")
        assert [each.key for each in stored(store)] == keys[::-1]

    def test_a_selection_has_the_alerts_that_fulfil_it(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_many_alerts_are_read_in_pages(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        many = raised(store, *(alert(f"k{number:03}") for number in range(MANY)))
        found = stored(store)
        assert identities(found) == identities(many)
        times = [each.raised for each in found]
        assert times == sorted(times, reverse=True)
        assert stored(store, only_open=True) == found
        assert stored(store, limit=MANY - 7) == found[:-7]
        assert stored(store, rules=frozenset({Rule.LATE})) == found

    def test_many_alerts_of_one_key_are_read_in_pages(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        many = raised(store, *(alert(host=f"h{number:03}") for number in range(MANY)))
        one_raised(store, "other")
        found = stored(store, key="k")
        assert identities(found) == identities(many)
        assert stored(store, key="k", only_open=True) == found
        assert stored(store, key="k", limit=MANY - 7) == found[:-7]

    def test_an_alert_that_is_raised_meanwhile_does_not_disturb_a_listing(
        self, backend_factory: BackendFactory
    ) -> None:
        store, other = backend_factory(), backend_factory()
        many = raised(store, *(alert(f"k{number:03}") for number in range(MANY)))
        let_time_pass(store)
        listing = alerts_of(store).alerts()
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
