"""Any sequence of requests to a store: each is answered as by the model, a store in memory.

After each step, the store's rows, records, changes, workers and rules are those of the model.
Hypothesis draws the steps from ``PSCHED_FUZZ_SEED``; if a sequence fails, it prints the shortest
one that it finds.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace as changed
from math import floor, inf
from operator import attrgetter

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from psched.base.errors import AlreadyExistsError, NotFoundError
from psched.config import from_mapping
from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.records import (
    AuditRecord,
    Fate,
    Outcome,
    RunRecord,
    WorkerRecord,
    nonce_of,
)
from psched.core.model import (
    CANCELLING,
    DELETING,
    FINISHED,
    PAUSED,
    QUARANTINED,
    STOPPING,
    WAITING,
    Row,
    Settlement,
)
from psched.core.operations.pauses import PauseRule
from psched.core.selection import Selection
from psched.core.store_protocol import Settled
from psched.testing import ManualClock
from psched.testing.memory_store import MemoryStore
from psched.testing.store_contract.bench import payload
from psched.testing.virtual_schedules import VirtualStore
from support.fuzzing import FACTOR, SEED
from support.store_clock import redis_clock, store_clock
from support.stores import Sql, make_store
from support.tables import fill_sqlite

# The clock moves by quarters of a second. A database computes its time with rounding errors, which
# must not show in whole milliseconds.
START = 1_800_000_000.0004

EXAMPLES, STEPS = 40, 40
"""How many sequences are drawn, and how many steps each has."""

PLANTED = 200
"""How many sequences are drawn at most until a planted fault is found."""

EXTRA_RUN = "a!0123456789abcdef"
KEYS = ("a", "A", "b", "ü", EXTRA_RUN)
TYPES = ("t", "T", "é")
OWNERS = ("w0", "w1", "W0")
LEASE = {"alive_time": 30, "shortest": 6}

keys = st.sampled_from(KEYS)
some_keys = st.lists(keys, min_size=1, max_size=3, unique=True)
types = st.sampled_from(TYPES)
# Seconds from now, so that rows fall due and leases end while the clock moves.
offsets = st.sampled_from([-100, -5, -1, 0, 1, 5, 60])
payloads = st.sampled_from([None, "{}", '{"k":"é 🗝"}'])
texts = st.sampled_from([None, "", "why é"])
always = st.just(True)  # noqa: FBT003  # a value of a field
places = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 7, 15])


class Model(MemoryStore):
    """The model.

    Attributes:
        chosen: the keys of the due rows that a claim could lease; None means all of them.
    """

    chosen = None

    def _claimable(self, found, now):
        ours = super()._claimable(found, now)
        if self.chosen is None:
            return ours
        return [row for row in ours if not _is_due(row, now) or row.key in self.chosen]

    def due(self):
        """The times of the rows that a claim could lease now, the earliest first."""
        rows, now = self._claimable(self.stored, self.now()), self.now()
        late = (row for row in rows if _is_due(row, now) and not row.is_held(now))
        return sorted(row.next_run_time for row in late)

    def later(self):
        """When the next row falls due that is not due yet; infinite if there is none."""
        rows = self._claimable(self.stored, self.now())
        times = [row.next_run_time for row in rows if row.next_run_time is not None]
        return min((time for time in times if time > self.now()), default=inf)


class Stores(RuleBasedStateMachine):
    """A store and its model get the same requests.

    Args:
        place: makes the store and moves its clock, see `on_sqlite`.
    """

    def __init__(self, place):
        super().__init__()
        self.place = place
        self.clock = ManualClock(wall=START)
        self.store = place.open(self.clock)
        self.model = Model(self.clock.wall, from_mapping({"url": "sqlite:///unused.db"}))
        self.leases = []
        self.holds = []
        self.applied = {}
        self.versions = {key: [] for key in KEYS}
        self.deleted = set()
        self.claims = 0

    def teardown(self):
        self.store.disconnect()

    @initialize(ats=st.tuples(*[offsets] * len(KEYS)))
    def begin(self, ats):
        rows = [self.row(key, at) for key, at in zip(KEYS, ats, strict=True)]
        self.both("add", rows, nonce="first")

    @property
    def now(self):
        return floor(self.clock.wall())

    def both(self, name, *args, **kwargs):
        """Send a request to both; the answer, after it was compared."""
        ours, theirs = (_answer(store, name, *args, **kwargs) for store in (self.model, self.store))
        assert theirs == ours, name
        return theirs

    # --- time ----------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.25, 0.75, 1, 5, 6.5, 30, 100]))
    def wait(self, seconds):
        self.clock.advance(seconds)
        self.place.move(self.clock)

    # --- definitions ---------------------------------------------------------------------

    def row(self, key, at, **more):
        return Row(key=key, next_time=self.now + at, next_run_time=self.now + at, **more)

    declared = st.fixed_dictionaries(
        {
            "type": types,
            "data": payloads,
            "options": payloads,
            "cron": st.sampled_from([None, "* * * * *"]),
            "timezone": st.sampled_from([None, "UTC"]),
            "delay": st.sampled_from([0, 7]),
            "alive_time": st.sampled_from([None, 3, 100]),
        }
    )

    @precondition(lambda self: len(self.model.stored) < len(KEYS))
    @rule(keys=some_keys, at=offsets, fields=declared, new=st.sampled_from([True] * 4 + [False]))
    def add(self, keys, at, fields, new):
        if new:
            keys = [key for key in KEYS if key not in self.model.stored][: len(keys)]
        self.both("add", [self.row(key, at, **fields) for key in keys], nonce=f"nonce{self.now}")

    statuses = st.sampled_from(
        [WAITING, WAITING, WAITING, PAUSED, FINISHED, QUARANTINED, STOPPING, CANCELLING]
    )
    decided = st.fixed_dictionaries(
        {"status": statuses, "reason": texts, "attempt": st.sampled_from([0, 1, 2, -7])}
    )

    @rule(key=keys, back=st.sampled_from([0, 0, 0, 1, 4]), at=st.none() | offsets,
          fields=st.builds(dict.__or__, declared, decided), retain=st.none() | offsets,
          records=st.integers(0, 2))  # fmt: skip
    def replace(self, *, key, back, at, fields, retain, records):
        """Replace a row as it was read once: mostly just now, sometimes long ago."""
        # Only a row that rests has a ``retain_until``: stores differ in when they clear others.
        seen = self.versions[key][-1 - back % len(self.versions[key])]
        new = changed(
            seen,
            **fields,
            next_time=seen.next_time if at is None else self.now + at,
            next_run_time=None if at is None else self.now + at,
            retain_until=self.now + retain if retain and at is None and not seen.owner else None,
        )
        if records:
            skips = [
                self.record_of(seen, scheduled_time=number, owner=f"p.{self.now}", until=number + 5)
                for number in range(records)
            ]
            self.both("replace_and_record", seen, new, skips)
        else:
            self.both("replace", seen, new)

    @precondition(lambda self: self.model.stored)
    @rule(key=keys)
    def delete(self, key):
        self.both("delete", key)

    # --- leases --------------------------------------------------------------------------

    @precondition(lambda self: self.model.due())
    @rule(owner=st.sampled_from(OWNERS), limit=st.integers(1, 4),
          horizon=st.sampled_from([0, 2.5, 60]))  # fmt: skip
    def claim(self, owner, limit, horizon):
        due = self.model.due()
        # Which rows of a second it leases, if not all, is up to the store; but Hypothesis repeats
        # sequences, and must meet the same rows again.
        limit = sum(time <= due[:limit][-1] for time in due)
        request = {**LEASE, "limit": limit, "horizon": horizon}
        owner = self.new_owner(owner)
        self.check_claim(owner, request, self.store.claim(owner, **request))

    def check_claim(self, owner, request, theirs):
        """Compare the answer to a claim that only the store got."""
        limit, horizon = request["limit"], request["horizon"]
        due, later = self.model.due(), self.model.later()
        times = [row.next_run_time for row in theirs.rows]
        assert times == due[:limit]
        ours = self.model.claim(owner, **request)
        assert _by_key(theirs.rows) == _by_key(ours.rows)
        assert theirs.expired == ours.expired
        assert theirs.more or len(due) <= limit
        if not theirs.more:
            end = self.now + horizon
            # A store may round the horizon up.
            assert theirs.next_due == (later if later <= end else None) or (
                theirs.next_due == later <= end + 1
            )
        self.leases += [self.model.stored[key] for key in sorted(row.key for row in theirs.rows)]

    def new_owner(self, nonce):
        self.claims += 1
        return f"{nonce}.{self.claims}"

    def lease(self, place):
        """One of the leases that were ever granted; a small number means one that is still held."""
        held = [row for row in self.leases if self.is_held(row)]
        others = [row for row in self.leases if not self.is_held(row)]
        both = [*held, *reversed(others)]
        return both[place % len(both)]

    def is_held(self, row):
        now = self.model.stored.get(row.key)
        return now is not None and now.owner is not None and now.token == row.token

    @precondition(lambda self: self.leases)
    @rule(chosen=st.lists(places, min_size=1, max_size=3))
    def extend(self, chosen):
        rows = map(self.lease, chosen)
        self.both("extend", {row.key: row.token for row in rows}, **LEASE)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), chosen=st.lists(places, min_size=1, max_size=3))
    def settle(self, data, chosen):
        ends = {}
        for row in map(self.lease, chosen):
            # A worker repeats a settlement, if it was applied, but does not change it any more.
            ends[row.key] = self.applied.get((row.key, row.token)) or data.draw(self.endings(row))
        self.send(ends)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), chosen=st.lists(places, min_size=1, max_size=3),
          owner=st.sampled_from(OWNERS))  # fmt: skip
    def settle_and_claim(self, data, chosen, owner):
        ends = {}
        for row in map(self.lease, chosen):
            ends[row.key] = self.applied.get((row.key, row.token)) or data.draw(self.endings(row))
        # All due rows are claimed, see `claim`.
        self.send(ends, self.new_owner(owner), {**LEASE, "limit": len(KEYS), "horizon": 2.5})

    def send(self, ends, owner=None, claim=None):
        """Send settlements, by key, and a claim with them if its arguments are given."""
        # Their records may have been deleted since. Whether they are written again, is up to the
        # store.
        ends = {
            key: changed(
                end, records=tuple(r for r in end.records if _identity(r) not in self.deleted)
            )
            for key, end in ends.items()
        }
        if self.place.forgets_ended:
            ends = {
                key: changed(end, records=()) if end.remove or end.retain is not None else end
                for key, end in ends.items()
            }
        if claim is None:
            results, claimed = self.both("settle", [*ends.values()]), None
        else:
            results, claimed = self.store.settle_and_claim([*ends.values()], owner, **claim)
            assert results == self.model.settle([*ends.values()])
        if claimed is not None:
            assert {*results.values()} <= {Settled.DONE}
            self.check_claim(owner, claim, claimed)
        for key, result in results.items():
            if result is Settled.DONE:
                self.applied[key, ends[key].token] = ends[key]

    def endings(self, row):
        """A strategy for the ends of a lease, by the row as it was claimed or as it is now."""
        now = self.model.stored.get(row.key, row)
        current = changed(now, owner=row.owner, fence=row.fence)
        records = st.lists(
            st.builds(
                self.record_of,
                st.just(row),
                outcome=st.sampled_from([Outcome.FINISHED, Outcome.FAILED, None]),
                fate=st.sampled_from([Fate.FINISHED, Fate.SKIPPED_CATCHUP]),
                scheduled_time=st.sampled_from([row.next_time or 0, 5, 6]),
                reason=texts,
            ),
            max_size=2,
            unique_by=_identity,  # a store need not compare the records of one settlement
        ).map(tuple)
        common = {"row": st.sampled_from([current, current, row]), "records": records}
        common |= {"reason": texts}
        waits = st.sampled_from([0, 1, 20])
        return st.one_of(
            st.builds(
                Settlement.of,
                **common,
                next_time=offsets.map(lambda at: self.now + at),
                not_before=st.none() | offsets.map(lambda at: self.now + at),
                wait=waits,
            ),
            st.builds(Settlement.of, **common, wait=waits, attempt=st.integers(0, 3)),
            st.builds(
                Settlement.of,
                **common,
                rest=always,
                status=st.sampled_from([FINISHED, PAUSED, QUARANTINED]),
                retain=st.sampled_from([None, 0, 5]),
            ),
            st.builds(Settlement.of, **common, remove=always),
        )

    @precondition(lambda self: self.applied)
    @rule(chosen=st.lists(places, min_size=1, max_size=3))
    def settle_again(self, chosen):
        applied = [*reversed(self.applied.values())]
        ends = [applied[place % len(applied)] for place in chosen]
        self.send({end.key: end for end in ends})

    @precondition(lambda self: self.leases)
    @rule(place=places, data=st.sampled_from(['{"n":1}', "{}"]))
    def update_data(self, place, data):
        row = self.lease(place)
        self.both("update_data", row.key, row.token, data)

    @precondition(lambda self: self.holds or any(map(self.is_held, self.leases)))
    @rule(nonce=st.sampled_from(OWNERS), alive_time=st.sampled_from([30, 100]),
          retry_wait=st.sampled_from([0, 20]))  # fmt: skip
    def recover(self, nonce, alive_time, retry_wait):
        theirs, ours = (
            store.recover(nonce, alive_time=alive_time, retry_wait=retry_wait)
            for store in (self.store, self.model)
        )
        assert sorted(theirs) == sorted(ours)
        # The worker is dead: it sends nothing more.
        self.leases = [row for row in self.leases if nonce_of(row.owner) != nonce]
        self.applied = {
            key: end for key, end in self.applied.items() if nonce_of(end.token.owner) != nonce
        }
        self.holds = [hold for hold in self.holds if nonce_of(hold[1]) != nonce]

    @precondition(lambda self: any(r.retain_until for r in self.model.stored.values()))
    @rule()
    def purge(self):
        self.both("purge", 100)

    # --- holds ---------------------------------------------------------------------------

    @rule(nonce=st.sampled_from(OWNERS), keys=st.lists(keys, max_size=2, unique=True),
          again=st.lists(places, max_size=2), alive_time=st.sampled_from([6, 6, 30]))  # fmt: skip
    def hold(self, nonce, keys, again, alive_time):
        """Hold schedules; extend other holds, or repeat requests that were not answered."""
        there = [key for key in keys if key in self.model.stored]
        new = {key: self.new_owner(nonce) for key in there or keys}
        holds = {**new, **self.chosen_holds(again)}
        # They are short, so that they do not keep all rows from being claimed.
        self.both("hold", holds, alive_time=alive_time, shortest=6)
        self.holds += new.items()

    @precondition(lambda self: self.holds)
    @rule(chosen=st.lists(places, min_size=1, max_size=3), too_late=st.booleans())
    def release(self, chosen, too_late):
        self.both("release", self.chosen_holds(chosen, too_late=too_late))

    def chosen_holds(self, chosen, *, too_late=False):
        """Some of the holds that were ever asked for; a small number means one that is there.

        Args:
            chosen: the numbers.
            too_late: whether a small number means one in whose place there is another.
        """
        now = {key: row.held_by for key, row in self.model.stored.items()}
        known = [(now.get(key), (key, holder)) for key, holder in reversed(self.holds)]
        known.sort(key=lambda each: (each[0] is None, (each[0] != each[1][1]) is not too_late))
        return dict(known[place % len(known)][1] for place in chosen if known)

    # --- the run history -----------------------------------------------------------------

    def record_of(self, row, **more):
        given = {
            "key": row.key, "type": row.type, "scheduled_time": row.next_time or 0,
            "owner": row.owner or "p.1", "fence": row.fence, "ended": int(self.clock.wall() * 1000),
            "fate": Fate.SKIPPED, "error": "Error: é", "attempt": 1,
        }  # fmt: skip
        return RunRecord(**{**given, **more})

    @precondition(lambda self: not all(map(self.is_held, self.leases)))
    @rule(place=places, outcome=st.sampled_from([Outcome.LOST, Outcome.PREEMPTED]))
    def record(self, place, outcome):
        """Record the end of an attempt whose lease is over."""
        over = [row for row in self.leases if not self.is_held(row)]
        row = over[-1 - place % len(over)]
        self.both("record", [self.record_of(row, outcome=outcome, fate=None)])

    @precondition(lambda self: self.model.records)
    @rule(ago=st.sampled_from([0, 1, 30]))
    def trim(self, ago):
        before = set(self.model.records)
        self.both("trim", before=int(self.clock.wall() - ago) * 1000, limit=1000)
        self.deleted |= before - set(self.model.records)

    @precondition(lambda self: self.model.records)
    @rule(key=keys, keep=st.integers(0, 2))
    def trim_key(self, key, keep):
        before = set(self.model.records)
        self.both("trim_key", key, keep)
        self.deleted |= before - set(self.model.records)

    @rule(keys=some_keys, nonce=st.sampled_from(OWNERS), ended=st.sampled_from([None, 0]))
    def note(self, keys, nonce, ended):
        changes = [
            AuditRecord(key=key, action="modify", user="ann", host="web1", program="p", after="{}")
            for key in keys
        ]
        self.both("audit", changes)
        worker = WorkerRecord(
            nonce=nonce, host="h", pid=1, number=1, generation=2, slots=3, busy=1, types=None,
            started=0, seen=0, ended=ended, clock_offset=-3,
        )  # fmt: skip
        self.both("beat", worker)

    # --- pauses --------------------------------------------------------------------------

    @rule(id_=st.sampled_from(["r1", "r2"]), type_=st.none() | types, until=st.none() | offsets,
          drop=st.lists(st.sampled_from(["r1", "r2"]), max_size=1),
          stores=st.booleans())  # fmt: skip
    def pause(self, id_, type_, until, drop, stores):
        until = None if until is None else self.now + until
        new = PauseRule(id=id_, type=type_, since=self.now, until=until, by="ann", note="é")
        self.both("change_pause_rules", drop=drop, store=[new] if stores else [])

    # --- reading -------------------------------------------------------------------------

    selections = st.builds(
        Selection,
        statuses=st.sets(
            st.sampled_from([WAITING, "running", PAUSED, FINISHED, DELETING]), max_size=2
        ).map(frozenset),
        types=st.sets(types, max_size=2).map(frozenset),
        prefix=st.sampled_from(["", "", "a", "A", "ü"]),
        due=st.booleans(),
        limit=st.none() | st.integers(0, 3),
        by_key=st.booleans(),
    )

    @rule(selection=selections, keys=some_keys, limit=st.integers(1, 4))
    def read_rows(self, selection, keys, limit):
        theirs, ours = ([*map(_plain, s.rows(selection))] for s in (self.store, self.model))
        assert theirs == ours
        self.both("look", keys)
        self.both("get", keys[0])
        self.both("marked", keys)
        self.both("count")
        self.check_backlog(limit)
        for row in self.leases[-3:]:
            for among in [], keys:
                theirs, ours = (_by_key(s.held(row.owner, among)) for s in (self.store, self.model))
                assert theirs == ours

    def check_backlog(self, limit):
        due = self.model.due()
        found = self.store.backlog(limit)
        # A store may leave out rows whose leases or holds have ended.
        taken = ((key, row.owner or row.held_by) for key, row in self.model.stored.items())
        self.model.chosen = {key for key, by in taken if by is None}
        free = self.model.due()
        self.model.chosen = None
        assert min(limit, len(free)) <= found.due <= min(limit, len(due))
        assert found.late == 0 or found.due
        if found.due:
            oldest = [self.clock.wall() - each[0] for each in (free, due) if each]
            assert any(floor(late) <= found.late <= late for late in oldest)

    run_selections = st.builds(
        RunSelection,
        key=keys,
        with_extra_runs=st.booleans(),
        types=st.sets(types, max_size=1).map(frozenset),
        outcomes=st.sets(st.sampled_from(Outcome), max_size=2).map(frozenset),
        fates=st.sets(st.sampled_from(Fate), max_size=2).map(frozenset),
        limit=st.none() | st.integers(0, 3),
    )

    @precondition(lambda self: self.model.records)
    @rule(selection=run_selections, time=st.sampled_from([0, 1, 3, 5, 6]),
          ago=st.sampled_from([0, 1, 30]), key=st.none() | keys)  # fmt: skip
    def read_records(self, selection, time, ago, key):
        self.compare_runs(selection)
        self.compare_runs(RunSelection(key=selection.key, covering=time))
        since = int(self.clock.wall() - ago) * 1000
        self.compare_runs(RunSelection(since=since, key=key, limit=selection.limit))
        self.both("audits", AuditSelection(since=since, key=key, limit=selection.limit))
        theirs, ours = (store.history.last_runs(KEYS) for store in (self.store, self.model))
        assert {k: each.ended for k, each in theirs.items()} == {
            k: each.ended for k, each in ours.items()
        }

    def compare_runs(self, selection):
        theirs = [*self.store.history.runs(selection)]
        matching = [*self.model.runs(changed(selection, limit=None))]
        ended = [each.ended for each in theirs]
        assert ended == [each.ended for each in matching][: selection.limit]
        assert _same(theirs) <= _same(matching)

    # --- after each step -----------------------------------------------------------------

    @invariant()
    def the_rows_are_the_models(self):
        theirs = {row.key: _plain(row) for row in self.store.rows()}
        ours = {key: _plain(row) for key, row in self.model.stored.items()}
        assert theirs == ours
        for key, row in self.model.stored.items():
            known = self.versions[key]
            if not known or known[-1] != row:
                known.append(row)

    @invariant()
    def the_records_are_the_models(self):
        theirs, ours = ([*store.history.runs()] for store in (self.store, self.model))
        assert [each.ended for each in theirs] == [each.ended for each in ours]
        assert _same(theirs) == _same(ours)
        self.both("audits", AuditSelection())
        for name in "pause_rules", "workers":
            theirs, ours = (_of(store, name)() for store in (self.store, self.model))
            assert sorted(theirs, key=repr) == sorted(ours, key=repr), name


def _of(store, name):
    """A method of a store, or of one of its parts."""
    part = next((part for part in (store.history, store.pauses) if hasattr(part, name)), store)
    return getattr(store if hasattr(store, name) else part, name)


def _answer(asked, name, *args, **kwargs):
    """The answer of a store to a request, in a form that can be compared; or its error."""
    try:
        answer = _of(asked, name)(*args, **kwargs)
    except (AlreadyExistsError, NotFoundError) as error:
        return type(error)
    if name == "look":
        return {key: _plain(row) for key, row in answer.items()}
    if name == "get":
        return answer and _plain(answer)
    if name == "audits":
        return [changed(each, id=None) for each in answer]
    return answer


def _plain(row):
    return changed(row, data=payload(row.data), options=payload(row.options))


def _by_key(rows):
    """Rows that were leased or are held, by key. Whether they tell when, is up to the store."""
    return {row.key: changed(_plain(row), claimed_at=None) for row in rows}


def _same(records):
    """Records without their order: those that were written at the same time have any."""
    return {_values(changed(each, id=None)) for each in records}


_values = attrgetter(*RunRecord.__slots__)


def _identity(record):
    return record.key, record.scheduled_time, record.owner


def _is_due(row, now):
    return row.next_run_time is not None and row.next_run_time <= now


# --- the stores ----------------------------------------------------------------------------


class Place:
    """Where stores are.

    Args:
        open_: makes an empty store whose clock is the given one.
        move: tells the database the time of that clock.
        forgets_ended: whether the records of a row that has ended are soon no more among those of
            its key, only among those of all keys.
    """

    def __init__(self, open_, move=lambda _clock: None, *, forgets_ended=False):
        self.open = open_
        self.move = move
        self.forgets_ended = forgets_ended


def on_sqlite(folder, store_class=VirtualStore):
    path = folder / "psched.db"

    def open_store(clock):
        for each in folder.glob("psched.db*"):
            each.unlink()
        return store_class(from_mapping({"url": fill_sqlite(path)}), clock, [])

    return Place(open_store)


MILLISECONDS = {
    "mariadb": "(SELECT CAST(ROUND(now * 1000) AS SIGNED) FROM store_clock)",
    "postgresql": "(SELECT CAST(ROUND(now * 1000) AS BIGINT) FROM store_clock)",
}


@contextlib.contextmanager
def on_server(database, **how) -> Iterator[Place]:
    milliseconds = MILLISECONDS[database.kind]
    make_store(database.url).init()
    sql = Sql(database.url)
    with store_clock(database.url, start=START, now_milliseconds=milliseconds) as database_clock:

        def move(clock):
            database_clock.advance(clock.wall() - database_clock.now)

        def open_store(clock):
            for table in "", "_runs", "_audit", "_workers":
                sql(f"DELETE FROM psched{table}")  # noqa: S608
            move(clock)
            store = make_store(database.url, **how)
            rules = store.pauses
            rules.change_pause_rules(drop=[each.id for each in rules.pause_rules()], store=[])
            return store

        yield Place(open_store, move)


@contextlib.contextmanager
def on_redis(database) -> Iterator[Place]:
    number = int(database.url.rpartition("/")[2])
    with redis_clock(database.server, number) as move:

        def open_store(clock):
            database.server.query("FLUSHDB", db=number)
            move(clock.wall())
            store = make_store(database.url)
            store.init()
            return store

        yield Place(open_store, lambda clock: move(clock.wall()), forgets_ended=True)


def check(place, examples=EXAMPLES, *, shrinks=True):
    """Run sequences of requests on a store.

    Args:
        place: makes the store.
        examples: how many sequences are drawn.
        shrinks: whether a sequence that fails is made as short as possible, which takes a while.
    """
    machine = hypothesis.seed(SEED)(lambda: Stores(place))
    how = hypothesis.settings(
        derandomize=False,
        database=None,
        max_examples=examples * FACTOR,
        stateful_step_count=STEPS,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
    )
    run_state_machine_as_test(machine, settings=how)


def test_sqlite(tmp_path):
    check(on_sqlite(tmp_path))


@pytest.mark.extended
@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_mariadb(database):
    with on_server(database) as place:
        check(place)


@pytest.mark.extended
@pytest.mark.postgresql
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("strategy", ["skip_locked", "cas"])
def test_postgresql(database, strategy):
    with on_server(database, claim_strategy=strategy) as place:
        check(place)


@pytest.mark.extended
@pytest.mark.redis
def test_redis(open_database):
    with open_database("redis") as database, on_redis(database) as place:
        check(place)


# --- planted faults ------------------------------------------------------------------------


class ExtendsAll(VirtualStore):
    def extend(self, leases, **lease):
        super().extend(leases, **lease)
        return frozenset(leases)


class KeepsStatus(VirtualStore):
    def replace(self, seen, new):
        return super().replace(seen, changed(new, status=seen.status))


class LosesRecords(VirtualStore):
    def settle(self, settlements):
        return super().settle([changed(end, records=()) for end in settlements])


class HoldsAll(VirtualStore):
    def hold(self, holds, **lease):
        super().hold(holds, **lease)
        return frozenset(holds)


class ReleasesAll(VirtualStore):
    def release(self, holds):
        super().release({key: self.get(key).held_by for key in holds if self.get(key)})


@pytest.mark.parametrize(
    "store_class", [ExtendsAll, KeepsStatus, LosesRecords, HoldsAll, ReleasesAll]
)
def test_a_planted_fault_is_found(tmp_path, store_class):
    with pytest.raises(AssertionError):
        check(on_sqlite(tmp_path, store_class), PLANTED, shrinks=False)
