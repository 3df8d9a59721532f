"""Any sequence of what people and programs do with schedules, while their tasks run in process.

After each step, the run history keeps psched's promises. Hypothesis draws the steps from
``PSCHED_FUZZ_SEED``; if a sequence fails, it prints the shortest one that it finds.
"""

from contextlib import suppress
from dataclasses import replace as changed
from datetime import timedelta

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
)
from psched.client.verifier import Verifier
from psched.core.model import ENDED, PAUSED
from psched.testing import Schedules
from psched.testing.virtual_schedules import VirtualStore
from support.fuzzing import FACTOR, SEED

EXAMPLES, STEPS = 12, 20
"""How many sequences are drawn, and how many steps each has."""

DOCUMENTED = AlreadyExistsError, AlreadyFinishedError, InvalidError, NotFoundError
"""The errors that the verbs of a schedule raise while the store is available."""

KEYS = ("k", "l", "m")
TYPES = ("t", "u")
MINUTE = 60

keys, types = st.sampled_from(KEYS), st.sampled_from(TYPES)
triggers = st.sampled_from(
    [
        {"cron": "* * * * *"},
        {"cron": "*/5 * * * *", "delay": 90},
        {"every": "2m"},
        {"every": "10m", "jitter": 30},
        {"at": 1_893_456_420},
    ]
)
settings = st.fixed_dictionaries(
    {},
    optional={
        "catchup": st.sampled_from(["all", "latest", "skip"]),
        "max_attempts": st.integers(1, 3),
        "retry_wait": st.sampled_from([30, 300]),
        "retention_time": st.sampled_from([0, 600]),
        "pause_after_failures": st.integers(1, 2),
    },
)
# Seconds from now.
moments = st.sampled_from([-3600, -300, -1, 0, 1, 90, 600])
untils = st.none() | st.sampled_from([1, 90, 600])


class Verbs(RuleBasedStateMachine):
    """The schedules of one store. Its tasks succeed or fail as they are told."""

    def __init__(self):
        super().__init__()
        self.failures = []
        self.schedules = Schedules(dict.fromkeys(TYPES, self.handle), retry_wait=MINUTE)
        self.wrong = []
        self.steps = 0
        self.start = self.schedules.now()

    def teardown(self):
        self.schedules.close()

    @property
    def now(self):
        return int(self.schedules.now())

    def handle(self, task):
        row = self.schedules.read(task.key).row
        # `run_due` catches what is raised here, so it is noted.
        if task.scheduled_time + row.delay > self.schedules.now():
            self.wrong.append(f"{task!r} runs before its time")
        if row.status in ENDED | {PAUSED}:
            self.wrong.append(f"{task!r} runs, but its schedule is {row.status}")
        if not {rule.type for rule in self.schedules.pauses()}.isdisjoint({task.type, None}):
            self.wrong.append(f"{task!r} runs, but its type is paused")
        if self.failures and self.failures.pop():
            raise ValueError("failed")

    def verb(self, name, *args, **kwargs):
        """Call a method, which may refuse what is asked."""
        with suppress(*DOCUMENTED):
            getattr(self.schedules, name)(*args, **kwargs)

    # --- adding and changing -------------------------------------------------------------

    @initialize(trigger=triggers)
    def begin(self, trigger):
        self.schedules.add("k", "t", **trigger)

    @rule(key=keys, type_=types, trigger=triggers, more=settings)
    def add(self, key, type_, trigger, more):
        self.verb("add", key, type_, **trigger, **more)

    @rule(key=keys, type_=types, at=moments, more=settings)
    def push(self, key, type_, at, more):
        more.pop("catchup", None)
        more.pop("pause_after_failures", None)
        self.verb("push", key, type_, run_at=self.now + at, **more)

    @rule(key=keys, changes=st.one_of(triggers, settings, st.builds(dict, type=types)),
          method=st.sampled_from(["modify", "edit"]))  # fmt: skip
    def change(self, key, changes, method):
        self.verb(method, key, **changes)

    @rule(key=keys, at=moments)
    def move(self, key, at):
        self.verb("modify", key, next_time=self.now + at)

    # --- pausing -------------------------------------------------------------------------

    @rule(key=keys, until=untils)
    def pause(self, key, until):
        self.verb("pause", key, until and self.now + until)

    @rule(key=keys, backfill=st.booleans())
    def resume(self, key, backfill):
        self.verb("resume", key, backfill=backfill)

    @rule(type_=types, until=untils)
    def pause_type(self, type_, until):
        self.verb("pause_type", type_, until and self.now + until)

    @rule(type_=types, backfill=st.booleans())
    def resume_type(self, type_, backfill):
        self.verb("resume_type", type_, backfill=backfill)

    # --- single runs ---------------------------------------------------------------------

    @rule(key=keys, number=st.integers(1, 3))
    def skip(self, key, number):
        self.verb("skip", key, number)

    @rule(key=keys, overlap=st.sampled_from(["queue", "allow", "skip"]), at=st.none() | moments)
    def trigger(self, key, overlap, at):
        at = at and self.now + at
        self.verb("trigger", key, overlap=overlap, run_at=at)

    @rule(key=keys, ago=st.sampled_from([120, 600]), again=st.booleans(),
          rate=st.sampled_from([None, "10/m"]))  # fmt: skip
    def backfill(self, key, ago, again, rate):
        self.verb("backfill", key, self.now - ago, self.now, again=again, rate=rate)

    # --- ending --------------------------------------------------------------------------

    @rule(key=keys, name=st.sampled_from(["cancel", "stop", "force_finish", "delete", "requeue"]))
    def end(self, key, name):
        self.verb(name, key)

    @rule(key=keys, at=moments)
    def requeue(self, key, at):
        self.verb("requeue", key, self.now + at)

    # --- running -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 30, 61, 300, 900]))
    def wait(self, seconds):
        self.schedules.clock.advance(seconds)

    @rule(seconds=st.sampled_from([0, 60, 240]), fails=st.lists(st.booleans(), max_size=4))
    def run(self, seconds, fails):
        self.failures = fails
        before = self.now
        self.schedules.run_due(timedelta(seconds=seconds), catch_exceptions=True)
        assert self.now == before + seconds

    @rule(key=keys)
    def run_what_is_next(self, key):
        """What a preview says runs next."""
        try:
            upcoming = self.schedules.next(key, 1)
            row = self.schedules.read(key).row
        except NotFoundError:
            return
        if not upcoming or row.next_run_time is None:
            return
        self.failures = []
        end = max(upcoming[0].run_at, self.now)
        runs = self.schedules.run_due(end, catch_exceptions=True)
        ran = [run.task.scheduled_time for run in runs if run.task.key == key]
        if not {rule.type for rule in self.schedules.pauses()} & {row.type}:
            assert ran[:1] == [upcoming[0].time]

    # --- after each step -----------------------------------------------------------------

    @invariant()
    def nothing_runs_when_it_must_not(self):
        assert not self.wrong

    @invariant()
    def the_history_keeps_the_promises(self):
        store, settings = self.schedules._store, self.schedules._all_settings
        found = Verifier(store, settings).verify(self.now - self.start + 7200)
        assert not found.violations

    @invariant()
    def why_is_answered(self):
        self.steps += 1
        key = KEYS[self.steps % len(KEYS)]
        with suppress(NotFoundError):
            row = self.schedules.read(key).row
            for time in {None, self.now, row.next_time}:
                assert self.schedules.why(key, time).sentence.endswith(".")
            self.schedules.next(key, 2)


def check(*, shrinks=True):
    how = hypothesis.settings(
        derandomize=False,
        database=None,
        max_examples=EXAMPLES * FACTOR,
        stateful_step_count=STEPS,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
    )
    run_state_machine_as_test(hypothesis.seed(SEED)(Verbs), settings=how)


def test_any_sequence_keeps_the_promises():
    check()


# --- planted faults ------------------------------------------------------------------------


def loses_records(settle):
    return lambda store, ends: settle(store, [changed(end, records=()) for end in ends])


def forgets_the_wait(settle):
    return lambda store, ends: settle(store, [changed(end, not_before=None) for end in ends])


def skips_one(settle):
    def later(end):
        if end.rest or end.not_before is None:
            return end
        return changed(end, next_time=end.next_time + 600, not_before=end.not_before + 600)

    return lambda store, ends: settle(store, [*map(later, ends)])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (loses_records, AssertionError),
        (skips_one, AssertionError),
        (forgets_the_wait, RuntimeError),  # what is due again at once never ends
    ],
)
def test_a_planted_fault_is_found(fault, error, monkeypatch):
    monkeypatch.setattr(VirtualStore, "settle", fault(VirtualStore.settle))
    with pytest.raises(error):
        check(shrinks=False)
