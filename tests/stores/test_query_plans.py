"""What every statement costs on a large table: no more than on a small one.

Each is judged by what the planner says it will do, and by the rows it then examines.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import pytest
from sqlalchemy import TextClause, text

from psched.base.clock import SystemClock
from psched.core.hosts import MOST_LANES, PATTERNS, ROWS_OF_HOSTS, TEMPLATES
from psched.core.model import TOLD, Row, Settlement
from psched.core.operations.overview import MOST_COUNTED
from psched.core.operations.pauses import PauseRule
from psched.core.selection import EVERY_ROW, Selection, selection_of
from psched.stores.sql import raw_execute
from psched.stores.sql.claims import AT_ANY_TIME, EVERYWHERE, Range
from psched.stores.sql.glances import SqlGlances
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.selecting import Parts, SelectedListing
from psched.stores.sql.statements import Statements, as_seen
from psched.stores.sql.store import SqlStore
from support.big_tables import (
    KINDS,
    Cost,
    big_store,
    fill,
    joined,
    number,
    take_statistics,
)

ROWS = 60_000

LIMIT = 40
"""The number of rows that each statement requests."""

MOST = 10 * LIMIT
"""Rows that a statement may examine for that; some look at each several times."""

LEASED = 300 + LIMIT
"""The rows that are leased."""


STATES = ("calm", "flooded")
"""Calm: few rows are due, some are leased, some at rest, many due later, some of them at one time.
Flooded: as many rows again have just fallen due, all at one time, since the last ANALYZE."""

LATER = 4_000_000_000

RULES = [
    PauseRule(id="a", type="absent", since=1, by="ann@web1"),
    PauseRule(id="b", type="rare", since=1, until=LATER, by="ann@web1"),
    PauseRule(id="c", type=None, since=1, until=2, by="ann@web1"),
]
"""Pauses of types that few rows have, and one that is over. If very many due rows are of a paused
type, a claim reads them all."""

LEASE = {"alive_time": 60, "shortest": 6}
CLAIM = {**LEASE, "owner": "new.1", "limit": LIMIT}
DUE = {**LEASE, "since_step": 30, "horizon": 5, "limit": LIMIT, **EVERYWHERE.values}
PURGE = {"limit": LIMIT, "since": AT_ANY_TIME}
HOLD = {**LEASE, "since_step": 30, "expired_at": 1}
DEAD = {"dot": "dead.", "after_dot": "dead/"}


@dataclass(frozen=True)
class Crowd:
    """A table with very many rows.

    Attributes:
        kind: the kind of the database.
        store: a store on the table.
        first: the rows that were due or leased first, and that no extra run holds.
        held: rows that one owner holds.
        extra: rows that are due, and that extra runs of a dead worker hold.
    """

    kind: str
    store: SqlStore
    first: list[Row]
    held: list[Row]
    extra: list[Row]

    @property
    def sql(self) -> Statements:
        return self.store._sql

    @property
    def listing(self) -> Parts:
        return self.sql.selecting(EVERY_ROW).parts

    @property
    def key(self) -> str:
        return self.first[0].key

    def seen(self) -> list[Columns]:
        """The first rows as a claim reads them."""
        place = self.store._connector.dialect.place
        query = text(f"SELECT {place} FROM {self.store._table} WHERE id = :id")  # noqa: S608
        places = [self.store._query(query, {"id": row.key})[0] for row in self.first]
        return [(*astuple(row), *place) for row, place in zip(self.first, places, strict=True)]

    def ended(self) -> list[str]:
        found = self.store._connector.run(
            lambda c: c.execute(self.sql.purgeable, PURGE).scalars().all()
        )
        assert len(found) == LIMIT
        return [*found]

    def ends(self) -> list[Settlement]:
        return [
            Settlement(key=row.key, token=row.token, version=row.version, next_time=LATER)
            for row in self.held
        ]


Sent = tuple[TextClause, Mapping[str, Any]]

JUDGED: dict[str, Callable[[Crowd], Sent]] = {
    "get": lambda c: (c.sql.get, {"id": c.key}),
    "select": lambda c: c.sql.select([row.key for row in c.first]),
    "marked": lambda c: c.sql.marked([row.key for row in c.first]),
    "purgeable": lambda c: (c.sql.purgeable, PURGE),
    "purge": lambda c: c.sql.purge(c.ended()),
    "due": lambda c: (c.sql.due, DUE),
    "due_packed": lambda c: (c.sql.due if c.sql.due_packed is None else c.sql.due_packed, DUE),
    "due_among": lambda c: _with(c.sql.due_among([row.key for row in c.first]), DUE),
    "over_among": lambda c: _with(c.sql.over_among([row.key for row in c.first]), DUE),
    "ended": lambda c: (c.sql.ended, {}),
    "release_over": lambda c: (c.sql.release_over, {"key": c.key, "owner": "w.1", "end": 1}),
    "first_overdue": lambda c: (c.sql.first_overdue, {"until": LATER, "limit": LIMIT}),
    "overdue": lambda c: (
        c.sql.overdue,
        # In the middle of the rows that share one time.
        {"time": c.store._read(c.sql.get, {"id": "flood5"})[0].next_run_time, "id": "flood5"}
        | {"until": LATER, "limit": LIMIT},
    ),
    "backlog": lambda c: (c.sql.backlog, {"limit": LIMIT, **EVERYWHERE.values}),
    "any_lane": lambda c: (c.sql.any_lane, {}),
    "next_lane": lambda c: (c.sql.next_lane, dict(zip(("after", "before"), PATTERNS, strict=True))),
    "lane_waits": lambda c: (c.sql.lane_waits, {"lane": "gone", "ever": AT_ANY_TIME}),
    "held": lambda c: (c.sql.held, {"owner": c.held[0].owner}),
    "dead": lambda c: (c.sql.dead, {**DEAD, "alive_time": 60}),
    "claim_unlocked": lambda c: (
        c.sql.claim_unlocked,
        {**CLAIM, "horizon": 5, **EVERYWHERE.values},
    ),
    "claim": lambda c: _with(c.sql.claim("new.1", c.seen()), LEASE),
    "hold": lambda c: _with(
        c.sql.hold({row.key: "dead.3" for row in (*c.first, *c.held, *c.extra)}), HOLD
    ),
    "release": lambda c: c.sql.release({row.key: "dead.2" for row in (*c.first, *c.extra)}),
    "release_dead": lambda c: (c.sql.release_dead, DEAD),
    "extend": lambda c: _with(c.sql.extend({row.key: row.token for row in c.held}), LEASE),
    "settle": lambda c: c.sql.settle(c.ends()),
    "remove": lambda c: c.sql.remove(c.ends()),
    "settle_or_fail": lambda c: c.sql.settle_or_fail(c.ends())[0],
    "insert": lambda c: c.sql.insert([Row(key=f"new{i}") for i in range(LIMIT)], "nonce"),
    "replace": lambda c: (
        c.sql.replace,
        dict.fromkeys(
            ("type", "data", "cron", "timezone", "options", "label", "lane", "run_as", "reason")
        )
        | dict.fromkeys(("delay", "next_time", "next_run_time", "attempt", "alive_time"), 0)
        | dict.fromkeys(("created_at", "retain_until"), 0)
        | {"id": c.key, "type": "t", "status": "waiting", "seen_version": 1, "seen_fence": 0}
        | {"seen_status": "waiting"}
        | dict.fromkeys(TOLD)
        | {"seen_owner": "", "seen_next_run_time": c.first[0].next_run_time},
    ),
    "quarantine": lambda c: (c.sql.quarantine, {**as_seen(c.seen()[0]), "reason": "why"}),
    "delete": lambda c: (c.sql.delete, {"id": c.key, "expired_at": 1}),
    "mark_deleting": lambda c: (c.sql.mark_deleting, {"id": c.held[0].key}),
    "update_data": lambda c: (
        c.sql.update_data,
        {"id": c.key, "owner": "w.1", "fence": 1, "data": "{}"},
    ),
}
"""By name, a function that returns a statement and values for it."""

LANED = ("due", "due_packed", "due_among", "backlog", "claim_unlocked")
"""The statements that read the lanes of a host."""

UNJUDGED = {
    "serve": "sends nothing",
    "served": "is no statement",
    "observed": "is no statement",
    "checks_clock": "is no statement",
    "lane_probe": "matches no row",
    "now": "reads no table",
    "selecting": "its statements are judged by `test_a_selection_costs_as_much_as_it_returns`",
    "rights": "match no row",
    "count": "counts every row",
    "skip_locked_probe": "matches no row",
    "due_keys": "reads every key that is due; sent when one of them is no text",
    "quarantine_by_hex": "the same",
    "send_insert": "its statement does what that of `insert` does",
}
"""The other names in `Statements`, and why it does not matter what they cost."""

_OF_POSTGRESQL = {"claim_unlocked", "settle_or_fail"}
NOT_SENT = {"sqlite": _OF_POSTGRESQL, "mariadb": _OF_POSTGRESQL, "postgresql": set()}
"""By database, the statements that psched never sends to it."""

SORTS = {"claim_unlocked": "what it has claimed"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((kind, state), marks=mark, id=f"{kind}-{state}")
        for (kind, mark), state in itertools.product(KINDS.items(), STATES)
    ],
)
def crowd(request, tmp_path_factory):
    kind, state = request.param

    def fill_all(connection, store):
        gather(connection, kind, int(store.now()), flooded=state != "calm")

    with big_store(kind, request, tmp_path_factory, fill_all) as store:
        store.pauses.change_pause_rules(drop=[], store=RULES)
        store._sql.serve((), indexed=True)  # as soon as a row has a lane
        free = (row for row in store.rows() if row.held_by is None and row.lane is None)
        yield Crowd(
            kind=kind,
            store=store,
            first=[*itertools.islice(free, LIMIT)],
            held=[*store.look([f"held{i}" for i in range(LIMIT)]).values()],
            extra=[*store.look([f"extra{i}" for i in range(LIMIT)]).values()],
        )


def gather(connection, kind, now, *, flooded):
    digits = number(kind, "i")
    fill(
        connection,
        kind,
        ROWS,
        # Neighbours in time are no neighbours by key, nor in the table.
        id=joined(kind, "'k'", number(kind, "i * 7919 % 1000003")),
        next_run_time=(
            f"CASE WHEN i % 3000 = 0 THEN {now} - 200 + i % 7 WHEN i % 10 = 5 THEN NULL"
            f" WHEN i % 10 = 6 THEN {LATER} ELSE {now} + 3600 + i * 7907 % 86413 END"
        ),
        status=(
            "CASE WHEN i % 2000 = 5 THEN 'failed' WHEN i % 10 = 5 THEN 'finished'"
            " ELSE 'waiting' END"
        ),
        type="CASE WHEN i % 2000 = 7 THEN 'rare' ELSE 'default' END",
        label="CASE WHEN i % 2000 = 8 THEN 'reports' END",
        retain_until=(
            f"CASE WHEN i % 1000 = 5 THEN {now} - 100 + i % 7"
            f" WHEN i % 10 = 5 THEN {now} + 3600 + i * 7907 % 86413 END"
        ),
    )
    leased = {"next_run_time": f"{now} + 3000", "fence": "1"}
    fill(connection, kind, 300, id=joined(kind, "'busy'", digits), leased_by=digits, **leased)
    fill(connection, kind, LIMIT, id=joined(kind, "'held'", digits), leased_by="'dead.1'", **leased)
    until = {"held_until": f"{now} + 3000"}
    fill(
        connection,
        kind,
        LIMIT,
        id=joined(kind, "'extra'", digits),
        next_run_time=str(now - 300),
        held_by="'dead.2'",
        **until,
    )
    keys = joined(kind, "'kept'", digits)
    fill(connection, kind, 300, id=keys, next_run_time=str(LATER), held_by=digits, **until)
    if not flooded:
        fill(connection, kind, 10, id=joined(kind, "'flood'", digits), next_run_time=str(LATER))
    take_statistics(connection, kind)
    if flooded:
        keys = joined(kind, "'flood'", digits)
        fill(connection, kind, ROWS, id=keys, next_run_time=str(now - 200))
        keys = joined(kind, "'ended'", digits)
        ended = {"status": "'finished'", "retain_until": str(now - 200)}
        fill(connection, kind, ROWS // 10, id=keys, next_run_time="NULL", **ended)
        # A host that is gone, and lanes of this host.
        gone = {"lane": "'gone'", "next_run_time": str(now - 900)}
        fill(connection, kind, ROWS // 8, id=joined(kind, "'gone'", digits), **gone)
        lane = joined(kind, "'own'", number(kind, "i % 10"))
        own = {"lane": lane, "next_run_time": str(now - 400)}
        fill(connection, kind, 20 * LIMIT, id=joined(kind, "'own'", digits), **own)


LISTED: dict[str, Callable[[Crowd], Sent]] = {
    "first_timed": lambda c: (c.listing[0][0], {"limit": LIMIT}),
    "timed": lambda c: (
        c.listing[0][1],
        # In the middle of the rows that share one time.
        {"time": c.store._read(c.sql.get, {"id": "flood5"})[0].next_run_time, "id": "flood5"}
        | {"limit": LIMIT},
    ),
    "first_resting": lambda c: (c.listing[1][0], {"limit": LIMIT}),
    "resting": lambda c: (c.listing[1][1], {"id": "k5", "limit": LIMIT}),
}
"""The statements that list all rows."""


@pytest.mark.parametrize("name", LISTED)
def test_a_page_of_all_rows_costs_as_much_as_it_returns(crowd, name):
    cost = crowd.store._connector.run(lambda c: Cost(c, crowd.kind, *LISTED[name](crowd)))
    assert cost.examined <= MOST, cost.plan
    assert not cost.scans, cost.plan
    assert not cost.sorts, cost.plan


def test_every_statement_that_lists_all_rows_is_judged(crowd):
    assert [*map(len, crowd.listing)] == [2, 2]


@pytest.mark.parametrize("name", JUDGED)
def test_a_statement_costs_as_much_as_it_is_asked_for(crowd, name):
    if name in NOT_SENT[crowd.kind]:
        return
    statement, values = JUDGED[name](crowd)
    cost = crowd.store._connector.run(lambda c: Cost(c, crowd.kind, statement, values))
    # All leases and holds are read to find those that have ended.
    assert cost.examined <= (4 * LEASED if name == "ended" else MOST), cost.plan
    assert not cost.scans, cost.plan
    assert not cost.sorts or name in SORTS, cost.plan


@pytest.mark.parametrize("name", LANED)
def test_a_claim_from_several_lanes_reads_only_these(crowd, name):
    """Very many rows of another host have been due for longer."""
    if name in NOT_SENT[crowd.kind] or not len(crowd.store.look(["flood10"])):
        return
    lanes = [f"own{i}" for i in range(MOST_LANES)]
    crowd.sql.serve(lanes, indexed=True)
    try:
        statement, values = JUDGED[name](crowd)
    finally:
        crowd.sql.serve((), indexed=True)
    values = {**values, **{f"lane{i}": lane for i, lane in enumerate(lanes)}}
    cost = crowd.store._connector.run(lambda c: Cost(c, crowd.kind, statement, values))
    # MariaDB reads the keys of each lane from tables of their own, more than once.
    reads = 8 if crowd.kind == "mariadb" else 4
    assert cost.examined <= MOST + reads * LIMIT * (1 + MOST_LANES), cost.plan


NARROW = {
    "status": {"status": "failed"},
    "statuses": {"status": ["failed", "running", "paused"]},
    "running": {"status": "running"},
    "type": {"type": "rare"},
    "label": {"label": "reports"},
    "prefix": {"prefix": "held"},
    "prefix of waiting ones": {"prefix": "held", "status": ["waiting", "running"]},
    "narrow and wide": {"type": "default", "status": "failed"},
    "wide and narrow": {"status": ["waiting", "finished"], "label": "reports"},
}
"""Arguments of a listing that returns few of the rows."""

WIDE = {
    "type": {"type": "default"},
    "type by key": {"type": "default", "order": "key"},
    "status": {"status": "waiting"},
    "prefix": {"prefix": "k"},
    "status of those that do not run": {"status": "finished"},
    "by key": {"order": "key"},
}
"""Arguments of a listing that returns many of the rows; its first row is asked for."""


@pytest.mark.parametrize("name", NARROW)
def test_a_selection_costs_as_much_as_it_returns(crowd, name, monkeypatch):
    monkeypatch.setattr("psched.stores.sql.selecting.MOST_KEYS", MOST)
    costs = costs_of_listing(crowd, NARROW[name], rows=None)
    assert not [cost.plan for cost in costs if cost.scans or cost.sorts]
    assert not [cost.plan for cost in costs if cost.examined > 2 * MOST]


@pytest.mark.parametrize("name", WIDE)
def test_the_first_row_of_a_wide_selection_costs_a_page(crowd, name, monkeypatch):
    if len(crowd.store.look(["flood10"])):
        return  # in the order of time, a flood of rows that do not match may come first
    monkeypatch.setattr("psched.stores.sql.selecting.MOST_KEYS", MOST)
    costs = costs_of_listing(crowd, WIDE[name], rows=1)
    assert not [cost.plan for cost in costs if cost.sorts or cost.examined > 2 * MOST]


def test_a_list_of_due_rows_does_not_read_the_others(crowd, monkeypatch):
    if len(crowd.store.look(["flood10"])):
        return  # very many rows are due
    monkeypatch.setattr("psched.stores.sql.selecting.MOST_KEYS", 0)
    costs = costs_of_listing(crowd, {"due": True}, rows=None)
    assert not [cost.plan for cost in costs if cost.sorts or cost.examined > 2 * MOST]


OVERVIEW = ["leased", "due", "following", "paused", "counts", "place_of_due"]
"""The statements of an overview."""


def glances_of(crowd):
    """What reads rows without their data; and the requests that it sends."""
    sent = []

    def query(statement, values):
        sent.append((statement, dict(values)))
        return crowd.store._query(statement, values)

    connector = crowd.store._connector
    table = connector.quote(crowd.store._table)
    return SqlGlances(table, connector.dialect, query, SystemClock()), sent


@pytest.mark.parametrize("name", OVERVIEW)
def test_an_overview_costs_as_much_as_it_shows(crowd, name):
    """The number of all rows does not matter, only that of the rows which it shows or counts."""
    statement = getattr(crowd.store.light_reads, f"_{name}")
    time, key = EVERYWHERE.after
    values = {"limit": MOST_COUNTED if name == "leased" else LIMIT, "time": time, "id": key}
    cost = crowd.store._connector.run(lambda c: Cost(c, crowd.kind, statement, values))
    most = {"counts": 5 * MOST_COUNTED, "leased": 4 * LEASED, "following": 4 * LEASED}
    assert cost.examined <= most.get(name, MOST), cost.plan
    assert not cost.scans, cost.plan
    assert not cost.sorts, cost.plan


def test_every_statement_of_an_overview_is_judged(crowd):
    glances, sent = glances_of(crowd)
    glances.overview(LIMIT)
    judged = (getattr(glances, f"_{name}") for name in OVERVIEW)
    assert {str(statement) for statement, _ in sent} == {*map(str, judged)}


@pytest.mark.parametrize("what", ["active", "active after", "page", "mentioning", "keys"])
def test_what_a_judge_reads_costs_as_much_as_it_returns(crowd, what):
    """The number of all rows does not matter; leased rows are read all."""
    glances, sent = glances_of(crowd)
    begin = crowd.store.light_reads.row_page(None, LIMIT, None).following
    place = crowd.first[0].next_run_time, crowd.key
    {
        "active": lambda: glances.active_rows(None, LIMIT),
        "active after": lambda: glances.active_rows(place, LIMIT),
        "page": lambda: glances.row_page(begin, LIMIT, None),
        "mentioning": lambda: glances.row_page(begin, LIMIT, "expect"),
        "keys": lambda: glances.light_rows([row.key for row in crowd.first]),
    }[what]()
    assert sent
    for statement, values in sent:
        cost = crowd.store._connector.run(
            lambda c, s=statement, v=values: Cost(c, crowd.kind, s, v)
        )
        assert cost.examined <= max(MOST, 4 * LEASED), (str(statement), cost.plan)
        assert not cost.scans or "FROM" not in str(statement), (str(statement), cost.plan)
        assert not cost.sorts, (str(statement), cost.plan)


@pytest.mark.parametrize("lanes", [TEMPLATES, ROWS_OF_HOSTS, ("@db1", "@db1!")])
def test_the_rows_of_some_lanes_cost_as_much_as_they_are(crowd, lanes):
    sent = []

    def read(statement, values):
        sent.append((statement, dict(values)))
        return crowd.store._query(statement, values)

    found = [*SelectedListing(crowd.sql.selecting, Selection(lanes=lanes), read)]
    assert found == [*crowd.store.rows(Selection(lanes=lanes))]
    assert sent
    for statement, values in sent:
        cost = crowd.store._connector.run(
            lambda c, s=statement, v=values: Cost(c, crowd.kind, s, v)
        )
        assert cost.examined <= MOST, (str(statement), cost.plan)
        assert not cost.scans, (str(statement), cost.plan)


def costs_of_listing(crowd, conditions, rows):
    """What each query for keys or rows costs, until so many rows have come; None: all of them."""
    sent = []

    def read(statement, values):
        sent.append((statement, dict(values)))
        return crowd.store._query(statement, values)

    selection = selection_of(**conditions)
    listing = SelectedListing(crowd.sql.selecting, selection, read)
    found = [*itertools.islice(listing, rows)]
    assert found
    assert all(selection.matches(row, crowd.store.now()) for row in found)
    # A count ends at `MOST_KEYS`. If very many rows match, to read the table is the best plan.
    reads = [each for each in sent if "COUNT" not in each[0].text]
    assert reads
    return [
        crowd.store._connector.run(lambda c, each=each: Cost(c, crowd.kind, *each))
        for each in reads
    ]


def test_every_statement_is_judged(open_store):
    sql = open_store()._sql
    public = {name for name in dir(sql) if not name.startswith("_")}
    assert public == JUDGED.keys() | UNJUDGED.keys()


def test_the_rows_that_extra_runs_hold_are_there_and_are_passed_over(crowd):
    """Otherwise the statements that are judged would have nothing to do."""
    assert {row.held_by for row in crowd.extra} == {"dead.2"}
    assert len(crowd.extra) == LIMIT
    statement, values = JUDGED["due"](crowd)
    keys = {row.key for row in crowd.extra}
    assert all(keys.isdisjoint(map(str, row)) for row in crowd.store._query(statement, values))


def test_a_claim_passes_over_the_rows_of_an_earlier_time(crowd):
    name = "claim_unlocked" if crowd.kind == "postgresql" else "due"
    statement, values = JUDGED[name](crowd)
    values = {**values, **Range(after=(int(crowd.store.now()) - 10, "")).values}
    cost = crowd.store._connector.run(lambda c: Cost(c, crowd.kind, statement, values))
    assert cost.examined <= LIMIT, cost.plan
    assert not cost.scans, cost.plan


@pytest.mark.parametrize("name", ["claim_unlocked", "settle_or_fail", "extend", "remove"])
def test_a_prepared_statement_costs_as_much_as_it_is_asked_for(crowd, name):
    """Its plan is made once, for any values; the planner does not know them."""
    if crowd.kind != "postgresql":
        return

    def cost(connection):
        statement, values = JUDGED[name](crowd)
        compiled = raw_execute._compile(statement, connection.dialect)
        bound = compiled.bind(values)
        names = [*bound]
        numbers = {each: f"${names.index(each) + 1}" for each in names}
        prepared = re.sub(r"%\((\w+)\)s", lambda found: numbers[found[1]], compiled.text)
        literals = ["NULL" if v is None else f"'{v}'" for v in bound.values()]
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        connection.exec_driver_sql(f"PREPARE judged AS {prepared.replace('%%', '%')}")
        try:
            return Cost(connection, crowd.kind, text(f"EXECUTE judged ({', '.join(literals)})"), {})
        finally:
            connection.exec_driver_sql("DEALLOCATE ALL")
            connection.exec_driver_sql("RESET plan_cache_mode")

    found = crowd.store._connector.run(cost)
    assert found.examined <= MOST, found.plan
    assert not found.scans, found.plan
    assert not found.sorts or name in SORTS, found.plan


def _with(sent: Sent, more: Mapping[str, Any]) -> Sent:
    statement, values = sent
    return statement, {**values, **more}
