"""Tests of the end of leases: lost answers, leases of other workers, records and counts."""

import logging
from dataclasses import replace as changed

import pytest

from psched import config
from psched.base.errors import StoreBusyError, StoreUnavailableError, UnknownOutcomeError
from psched.core.history.counts import ATTEMPTS, RUNS
from psched.core.history.recording import Recorder, StoreClock
from psched.core.history.records import Attempt, Outcome, RunRecord
from psched.core.model import Finish, Retry, Row
from psched.core.policy import after_run
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Settled
from psched.testing import ManualClock
from psched.testing.memory_store import MemoryStore
from support.settling import settle

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})

NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""

LEASE = 60
CLAIM = {"limit": 10, "alive_time": LEASE, "shortest": 6, "horizon": 0}


class Store(MemoryStore):
    """A store whose answers to settlements can be lost."""

    def __init__(self, clock):
        super().__init__(clock.wall, SETTINGS)
        self.clock = clock
        self.error = None
        self.applies = True

    def settle(self, settlements):
        answers = super().settle(settlements) if self.applies else {}
        if self.error is not None:
            raise self.error
        return answers

    def lease(self, *keys, **columns):
        """Add schedules that are due each minute, and lease them; return their rows."""
        row = Row(key="", cron="* * * * *", next_time=NOON, next_run_time=NOON)
        self.add([changed(row, key=key, **columns) for key in keys], nonce="n")
        return self.claim("w.1", **CLAIM).rows

    def take(self, key):
        """Let another worker claim and end the next lease of a row."""
        self.clock.advance(LEASE)
        [row] = [row for row in self.claim("w.2", **CLAIM).rows if row.key == key]
        settle(self, [Ending(row, Finish())], SETTINGS)


def fail_with(error):
    def request(*_args):
        raise error

    return request


@pytest.fixture
def clock():
    return ManualClock(wall=NOON)


@pytest.fixture
def store(clock):
    return Store(clock)


class TestLostAnswers:
    """A settlement is known to be applied only if the whole lease lies before its repetition."""

    @pytest.fixture
    def settler(self, clock):
        return Settler(SETTINGS, clock)

    def lose(self, settler, store, ending, error=None):
        """Send a settlement whose answer is lost, and let the next lease of the row end."""
        store.error = error or UnknownOutcomeError("broken")
        with pytest.raises(type(store.error)):
            settler.settle(store, [ending])
        store.error = None
        store.take(ending.leased.key)

    @pytest.mark.parametrize(
        ("left", "answer"), [(0.5, Settled.DONE), (0, Settled.PREEMPTED), (-1, Settled.PREEMPTED)]
    )
    def test_a_repetition_that_is_answered_in_time_is_done(
        self, settler, store, clock, left, answer
    ):
        [row] = store.lease("k")
        ending = Ending(row, Finish(), deadline=clock.boottime() + LEASE + left)
        self.lose(settler, store, ending)
        assert settler.settle(store, [ending]) == {"k": answer}

    def test_the_deadline_is_the_latest_that_is_known(self, settler, store, clock):
        """A lease that is lost by now had a deadline when its settlement was sent."""
        [row] = store.lease("k")
        ending = Ending(row, Finish(), deadline=clock.boottime() + 2 * LEASE)
        self.lose(settler, store, ending)
        assert settler.settle(store, [changed(ending, deadline=0.0)]) == {"k": Settled.DONE}

    @pytest.mark.parametrize("late", [0, 1])
    def test_a_settlement_that_was_sent_too_late_is_not(self, settler, store, clock, late):
        [row] = store.lease("k")
        ending = Ending(row, Finish(), deadline=clock.boottime() - late)
        self.lose(settler, store, ending)
        assert not settler.forget(ending)
        later = changed(ending, deadline=clock.boottime() + LEASE)
        assert settler.settle(store, [later]) == {"k": Settled.PREEMPTED}

    def test_a_settlement_that_the_store_has_refused_is_not(self, settler, store, clock):
        [row] = store.lease("k")
        store.applies = False
        ending = Ending(row, Finish(), deadline=clock.boottime() + 2 * LEASE)
        store.error = StoreUnavailableError("down")
        with pytest.raises(StoreUnavailableError):
            settler.settle(store, [ending])
        assert not settler.forget(ending)

    def test_one_whose_lease_was_lost_before_is_not(self, settler, store, clock):
        """The answer of a later request was lost, after the store had refused this settlement."""
        rows = {row.key: row for row in store.lease("gone", "changed")}
        person = store.get("changed")
        store.replace(person, changed(person, cron="0 * * * *"))
        with store.all() as stored:
            stored["gone"] = changed(stored["gone"], fence=9)
        store.look = fail_with(UnknownOutcomeError("broken"))
        until = clock.boottime() + LEASE
        endings = {key: Ending(row, Finish(), deadline=until) for key, row in rows.items()}
        with pytest.raises(UnknownOutcomeError):
            settler.settle(store, [*endings.values()])
        assert settler.forget(endings["changed"])
        assert not settler.forget(endings["gone"])

    def test_one_that_was_applied_is_remembered_if_a_later_request_fails(
        self, settler, store, clock
    ):
        rows = {row.key: row for row in store.lease("done", "changed")}
        person = store.get("changed")
        store.replace(person, changed(person, cron="0 * * * *"))
        store.look = fail_with(StoreUnavailableError("down"))
        until = clock.boottime() + LEASE
        endings = {key: Ending(row, Finish(), deadline=until) for key, row in rows.items()}
        with pytest.raises(StoreUnavailableError):
            settler.settle(store, [*endings.values()])
        assert settler.forget(endings["done"])
        assert not settler.forget(endings["changed"])

    def test_what_is_forgotten_is_not_remembered(self, settler, store, clock):
        [row] = store.lease("k")
        ending = Ending(row, Finish(), deadline=clock.boottime() + 2 * LEASE)
        self.lose(settler, store, ending)
        assert settler.forget(ending)
        assert not settler.forget(ending)
        assert settler.settle(store, [ending]) == {"k": Settled.PREEMPTED}

    def test_what_was_answered_before_a_lock_is_known(self, settler, store, clock):
        rows = {row.key: row for row in store.lease("free", "locked")}
        store.error = StoreBusyError("locked", {"free": Settled.DONE})
        until = clock.boottime() + LEASE
        endings = [Ending(row, Finish(), deadline=until) for row in rows.values()]
        with pytest.raises(StoreBusyError) as busy:
            settler.settle(store, endings)
        assert busy.value.answered == {"free": Settled.DONE}
        assert not any(settler.forget(ending) for ending in endings)


class TestChangedRows:
    def test_what_was_redefined_is_read_again(self, store):
        [row] = store.lease("k")
        person = store.get("k")
        store.replace(person, changed(person, cron="0 * * * *"))
        assert settle(store, [Ending(row, Finish())], SETTINGS) == {"k": Settled.DONE}
        assert store.get("k").next_time == NOON + 3600

    def test_what_is_gone_or_anothers_after_that_is_preempted(self, store):
        rows = {row.key: row for row in store.lease("gone", "taken", "kept")}
        for key in rows:
            person = store.get(key)
            store.replace(person, changed(person, cron="0 * * * *"))
        look = store.look

        def look_after_others(keys):
            with store.all() as stored:
                stored.pop("gone", None)
                stored["taken"] = changed(stored["taken"], fence=9)
            return look(keys)

        store.look = look_after_others
        endings = [Ending(row, Finish()) for row in rows.values()]
        assert settle(store, endings, SETTINGS) == {
            "gone": Settled.PREEMPTED,
            "taken": Settled.PREEMPTED,
            "kept": Settled.DONE,
        }
        assert store.get("taken").next_time == NOON

    def test_what_is_not_known_yet_is_left_open(self, store):
        [row] = store.lease("k")

        def conclude(*_args):
            return None

        assert settle(store, [Ending(row, Finish())], SETTINGS, conclude=conclude) == {}
        assert store.get("k").owner == "w.1"
        [done] = [row for row in store.lease("other") if row.key == "other"]

        def conclude_other(leased, *args):
            return None if leased.key == "k" else after_run(leased, *args)

        endings = [Ending(row, Finish()), Ending(done, Finish())]
        assert settle(store, endings, SETTINGS, conclude=conclude_other) == {"other": Settled.DONE}
        assert store.get("k").owner == "w.1"


class TestRecords:
    ATTEMPT = Attempt(outcome=Outcome.FINISHED, pid=9, started=NOON * 1000, ended=NOON * 1000 + 5)

    @pytest.fixture
    def recorder(self, clock):
        return Recorder(host="h", generation=1, clock=StoreClock(clock))

    def counts(self, recorder):
        return {name: number for name, _, _, number in recorder.counts.take()}

    def test_those_of_earlier_attempts_come_first(self, store, recorder):
        [row] = store.lease("k")
        earlier = RunRecord(
            key="k", type="", scheduled_time=NOON, owner="w.0", fence=0, ended=1, host="h",
            outcome=Outcome.LOST, attempt=1,
        )  # fmt: skip
        ending = Ending(row, Finish(), attempt=self.ATTEMPT, history="all", earlier=(earlier,))
        settle(store, [ending], SETTINGS, recorder=recorder)
        assert [each.outcome for each in store.records.values()] == [
            Outcome.LOST,
            Outcome.FINISHED,
        ]

    def test_an_attempt_is_counted_when_its_settlement_is_applied(self, store, recorder):
        rows = {row.key: row for row in store.lease("done", "gone")}
        with store.all() as stored:
            del stored["gone"]
        endings = [Ending(row, Finish(), attempt=self.ATTEMPT) for row in rows.values()]
        settle(store, endings, SETTINGS, recorder=recorder)
        assert self.counts(recorder)[ATTEMPTS] == 1

    def test_a_lease_without_an_attempt_counts_what_was_decided(self, store, recorder):
        [row] = store.lease("k")
        settle(store, [Ending(row, Finish())], SETTINGS, recorder=recorder)
        found = self.counts(recorder)
        assert ATTEMPTS not in found
        assert found[RUNS] == 1


class TestLog:
    @pytest.fixture(autouse=True)
    def caplog(self, caplog):
        caplog.set_level(logging.WARNING, "psched.worker")
        return caplog

    def test_a_success_after_which_times_are_dropped_is_logged(self, store, caplog, clock):
        [row] = store.lease("k")
        person = store.get("k")
        store.replace(person, changed(person, cron="0 * * * *"))
        clock.advance(90)
        settle(store, [Ending(row, Finish())], SETTINGS)
        [message] = caplog.messages
        assert message.startswith("k: its trigger was changed")

    @pytest.mark.parametrize("decision", [Finish(), Retry(reason="ValueError")])
    def test_other_ends_are_not_logged(self, store, caplog, decision):
        rows = store.lease("k") + store.lease("once", cron=None)
        settle(store, [Ending(row, decision) for row in rows], SETTINGS)
        assert caplog.messages == []

    def test_a_pause_after_failures_is_logged(self, store, caplog):
        [row] = store.lease("k")
        settings = SETTINGS.with_settings(pause_after_failures=1)
        settle(store, [Ending(row, Retry(reason="ValueError"))], settings)
        assert caplog.messages == ["k: paused after 1 failure: ValueError"]
