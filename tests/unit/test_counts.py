"""Tests of what workers count, and of the sums that a master makes of it."""

import json
from signal import SIGHUP

import pytest

from psched.base.texts import brief
from psched.core.history import counts as counting
from psched.core.history.counts import Counts
from psched.core.history.records import Attempt, Fate, Outcome, Skipped
from psched.core.model import FINISHED, Settlement, Token
from psched.master.messages import FROM_MONITOR, FROM_WORKER, TO_MONITOR
from psched.master.totals import Totals
from psched.testing import MasterDriver


def settlement(fate=None, skipped=()):
    return Settlement(
        key="k",
        token=Token("o", 1),
        version=1,
        next_time=None,
        status=FINISHED,
        fate=fate,
        skipped=tuple(skipped),
    )


def attempt(outcome, started=1000, ended=3500):
    return Attempt(
        outcome=outcome,
        pid=2,
        started=started,
        ended=ended,
        reason=None,
        exit_status=None,
        exit_signal=None,
        cpu_ms=None,
        peak_kb=None,
        out_of_memory=False,
        error=None,
        result=None,
    )


def by_label(counted, name):
    return {(one, other): number for of, one, other, number in counted if of == name}


def test_ends_and_decisions_are_counted_by_type():
    counts = Counts()
    counts.ended("mail", attempt(Outcome.FAILED))
    counts.ended("mail", attempt(Outcome.FINISHED))
    counts.decided("mail", settlement(Fate.FINISHED))
    counts.decided("mail", settlement(None))
    counts.lost("report")

    found = counts.take()

    assert by_label(found, counting.ATTEMPTS) == {
        ("mail", "failed"): 1,
        ("mail", "finished"): 1,
        ("report", "lost"): 1,
    }
    assert by_label(found, counting.RUNS) == {("mail", "finished"): 1}
    assert counts.take() == []


def test_only_attempts_that_took_their_time_have_a_duration():
    counts = Counts()
    counts.ended("mail", attempt(Outcome.FINISHED))
    counts.ended("mail", attempt(Outcome.PREEMPTED))
    counts.ended("mail", attempt(Outcome.FAILED, started=None))

    found = by_label(counts.take(), counting.DURATION)

    bucket = next(n for n, bound in enumerate(counting.BUCKETS[counting.DURATION]) if bound > 2.5)
    assert found == {(str(bucket), ""): 1, ("sum", ""): 2_500_000}


@pytest.mark.parametrize(
    ("span", "number"),
    [
        ({"until": 60, "count": 2}, 2),
        ({"until": 6000, "count": None}, 31),
        ({"until": None, "count": None}, 1),
    ],
)
def test_skipped_occurrences_are_counted_by_reason(span, number):
    counts = Counts()
    counts.decided("mail", settlement(None, [Skipped(fate=Fate.COALESCED, first=0, **span)]))
    counts.decided("mail", settlement(Fate.SKIPPED_OVERLAP))

    found = by_label(counts.take(), counting.SKIPS)

    assert found == {("coalesced", ""): number, ("skipped_overlap", ""): 1}


def test_an_early_start_is_on_time_and_a_value_at_a_bound_is_within_it():
    counts = Counts()
    counts.started(-5)
    counts.started(0.01)
    counts.started(1e9)

    found = by_label(counts.take(), counting.LATENESS)

    last = str(len(counting.BUCKETS[counting.LATENESS]))
    assert found == {("0", ""): 2, (last, ""): 1, ("sum", ""): 1_000_000_000_010_000}


def test_types_beyond_a_limit_and_those_that_cannot_be_shown_are_others():
    counts = Counts()
    for number in range(150):
        counts.lost(f"type{number}")
    counts.lost("\0")
    counts.lost("x" * 2000)

    found = by_label(counts.take(), counting.ATTEMPTS)

    assert len(found) == 101
    assert found["other", "lost"] == 52


def test_what_is_counted_can_be_sent():
    counts = Counts()
    counts.lost("ü" * 100)
    counts.started(3)

    assert FROM_WORKER.fault(json.loads(json.dumps({"counted": counts.take()}))) is None


# --- the sums of the master ----------------------------------------------------------


@pytest.fixture
def driver():
    made = MasterDriver(processors=2, monitor_limit=60)
    made.boot()
    made.tick()
    made.monitors[-1].say(beat=True)
    made.tick()
    yield made
    made.close()


def told(driver):
    """The last totals that the latest monitor was told."""
    found = {}
    for message in driver.monitors[-1].received:
        assert TO_MONITOR.fault(message) is None
        found |= {(one, other): n for _, one, other, n in message.get("totals", ())}
    return found


def host(driver):
    """What the latest monitor was told last about the workers."""
    return [each["host"] for each in driver.monitors[-1].received if "host" in each][-1]


def counted(worker, number):
    worker.say(counted=[["runs", "mail", "finished", number]])


def test_the_sums_go_on_over_dead_workers_generations_and_monitors(driver):
    counted(driver.worker(0), 2)
    counted(driver.worker(1), 3)
    driver.advance(2)
    assert told(driver) == {("mail", "finished"): 5}

    counted(driver.worker(0), 10)  # its last words
    driver.worker(0).dies()
    driver.advance(2)
    assert told(driver) == {("mail", "finished"): 15}

    driver.monitors[-1].dies()
    driver.advance(2)
    assert told(driver) == {("mail", "finished"): 15}

    driver.send(SIGHUP)
    driver.boot()
    driver.tick()
    driver.monitors[-1].exits()
    driver.advance(2)
    counted(driver.worker(0), 1)
    driver.advance(2)
    assert told(driver) == {("mail", "finished"): 16}


def test_a_monitor_that_reads_nothing_is_not_sent_more_and_more(driver):
    driver.monitors[-1].stuck = True
    link = driver.monitor.links[0]
    for number in range(2000):
        driver.monitor.totals.add([["runs", "x" * 1000 + str(number), "finished", 1]])
    before = len(driver.monitors[-1].received)
    for _ in range(50):
        driver.monitor.totals.add([["runs", "mail", "finished", 1]])
        driver.clock.advance(1.0)
        driver.master.tick()

    assert len(link._outgoing) < 2**20
    assert len(driver.monitors[-1].received) == before


def test_the_master_too_bounds_the_types():
    totals = Totals()
    for number in range(500):
        totals.add([["runs", f"type{number}", "finished", 1]])

    assert len(totals._totals) == 101
    assert totals._totals["runs", "other", "finished"] == 400


def test_the_names_of_counts_do_not_unbind_the_types():
    totals = Totals()
    for number in range(200):
        totals.add([[f"name{number}", "mail", "", 1]])
    for number in range(500):
        totals.add([["name0", f"type{number}", "", 1]])

    assert len([key for key in totals._totals if key[0] == "name0"]) == 101


def test_a_monitor_sends_nothing_but_beats():
    assert FROM_MONITOR.fault({"beat": True}) is None
    assert FROM_MONITOR.fault({"counted": []}) is not None


def test_the_monitor_is_told_whether_a_worker_could_claim_lately(driver):
    news = {"tasks": 0, "away": None, "enough": "", "slots": 1, "free": 1, "due": 0, "late": 0}
    for worker in (driver.worker(0), driver.worker(1)):
        worker.say(**news, waited=0, claim_age=0)
    driver.clock.advance(2)
    driver.tick()
    assert host(driver)["problem"] is None

    for worker in (driver.worker(0), driver.worker(1)):
        worker.say(**{**news, "away": "refused"}, waited=0, claim_age=0)
    driver.clock.advance(2)
    driver.tick()
    assert "the database cannot be used: refused" in host(driver)["problem"]


def test_the_monitor_accepts_the_longest_reason_why_nothing_could_be_claimed(driver):
    away = brief("\U000e0001" * 5000)  # each character is shown as ten
    news = {"tasks": 0, "enough": "", "slots": 1, "free": 1, "due": 0, "late": 0}
    for worker in (driver.worker(0), driver.worker(1)):
        worker.say(**news, away=away, waited=0, claim_age=0)
    driver.clock.advance(2)
    driver.tick()

    last = driver.monitors[-1].received[-1]
    assert last["host"]["problem"].startswith("the database cannot be used: ")
    assert TO_MONITOR.fault(last) is None
