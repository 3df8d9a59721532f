"""Tests of the standing rules that pause types: `psched.core.operations.pauses.PausesTypes`."""

from dataclasses import replace as changed
from itertools import count
from typing import Any

from psched.core.model import DEFAULT_TYPE, Row
from psched.core.operations.pauses import PauseRule
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    LONG_AGO,
    MOMENT,
    WithStore,
    claim,
    due,
    ending,
    found,
    wait_for_end,
    wait_until,
)

_TYPES = ("mail", "Mail", "mail ", "m\xe4il", "b'o\"o\\%s", "x" * 255)
"""Types that a store could confuse, and the longest one."""


class PausesContract(WithStore):
    """Tests of a store that keeps rules. Needs the fixture ``backend_factory``."""

    def test_without_rules_every_row_is_claimed(self, store: Store) -> None:
        _add(store, *_TYPES)
        assert _rules(store) == []
        assert _claimed(store) == {*_TYPES}

    def test_rules_are_read_as_they_were_stored(self, store: Store, other: Store) -> None:
        rules = [
            _rule("a", "x" * 255, until=LATER, note='"\xe4\u20ac\U0001f600"\\ ' * 15),
            _rule("b", None, by="bob@web2", until=2),
            _rule("c" * 16, "mail", note=None),
        ]
        _change(store, store_=rules)
        assert sorted(_rules(other), key=lambda rule: rule.id) == rules

    def test_the_rows_of_a_paused_type_are_not_claimed(self, store: Store, other: Store) -> None:
        _add(store, *_TYPES)
        for number, type_ in enumerate(_TYPES):
            _change(store, drop=[f"r{number - 1}"], store_=[_rule(f"r{number}", type_)])
            assert _claimed(other) == {*_TYPES} - {type_}
            _release(store)

    def test_a_rule_holds_rows_that_are_added_later(self, store: Store) -> None:
        _change(store, store_=[_rule("a", "mail")])
        _add(store, "mail", "web")
        assert _claimed(store) == {"web"}

    def test_a_row_without_a_type_has_the_default_type(self, store: Store) -> None:
        store.add([due("k")], nonce="n")
        _change(store, store_=[_rule("a", DEFAULT_TYPE)])
        assert _claimed(store) == set()

    def test_a_pause_of_everything_holds_every_type(self, store: Store) -> None:
        _add(store, "mail", "web", "*")
        _change(store, store_=[_rule("a", None)])
        assert _claimed(store) == set()
        _change(store, drop=["a"], store_=[_rule("b", "*")])
        assert _claimed(store) == {"mail", "web"}

    def test_the_backlog_and_the_next_due_time_leave_out_what_is_paused(self, store: Store) -> None:
        _add(store, "mail", "web")
        _change(store, store_=[_rule("a", "mail")])
        assert store.backlog(10).due == 1
        assert _claimed(store) == {"web"}
        assert store.backlog(10).due == 0
        _change(store, drop=["a"])
        assert store.backlog(10).due == 1

    def test_a_rule_holds_until_its_end(self, store: Store) -> None:
        now = int(store.now())
        _add(store, "over", "holds", "longer", "for ever")
        rules = {"over": now, "holds": now + 1000, "longer": 253_402_300_799, "for ever": None}
        _change(store, store_=[_rule(t[0], t, until=until) for t, until in rules.items()])
        assert _claimed(store) == {"over"}
        assert len(_rules(store)) == len(rules)

    def test_a_pause_of_everything_holds_until_its_end(self, store: Store) -> None:
        now = int(store.now())
        _add(store, "mail")
        _change(store, store_=[_rule("a", None, until=now + 1000)])
        assert _claimed(store) == set()
        _change(store, store_=[_rule("a", None, until=now)])
        assert _claimed(store) == {"mail"}

    def test_a_rule_is_replaced_and_deleted_by_its_id(self, store: Store) -> None:
        _change(store, store_=[_rule("a", "mail"), _rule("ab", "web")])
        new = _rule("a", "other", until=LATER, note="new")
        _change(store, store_=[new])
        _change(store, store_=[new])
        assert sorted(rule.type or "" for rule in _rules(store)) == ["other", "web"]
        _change(store, drop=["a", "none"])
        _change(store, drop=["a", "none"])
        assert [rule.type for rule in _rules(store)] == ["web"]
        _add(store, "mail", "web", "other")
        assert _claimed(store) == {"mail", "other"}

    def test_a_leased_row_stays_leased(self, store: Store) -> None:
        _add(store, "mail")
        (held,) = claim(store, "w.1").rows
        _change(store, store_=[_rule("a", "mail")])
        assert store.extend({held.key: held.token}, alive_time=60, shortest=1) == {held.key}
        store.settle([ending(held, next_time=LATER, not_before=LATER)])
        assert found(store, held.key).next_run_time == LATER

    def test_a_row_is_held_although_its_type_is_paused(self, store: Store) -> None:
        _add(store, "mail")
        _change(store, store_=[_rule("a", "mail"), _rule("b", None)])
        assert store.holds is not None
        assert store.holds.hold({"k0": "w.1"}, alive_time=60, shortest=1) == {"k0"}

    def test_a_limit_counts_only_what_is_not_paused(self, store: Store) -> None:
        store.add([due(f"m{n}", n + 1, type="mail") for n in range(20)], nonce="n")
        store.add([due(f"w{n}", n + 100, type="web") for n in range(5)], nonce="n")
        _change(store, store_=[_rule("a", "mail")])
        first = claim(store, "w.1", limit=3)
        assert [row.key for row in first.rows] == ["w0", "w1", "w2"]
        assert first.more
        last = claim(store, "w.2", limit=3)
        assert [row.key for row in last.rows] == ["w3", "w4"]
        assert not last.more

    def test_very_many_paused_rows_delay_no_others(self, store: Store) -> None:
        now = _add_many(store)
        _change(store, store_=[_rule("a", "mail")])
        store.add(
            [due("among", now - 600, type="web"), due("after", now - 1, type="web")], nonce="n"
        )
        assert _claimed_until_none(store) == {"among", "after"}
        # These fall due later, now and long before the others.
        times = {"new": now, "first": LONG_AGO, "second": now - 600}
        store.add([due(key, since, type="web") for key, since in times.items()], nonce="n")
        _claim_until(store, {*times})
        store.settle([ending(row, attempt=0) for row in store.rows() if row.owner is not None])
        assert _claimed_until_none(store) == {"among", "after", *times}

    def test_very_many_paused_rows_of_one_time_hide_none(self, store: Store) -> None:
        now = _add_many(store, every=600)
        _change(store, store_=[_rule("a", "mail")])
        store.add([due("m5-web", now - 600, type="web")], nonce="n")
        assert _claimed_until_none(store) == {"m5-web"}
        store.add([due("m6-web", now - 600, type="web")], nonce="n")
        _claim_until(store, {"m6-web"})

    def test_very_many_rows_are_claimed_once_their_pause_has_ended(
        self, store: Store, other: Store
    ) -> None:
        _add_many(store)
        _change(other, store_=[_rule("a", "mail"), _rule("b", "web")])
        assert _claimed_until_none(store) == set()
        _change(other, store_=[_rule("a", "mail"), _rule("c", None)])
        assert _claimed_until_none(store) == set()
        _change(other, drop=["a", "c"])
        # On a slow store, the other claims take minutes.
        first = claim(store, _owner(), limit=3, alive_time=60 * LEASE)
        assert [row.key for row in first.rows] == ["m0", "m1", "m2"]
        assert first.more
        assert len(_claimed_until_none(store)) == _MANY - 3

    def test_a_pause_of_very_many_rows_ends_at_its_time(self, store: Store) -> None:
        _add_many(store)
        _change(store, store_=[_rule("a", "mail", until=int(store.now()) + 3600)])
        assert _claimed_until_none(store) == set()
        # What is claimed before this end is not asserted: a slow store may look for longer.
        _change(store, store_=[_rule("a", "mail", until=int(store.now()) + 2)])
        _claim_until(store, {f"m{number}" for number in range(_MANY)})

    def test_a_row_among_very_many_paused_ones_gets_another_type(self, store: Store) -> None:
        _add_many(store)
        _change(store, store_=[_rule("a", "mail")])
        assert _claimed_until_none(store) == set()
        row = found(store, "m7")
        assert store.replace(row, changed(row, type="web"))
        _claim_until(store, {"m7"})

    def test_rows_of_expired_leases_are_claimed_among_very_many_paused_ones(
        self, store: Store
    ) -> None:
        now = _add_many(store)
        _change(store, store_=[_rule("a", "mail")])
        store.add([due("web", now - 600, type="web")], nonce="n")
        (first,) = _claimed_rows(store, **MOMENT)
        wait_for_end(store, "web")
        (second,) = _claimed_rows(store)
        assert (second.key, second.fence) == (first.key, first.fence + 1)


_MANY = 2500  # more rows than a store passes over in each claim

_owners = count(1)


def _owner() -> str:
    return f"worker.{next(_owners)}"


def _add_many(store: Store, *, every: int | None = None) -> int:
    """Add very many rows of type ``mail``, due since ``every`` s; return the store's time."""
    now = int(store.now())
    rows = [
        due(f"m{number}", now - (every or 2 * _MANY - number), type="mail")
        for number in range(_MANY)
    ]
    for start in range(0, _MANY, 500):
        store.add(rows[start : start + 500], nonce="n")
    return now


def _claimed_rows(store: Store, **options: Any) -> list[Row]:  # noqa: ANN401  # of `claim`
    """Claim until a claim says that there are no more rows."""
    rows, more = list[Row](), True
    while more:
        claimed = claim(store, _owner(), limit=500, **options)
        rows += claimed.rows
        more = claimed.more
    return rows


def _claimed_until_none(store: Store) -> set[str]:
    return {row.key for row in _claimed_rows(store)}


def _claim_until(store: Store, keys: set[str]) -> None:
    """Claim again and again until these rows have been claimed."""
    seen = set[str]()

    def claim_more() -> bool:
        seen.update(_claimed_until_none(store))
        return seen == keys

    wait_until(claim_more, f"{keys} are claimed")


def _rule(id_: str, type_: str | None, **fields: Any) -> PauseRule:  # noqa: ANN401  # its fields
    return changed(PauseRule(id=id_, type=type_, since=1, by="ann@web1", note="deploy"), **fields)


def _rules(store: Store) -> list[PauseRule]:
    assert store.pauses is not None
    return [*store.pauses.pause_rules()]


def _change(
    store: Store, *, drop: list[str] | None = None, store_: list[PauseRule] | None = None
) -> None:
    assert store.pauses is not None
    store.pauses.change_pause_rules(drop=drop or [], store=store_ or [])


def _add(store: Store, *types: str) -> None:
    """Add one row of each type, all of them due."""
    rows = [due(f"k{number}", type=type_) for number, type_ in enumerate(types)]
    store.add(rows, nonce="n")


def _claimed(store: Store) -> set[str]:
    """Claim what can be claimed; return the types of the rows."""
    claimed = claim(store, "worker.1", limit=100)
    assert claimed.next_due is None
    return {row.type for row in claimed.rows}


def _release(store: Store) -> None:
    """Make all rows due again."""
    store.settle([ending(row, attempt=0) for row in store.rows() if row.owner is not None])
