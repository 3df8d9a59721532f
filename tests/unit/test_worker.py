"""Tests of a worker on a real store, with a manual clock: what it does, and when."""

import itertools
import re
import signal
import socket

import pytest

from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.base.lease_times import Deadlines
from psched.core.history.protocol import RunSelection
from psched.core.store_protocol import CAN_LACK, Store
from psched.process.link import LONGEST_TIME
from psched.worker.worker import LEFT_BEHIND
from support.driven import START, driven_host

LEASE = 60


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


def lines(caplog, *levels):
    return [each.getMessage() for each in caplog.records if each.levelname in levels]


def killed(runner):
    return [at for at, number in runner.signals if number is signal.SIGKILL]


# --- claim, run, settle --------------------------------------------------------------


def test_what_is_due_is_run_and_its_lease_ends_with_its_task(host):
    host.add("one", "two")
    worker = host.worker(concurrency=1)

    assert worker.run_due() == [f"one.{START}", f"two.{START}"]

    assert {host.row(key).status for key in ("one", "two")} == {"finished"}
    assert {host.row(key).fence for key in ("one", "two")} == {1}


def test_a_failure_is_tried_again_after_its_time(host):
    host.add("one", retry_wait=30)
    worker = host.worker()

    assert worker.run_due({"one": "ValueError: no"}) == [f"one.{START}"]
    worker.advance(29)
    assert worker.tasks == {}
    worker.advance(3)

    assert worker.tasks["one"].assignment["attempt"] == 2
    assert host.row("one").reason == "ValueError: no"


def test_a_schedule_runs_at_its_times(host):
    host.schedules.add("every", "test", cron="*/10 * * * *", next_time=START // 600 * 600)
    worker = host.worker(poll_interval=60)
    run = []
    for _ in range(60):
        run += worker.run_due()
        worker.advance(60)

    times = [int(each.partition(".")[2]) for each in run]
    assert times == [*range(START // 600 * 600, START + 3600, 600)]


def test_before_its_admission_a_worker_claims_nothing(host):
    host.add("one")
    store = host.remote()
    worker = host.worker(store)
    worker.order(go=False)

    worker.advance(1)

    assert worker.exit_status == 0
    assert worker.messages == [{"ready": None}]
    assert store.requests == {}


# --- looks ---------------------------------------------------------------------------


def looked(worker):
    """Have it look; whether it has said that it has no free slot."""
    before = worker.messages.count({"full": True})
    worker.order(look=True)
    worker.tick()
    return worker.messages.count({"full": True}) > before


def test_a_worker_that_is_told_to_look_claims_what_is_due_at_once(host):
    worker = host.worker(concurrency=2, poll_interval=60)
    worker.advance(2)
    host.schedules.push("one", "test")
    worker.advance(20)
    assert worker.tasks == {}

    assert not looked(worker)

    assert [*worker.tasks] == ["one"]


def test_a_look_in_vain_costs_one_claim_and_the_next_poll_is_as_before(host):
    store = host.remote()
    worker = host.worker(store, poll_interval=60)
    worker.advance(2)
    before = store.requests["claim"]

    assert not looked(worker)
    worker.advance(50)

    assert store.requests["claim"] == before + 1
    worker.advance(10)
    assert store.requests["claim"] == before + 2


def test_a_worker_whose_last_slot_was_filled_or_is_busy_says_so_and_asks_for_nothing(host):
    store = host.remote()
    worker = host.worker(store, concurrency=1, poll_interval=60)
    worker.advance(2)
    host.schedules.push("one", "test")
    assert looked(worker)
    claims = store.requests["claim"]

    host.schedules.push("two", "test")
    assert looked(worker)

    assert store.requests["claim"] == claims
    worker.tasks["one"].finish()
    worker.tick()
    worker.tick()
    assert [*worker.tasks] == ["two"]


def test_a_look_while_the_store_is_away_or_the_worker_is_paused_changes_nothing(host):
    store = host.remote()
    worker = host.worker(store, poll_interval=60)
    worker.advance(2)
    store.away = True
    assert not looked(worker)
    store.away = False
    worker.advance(10)
    worker.order(pause=True)
    host.schedules.push("one", "test")
    assert not looked(worker)
    worker.advance(70)
    assert worker.tasks == {}


# --- pause and stop ------------------------------------------------------------------


def test_a_worker_that_is_paused_claims_nothing_and_goes_on_with_what_it_has(host):
    host.add("before")
    worker = host.worker(alive_time=LEASE)
    worker.tick()
    worker.order(pause=True)
    host.add("after")

    worker.advance(3 * LEASE)
    worker.tasks["before"].finish()
    worker.advance(LEASE)

    assert host.row("before").status == "finished"
    assert (host.row("after").status, host.row("after").fence) == ("waiting", 0)
    assert worker.tasks == {}
    assert worker.exit_status is None


def test_a_worker_that_is_stopped_waits_for_its_task_and_exits(host):
    host.add("long", "next")
    worker = host.worker(concurrency=1, alive_time=LEASE, poll_interval=30)
    worker.tick()
    worker.inbox.send(signal.SIGTERM)

    worker.advance(10 * LEASE)
    assert worker.exit_status is None
    assert worker.tasks["long"].signals == []
    worker.tasks["long"].finish()
    worker.tick()

    assert worker.exit_status == 0
    assert host.row("long").status == "finished"
    assert (host.row("next").status, host.row("next").fence) == ("waiting", 0)
    assert worker.titles[-1].endswith("leaving")


def test_a_graceful_stop_gives_tasks_their_time_and_then_the_ladder(host):
    host.add("deaf", kill_interval=4)
    worker = host.worker(graceful_kill_limit=10)
    worker.tick()
    deaf, begun = worker.tasks["deaf"], host.clock.monotonic()
    worker.order(stop=20, hurry=False)

    worker.advance(60)

    at = [(round(when - begun), number.name) for when, number in deaf.signals]
    assert at == [(20, "SIGTERM"), (24, "SIGTERM"), (28, "SIGTERM"), (30, "SIGKILL")]
    assert worker.exit_status == 0
    row = host.row("deaf")
    assert (row.owner, row.status, row.attempt) == (None, "waiting", 0)


def test_a_hurried_stop_kills_what_does_not_listen_and_releases_its_lease(host):
    host.add("listens", "deaf")
    worker = host.worker(concurrency=2, graceful_kill_limit=1000)
    worker.tick()
    listens, deaf = worker.tasks["listens"], worker.tasks["deaf"]
    begun = host.clock.monotonic()
    worker.order(stop=0, hurry=True)
    worker.tick()
    assert listens.stop_reason == "shutdown"
    listens.finish("stopped: shutdown")

    worker.advance(10)

    assert killed(listens) == []
    assert killed(deaf) == [pytest.approx(begun + 2, abs=0.01)]
    assert worker.exit_status == 0
    assert {host.row(key).status for key in ("listens", "deaf")} == {"waiting"}
    assert {host.row(key).owner for key in ("listens", "deaf")} == {None}


def test_a_worker_whose_master_dies_kills_its_tasks_at_once_and_releases_them(host):
    host.add("one")
    worker = host.worker()
    worker.tick()
    one = worker.tasks["one"]
    worker.lose_master()

    worker.advance(1)

    assert [number.name for _, number in one.signals] == ["SIGKILL"]
    assert worker.exit_status == 0
    assert host.row("one").owner is None


def test_a_worker_that_stops_while_the_store_is_away_gives_up_in_the_end(host, caplog):
    host.add("one")
    store = host.remote()
    worker = host.worker(store)
    worker.tick()
    store.away = True
    worker.tasks["one"].finish()
    worker.order(stop=None, hurry=False)

    worker.advance(9)
    assert worker.exit_status is None
    worker.advance(10)

    assert worker.exit_status == LEFT_BEHIND
    assert "exiting with leases that are not settled" in caplog.text
    assert host.row("one").owner is not None


def test_a_row_whose_status_says_that_it_failed_ends_though_it_is_invalid(host):
    host.sql(
        "INSERT INTO psched (id, type, cron, status) VALUES ('wrong', ' x', '* * * * *', 'failed')"
    )
    worker = host.worker()
    worker.tick()
    worker.advance(1)
    assert (host.row("wrong").status, host.row("wrong").owner) == ("failed", None)
    assert host.row("wrong").next_run_time is None


def test_a_worker_that_stops_first_ends_the_leases_of_rows_with_nothing_to_run(host):
    host.sql("INSERT INTO psched (id, options) VALUES ('wrong', '{')")
    store = host.remote()

    def settle(*_arguments):
        raise StoreUnavailableError("test")

    store.settle = settle
    worker = host.worker(store)
    worker.tick()
    assert host.row("wrong").owner is not None
    worker.order(stop=None, hurry=False)
    worker.advance(1)
    assert worker.exit_status is None

    del store.settle
    worker.advance(9)

    assert worker.exit_status == 0
    assert (host.row("wrong").status, host.row("wrong").owner) == ("quarantined", None)


# --- leases --------------------------------------------------------------------------


def test_a_lease_is_extended_as_long_as_its_task_runs(host):
    host.add("long")
    store = host.remote()
    worker = host.worker(store, alive_time=LEASE, poll_interval=30)

    for _ in range(20):
        worker.advance(LEASE / 2)
        assert host.row("long").next_run_time > host.clock.wall()

    assert worker.tasks["long"].signals == []
    assert 35 <= store.requests["extend"] <= 45
    assert host.row("long").fence == 1


@pytest.mark.parametrize("seed", range(8))
def test_an_outage_kills_tasks_before_their_leases_end_and_is_logged_once_at_each_end(
    host, caplog, seed
):
    host.add("short", alive_time=LEASE)
    host.add("long", alive_time=10 * LEASE)
    store = host.remote()
    # Which of the guard's moments comes first depends on roundings, and these on random pauses.
    settings = {"concurrency": 2, "alive_time": LEASE, "database_timeout": 1}
    worker = host.worker(store, seed=seed, **settings)
    worker.tick()
    short, long = worker.tasks["short"], worker.tasks["long"]
    begun = host.clock.boottime()
    store.away, store.answer = True, 1.0

    worker.advance(2 * LEASE)
    # The worker killed the task so early in its lease that the kernel's timer never fired.
    deadlines = Deadlines(begun, LEASE, 1.0)
    [at] = killed(short)
    assert at - host.clock.monotonic() + host.clock.boottime() < deadlines.end - 15
    assert long.signals == []
    store.away, store.answer = False, 0.0
    worker.advance(10)

    assert long.signals == []
    assert host.row("long").fence == 1
    assert host.row("short").fence == 2
    errors = lines(caplog, "ERROR")
    assert [text for text in errors if "running tasks go on while their leases last" in text] == [
        errors[0]
    ]
    assert [text for text in errors if "its lease could not be extended" in text] == [errors[1]]
    [back] = [text for text in lines(caplog, "WARNING") if "answers again" in text]
    # The first request that fails is sent within a second, and fails a second later.
    assert 2 * LEASE - 2 <= float(re.search(r"after ([\d.]+) s", back)[1]) < 2 * LEASE + 10
    told = [message["away"] for message in worker.messages if "away" in message]
    assert {*told} == {None, "the database is unavailable: test"}
    assert told[-1] is None


@pytest.mark.parametrize(
    ("error", "answer"),
    [(StoreUnavailableError, "unavailable"), (UnknownOutcomeError, "unanswered")],
)
def test_a_task_learns_whether_its_update_may_have_been_applied(host, error, answer):
    def update_data(*_arguments):
        raise error("the connection broke")

    host.add("one")
    store = host.remote()
    store.update_data = update_data
    worker = host.worker(store)
    worker.tick()
    worker.tasks["one"].ask(b"{}", update_data=True)

    worker.tick()

    assert worker.tasks["one"].answers == [{answer: "the connection broke"}]
    assert worker.exit_status is None


TAKEN_OVER = (
    "UPDATE psched SET leased_by = 'thief.1', fence = fence + 1, next_run_time = 4000000000"
)
REMOVED = "DELETE FROM psched"


@pytest.mark.parametrize("statement", [TAKEN_OVER, REMOVED], ids=["taken over", "removed"])
def test_a_task_whose_lease_is_lost_is_killed_at_once_and_nothing_is_written(
    host, statement, caplog
):
    host.add("stolen")
    worker = host.worker(alive_time=LEASE)
    worker.tick()
    stolen = worker.tasks["stolen"]
    host.sql(statement)

    worker.advance(LEASE / 2)

    assert [number.name for _, number in stolen.signals] == ["SIGKILL"]
    assert "preempted: what it did counts for nothing" in caplog.text
    if statement == TAKEN_OVER:
        assert host.row("stolen").owner == "thief.1"


def test_a_task_that_asks_is_answered(host):
    host.add("one")
    worker = host.worker(alive_time=LEASE)
    worker.tick()
    one = worker.tasks["one"]
    one.ask(extend=True)
    worker.tick()
    one.ask(b'{"a": 1}', update_data=True)
    worker.tick()
    one.ask(retry="later", wait=5)
    worker.tick()
    one.finish()
    worker.tick()

    assert one.answers == [{"held": True}] * 3
    row = host.row("one")
    assert (row.status, row.reason, row.data) == ("waiting", "later", b'{"a": 1}')


# --- the kill ladder -----------------------------------------------------------------


def test_a_task_at_its_time_limit_is_sent_term_again_and_again_and_then_kill(host):
    host.add("deaf", kill_timeout=100, kill_interval=60, retry_wait=1000)
    worker = host.worker(graceful_kill_limit=150)
    worker.tick()
    deaf, begun = worker.tasks["deaf"], host.clock.monotonic()

    worker.advance(300)

    at = [(round(when - begun), number.name) for when, number in deaf.signals]
    assert at == [(100, "SIGTERM"), (160, "SIGTERM"), (220, "SIGTERM"), (250, "SIGKILL")]
    assert host.row("deaf").reason == "stopped at its time limit"


def test_what_kill_does_not_end_is_sent_kill_every_second_and_keeps_its_lease(host):
    host.add("stuck", kill_timeout=1)
    worker = host.worker(graceful_kill_limit=0, alive_time=LEASE)
    worker.tick()
    stuck = worker.tasks["stuck"]
    stuck.unkillable = True

    worker.advance(2 * LEASE)

    assert len(killed(stuck)) == pytest.approx(2 * LEASE, abs=3)
    assert host.row("stuck").fence == 1
    stuck.exit_with(None, signal.SIGKILL)
    worker.tick()
    assert host.row("stuck").fence == 2


def test_a_task_that_its_process_does_not_begin_is_killed(host, caplog):
    host.add("hangs")
    worker = host.worker(start_timeout=30)
    worker.worker.tick()
    [runner, *_] = worker.pool.runners
    runner.hangs = True

    worker.advance(29)
    assert runner.signals == []
    worker.advance(2)

    assert [number.name for _, number in runner.signals] == ["SIGKILL"]
    assert "killing it: its process does not begin" in caplog.text


def test_a_schedule_that_is_deleted_while_it_runs_is_stopped_and_removed(host):
    host.add("doomed")
    worker = host.worker(poll_interval=5)
    worker.tick()
    host.schedules["doomed"].delete()

    worker.advance(6)
    assert worker.tasks["doomed"].stop_reason == "deleted"
    worker.tasks["doomed"].finish("stopped: deleted")
    worker.advance(1)

    assert not host.schedules["doomed"].exists()


@pytest.mark.parametrize(
    ("verb", "mark", "status"),
    [
        ("delete", "to_delete", None),
        ("cancel", "to_cancel", "cancelled"),
        ("force_finish", "to_finish", "finished"),
    ],
)
def test_a_task_that_ends_its_own_schedule_is_not_stopped(host, monkeypatch, verb, mark, status):
    host.schedules.add("own", "test", cron="*/10 * * * *", next_time=START // 600 * 600)
    worker = host.worker(poll_interval=5)
    worker.tick()
    monkeypatch.setenv("PSCHED_KEY", "own")
    monkeypatch.setenv("PSCHED_FENCE", str(host.row("own").fence))
    for _ in range(2):
        assert not getattr(host.schedules["own"], verb)()

    worker.advance(60)
    assert worker.tasks["own"].stop_reason == ""
    assert host.row("own").status == mark
    worker.tasks["own"].finish("ValueError: no")
    worker.advance(1)

    if status is None:
        assert not host.schedules["own"].exists()
    else:
        assert (host.row("own").status, host.row("own").owner) == (status, None)


@pytest.mark.parametrize("verb", ["delete", "cancel"])
@pytest.mark.parametrize(("key", "fence"), [("other", 1), ("own", 7)])
def test_one_that_somebody_else_ends_as_well_is_stopped(host, monkeypatch, verb, key, fence):
    host.add("own")
    worker = host.worker(poll_interval=5)
    worker.tick()
    monkeypatch.setenv("PSCHED_KEY", "own")
    monkeypatch.setenv("PSCHED_FENCE", str(host.row("own").fence))
    getattr(host.schedules["own"], verb)()
    monkeypatch.setenv("PSCHED_KEY", key)
    monkeypatch.setenv("PSCHED_FENCE", str(fence))
    getattr(host.schedules["own"], verb)()

    worker.advance(6)

    assert worker.tasks["own"].stop_reason == {"delete": "deleted", "cancel": "cancelled"}[verb]


# --- dead workers and recycling ------------------------------------------------------


def test_the_leases_of_a_dead_worker_are_released_and_run_at_once(host, caplog):
    host.add("one", "two")
    dead = host.worker(nonce="dead", concurrency=2, alive_time=300)
    dead.tick()
    assert len(dead.tasks) == 2
    worker = host.worker(nonce="alive", concurrency=2)
    worker.advance(5)
    assert worker.tasks == {}

    worker.order(recover=["dead", "unheard of"])
    worker.tick()

    assert sorted(worker.tasks) == ["one", "two"]
    assert {"recovered": ["dead", "unheard of"]} in worker.messages
    assert "one: released, its worker has died" in caplog.text
    assert (host.row("one").fence, host.row("one").attempt) == (2, 2)


@pytest.mark.parametrize(
    ("attempts", "end"), [(1, (None, "gave_up")), (9, ("finished", "finished"))]
)
@pytest.mark.slow
def test_a_lost_attempt_is_recorded_before_what_became_of_its_occurrence(host, attempts, end):
    """Also if so many leases are taken over that their attempts are recorded in several steps."""
    keys = [f"k{number}" for number in range(120)]
    host.add(*keys, max_attempts=attempts)
    store = host.store()
    dead = host.worker(store, nonce="dead", concurrency=len(keys), alive_time=LEASE)
    dead.tick()
    assert len(dead.tasks) == len(keys)
    host.clock.advance(2 * LEASE)
    worker = host.worker(host.store(), nonce="alive", concurrency=len(keys), alive_time=LEASE)

    worker.run_due()
    worker.advance(3)

    records = {key: [*store.history.runs(RunSelection(key=key))] for key in keys}
    assert {tuple((each.outcome, each.fate) for each in found) for found in records.values()} == {
        (end, ("lost", None))
    }
    assert {each.host for found in records.values() for each in found} == {socket.gethostname()}
    assert {record.fate for record in store.history.last_runs(keys).values()} == {end[1]}


def test_a_worker_that_has_run_enough_tasks_says_so_until_it_is_told_to_stop(host):
    worker = host.worker(worker_max_tasks=10, concurrency=3)
    host.add(*[f"k{number}" for number in range(20)])

    worker.run_due()
    worker.advance(3)

    [why] = {message["enough"] for message in worker.messages if message.get("enough")}
    assert re.fullmatch(r"has run \d+ tasks", why)
    assert worker.exit_status is None
    told = len(worker.messages)
    worker.advance(3)
    assert len(worker.messages) - told >= 3
    worker.order(stop=None, hurry=False)
    worker.tick()
    assert worker.exit_status == 0


def test_a_worker_that_is_old_enough_says_so(host):
    worker = host.worker(worker_max_age=1000, poll_interval=60)

    worker.advance(890)
    assert not any(message.get("enough") for message in worker.messages)
    worker.advance(220)

    assert worker.messages[-1]["enough"] == "has reached worker_max_age"


# --- processes -----------------------------------------------------------------------


def test_without_a_process_nothing_is_claimed_and_that_is_logged_once(host, caplog):
    host.add("one")
    store = host.remote()
    worker = host.worker(store)
    worker.tick()
    worker.run_due()
    for runner in worker.pool.runners:
        worker.pool.kill(runner)
    worker.pool.refuses = True
    host.add("two")

    worker.advance(30)
    claims = store.requests["claim"]
    assert lines(caplog, "ERROR") == ["cannot fork: [Errno 11] Resource temporarily unavailable"]
    told = worker.messages[-1]
    assert (told["free"], told["due"]) == (0, 1)
    assert told["no_fork"] == "[Errno 11] Resource temporarily unavailable"
    worker.pool.refuses = False
    worker.advance(2)

    assert worker.messages[-1]["no_fork"] is None

    assert store.requests["claim"] > claims
    assert list(worker.tasks) == ["two"]


def test_a_task_that_finds_no_process_left_waits_longer_each_time_but_not_without_end(host, caplog):
    host.add("one", cron="* * * * *", retry_wait=5, max_attempts=1)
    worker = host.worker()

    def refuse():
        while not worker.tasks:
            worker.advance(1)
        runner = worker.tasks["one"]
        runner.ask(no_room="x", last=True)
        runner.exit_with(0)
        worker.advance(0)
        row = host.row("one")
        assert (row.attempt, row.reason) == (0, "no room for a process: x")
        assert row.next_run_time > host.clock.wall()

    for _ in range(5):
        refuse()

    while not worker.tasks:
        worker.advance(1)
    worker.tasks["one"].finish()
    worker.advance(1)
    refuse()
    assert re.findall(r"again in (\d) s: no room for a process: x\n", caplog.text) == [*"124551"]
    assert "ERROR" not in caplog.text


def test_if_a_task_finds_no_process_left_none_waits_ahead_of_need_for_a_while(host):
    host.add("one", cron="* * * * *")
    worker = host.worker(concurrency=3)
    worker.advance(61)
    refused = worker.tasks["one"]
    assert len(worker.pool.runners) > len(worker.tasks)

    refused.ask(no_room="x", last=False)
    worker.advance(0)

    assert worker.pool.runners == [refused]
    worker.advance(2)
    assert worker.tasks == {"one": refused}
    assert worker.pool.runners == [refused]
    refused.finish()
    worker.advance(120)
    assert len(worker.pool.runners) > len(worker.tasks)


def test_a_task_whose_process_dies_is_tried_again(host):
    host.add("one", retry_wait=5)
    worker = host.worker()
    worker.tick()
    worker.tasks["one"].exit_with(None, signal.SIGSEGV)

    worker.advance(7)

    assert worker.tasks["one"].assignment["attempt"] == 2
    assert host.row("one").reason == "its process was killed by SIGSEGV"


# --- debug messages ------------------------------------------------------------------


def test_debug_messages_show_claims_extends_and_settles_and_nothing_while_idle(host, caplog):
    caplog.set_level("DEBUG", "psched.worker")
    host.add("one", "k" * 200, *(f"task{number:02}" for number in range(10)))
    worker = host.worker(concurrency=12, alive_time=LEASE)
    worker.advance(LEASE / 4 + 2)
    for runner in [*worker.tasks.values()]:
        runner.finish()
    worker.advance(1)

    found = lines(caplog, "DEBUG")
    for verb in "claimed", "extended", "settled":
        [line] = [line for line in found if line.startswith(f"{verb} 12 in ")]
        assert re.fullmatch(rf"{verb} 12 in \d+\.\d ms: \S.* and 2 more", line)
        assert len(line) < 400
    worker.advance(10)
    assert lines(caplog, "DEBUG") == found


def test_no_debug_message_is_made_at_level_info(host, caplog):
    caplog.set_level("INFO", "psched.worker")
    host.add("one")
    host.worker().run_due()
    assert lines(caplog, "DEBUG") == []


# --- rows that wait for a slot -------------------------------------------------------


def loads(worker):
    """The loads in the worker's heartbeats: slots, free slots, due rows, and the latest's seconds.

    Equal ones in a row are shown once.
    """
    found = [
        (message["slots"], message["free"], message["due"], message["late"])
        for message in worker.messages
        if "slots" in message
    ]
    return [load for load, _ in itertools.groupby(found)]


def test_due_rows_that_wait_for_a_slot_are_reported_until_one_is_free(host):
    worker = host.worker(concurrency=2)
    host.add("a", "b", "c", "d")
    worker.advance(5)
    assert loads(worker)[-1] == (2, 0, 0, 0)
    worker.advance(15)
    slots, free, due, late = loads(worker)[-1]
    assert (slots, free, due) == (2, 0, 2)
    assert 15 <= late <= 21
    worker.tasks["a"].finish()
    worker.advance(6)
    assert loads(worker)[-1][:3] == (2, 0, 1)
    for _ in range(3):
        next(iter(worker.tasks.values())).finish()
        worker.advance(2)
    assert loads(worker)[-1] == (2, 2, 0, 0)


def test_a_row_has_waited_no_longer_than_it_was_due_and_no_slot_was_free(host):
    def waited():
        return [message["waited"] for message in worker.messages if "waited" in message]

    worker = host.worker(concurrency=1)
    host.add("a")
    worker.advance(300)
    assert set(waited()) == {0}
    # A row that is added by SQL, or after its time, seems to be late from the beginning.
    host.add("b")
    host.sql("UPDATE psched SET next_run_time = 0 WHERE id = 'b'")
    worker.advance(10)
    assert 300 <= waited()[-1] <= 310
    # A task that ends, and makes room for the next row, ends neither.
    host.schedules.add("c", "test", next_time=int(host.clock.wall()))
    worker.tasks["a"].finish()
    worker.advance(60)
    assert set(worker.tasks) == {"b"}
    assert 55 <= waited()[-1] <= 61
    worker.tasks["b"].finish()
    worker.advance(2)
    worker.tasks["c"].finish()
    worker.advance(2)
    assert waited()[-1] == 0


@pytest.mark.slow
def test_due_rows_are_not_counted_while_a_slot_is_free(host):
    store = host.remote()
    worker = host.worker(store, concurrency=2)
    host.add("a")
    worker.advance(300)
    assert store.requests["backlog"] == 0
    host.add("b")
    worker.advance(5)
    assert set(worker.tasks) == {"a", "b"}
    assert store.requests["backlog"] == 0
    worker.advance(60)
    assert 10 <= store.requests["backlog"] <= 12
    assert loads(worker)[-1] == (2, 0, 0, 0)


def test_rows_that_are_hardly_late_are_left_to_a_worker_with_a_free_slot(host):
    worker = host.worker(concurrency=1, poll_interval=20)
    host.add("a")
    worker.advance(30)
    host.schedules.add("b", "test", next_time=int(host.clock.wall()))
    worker.advance(20)
    assert loads(worker)[-1] == (1, 0, 0, 0)
    worker.advance(20)
    assert loads(worker)[-1][:3] == (1, 0, 1)


def test_a_worker_that_claims_no_more_counts_no_rows(host):
    store = host.remote()
    worker = host.worker(store, concurrency=1)
    host.add("a", "b")
    worker.advance(20)
    assert loads(worker)[-1][2] == 1
    worker.order(pause=True)
    worker.advance(2)
    asked = store.requests["backlog"]
    worker.advance(60)
    assert loads(worker)[-1] == (1, 0, 0, 0)
    assert store.requests["backlog"] == asked


def test_an_outage_does_not_end_the_wait_of_rows(host):
    store = host.remote()
    worker = host.worker(store, concurrency=1)
    host.add("a", "b")
    worker.advance(20)
    store.away = True
    worker.advance(60)
    assert loads(worker)[-1][2] == 1
    store.away = False
    worker.advance(10)
    worker.tasks["a"].finish()
    worker.advance(2)
    assert set(worker.tasks) == {"b"}


def test_a_store_that_cannot_count_its_due_rows_is_served_all_the_same(host):
    class Uncounting(Store):
        """Passes on all requests that every store has to answer, but has nothing else."""

        def __init__(self, store):
            for name in {*vars(Store)} - {*CAN_LACK}:
                if not name.startswith("_"):
                    setattr(self, name, getattr(store, name))

    worker = host.worker(Uncounting(host.remote()), concurrency=1)
    host.add("a", "b")
    worker.advance(60)
    assert loads(worker)[-1] == (1, 0, 0, 0)
    worker.tasks["a"].finish()
    worker.advance(2)
    assert set(worker.tasks) == {"b"}


def test_a_row_that_is_late_beyond_measure_is_reported_in_a_message_that_is_accepted(host):
    worker = host.worker(concurrency=1)
    host.add("a")
    worker.advance(1)
    host.add("b")
    host.sql("UPDATE psched SET next_run_time = -9223372036854775808 WHERE id = 'b'")
    worker.advance(20)
    assert loads(worker)[-1] == (1, 0, 1, LONGEST_TIME)


def test_a_worker_of_a_named_host_looks_each_minute_for_what_each_host_runs(host):
    host.schedules.add("trim", "test", every="1d", each_host=True)
    worker = host.worker(host_name="web1")
    worker.advance(5)
    assert host.row("trim@web1").lane == "@web1"
    assert host.row("trim@web1").next_time >= host.clock.wall() - 5
    host.schedules["trim@web1"].delete()
    worker.advance(70)
    assert host.row("trim@web1").lane == "@web1"


def test_a_host_whose_clock_was_ahead_when_it_started_misses_nothing(host):
    host.clock.step(3600)
    worker = host.worker(host_name="web1")
    host.clock.step(-3600)
    worker.advance(5)
    # No client gives the host its row, because the store of this worker keeps no records of it.
    host.schedules.add("trim", "test", every="1d", next_time=START - 100_000, each_host=True)
    worker.advance(70)
    assert host.row("trim@web1").next_time == START - 100_000


def test_a_worker_loads_no_trigger_of_a_user_when_it_looks_what_each_host_runs(host):
    host.schedules.add("trim", "test", every="1h", each_host=True, next_time=START - 4000)
    host.sql("UPDATE psched SET cron = '@call hanging:Forever', created_at = 1 WHERE id = 'trim'")
    worker = host.worker(host_name="web1")
    worker.advance(5)
    row = host.row("trim@web1")
    assert row.next_time is None
    assert row.next_run_time >= START


def test_a_host_without_a_configured_name_has_no_row_of_what_each_host_runs(host):
    host.schedules.add("trim", "test", every="1d", each_host=True)
    worker = host.worker()
    worker.advance(200)
    assert [each.key for each in host.schedules.list()] == ["trim"]
