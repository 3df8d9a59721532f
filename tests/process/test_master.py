"""A master in which something fails that nobody foresaw, with real processes and signals."""

import logging
import os
import random
import re
import signal
import sys
import time

import pytest

from psched.base.clock import SystemClock
from psched.master.generation_spec import GenerationSpec
from psched.master.master import Master
from psched.master.messages import FROM_MASTER
from psched.master.monitor_child import MonitorKeeper
from psched.master.nonce_file import NonceFile
from psched.master.reports.sd_notify import Notifier
from psched.master.reports.status import Status
from psched.master.reports.status_socket import StatusSocket
from psched.master.terminal import Terminal
from psched.master.waking import Looks, WakeSocket
from psched.master.workers import Respawn, Workers
from psched.process import kernel
from psched.process.child import SystemSpawner
from psched.process.signals import SIGNALS, SignalInbox
from support.isolated import say, started_isolated
from support.waiting import wait_for_end, wait_until

CLOCK = SystemClock()


def worker(link, identity):
    """As a worker does, in short: it is told to go and to stop, and notices its master's end."""
    SignalInbox(SIGNALS)
    link.expects = FROM_MASTER
    link.send({"ready": None})
    say("started", identity.number, os.getpid())
    while (message := link.wait()) is not None:
        if "go" in message:
            link.send({"looked": True})
            load = {"slots": 2, "free": 1, "due": 0, "late": 0}
            link.send({"tasks": 1, "away": None, "enough": "", **load})
        if "stop" in message:
            return 0
    say("orphaned", identity.number)
    return 0


class Faulty(SystemSpawner):
    def __init__(self, failing):
        self.failing = failing

    def reap(self):
        say("tick", CLOCK.monotonic())
        if self.failing == "reap":
            raise RuntimeError("bug")
        return super().reap()


def run_master(failing):
    """Be a master with two workers; ``failing`` raises at every tick."""
    began = time.process_time()
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level="INFO")
    kernel.adopt_orphans()
    inbox = SignalInbox(SIGNALS)
    spec = GenerationSpec(
        processors=2,
        work=worker,
        clean_up=lambda _link, _identity, _nonces: 0,
        start_timeout=20,
        heartbeat_limit=60,
        graceful_timeout=0,
        kill_limit=-19,  # 20 s more are for what dead workers held
        about={},
    )

    def set_title(_text):
        if failing == "title":
            raise ValueError("bug")

    spawner = Faulty(failing)
    workers = Workers(
        CLOCK,
        spawner,
        draw_nonce=lambda: "nonce",
        keep=lambda: (),
        cgroup=None,
        nonce_file=NonceFile(None, "", None, CLOCK),
        inherited=(),
    )
    status = Status(
        notifier=Notifier({}),
        socket=StatusSocket([], CLOCK),
        set_title=set_title,
        recent=[],
        clock=CLOCK,
    )
    monitor = MonitorKeeper(
        workers,
        spawner,
        clock=CLOCK,
        respawn=Respawn(random.Random()),  # noqa: S311  # jitter
        keep=lambda: (),
        cgroup=None,
    )
    master = Master(
        lambda _reported: spec,
        workers,
        clock=CLOCK,
        respawn=Respawn(random.Random()),  # noqa: S311  # jitter
        reopen_logs=lambda: say("reopened"),
        status=status,
        terminal=Terminal(),
        monitor=monitor,
        looks=Looks(WakeSocket([], CLOCK), workers, CLOCK),
    )
    exit_status = master.run(inbox)
    say("used", time.process_time() - began)
    return exit_status


@pytest.fixture(params=["title", "reap"])
def master(request):
    """A master in which something fails at every tick, when its workers serve."""
    with started_isolated(run_master, request.param) as process:
        process.failing = request.param
        process.workers = {number: int(process.said(f"started {number} ")) for number in (0, 1)}
        yield process


def ticks_of(master):
    """When the master has ticked, in seconds."""
    return [float(at) for at in re.findall(r"^tick (.*)\n", master.text, re.MULTILINE)]


def test_a_fault_at_every_tick_costs_neither_workers_nor_signals_nor_the_log(master):
    wait_until(lambda: len(ticks_of(master)) > 5, what="a master that goes on")
    assert master.status is None
    assert master.text.count("Traceback") == 1
    first, *_, fifth = ticks_of(master)[:5]
    assert fifth - first > 3.9  # it sleeps for a second after a fault
    assert "ERROR a fault in the master; it goes on: bug" in master.text
    master.send(signal.SIGUSR2)
    master.said("reopened")
    master.send(signal.SIGTERM)
    # Who cannot see that its workers have ended gives up when they should have been killed.
    assert master.result() == {"title": 0, "reap": 70}[master.failing]
    for pid in master.workers.values():
        wait_for_end(pid)
    assert "orphaned" not in master.text
    assert float(master.said("used")) < 0.5
    assert master.text.count("Traceback") == 1


def test_the_workers_of_a_master_that_dies_notice_it(master):
    master.send(signal.SIGKILL)
    for number, pid in master.workers.items():
        wait_until(lambda number=number: f"orphaned {number}" in master.text, what="its notice")
        wait_for_end(pid)
