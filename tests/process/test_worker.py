"""What a worker does with its tasks, seen from outside: their runs, their rows, its log."""

import itertools
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from psched import AlreadyExistsError
from psched.base.clock import SystemClock
from psched.master.generation_spec import BAD_HANDLERS
from support.processes import children, descendants, kill, runners, title
from support.run_log import completed, never_two_at_once
from support.waiting import has_ended, wait_for_end, wait_until

CLOCK = SystemClock()
CROWD = ["child", "daemon"]


def pids(run):
    return {note["pid"] for note in run.notes}


def wait_for_crowd(service, key):
    """Wait until a task and its processes are there; its run."""
    return service.runs.wait(key, lambda runs: len(pids(runs[-1])) == 3)[-1]


# --- limits and orders ---------------------------------------------------------------


def test_a_stuck_task_is_gone_with_all_it_started_and_is_tried_again(each_service):
    service = each_service
    service.configure(kill_timeout=3, kill_interval=0.2, graceful_kill_limit=3)
    data = {"until": "gate", "stubborn": True, "processes": CROWD}
    service.add("stuck", data=data)
    master = service.start()
    first, *_ = service.runs.wait("stuck", lambda runs: len(runs) > 1, what="a second run")
    service.open_gate("gate")
    service.wait_for_finish("stuck")

    assert first.end is None
    # Three seconds, and three on the ladder; the run was said to start somewhat later.
    assert first.last_sign - first.started > 4
    runs = service.runs.runs("stuck")
    never_two_at_once(runs)
    assert [run.attempt for run in runs] == [*range(1, len(runs) + 1)]
    assert re.search(r"\[stuck\.1000000000\] stopping it: timeout", master.text)
    assert re.search(
        r"\[stuck\.1000000000\] failed after .* stopped at its time limit", master.text
    )


def test_a_task_that_listens_is_stopped_at_its_time_limit_without_being_killed(service):
    service.configure(kill_timeout=5, retry_wait=1000, graceful_kill_limit=1000)
    service.add("slow", data={"until": "never"})
    service.start()
    [run] = service.runs.wait("slow", lambda runs: runs and runs[-1].end)
    assert run.end == "ProcessStopError: timeout"
    row = service.wait_for_row("slow", lambda seen: seen.row.owner is None)
    assert row.reason == "stopped at its time limit"


def test_a_schedule_that_is_deleted_while_it_runs_is_stopped_and_removed(each_service):
    service = each_service
    service.configure(alive_time=3600)  # no extension within the patience of a test finds it out
    service.add("doomed", data={"until": "never", "processes": CROWD})
    master = service.start()
    run = wait_for_crowd(service, "doomed")
    with service.schedules() as schedules:
        schedules["doomed"].delete()
        wait_until(lambda: not schedules["doomed"].exists(), what="the removal")

    assert all(map(has_ended, pids(run)))
    [run] = service.runs.runs("doomed")
    assert run.end == "ProcessStopError: deleted"
    assert master.status is None
    service.add("doomed", data={})
    service.wait_for_finish("doomed")


def test_the_key_of_a_deleted_schedule_is_free_when_its_run_has_ended(each_service):
    service = each_service
    service.add("doomed", data={"until": "gate", "stubborn": True})
    service.start()
    # The run ignores the order to stop before the first sign of life: it ends with the gate.
    service.runs.wait("doomed", lambda runs: runs and runs[0].last_sign > runs[0].started)
    with service.schedules() as schedules:
        schedules["doomed"].delete()
        with pytest.raises(AlreadyExistsError):
            schedules.add("doomed", "recorder")
        service.open_gate("gate")
        wait_until(lambda: not schedules["doomed"].exists(), what="the removal")
    service.add("doomed", data={})
    service.wait_for_finish("doomed")


# --- many tasks ----------------------------------------------------------------------


def test_a_worker_runs_as_many_tasks_at_once_as_it_may(each_service):
    service = each_service
    service.configure(concurrency=3)
    for number in range(4):
        data = {"until": f"gate{number}", "processes": CROWD if number == 0 else []}
        service.add(f"k{number}", data=data, next_time=1_000_000_000 + number)
    master = service.start()
    crowd = pids(wait_for_crowd(service, "k0"))
    runs = [service.runs.wait(f"k{number}")[0] for number in range(3)]
    [worker] = master.workers()
    assert {run.pid for run in runs} <= set(runners(worker))
    service.wait_until_asleep()
    assert service.row("k3").row.fence == 0

    # What happens to one is nothing to the others, and makes room: for who has waited longest.
    kill(runs[1].pid)
    service.runs.wait("k3")
    assert not any(map(has_ended, crowd))
    service.open_gate("gate0")
    service.runs.wait("k1", lambda runs: len(runs) == 2)
    for number in 1, 2, 3:
        service.open_gate(f"gate{number}")
    for number in range(4):
        service.wait_for_finish(f"k{number}")

    assert [len(service.runs.runs(f"k{number}")) for number in range(4)] == [1, 2, 1, 1]
    assert master.workers() == [worker]


def seven_runs(service, **data):
    """The runs of seven schedules, one after another, in runners for three tasks each."""
    service.configure(max_tasks_per_child=3)
    for number in range(7):
        service.add(f"k{number}", data=data, next_time=1_000_000_000 + number)
    service.start()
    runs = [service.runs.wait(f"k{number}", completed(1))[0] for number in range(7)]
    for number in range(7):
        service.wait_for_finish(f"k{number}")
    return runs


def test_a_runner_runs_as_many_tasks_as_it_may(service):
    pids = [run.pid for run in seven_runs(service)]

    # On a slow machine, one that was ordered can come late: then two take turns.
    assert max(map(pids.count, pids)) == 3


def test_a_runner_that_is_used_again_leaves_nothing_of_a_task_to_the_next(service):
    pids = [run.pid for run in seven_runs(service, processes=CROWD)]

    # Fewer than it may, if what a task had started takes its time to die.
    assert [len([*same]) <= 3 for _, same in itertools.groupby(pids)].count(False) == 0
    runs = sorted(service.runs.runs(), key=lambda run: run.started)
    for earlier, later in itertools.pairwise(runs):
        assert earlier.last_sign < later.started


# --- processes -----------------------------------------------------------------------


def test_handlers_that_start_a_thread_when_imported_are_refused_with_the_mend(service):
    service.write(
        "threaded.py",
        """
        import threading
        from recorder import Dispatch

        threading.Thread(target=threading.Event().wait, daemon=True).start()
        """,
    )
    service.configure(dispatch="threaded:Dispatch")
    master = service.start(generation=0)
    assert master.wait() == BAD_HANDLERS
    assert "2 threads and must not fork" in master.text
    assert "let it start them when a task runs" in master.text
    master.wait_until_nothing_is_left()


def wait_until_slept(pid, times):
    """Wait until a process has gone to sleep so many more times; a loop does at each turn."""

    def slept():
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[0])

    end = slept() + times
    wait_until(lambda: slept() >= end, what=f"{times} turns of process {pid}")


@pytest.fixture
def limited_to(service):
    """A function that puts before a command what limits it to so many processes.

    There is no monitor: it would be one of them whenever a place is free, also the last one.
    """
    service.configure(monitor=False)
    prlimit, setpriv = map(shutil.which, ["prlimit", "setpriv"])
    if not (prlimit and setpriv and os.geteuid() == 0):
        pytest.skip("only root can become a user of its own, by util-linux's setpriv and prlimit")
    # Root is not limited: it must be somebody's processes, but may have root's other rights.
    user = 20_000 + os.getpid() % 40_000
    as_somebody = [setpriv, "--ruid", str(user), "--bounding-set", "-sys_resource,-sys_admin"]

    def limited(number, command):
        return [prlimit, f"--nproc={number}", *as_somebody, "--", *command]

    return limited


def check_is_told_in_turn(master):
    """Check that a want of processes is told once until its end is; return how often it is told.

    Its end is told when it was not met for five seconds, and so also if all stands still.
    """
    told = [found == "over" for found in re.findall("cannot fork: (over)?", master.text)]
    assert told == [number % 2 == 1 for number in range(len(told))]
    return told.count(False)


def test_a_worker_that_cannot_fork_gives_back_what_it_cannot_run_and_goes_on(service, limited_to):
    service.configure(concurrency=2)
    for key in "one", "two":
        service.add(key, data={"until": "gate"})
    command = [*service.master_command, "-c", service.config.name]
    # The master, its worker, the fork server, the collector, and a runner.
    master = service.start(*limited_to(5, command))
    [worker] = master.workers()
    wait_until(service.runs.runs, what="the task that can be run")
    master.wait_for_log("cannot fork: .*temporarily unavailable")
    [running] = service.runs.runs()
    other = {"one": "two", "two": "one"}[running.key]
    row = service.wait_for_row(other, lambda seen: seen.row.owner is None).row
    assert (row.attempt, row.status) == (0, "waiting")

    service.open_gate("gate")
    for key in "one", "two":
        service.wait_for_finish(key)
    assert [run.attempt for run in service.runs.runs()] == [1, 1]
    assert master.workers() == [worker]
    master.wait_for_log(r"cannot fork: over(, it happened once| after \d+\.\d s, \d+ times)")
    check_is_told_in_turn(master)


def test_a_want_of_processes_is_told_once_and_rows_are_not_claimed_in_vain(service, limited_to):
    service.configure(concurrency=4)
    keys = [f"k{number}" for number in range(60)]
    for key in keys:
        service.add(key)
    command = [*service.master_command, "-c", service.config.name]
    master = service.start(*limited_to(5, command))
    for key in keys:
        service.wait_for_finish(key)
    times = check_is_told_in_turn(master)
    # Those of the first claim, which found out.
    assert sum(service.row(key).row.fence > 1 for key in keys) < 4 * times
    assert [run.attempt for run in service.runs.runs()] == [1] * len(keys)


def test_a_worker_that_cannot_fork_at_all_takes_nothing_and_waits(service, limited_to):
    service.add("one", data={})
    command = [*service.master_command, "-c", service.config.name]
    master = service.start(*limited_to(2, command))
    [worker] = master.workers()
    master.wait_for_log("worker 0 cannot fork: .*temporarily unavailable")
    wait_until_slept(worker, 5)
    assert master.workers() == [worker]
    assert master.text.count("cannot fork: ") == 1
    assert service.row("one").row.fence == 0
    done = service.psched("health")
    assert done.stdout.startswith("not ready: the master is starting: ")
    assert "; no process can be forked: [Errno 11] Resource temporarily" in done.stdout


STARTERS = {
    "a program": ("exec", {"command": ["true"]}, ""),
    "a process of a module": (
        "forks",
        {},
        "import os\nif pid := os.fork():\n    os.waitpid(pid, 0)\nelse:\n    os._exit(0)\n",
    ),
    "a thread of a module": (
        "starts",
        {},
        "import threading\nthread = threading.Thread(target=int)\nthread.start()\nthread.join()\n",
    ),
}


@pytest.mark.parametrize("what", STARTERS)
def test_a_task_that_finds_no_process_left_waits_without_an_attempt(service, limited_to, what):
    type_, data, module = STARTERS[what]
    service.configure(concurrency=1, retry_wait=2, dispatch="routes:Dispatch")
    service.write("late.py", f"{module}\ndef run(_task):\n    pass\n")
    service.write(
        "routes.py",
        "from psched.application import Dispatch as Base\n"
        f"class Dispatch(Base):\n    routes = {{{type_!r}: 'late:run'}}\n"
        if module
        else "from recorder import Dispatch\n",
    )
    service.add("one", type=type_, data=data, max_attempts=1)
    other = ["/bin/sh", "-p", "-c", 'sleep 1000 & exec "$@"', "sh"]
    command = [*other, *service.master_command, "-c", service.config.name]
    # The master, its worker, the fork server, the collector, a runner; and another.
    master = service.start(*limited_to(6, command))
    for wait, count in (1, 1), (2, 2):
        text = rf"\[one\..*released after .* s, again in {wait} s: no room for a process: "
        master.wait_for_log(text, count=count)
    row = service.wait_for_row("one", lambda seen: seen.row.owner is None).row
    assert (row.attempt, row.status) == (0, "waiting")
    assert "no room for a process" in service.psched("why", "one").stdout
    # The next runner is forked ahead of need, and there may be no room while the last one ends.
    errors = [line for line in master.text.splitlines() if " ERROR " in line]
    assert all("cannot fork: " in line for line in errors)

    [sleeper] = [pid for pid in children(master.pid) if title(pid) == "sleep 1000"]
    kill(sleeper)
    service.wait_for_finish("one")
    assert master.stop() == 0
    last = json.loads(service.psched("history", "one", "--json").stdout.splitlines()[0])
    assert (last["outcome"], last["attempt"]) == ("finished", 1)


def test_a_want_of_descriptors_costs_no_worker_and_few_lines(service):
    if not (prlimit := shutil.which("prlimit")):
        pytest.skip("there is no prlimit of util-linux's")
    service.add("one")
    command = [*service.master_command, "-c", service.config.name]
    # A fork server cannot even begin.
    master = service.start(prlimit, "--nofile=14", "--", *command)
    [worker] = master.workers()
    master.wait_for_log("worker 0 cannot fork: ")
    wait_until_slept(worker, 12)
    assert master.workers() == [worker]
    assert "Traceback" not in master.text
    errors = [line for line in master.text.splitlines() if " ERROR " in line]
    assert sum("fork" in line for line in errors) <= 4
    # The others tell that the database cannot be opened, or once more, if it could be meanwhile.
    assert len(errors) < 12
    assert service.row("one").row.attempt == 0
    assert master.stop() == 0


def test_a_master_that_cannot_fork_says_so_once_and_has_all_its_workers_when_it_can(
    service, limited_to
):
    service.configure(processors=2)
    others = ["/bin/sh", "-p", "-c", 'for i in 1 2 3; do sleep 1000 & done; exec "$@"', "sh"]
    command = [*others, *service.master_command, "-c", service.config.name]
    # The master, one worker, its fork server, its collector and its runner; and three others.
    master = service.start(*limited_to(8, command), generation=0)
    master.wait_for_log("master cannot fork: .*temporarily unavailable")
    wait_until_slept(master.pid, 6)
    assert master.text.count("master cannot fork: ") == 1
    for pid in children(master.pid):
        if title(pid) == "sleep 1000":
            kill(pid)
    master.wait_for_workers(2)
    master.wait_for_log(r"master cannot fork: over(, it happened once| after \d+\.\d s, \d+ times)")
    assert master.stop() == 0


def test_a_worker_that_is_killed_is_replaced_and_its_task_runs_on_another_at_once(each_service):
    service = each_service
    service.configure(processors=2)
    service.add("long", data={"until": "gate", "processes": CROWD})
    master = service.start()
    before = wait_for_crowd(service, "long")
    [worker] = [pid for pid in master.workers() if before.pid in descendants(pid)]
    kill(worker)
    after = service.runs.wait("long", lambda runs: len(runs) == 2)[1]
    assert all(map(has_ended, pids(before)))
    # A lease lasts for 300 s: nobody has waited for its end.
    assert after.started - before.last_sign < 60
    service.open_gate("gate")
    service.wait_for_finish("long")
    never_two_at_once(service.runs.runs())
    assert worker not in master.wait_for_workers(2)


def test_a_worker_that_is_told_to_go_by_a_signal_finishes_its_task_first(service):
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    [worker] = master.workers()
    kill(worker, signal.SIGTERM)
    wait_until(lambda: title(worker).endswith("leaving"), what="the worker's notice")
    told = service.runs.runs("long")[0].last_sign
    service.runs.wait("long", lambda runs: runs[0].last_sign > told + 1)
    assert not has_ended(worker)
    service.open_gate("gate")
    wait_for_end(worker)
    service.wait_for_finish("long")
    [run] = service.runs.runs("long")
    assert run.completed
