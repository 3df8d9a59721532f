"""How the master passes on what workers tell about runs; time and processes are the test's."""

from contextlib import closing
from signal import SIGHUP, SIGSEGV, SIGTERM

import pytest

from psched.master.generation_spec import WorkerIdentity
from psched.master.messages import LONGEST_PIECE, TO_MONITOR
from psched.master.monitor_child import PingRelay
from psched.process.link import Link
from psched.testing import MasterDriver

RUN = "11111111-1111-5111-8111-11111111111"


@pytest.fixture
def driver():
    """A driver with two workers, and with a monitor that is ready."""
    with closing(MasterDriver(processors=2, monitor_limit=60.0)) as made:
        made.boot()
        made.tick()
        monitor(made).say(beat=True)
        made.tick()
        yield made


def monitor(driver):
    return driver.monitors[-1]


def run(what, number=1, **fields):
    told = {"ping": "backup", "key": "key", "run": f"{RUN}{number}", "what": what, "exit": None}
    return {**told, "text": "text", **fields}


def received(child):
    """What a monitor was told of runs."""
    return [each for each in child.received if not {"ping", "lost_pings"}.isdisjoint(each)]


def end(driver):
    """Have the workers exit as they were told."""
    for number in 0, 1:
        driver.worker(number).exits()
    driver.tick()


def test_a_run_is_passed_on_at_once_with_its_output(driver):
    driver.worker(0).say(**run("start"))
    driver.worker(0).link.send({**run("fail", exit=3), "tail": True}, b"output")
    driver.tick()
    assert received(monitor(driver)) == [
        run("start"), {**run("fail", exit=3), "tail": True, "data": b"output"},
    ]  # fmt: skip


def test_without_a_monitor_nothing_is_kept():
    with closing(MasterDriver()) as driver:
        driver.boot()
        driver.worker(0).say(**run("start"))
        driver.worker(0).say(lost_pings=2)
        driver.tick()
        driver.monitor_limit = 60.0
        driver.send(SIGHUP)
        driver.boot()
        driver.tick()
        assert received(monitor(driver)) == []


def test_what_comes_while_the_monitor_is_replaced_waits_for_the_next_one(driver):
    monitor(driver).dies()
    driver.tick()
    driver.worker(0).say(**run("start"))
    driver.worker(0).say(**run("success"))
    driver.advance(3)
    assert received(monitor(driver)) == [run("start"), run("success")]


def test_what_comes_while_the_monitor_ends_waits_for_the_next_one(driver):
    first = monitor(driver)
    driver.send(SIGHUP)
    driver.boot()
    driver.tick()
    assert {"stop": True} in first.received
    driver.worker(0).say(**run("start"))
    driver.tick()
    assert received(first) == []
    first.exits()
    driver.advance(1)
    assert received(monitor(driver)) == [run("start")]


def test_the_last_runs_are_told_before_the_monitor_is_told_to_end(driver):
    driver.send(SIGTERM)
    driver.worker(0).say(**run("success"))
    end(driver)
    told = monitor(driver).received
    assert told.index(run("success")) < told.index({"stop": True})


def test_a_monitor_that_is_behind_is_told_all_runs_before_the_end(driver):
    worker = driver.worker(0)
    for number in range(100):
        worker.link.send({**run("log", text=str(number)), "tail": True}, b"x" * 10_000)
        driver.master.tick()  # the monitor reads nothing
        worker.link.flush()
    driver.master.tick()
    driver.master.obey([SIGTERM])
    end(driver)
    for _ in range(50):  # as often as the link has room
        driver.tick()
    told = monitor(driver).received
    assert [each["text"] for each in told if "ping" in each] == [*map(str, range(100))]
    assert told[-1] == {"stop": True}


def test_the_runs_of_a_worker_that_dies_have_failed(driver):
    driver.worker(0).say(**run("start", 1))
    driver.worker(0).say(**run("start", 2))
    driver.worker(0).say(**run("success", 1))
    driver.worker(1).say(**run("start", 3))
    driver.tick()
    driver.worker(0).dies(SIGSEGV)
    driver.tick()
    assert received(monitor(driver))[4:] == [
        run("fail", 2, text="key: lost, because its worker has died")
    ]


def test_what_a_worker_has_said_before_its_death_counts(driver):
    driver.worker(0).say(**run("start"))
    driver.worker(0).say(**run("success"))
    driver.worker(0).dies(SIGSEGV)
    driver.tick()
    assert received(monitor(driver)) == [run("start"), run("success")]


def test_the_runs_of_a_worker_that_ends_as_it_should_have_not_failed(driver):
    # The message about its end was dropped.
    driver.worker(0).say(**run("start"))
    driver.send(SIGTERM)
    end(driver)
    assert received(monitor(driver)) == [run("start")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"exit": 0}, {"exit": 256}, {"exit": "1"}, {"what": "stop"}, {"run": "x" * 37},
        {"ping": "x" * 65}, {"ping": None}, {"key": "x" * 2000}, {"text": 3}, {"tail": True},
    ],
)  # fmt: skip
def test_a_worker_that_sends_garbage_is_cut_off(driver, wrong):
    worker = driver.worker(0)
    worker.say(**{**run("fail"), **wrong})
    driver.tick()
    assert worker.signals
    assert received(monitor(driver)) == []


# --- a monitor that reads nothing ----------------------------------------------------


@pytest.fixture
def relay():
    made = PingRelay()
    made.wanted = True
    return made


@pytest.fixture
def links():
    ours, theirs = Link.pair()
    theirs.expects, theirs.data_limit = TO_MONITOR, LONGEST_PIECE
    yield ours, theirs
    ours.close()
    theirs.close()


class Worker:
    """What the relay needs to know of a worker."""

    may_hold_leases = True
    identity = WorkerIdentity(0, 1, "nonce")


def read_all(relay, links):
    ours, theirs = links
    found = []
    while True:
        ours.flush()
        relay.pass_on(ours)
        if not (more := theirs.receive()):
            return found
        found += more


def test_a_monitor_that_reads_nothing_costs_little_memory_and_the_newest_is_kept(relay, links):
    for number in range(1000):
        told = {**run("log", text=str(number)), "tail": True, "data": b"x" * 10_000}
        relay.note(Worker, told)
        relay.pass_on(links[0])
    found = read_all(relay, links)
    [lost] = [each["lost_pings"] for each in found if "lost_pings" in each]
    texts = [int(each["text"]) for each in found if "ping" in each]
    assert len(texts) + lost == 1000
    assert 200 < len(texts) < 300
    assert texts == sorted(texts)
    assert texts[-200:] == [*range(800, 1000)]


def test_at_the_end_all_that_waits_is_sent(relay, links):
    for number in range(100):
        told = {**run("log", text=str(number)), "tail": True, "data": b"x" * 10_000}
        relay.note(Worker, told)
    relay.note(Worker, {"lost_pings": 5})
    relay.pass_on(links[0], everything=True)
    links[0].send({"stop": True})
    found = read_all(PingRelay(), links)
    assert [each["text"] for each in found if "ping" in each] == [*map(str, range(100))]
    assert found[-2:] == [{"lost_pings": 5}, {"stop": True}]


def test_the_runs_that_have_not_ended_are_bounded(relay, links):
    for number in range(10_050):
        relay.note(Worker, run("start", run=str(number)))
    read_all(relay, links)
    relay.ended(Worker)
    found = [each["run"] for each in read_all(relay, links) if each.get("what") == "fail"]
    assert len(found) <= 10_000
    relay.note(Worker, run("start", 1))
    relay.ended(Worker)
    assert [each["what"] for each in read_all(relay, links)] == ["start", "fail"]
