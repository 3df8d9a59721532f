"""What a worker tells its master of runs whose schedules have a ping."""

import signal
from uuid import UUID

import pytest

from psched.core.model import Occurrence
from psched.master.messages import TO_MONITOR
from psched.output.captured import CapturedOutput
from psched.process.link import Link
from psched.worker.run_reporter import RunReporter, run_id
from support.driven import START, driven_host

PINGS = {"backup": "https://hc-ping.com/5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"}


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


def told(worker):
    """The messages about runs."""
    return [each for each in worker.messages if "ping" in each]


def kinds(worker):
    return [each["what"] for each in told(worker)]


def test_a_run_without_a_ping_is_not_told(host):
    host.add("one")
    worker = host.worker(pings=PINGS)
    assert worker.run_due() == [f"one.{START}"]
    worker.advance(30)
    assert told(worker) == []


def test_start_and_success_have_the_same_id(host):
    host.add("one", ping="backup")
    worker = host.worker(pings=PINGS)
    worker.tick()
    worker.advance(3)
    worker.tasks["one"].finish()
    worker.advance(1)

    [start, end] = told(worker)
    assert start == {
        "ping": "backup", "key": "one", "run": start["run"], "what": "start", "exit": None,
        "text": f"one.{START}: started, attempt 1",
    }  # fmt: skip
    assert (end["what"], end["run"], end["exit"]) == ("success", start["run"], None)
    assert end["text"] == f"one.{START}: finished after 3.000 s, attempt 1"
    assert str(UUID(start["run"])) == start["run"]
    assert all(TO_MONITOR.fault(each) is None for each in (start, end))


def test_each_attempt_has_its_own_id_and_says_how_it_has_failed(host):
    host.add("one", ping="backup", retry_wait=10)
    worker = host.worker(pings=PINGS)
    worker.run_due({"one": "ValueError: no"})
    worker.advance(12)
    worker.run_due()
    worker.advance(2)

    assert kinds(worker) == ["start", "fail", "start", "success"]
    runs = [each["run"] for each in told(worker)]
    assert runs[0] == runs[1] != runs[2] == runs[3]
    assert told(worker)[1]["text"].endswith(", attempt 1: ValueError: no")


def test_the_end_is_told_after_it_is_recorded(host):
    host.add("one", ping="backup")
    store = host.remote()
    worker = host.worker(store, pings=PINGS)
    worker.tick()
    store.away = True
    worker.tasks["one"].finish()
    worker.advance(20)
    assert kinds(worker) == ["start"]

    store.away = False
    worker.advance(20)
    assert kinds(worker) == ["start", "success"]


def test_the_type_and_the_installation_can_name_the_ping_and_a_schedule_can_have_none(host):
    host.add("of_type")
    host.add("own", ping="other")
    host.add("no", ping="none")
    worker = host.worker(pings=PINGS, ping="backup", concurrency=3)
    worker.run_due()
    worker.advance(1)
    names = {each["key"]: each["ping"] for each in told(worker)}
    assert names == {"of_type": "backup", "own": "other"}


def test_a_run_that_a_stop_has_released_is_no_failure(host):
    host.add("one", ping="backup")
    worker = host.worker(pings=PINGS, graceful_kill_limit=5)
    worker.tick()
    worker.order(stop=0, hurry=False)
    worker.advance(1)
    worker.tasks["one"].finish("ProcessStopError")
    worker.advance(1)
    assert kinds(worker) == ["start", "log"]
    assert "released" in told(worker)[1]["text"]


def test_a_run_that_was_cancelled_is_a_failure(host):
    host.add("one", ping="backup")
    worker = host.worker(pings=PINGS)
    worker.tick()
    host.schedules["one"].cancel()
    worker.advance(3)
    assert signal.SIGTERM in [number for _, number in worker.tasks["one"].signals]
    worker.tasks["one"].finish("ProcessStopError")
    worker.advance(1)
    assert kinds(worker) == ["start", "fail"]


def test_a_run_whose_lease_was_lost_counts_for_nothing(host):
    host.add("one", ping="backup")
    worker = host.worker(pings=PINGS, alive_time=60)
    worker.tick()
    host.sql("update psched set fence = fence + 1, leased_by = 'other.1'")
    worker.advance(60)
    assert kinds(worker) == ["start", "log"]
    assert "preempted" in told(worker)[1]["text"]


def test_a_success_that_is_not_recorded_because_another_worker_has_the_row_is_none(host):
    host.add("one", ping="backup")
    worker = host.worker(pings=PINGS)
    worker.tick()
    host.sql("update psched set fence = fence + 1, leased_by = 'other.1'")
    worker.tasks["one"].finish()
    worker.advance(1)
    assert kinds(worker) == ["start", "log"]
    assert "preempted" in told(worker)[1]["text"]


def test_without_a_monitor_nothing_is_told(host):
    host.add("one", ping="backup")
    worker = host.worker(monitor=False)
    worker.run_due()
    worker.advance(1)
    assert told(worker) == []


class Printed:
    """A reporter, a task that has printed something, and the master's end of the link."""

    def __init__(self, host, printed, /, **settings):
        host.add("one", ping="backup", **settings)
        worker = host.worker(pings=PINGS)
        worker.tick()
        [self.task] = worker.worker._tasks.running.values()
        self.task.run_over(None, host.clock.monotonic())
        self.task.tree_gone(CapturedOutput(printed, 0))
        self.master, self.link = Link.pair()
        self.master.data_limit = 2**16
        self.reporter = RunReporter(self.link)

    def receive(self):
        self.link.flush()
        self.reporter.flush()
        return self.master.receive()

    def close(self):
        self.master.close()
        self.link.close()


@pytest.fixture
def printed(host):
    made = []

    def make(text, /, **settings):
        made.append(Printed(host, text, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({}, b"x" * 10_239 + b"y"),
        ({"ping_output": 2}, b"xy"),
        ({"ping_output": 0}, None),
        ({"output": "history"}, b"x" * 10_239 + b"y"),
        # What is not kept is not sent to another host either.
        ({"output": "service"}, None),
    ],
)
def test_the_end_of_the_output_is_sent_if_it_is_kept(printed, settings, sent):
    made = printed(b"x" * 60_000 + b"y", **settings)
    made.reporter.ended(made.task, counts=True)
    [message] = made.receive()
    assert message.get("data") == sent
    assert TO_MONITOR.fault(message) is None


def test_a_master_that_reads_nothing_costs_little_memory_and_what_is_dropped_is_counted(printed):
    made = printed(b"x" * 10_000)
    ends = 500
    for _ in range(ends):
        made.reporter.ended(made.task, counts=True)
        made.reporter.flush()
    received = []
    while more := made.receive():
        received += more
    lost = [each["lost_pings"] for each in received if "lost_pings" in each]
    assert len(lost) == 1
    assert len(received) - 1 + lost[0] == ends
    assert len(received) < 100


def test_the_id_depends_on_occurrence_attempt_and_owner():
    ids = {
        run_id(Occurrence(key, time), attempt, owner)
        for key in ("a", "b")
        for time in (1, 2)
        for attempt in (1, 2)
        for owner in ("x.1", "x.2", None)
    }
    assert len(ids) == 24
