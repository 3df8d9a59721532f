"""Signals in storms, in every order, to everybody: what is asked for is done, and nothing else."""

import itertools
import re
import select
import signal
import sys

import pytest

from support.processes import kill, title
from support.waiting import wait_for_text, wait_until

pytestmark = [pytest.mark.verified, pytest.mark.extended]

RENAMES = 25

JOBS = """
    import itertools, logging, os, time
    from pathlib import Path
    from recorder import Recorder, Dispatch as Before

    class Talker(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            for said in itertools.count(1):
                text = "." * (9000 if said % 2 else 200)
                logging.info("%s says %d, %s;", self.task.key, said, text)
                if Path(__file__).with_name("gate").exists():
                    break
                time.sleep(0.005)
            self.note("end", how="returned", said=said)

    class Deaf(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            sum(itertools.repeat(0))  # never gets round to a signal handler of Python's

    class Dispatch(Before):
        routes = {**Before.routes, "talker": Talker, "deaf": Deaf}
"""


def pause(seconds):
    select.select([], [], [], seconds)


# --- the log -------------------------------------------------------------------------


def test_eight_tasks_lose_and_tear_no_line_while_the_log_is_renamed_again_and_again(service):
    log = service.folder / "log"
    service.configure(processors=2, concurrency=4, dispatch="jobs:Dispatch", log=str(log))
    service.write("jobs.py", JOBS)
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        service.add(key, "talker")
    master = service.start(log="log")
    for key in keys:
        wait_for_text(log, f"{key} says 1,")

    for number in range(RENAMES):
        log.rename(log.with_name(f"log.{number}"))
        master.send(signal.SIGUSR2)
        wait_until(log.exists, what="the new log")
        pause(0.02)
    service.open_gate("gate")
    for key in keys:
        service.wait_for_finish(key)
    assert master.stop() == 0

    files = [*(log.with_name(f"log.{number}") for number in range(RENAMES)), log]
    lines = "".join(file.read_text() for file in files).splitlines()
    # Whole, whoever has written it.
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    head = rf"{when} \[\d+\] (INFO   |WARNING) (master|worker \d|task) "
    assert [line[:200] for line in lines if not re.match(head, line)] == []
    said = {key: [] for key in keys}
    for line in lines:
        if found := re.search(r"(k\d) says (\d+), (\.+);$", line):
            said[found[1]].append(int(found[2]))
            assert len(found[3]) == (9000 if int(found[2]) % 2 else 200)
    for key in keys:
        [run] = service.runs.runs(key)
        assert said[key] == [*range(1, run.notes[-1]["said"] + 1)]


# --- orders and orders ---------------------------------------------------------------


def test_a_term_is_obeyed_after_thousands_of_other_signals(service):
    master = service.start()

    def storm():
        for _ in range(200):
            for number in signal.SIGUSR2, signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2:
                master.send(number)
        return "generation 3 serves" in master.text

    # What they ask for is done meanwhile, though they come faster than each could be obeyed.
    wait_until(storm, what="the third generation")
    master.send(signal.SIGTERM)

    master.wait_for_log("stopping")
    assert master.wait() == 0
    # The monitor may be: it follows the generation, and ends after the workers.
    assert not re.search(r"worker \d.* started", master.text.partition("stopping")[2])
    assert master.descendants == []


UNDOING = [signal.SIGHUP, signal.SIGUSR1, signal.SIGTTIN, signal.SIGWINCH]


def test_nothing_is_forked_after_a_term_in_whatever_order_other_signals_come(service):
    service.configure(alive_time=6)
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    before = {*master.descendants}

    # The first come together with TERM, and before it.
    kill(master.pid, signal.SIGSTOP)
    for number in *UNDOING, signal.SIGTERM, *reversed(UNDOING), signal.SIGCONT:
        master.send(number)
    master.wait_for_log("stopping")
    leased_until = service.row("long").next_run_time
    for order in itertools.permutations(UNDOING):
        for number in order:
            master.send(number)
            pause(0.002)
        assert {*master.descendants} <= before
    # The stop takes as long as the task, which keeps its lease.
    service.wait_for_row("long", lambda seen: seen.next_run_time >= leased_until + 2)
    service.open_gate("gate")

    assert master.wait() == 0
    assert "started, pid" not in master.text.partition("stopping")[2]
    assert "generation 2" not in master.text
    assert service.row("long").status == "finished"
    assert [run.end for run in service.runs.runs("long")] == ["returned"]


def test_whatever_signal_is_sent_to_every_process_at_once_no_running_task_is_lost(service):
    service.configure(concurrency=2)
    for key in "one", "two":
        service.add(key, data={"until": "gate"})
    master = service.start()
    for key in "one", "two":
        service.runs.wait(key)
    [worker] = master.workers()

    # What is asked for twice is no other thing.
    for number in 2 * [signal.SIGCONT] + 2 * [signal.SIGUSR2]:
        master.send_all(number)
    master.send_all(signal.SIGTTIN)
    master.wait_for_workers(2)
    master.send_all(signal.SIGTTOU)
    master.wait_for_workers(1)
    for count in 1, 2:
        master.send_all(signal.SIGWINCH)
        master.wait_for_log("paused", count=count)
    master.send_all(signal.SIGUSR1)
    master.wait_for_generation(2)
    master.send_all(signal.SIGHUP)
    master.wait_for_generation(3)
    assert worker in master.workers()
    assert not any(run.end for run in service.runs.runs())
    master.send_all(signal.SIGQUIT)
    master.wait_for_log("stopping")
    service.open_gate("gate")

    assert master.wait() == 0
    assert master.descendants == []
    for key in "one", "two":
        assert [run.end for run in service.runs.runs(key)] == ["returned"]
        assert service.row(key).status == "finished"
    assert "ERROR" not in master.text


# --- a terminal ----------------------------------------------------------------------

ON_A_TERMINAL = """
import os, sys
ours, theirs = os.openpty()
os.set_inheritable(ours, True)
os.dup2(theirs, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_window_that_changes_its_size_does_not_pause_a_master_on_a_terminal(service):
    command = [*service.master_command, "-c", service.config.name]
    master = service.start(sys.executable, "-c", ON_A_TERMINAL, *command)

    master.send(signal.SIGWINCH)
    master.send(signal.SIGTTIN)
    master.wait_for_workers(2)

    service.add("s1")
    service.wait_for_finish("s1")
    assert "paused" not in master.text + title(master.pid)
    assert master.stop() == 0


# --- the deaf ------------------------------------------------------------------------


def test_a_task_that_lets_no_signal_in_is_killed_at_its_limit(service):
    service.configure(
        dispatch="jobs:Dispatch", kill_timeout=5, graceful_kill_limit=0.5, retry_wait=1000
    )
    service.write("jobs.py", JOBS)
    service.add("deaf", "deaf")
    master = service.start()

    master.wait_for_log(r"\[deaf\.\d+\] stopping it: timeout")
    row = service.wait_for_row("deaf", lambda seen: seen.row.owner is None)

    assert row.reason == "stopped at its time limit"
    assert service.runs.runs("deaf")[0].end is None
    assert master.stop() == 0
