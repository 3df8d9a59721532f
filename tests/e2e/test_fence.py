"""The fence: nothing of a task acts any more when another host can have its occurrence.

A rival on a connection of its own tries to claim the occurrence all the time, as a second host
would, while something happens to the worker, to the master or to the database. What the task
has started, a subprocess and a daemon that has left its session, stamps a file with the
boot-time clock every few milliseconds until somebody kills it. Every stamp must be earlier than
the instant from which the rival could have had the occurrence.

The service is told to start nothing itself meanwhile, so that the rival is the only one to claim.
"""

import itertools
import select
import signal

import pytest

from psched.base.clock import SystemClock
from psched.base.lease_times import SHORTEST_ALIVE_TIME
from support.processes import descendants, kill, title
from support.proxy import Fault
from support.run_log import completed
from support.stores import store_factory
from support.waiting import PATIENCE, has_ended, wait_until

pytestmark = pytest.mark.verified

CLOCK = SystemClock()
KEY = "long"
LEASE = {"alive_time": SHORTEST_ALIVE_TIME, "shortest": SHORTEST_ALIVE_TIME}

JOBS = """
    import subprocess, sys
    from recorder import FOLDER, Recorder, Dispatch as Before

    class Stamping(Recorder):
        def start_process(self, kind):
            program = [sys.executable, "-I", "-S", FOLDER / "stamper.py"]
            subprocess.Popen([*program, FOLDER / "stamps", kind])

    class Dispatch(Before):
        routes = {"stamping": Stamping}
"""

STAMPER = """
    import os, sys, time

    path, name = sys.argv[1:]
    if name == "daemon":
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
    stamps = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(stamps, f"{name} {os.getpid()} {now}\\n".encode())
        time.sleep(0.003)
"""


PAUSE = 0.01
"""Seconds between two tries of the rival."""

LEASED = {"alive_time": SHORTEST_ALIVE_TIME, "child_heartbeat_limit": 60}
"""Nobody but the kernel and the worker itself is to be quick enough."""


class Watched:
    """A running task with its subprocess and its daemon, and a rival that wants its occurrence.

    Args:
        service: with a fresh table.
        rival: the rival's store.

    Attributes:
        master: the service's.
        worker: the pid of the worker that runs the task.
        paused: when the service was told to start nothing more, and had heard it.
    """

    def __init__(self, service, rival):
        self._service = service
        self._rival = rival
        self._numbers = itertools.count()
        service.configure(processors=2, dispatch="jobs:Dispatch", **LEASED)
        service.write("jobs.py", JOBS)
        service.write("stamper.py", STAMPER)
        service.add(KEY, "stamping", data={"until": "gate", "processes": ["child", "daemon"]})
        self.master = service.start()
        [run] = service.runs.wait(KEY)
        wait_until(lambda: len(self.stamps) == 2, what="the subprocess and the daemon")
        [self.worker] = [pid for pid in self.master.workers() if run.pid in descendants(pid)]
        self.master.send(signal.SIGWINCH)
        self.master.wait_for_log("paused")
        self.paused = CLOCK.boottime()
        wait_until(
            lambda: all(at > self.paused for at in self.last_signs().values()),
            what="what shows that all of them are alive",
        )

    def last_signs(self):
        """When each process of the task has last said that it is alive, by its pid."""
        [run] = self._service.runs.runs(KEY)
        return {**self.stamps, run.pid: run.last_sign}

    @property
    def stamps(self):
        """The last stamp of the subprocess and of the daemon, by their pids."""
        last = {}
        path = self._service.folder / "stamps"
        # What has no line feed yet is being written.
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        for line in text.splitlines():
            _, pid, at = line.split()
            last[int(pid)] = float(at)
        return last

    def claimed(self):
        """Whether the rival gets the occurrence now; if so, since when it could have."""
        owner = f"rival.{next(self._numbers)}"
        claimed = self._rival.claim(owner, limit=1, horizon=0, **LEASE)
        if not claimed.rows:
            return None
        if KEY in claimed.expired:
            # As it was last written by the holder.
            [row] = claimed.rows
            return row.next_run_time - CLOCK.wall() + CLOCK.boottime()
        return CLOCK.boottime()

    def wait_for_the_rival(self):
        """Wait until the rival has it; since when it could have had it."""
        for _ in range(int(PATIENCE / PAUSE)):
            if (since := self.claimed()) is not None:
                break
            select.select([], [], [], PAUSE)
        assert since is not None, "nobody can have it any more"
        # Nothing of the tree is left to make another stamp.
        assert [pid for pid in self.stamps if not has_ended(pid)] == []
        return since

    def prove(self, since):
        """Every process of the task has lived till the fault, and none till the claim."""
        last = self.last_signs()
        assert len(last) == 3
        for at in last.values():
            assert self.paused < at < since


@pytest.fixture
def rival(database):
    """The store of another host."""
    with store_factory(database.url) as factory:
        yield factory()


@pytest.fixture
def rival_on_sqlite(tmp_path):
    """The same, on the database of ``service``."""
    with store_factory(f"sqlite:///{tmp_path}/psched.db") as factory:
        yield factory()


@pytest.mark.parametrize("whom", ["worker", "master"])
def test_a_task_is_gone_before_another_can_have_its_occurrence(service, rival_on_sqlite, whom):
    watched = Watched(service, rival_on_sqlite)
    assert watched.claimed() is None

    kill({"worker": watched.worker, "master": watched.master.pid}[whom])

    watched.prove(watched.wait_for_the_rival())


def test_a_task_of_a_worker_that_stands_still_is_gone_before_its_lease_ends(each_service, rival):
    watched = Watched(each_service, rival)
    assert watched.claimed() is None

    # Either of the two workers can have claimed the row.
    number = title(watched.worker).split()[2]
    kill(watched.worker, signal.SIGSTOP)

    watched.prove(watched.wait_for_the_rival())
    watched.master.wait_for_log(
        rf"worker {number} \(gen 1\), pid {watched.worker}, was killed by its lease timer:"
        " it could not extend a lease in time"
    )


@pytest.mark.mariadb
@pytest.mark.parametrize("way", ["black_hole", pytest.param("drip", marks=pytest.mark.extended)])
def test_a_task_is_gone_in_time_though_its_worker_hangs_in_a_call_to_the_database(
    behind_proxy, way
):
    service, proxy, rival = behind_proxy
    watched = Watched(service, rival)

    # No answer at all, and one that goes on for ever: both are given up in time.
    with getattr(proxy, way)():
        since = watched.wait_for_the_rival()
        watched.prove(since)


def test_a_task_keeps_its_lease_while_its_master_is_stopped(service, rival_on_sqlite):
    watched = Watched(service, rival_on_sqlite)

    kill(watched.master.pid, signal.SIGSTOP)

    # It has been extended again when the one that it had would have ended.
    first = rival_on_sqlite.get(KEY).next_run_time

    def outlives_it():
        assert watched.claimed() is None
        return rival_on_sqlite.get(KEY).next_run_time >= first + SHORTEST_ALIVE_TIME

    wait_until(outlives_it, what="an extension of a later lease")
    assert not any(map(has_ended, watched.stamps))
    # It ends as it would have, and what it leaves behind is gone by then.
    service.open_gate("gate")
    service.wait_for_finish(KEY)
    assert all(map(has_ended, watched.stamps))
    assert len(service.runs.wait(KEY, completed(1))) == 1
    kill(watched.master.pid, signal.SIGCONT)
    assert watched.master.stop() == 0


@pytest.mark.mariadb
def test_what_a_worker_had_claimed_and_not_begun_when_it_was_killed_is_run_once(behind_proxy):
    service, proxy, direct = behind_proxy
    master = service.start()
    [worker] = master.workers()

    with proxy.fault(Fault.HOLD_REPLY, b"UPDATE"):
        service.add(KEY)
        wait_until(lambda: direct.get(KEY).owner, what="the claim")
        kill(worker)

    # At once: a lease lasts for 300 s.
    service.wait_for_finish(KEY)
    [run] = service.runs.runs(KEY)
    assert (run.completed, run.fence) == (True, 2)
    assert master.stop() == 0
