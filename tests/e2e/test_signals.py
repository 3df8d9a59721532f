"""More workers, fewer, a pause; and signals that mean nothing and cost nothing."""

import signal

from support.processes import descendants, kill, title
from support.run_log import completed
from support.waiting import wait_until

LOADING = """
import time
from pathlib import Path
from recorder import Dispatch

print("loading", flush=True)
while not Path(__file__).with_name("gate").exists():
    time.sleep(0.01)
"""
"""Handlers that are loaded when the gate is opened."""


def wait_for_leaving(pids):
    """Wait until one of these workers has heard that it is to leave; return its pid."""
    return wait_until(
        lambda: next((pid for pid in pids if "leaving" in title(pid)), None),
        what="a worker that leaves",
    )


def is_not_claimed(service, key):
    """See that no worker claims a task, although one was told to look for it."""
    assert service.psched("push", key, "recorder", "{}").returncode == 0
    # The first answer may come from the step in which it looks, the second only from a later one.
    service.wait_until_asleep()
    service.wait_until_asleep()
    assert service.row(key).row.fence == 0


def test_ttin_and_ttou_are_one_worker_more_and_one_fewer(service):
    service.configure(processors=2)
    master = service.start()

    master.send(signal.SIGTTIN)
    three = master.wait_for_workers(3)
    master.wait_for_log("TTIN: one worker more")
    for key in "one", "two", "three":
        service.add(key, data={"until": "gate"})
    for key in "one", "two", "three":
        service.runs.wait(key)

    # Whoever goes finishes what it runs.
    master.send(signal.SIGTTOU)
    service.add("four", data={"until": "gate"})
    leaves = wait_for_leaving(three)
    service.wait_until_asleep()
    assert sorted(master.workers()) == sorted(three)
    service.open_gate("gate")
    two = master.wait_for_workers(2)
    assert {*two} == {*three} - {leaves}
    for key in "one", "two", "three", "four":
        service.wait_for_finish(key)
        assert [run.end for run in service.runs.runs(key)] == ["returned"]

    for left in 1, 0:
        master.send(signal.SIGTTOU)
        master.wait_for_workers(left)
    assert master.text.count("TTOU: one worker fewer") == 3
    # Fewer than none there cannot be: one more is one.
    master.send(signal.SIGTTOU)
    master.wait_for_log("TTOU: one worker fewer", count=4)
    service.add("five")
    # The master answers after it has done what the signal says.
    service.psched("status")
    assert master.workers() == []
    master.send(signal.SIGTTIN)
    master.wait_for_workers(1)
    service.wait_for_finish("five")
    assert master.stop() == 0


def test_a_pause_starts_no_task_until_the_next_restart(service):
    service.configure(processors=2)
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")

    master.send(signal.SIGWINCH)
    master.wait_for_log("paused")
    workers = master.workers()
    is_not_claimed(service, "later")
    # Nor is it by the worker that has a free slot again.
    service.open_gate("gate")
    service.wait_for_finish("long")
    service.wait_until_asleep()
    assert service.row("later").row.fence == 0
    assert master.workers() == workers

    # A worker that dies is not replaced; what it held is released all the same.
    for worker in workers:
        kill(worker)
    master.wait_for_log("was killed by SIGKILL", count=2)
    # Whoever replaces them is started before the master answers.
    service.psched("status")
    assert master.workers() == []
    assert service.row("later").row.fence == 0
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    service.runs.wait("later", completed(1))
    assert len(master.workers()) == 2
    assert master.stop() == 0


def test_what_a_worker_held_that_dies_in_a_pause_is_released_though_nobody_follows_it(service):
    service.add("long", data={"until": "gate"})
    master = service.start()
    [worker] = master.workers()
    service.runs.wait("long")

    master.send(signal.SIGWINCH)
    master.wait_for_log("paused")
    kill(worker)

    service.wait_for_row("long", lambda seen: seen.row.owner is None)
    assert master.workers() == []
    assert len(service.runs.runs("long")) == 1
    assert master.stop() == 0


def test_a_pause_does_not_outlive_a_restart_that_failed(service):
    service.configure(processors=2, dispatch="jobs:Dispatch")
    service.write("jobs.py", "from recorder import Dispatch")
    master = service.start()
    master.wait_for_generation(1)
    service.write("jobs.py", LOADING + "broken()\n")
    master.send(signal.SIGHUP)
    master.wait_for_log("loading")
    master.send(signal.SIGWINCH)
    master.wait_for_log("paused")
    service.open_gate("gate")
    master.wait_for_log("could not be started")

    service.write("jobs.py", "from recorder import Dispatch")
    master.send(signal.SIGHUP)

    master.wait_for_generation(2)
    assert master.stop() == 0


def test_a_pause_that_comes_after_a_restart_was_asked_for_is_of_the_new_generation(service):
    service.configure(dispatch="slow:Dispatch")
    service.write("slow.py", "from recorder import Dispatch")
    master = service.start()
    service.write("slow.py", LOADING)

    master.send(signal.SIGHUP)
    master.wait_for_log("loading")
    master.send(signal.SIGWINCH)
    master.wait_for_log("paused")
    service.open_gate("gate")
    master.wait_for_log("generation 2 serves")
    master.wait_for_workers(1, generation=2)
    is_not_claimed(service, "later")
    assert "paused" in title(master.pid)
    master.send(signal.SIGHUP)
    master.wait_for_generation(3)
    service.wait_for_finish("later")
    assert master.stop() == 0


def test_stray_signals_to_every_process_cost_nothing_though_they_come_all_at_once(service):
    # It has Python set up a small stack of its own for signals, in which few have room.
    service.env["PYTHONFAULTHANDLER"] = "1"
    strays = [signal.SIGWINCH, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGURG]
    strays += [signal.SIGCHLD, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP]
    harmless = [signal.SIGPIPE, signal.SIGURG, signal.SIGCHLD, signal.SIGUSR2, signal.SIGTTIN]
    harmless += [signal.SIGTTOU]
    service.add("long", data={"until": "gate"})
    master = service.start()
    [worker] = master.workers()
    service.runs.wait("long")

    below = descendants(master.pid)
    for numbers, pids in (strays, below), (harmless, [master.pid]):
        for number in [signal.SIGSTOP, *numbers, signal.SIGCONT]:
            for pid in pids:
                kill(pid, number)

    # Master and worker answer after all of these signals.
    service.wait_until_asleep()
    assert master.workers() == [worker]
    assert not service.runs.runs("long")[0].end
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert [run.end for run in service.runs.runs("long")] == ["returned"]
    service.add("next")
    service.wait_for_finish("next")
    assert master.workers() == [worker]
    assert master.stop() == 0


def test_a_term_to_a_worker_replaces_it_when_its_task_is_done(service):
    service.configure(concurrency=2)
    service.add("long", data={"until": "gate"})
    master = service.start()
    [worker] = master.workers()
    service.runs.wait("long")

    kill(worker, signal.SIGTERM)
    wait_for_leaving([worker])
    is_not_claimed(service, "next")
    service.open_gate("gate")

    service.wait_for_finish("next")
    assert service.runs.runs("next")[0].worker != worker
    assert [run.end for run in service.runs.runs("long")] == ["returned"]
    assert master.workers() != [worker]
    assert master.stop() == 0
    assert "ERROR" not in master.text
