"""What passes from process to process at a fork, and what must not: seen in a whole service."""

import random
import re
import shutil
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.process import tree
from psched.process.child import reap
from psched.process.signals import SIGNALS, SignalInbox
from psched.process.spawn import spawn
from support.isolated import isolated
from support.processes import children, descendants, title
from support.processes import runners as runners_of
from support.run_log import completed
from support.waiting import wait_until

JOBS = """
    import gc, os, random, subprocess, sys, tempfile, uuid
    from recorder import Recorder, Dispatch as Before

    sys.stdout.write("imported; ")  # stays in the buffer: there is no line feed

    class Draws(Recorder):
        def run(self):
            drawn = [random.random(), str(uuid.uuid1()), str(uuid.uuid4()), os.urandom(8).hex()]
            drawn.append(next(tempfile._get_candidate_names()))
            frozen = all(each is not Draws for each in gc.get_objects())
            self.note("drawn", drawn=drawn, frozen=frozen)
            super().run()

    class Looks(Recorder):
        def run(self):
            for how in {}, {"restore_signals": False}:
                shown = subprocess.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, **how)
                print("seen:", *shown.stdout.decode().split())
            super().run()

    class Counts(Recorder):
        def run(self):
            # Orphans come and go in this process meanwhile.
            orphans = "for i in 1 2 3; do (sleep 0.0$i; exit 3) & done; exit 7"
            statuses = {subprocess.run(["sh", "-c", orphans]).returncode for _ in range(50)}
            self.note("counted", statuses=[*statuses])
            super().run()

    class Dispatch(Before):
        routes = {**Before.routes, "draws": Draws, "looks": Looks, "counts": Counts}
"""


@pytest.fixture
def with_jobs(service):
    """A service whose handlers are those above."""
    service.write("jobs.py", JOBS)
    service.configure(dispatch="jobs:Dispatch")
    return service


def noted(run, event):
    [note] = [note for note in run.notes if note["event"] == event]
    return note


# --- descriptors and memory ----------------------------------------------------------

SOCKETS = {"unix": "/proc/net/unix", "internet": "/proc/net/tcp"}


def sockets():
    """What kind each socket of this machine is of, by the name that descriptors have."""
    column = {"unix": 6, "internet": 9}
    found = {}
    for kind, path in SOCKETS.items():
        for line in Path(path).read_text().splitlines()[1:]:
            found[f"socket:[{line.split()[column[kind]]}]"] = kind
    return found


def open_in(pid, kinds):
    """What a process has open besides /dev/null: kinds of sockets, pipes, and names of files."""
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # What the process opens for a moment may be closed before it is read.
        with suppress(FileNotFoundError):
            links.append(link.readlink())
    kinds = {**kinds, **{str(link): "pipe" for link in links if str(link).startswith("pipe:")}}
    named = [kinds.get(str(link), Path(link).name) for link in links]
    return Counter(name for name in named if name != "null")


FROM_KERNEL = "vmstat", "task", "children", "cgroup.procs", "cpu.stat"


def has_its_database(found, database):
    # Also the flags of runners, and what the kernel tells of these.
    theirs = "unix", "log", "pipe", "memfd:psched (deleted)", *FROM_KERNEL
    its_own = {name: number for name, number in found.items() if name not in theirs}
    if database.server is not None:
        return its_own == {"internet": 1}
    return {*its_own} <= {"psched.db", "psched.db-wal", "psched.db-shm"}


def mapped_in(pid):
    """The files in its memory, by their names."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]).name for line in lines if "/" in line}


@pytest.mark.monitor
def test_workers_and_the_monitor_have_a_database_and_a_runner_only_its_line_and_its_output(
    each_service, database
):
    service = each_service
    service.configure(
        processors=2,
        concurrency=2,
        log=str(service.folder / "log"),
        pid_file=str(service.folder / "pid"),
    )
    keys = ["one", "two", "three"]
    for key in keys:
        service.add(key, data={"until": "gate"})
    master = service.start(log="log")
    runs = [service.runs.wait(key)[0] for key in keys]
    # Where there is room for a fourth task, a process waits for it.
    wait_until(lambda: len(descendants(master.pid)) == 11, what="the waiting runner")
    workers, monitor = master.workers(), master.wait_for_monitor()
    runners = [pid for worker in workers for pid in runners_of(worker)]
    helpers = [pid for worker in workers for pid in children(worker)]
    collectors = [pid for pid in helpers if title(pid) == "psched collector"]
    assert len(collectors) == 2
    # A process that was forked just now is its parent's copy for a moment.
    settled = lambda: all(title(pid).startswith("psched runner: ") for pid in runners)  # noqa: E731
    wait_until(settled, what="the runners' titles")
    assert {run.pid for run in runs} < {*runners}
    wait_until(lambda: all(" tasks" in title(worker) for worker in workers), what="their titles")

    # The log, and the service's output, which a task may want unchanged; its own is a pipe.
    output = {"log": 3, "pipe": 2}

    def a_runner_has_its_line(found):
        return found == Counter(unix=1) + Counter(output)

    def a_collector_has_its_line_and_pipes(found):
        # Of two runners, and of none other. And the log, which is the service's output, too.
        return found == Counter(unix=1, pipe=2, log=3)

    def a_worker_has_its_database(found):
        return has_its_database(found, database)

    def the_monitor_has_its_lines_and_a_database(found):
        # One line to the master, and the two ends by which a signal wakes it.
        return (found["unix"], found["log"], found["pipe"]) == (3, 3, 0) and (
            has_its_database(found, database)
        )

    def the_master_has_neither(found):
        return {*found} == {"unix", "log", "pid"} and found["log"] == 3

    expectations = [
        *((runner, a_runner_has_its_line) for runner in runners),
        *((collector, a_collector_has_its_line_and_pipes) for collector in collectors),
        *((worker, a_worker_has_its_database) for worker in workers),
        (monitor, the_monitor_has_its_lines_and_a_database),
        (master.pid, the_master_has_neither),
    ]
    for pid, expected in expectations:
        # Each process opens files of /proc and of control groups for a moment.
        wait_until(
            lambda pid=pid, expected=expected: expected(open_in(pid, sockets())),
            what=f"{title(pid)}: {expected.__name__}",
        )
    for pid in [master.pid, *runners, *collectors]:
        assert not [name for name in mapped_in(pid) if "psched.db" in name]

    service.open_gate("gate")
    for key in keys:
        service.wait_for_finish(key)
    assert master.stop() == 0


def test_siblings_draw_different_numbers_and_share_what_was_there_before_the_fork(with_jobs):
    service = with_jobs
    service.configure(processors=2, concurrency=4)
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        service.add(key, "draws", data={"until": "gate"})
    master = service.start()
    for key in keys:
        service.runs.wait(key)
    service.open_gate("gate")
    runs = [service.runs.wait(key, completed(1))[0] for key in keys]
    for key in keys:
        service.wait_for_finish(key)
    assert master.stop() == 0

    assert len({run.pid for run in runs}) == 8
    for draws in zip(*(noted(run, "drawn")["drawn"] for run in runs), strict=True):
        assert len({*draws}) == 8
    # What no garbage collection looks at is not copied either.
    assert all(noted(run, "drawn")["frozen"] for run in runs)
    # Each worker has written it, and none of their forks again.
    assert master.text.count("imported; ") == 2


# --- signals -------------------------------------------------------------------------


def numbers(mask):
    return {n for n in signal.valid_signals() if int(mask, 16) >> (n - 1) & 1}


def test_what_a_task_executes_blocks_nothing_and_ignores_no_more_than_psched_was_told_to(
    with_jobs,
):
    service = with_jobs
    service.add("s1", "looks")
    service.add(
        "s2", "exec", data={"command": "echo seen: $(cat /proc/self/status)", "shell": True}
    )
    # As by nohup in a shell script that has a trap or two.
    started_so = ["--block-signal=TERM,USR2,CHLD", "--ignore-signal=HUP,INT,ALRM"]
    command = [shutil.which("env"), *started_so, *service.master_command]
    master = service.start(*command, "-c", service.config.name)
    for key in "s1", "s2":
        service.wait_for_finish(key)
    # It has TERM let in again.
    assert master.stop() == 0

    seen = re.findall(r"seen: .*SigBlk: (\w+) SigIgn: (\w+) ", master.text)
    assert len(seen) == 3
    for (blocked, ignored), by_python in zip(seen, [set(), {signal.SIGPIPE}, set()], strict=True):
        assert numbers(blocked) == set()
        # Neither what psched has handlers for, nor what Python ignores.
        assert numbers(ignored) - {signal.SIGXFSZ} == {signal.SIGALRM} | by_python


def test_a_task_learns_how_its_programs_have_ended_whoever_else_ends_meanwhile(with_jobs):
    service = with_jobs
    service.add("s1", "counts")
    service.start()
    [run] = service.runs.wait("s1", completed(1))
    assert noted(run, "counted")["statuses"] == [7]


NEWBORNS = 400


def newborns_that_are_sent_something(seed):
    """Each is sent one signal within its first moments; what it and its parent have received."""
    rng = random.Random(seed)  # noqa: S311  # instants
    clock = SystemClock()
    inbox = SignalInbox(SIGNALS)
    # CHLD has another meaning here. And what the kernel ignores by default may be dropped until
    # the child has its handlers, as POSIX wants it: WINCH, which means nothing to a child.
    sendable = [n for n in SIGNALS if n not in (signal.SIGCHLD, signal.SIGWINCH)]
    received = set()

    def child(_link):
        own = SignalInbox(SIGNALS)
        arrived = set()
        while not arrived:
            arrived = own.wait(1000)
        [number] = arrived
        return int(number)

    wrong = []
    for _ in range(NEWBORNS):
        number = rng.choice(sendable)
        at = clock.monotonic() + rng.uniform(0, 0.0002)
        pid, _ = spawn(child)
        while clock.monotonic() < at:
            pass
        tree.send(pid, number)
        while not (ended := [*reap()]):
            received |= inbox.wait(1000)
        wrong += [str(how) for how in ended if (how.pid, how.status) != (pid, number)]
    return wrong, sorted(number.name for number in received | inbox.wait(0))


@pytest.mark.extended
def test_every_signal_to_a_newborn_reaches_it_and_nobody_else():
    assert isolated(newborns_that_are_sent_something, 1) == [[], ["SIGCHLD"]]
