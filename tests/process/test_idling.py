"""A worker that has nothing to do does nothing: whatever it waits for, it sleeps."""

import os
import signal
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from support.bench import Bench
from support.isolated import isolated
from support.misbehaving_handlers import HANDLERS
from support.processes import kill, title
from support.waiting import wait_until

CLOCK = SystemClock()
SECONDS = 2.0
FEW = 0.15
"""The share of its time that a process may work; who spins takes more, even on a busy machine."""


def sleeps(pid):
    """Whether a process sleeps most of the time."""
    before, begun = cpu(pid), CLOCK.monotonic()
    wait_until(lambda: CLOCK.monotonic() > begun + SECONDS, what="time")
    return cpu(pid) - before < FEW * (CLOCK.monotonic() - begun)


def cpu(pid):
    """The seconds that a process has worked."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("busy", [False, True])
def test_a_worker_sleeps_while_nothing_is_due(service, busy):
    service.configure(concurrency=2)
    service.add("later", next_time=4_000_000_000)
    if busy:
        service.add("long", "sleepy", data={})
    service.write(
        "sleepy.py",
        """
        import time
        from recorder import Dispatch as Others

        def sleepy(task):
            time.sleep(1000)

        class Dispatch(Others):
            routes = {"sleepy": sleepy}
        """,
    )
    service.configure(dispatch="sleepy:Dispatch")
    master = service.start()
    if busy:
        master.wait_for_log("started, sleepy")
    [worker] = master.workers()
    assert sleeps(worker)
    assert sleeps(master.pid)


def test_a_worker_sleeps_while_it_waits_for_its_last_task(service):
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    [worker] = master.workers()
    kill(worker, signal.SIGTERM)
    wait_until(lambda: title(worker).endswith("leaving"), what="the signal's effect")
    assert sleeps(worker)


def test_a_worker_sleeps_while_the_store_is_away_though_it_has_things_to_write(
    make_service, start_mariadb
):
    server = start_mariadb()
    service = make_service(server.url(server.create_database()), concurrency=3)
    service.add("over", data={"until": "gate"})
    service.add("long", data={"until": "never"})
    master = service.start()
    service.runs.wait("over")
    service.runs.wait("long")
    server.kill()
    service.open_gate("gate")
    master.wait_for_log("running tasks go on")
    [worker] = master.workers()
    assert sleeps(worker)


def turns(name):
    """How often a worker wakes beside a task that does nothing."""
    bench = Bench(HANDLERS)
    task = bench.start(name, gate="gate")
    bench.turn()
    end, number = CLOCK.monotonic() + SECONDS, 0
    while (left := end - CLOCK.monotonic()) > 0:
        bench.turn(left)
        number += 1
    Path("gate").touch()
    bench.finish(task)
    return number


@pytest.mark.parametrize("name", ["cleans_up", "closes_everything_and_stays"])
def test_nothing_wakes_a_worker_while_its_task_has_nothing_to_say(name):
    assert isolated(turns, name) < 10
