"""Tests of when a master is ready: the judgement, and the facts that workers and masters tell."""

from signal import SIGHUP, SIGTERM, SIGWINCH

import pytest
from click.testing import CliRunner

from psched.cli.commands import psched
from psched.master import messages
from psched.master.reports.health import Facts, Limits, Load, WorkerFacts, facts_in, why_not_ready
from psched.testing import MasterDriver
from support.driven import driven_host

IDLE = WorkerFacts(claims=True, silent_for=1, store_away=None, is_full=False, waited=0, claim_age=1)
FULL = IDLE._replace(is_full=True, claim_age=9999)
LATE = FULL._replace(waited=301)
AWAY = IDLE._replace(store_away="it refuses connections")
HANGS = IDLE._replace(silent_for=31, claim_age=32)
STUCK = IDLE._replace(claim_age=31)
FORKLESS = FULL._replace(claim_age=1, no_fork="the fork server does not answer")
LEAVES = IDLE._replace(claims=False)


def judged(*workers, phase="serving", **limits):
    return why_not_ready(Facts(phase=phase, workers=workers), Limits(**limits))


@pytest.mark.parametrize(
    "workers",
    [
        [IDLE],
        [IDLE._replace(claim_age=30)],
        [FULL],
        [LATE._replace(waited=300)],
        [AWAY, IDLE],
        [FORKLESS, FULL],
        [HANGS, STUCK, LEAVES, IDLE],
        # A worker with a free slot claims what the other one has counted.
        [LATE, IDLE],
        [LATE, FULL],
        [LATE._replace(silent_for=31), FULL],
    ],
)
@pytest.mark.parametrize("phase", ["serving", "reloading", "a phase of a later version"])
def test_one_worker_that_could_claim_lately_is_enough(workers, phase):
    assert judged(*workers, phase=phase) is None


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], "no worker is ready to claim tasks"),
        ([LEAVES], "no worker is ready to claim tasks"),
        ([AWAY], "the database cannot be used: it refuses connections"),
        ([FULL._replace(store_away="x")], "the database cannot be used: x"),
        ([HANGS, LEAVES], "the workers have been silent for 31.0 s"),
        ([FORKLESS], "no process can be forked: the fork server does not answer"),
        ([FULL._replace(silent_for=31)], "the workers have been silent for 31.0 s"),
        ([STUCK], "no search for due tasks was answered for 31.0 s"),
        ([IDLE._replace(claim_age=None)], "no search for due tasks was answered yet"),
        # The free slots of a worker that hangs are of no use.
        ([LATE, HANGS], "a due task has waited for a free slot for 5.0 min"),
        ([LATE, LATE._replace(waited=9999)], "a due task has waited for a free slot for 5.0 min"),
    ],
)
def test_the_reason_is_told(workers, reason):
    assert judged(*workers) == reason


@pytest.mark.parametrize("phase", ["starting", "paused", "stopping"])
def test_a_master_that_claims_nothing_is_not_ready_whatever_its_workers_say(phase):
    assert phase in (judged(IDLE, AWAY, phase=phase) or "")


def test_a_master_that_waits_for_its_database_says_why():
    reason = "the master is starting: no worker has searched for due tasks yet"
    assert judged(AWAY, phase="starting") == f"{reason}; it refuses connections"
    assert judged(IDLE._replace(claims=False), phase="starting") == reason


def test_the_limits_are_the_callers():
    assert judged(IDLE._replace(claim_age=3), claims_within=2) is not None
    assert judged(FULL._replace(silent_for=3), claims_within=2) is not None
    assert judged(STUCK, claims_within=60) is None
    assert judged(LATE, late_within=400) is None
    assert judged(LATE._replace(waited=3), late_within=2) is not None


def test_workers_that_search_rarely_are_given_more_time():
    assert Limits.for_polls(1) == Limits() == (30, 300)
    assert Limits.for_polls(60) == (120, 300)


@pytest.mark.parametrize("option", ["--claims-within", "--late-within"])
@pytest.mark.parametrize("value", ["soon", "-1s"])
def test_a_limit_that_is_no_duration_is_wrong_usage(option, value):
    done = CliRunner().invoke(psched, ["health", option, value])
    assert done.exit_code == 2
    assert option in done.stderr


def test_a_limit_that_workers_cannot_keep_is_wrong_usage(tmp_path):
    config = tmp_path / "psched.yml"
    config.write_text("url: sqlite:///unused.db\npoll_interval: 20s\n")
    command = ["-c", str(config), "health", "--claims-within", "20s"]
    done = CliRunner().invoke(psched, command, env={"RUNTIME_DIRECTORY": str(tmp_path)})
    assert done.exit_code == 2
    assert "--claims-within must be longer than the setting poll_interval (20 s)" in done.stderr


# --- the facts of a master -----------------------------------------------------------


@pytest.fixture
def driver():
    made = MasterDriver(processors=2)
    yield made
    made.close()


def reason(driver):
    """Judge the document that the master would answer now."""
    status = driver.master._status
    document = status._describe(driver.master._state, driver.master._generation, driver.workers, {})
    assert messages.STATUS.fault(document) is None
    return why_not_ready(facts_in(document), Limits())


def claimed(driver, *, age, **more):
    """Have both workers tell how long ago a claim was answered."""
    for number in 0, 1:
        load = Load(slots=1, free=1)._asdict()
        driver.worker(number).say(tasks=0, away=None, enough="", claim_age=age, **load, **more)
    driver.tick()


def test_from_its_start_to_its_stop(driver):
    driver.tick()
    assert "starting" in reason(driver)
    driver.boot()
    claimed(driver, age=0.5)
    assert reason(driver) is None
    driver.send(SIGHUP)
    assert reason(driver) is None
    driver.worker(0, 2).exits(65)
    driver.tick()
    assert "restart failed" in driver.title
    assert reason(driver) is None
    driver.send(SIGWINCH)
    assert "WINCH" in reason(driver)
    driver.send(SIGHUP)
    assert "WINCH" in reason(driver)
    driver.boot()
    assert reason(driver) is None
    driver.send(SIGTERM)
    assert "stopping" in reason(driver)


def test_an_answered_claim_grows_old(driver):
    driver.boot()
    claimed(driver, age=5)
    for number in 0, 1:
        driver.silence(driver.worker(number))
    driver.advance(24)
    assert reason(driver) is None
    driver.advance(2)
    assert reason(driver) == "no search for due tasks was answered for 31.0 s"
    # A report brings a new age, so the answer to a query is not older than the query.
    driver.worker(1).say(report={"tasks": [], "errors": []}, claim_age=0.1)
    driver.tick()
    assert reason(driver) is None
    driver.advance(31)
    assert reason(driver).startswith("the workers have been silent for")


def test_that_no_process_can_be_forked_is_told_at_once_and_in_the_status_line(driver):
    driver.boot()
    claimed(driver, age=1, no_fork="no room")
    assert reason(driver) == "no process can be forked: no room"
    assert driver.title.endswith("; no process can be forked")
    claimed(driver, age=1, no_fork=None)
    assert reason(driver) is None


def test_a_worker_without_an_answer_so_far_is_not_ready(driver):
    driver.boot()
    claimed(driver, age=None)
    assert reason(driver) == "no search for due tasks was answered yet"


def test_workers_of_an_older_version_are_judged_by_their_messages(driver):
    driver.boot()
    driver.advance(300)
    assert reason(driver) is None
    for number in 0, 1:
        driver.silence(driver.worker(number))
    driver.advance(31)
    assert reason(driver).startswith("the workers have been silent for")


def test_a_master_of_an_older_version_is_judged_by_what_it_tells():
    def asked(**fields):
        worker = {"state": "ready", "silent_for": 2.0, "store_away": None, **fields}
        return why_not_ready(facts_in({"phase": "serving", "workers": [worker]}), Limits())

    assert asked() is None
    assert asked(silent_for=40.0) == "the workers have been silent for 40.0 s"
    assert asked(slots=1, free=0, due=1, late=300) is None
    late = asked(slots=1, free=0, due=1, late=301)
    assert late == "a due task has waited for a free slot for 5.0 min"


# --- the facts of a worker -----------------------------------------------------------


def ages(worker):
    return [message["claim_age"] for message in worker.messages if "tasks" in message]


def test_a_worker_tells_when_its_last_claim_was_answered(tmp_path):
    with driven_host(tmp_path) as host:
        store = host.remote()
        worker = host.worker(store)
        worker.tick()
        assert ages(worker) == [0]
        worker.advance(20)
        assert all(age <= 1 for age in ages(worker))

        store.away = True
        worker.advance(40)
        worker.order(report=True)
        worker.advance(0)

        assert max(ages(worker)) >= 30
        assert worker.messages[-1]["claim_age"] == pytest.approx(40, abs=1)
        for message in worker.messages:
            assert messages.FROM_WORKER.fault(message) is None


def test_a_worker_whose_store_was_never_there_tells_that(tmp_path):
    with driven_host(tmp_path) as host:
        store = host.remote()
        store.away = True
        worker = host.worker(store)
        worker.advance(1)
        assert ages(worker)
        assert set(ages(worker)) == {None}


def test_a_worker_that_cannot_fork_has_no_claims_answered(tmp_path):
    with driven_host(tmp_path) as host:
        worker = host.worker()
        worker.tick()
        worker.pool.kill(worker.pool.runners[0])
        worker.pool.refuses = True
        worker.advance(40)
        assert ages(worker)[-1] >= 30
        worker.pool.refuses = False
        worker.advance(20)
        assert ages(worker)[-1] <= 1
