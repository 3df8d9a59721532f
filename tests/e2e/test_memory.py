"""Schedules in memory: shared by all of one master, and gone with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import psched
from psched.memory import MemoryFolder
from support.processes import kill
from support.stores import store_factory
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def service(make_service):
    return make_service("memory:", processors=2)


def folders(service):
    """Those with schedules that are there."""
    return [*(service.folder / "run").glob(f"psched-{os.geteuid()}-*")]


@pytest.fixture
def own(service):
    """A running master, and its folder."""
    master = service.start()
    [folder] = folders(service)
    assert folder.stat().st_mode & 0o777 == 0o700
    return master, folder


def opened(service):
    """The schedules of the one master that runs."""
    [folder] = folders(service)
    return psched.open({"url": f"sqlite:///{folder}/psched.db"})


@pytest.mark.landing
def test_all_workers_of_a_master_share_them_also_over_a_restart(service, own):
    master, folder = own
    with opened(service) as shared:
        shared.push_many(
            {"key": f"k{number}", "type": "recorder", "data": {"until": "gate"}}
            for number in range(2)
        )
        runs = [service.runs.wait(f"k{number}")[0] for number in range(2)]
        assert {run.worker for run in runs} == {*master.workers()}
        master.send(signal.SIGHUP)
        master.wait_for_generation(2)
        service.open_gate("gate")
        for number in range(2):
            assert shared[f"k{number}"].wait(timeout=HANG_TIMEOUT) == "finished"
        shared.push("new", "recorder")
        assert shared["new"].wait(timeout=HANG_TIMEOUT) == "finished"
    assert master.stop() == 0
    assert not folder.exists()


@pytest.mark.landing
def test_they_go_with_a_master_that_is_killed(own):
    master, folder = own
    master.kill()
    wait_until(lambda: not folder.exists(), what="the end of the folder")


def test_the_last_to_leave_removes_them_though_a_process_that_was_just_forked_has_its_files(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    memory = MemoryFolder()
    with subprocess.Popen(["sleep", "1000"]) as owner:
        memory.join(owner.pid)
        owner.kill()
    [lock] = tmp_path.glob("psched-*/lock")
    [number] = (int(p.name) for p in Path("/proc/self/fd").iterdir() if same_file(p, lock))
    with subprocess.Popen(["sleep", "1000"], pass_fds=[number]) as forked:
        memory.leave()
        forked.kill()
        assert list(tmp_path.iterdir()) == []


def test_who_does_not_hold_them_does_not_keep_the_last_one_from_removing_them(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    worker, monitor = MemoryFolder(), MemoryFolder()
    with subprocess.Popen(["sleep", "1000"]) as owner:
        worker.join(owner.pid)
        monitor.join(owner.pid, holds=False)
        assert monitor.url == worker.url
        owner.kill()
    worker.leave()
    assert list(tmp_path.iterdir()) == []
    monitor.leave()


def same_file(path, other):
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def test_they_go_with_a_master_that_is_killed_before_its_program_asks_for_them(service):
    service.write(
        "program.py",
        """
        import time
        from pathlib import Path

        import psched

        here = Path(__file__).parent
        if (here / "gated").exists():
            (here / "begun").touch()
            while not (here / "gate").exists():
                time.sleep(0.02)
        (here / "gated").touch()
        with psched.start(url="memory:", cgroup="off") as s:
            s.add("k", every=60, run=print)
        """,
    )
    master = service.start(sys.executable, "program.py", generation=0)
    wait_until((service.folder / "begun").exists, what="the program in the worker")
    master.send(signal.SIGKILL)
    master.wait()
    service.open_gate("gate")
    master.wait_until_nothing_is_left()
    assert not folders(service)


def test_what_has_run_is_in_the_run_history(service, own):
    _, folder = own
    with opened(service) as shared:
        shared.push("k", "recorder")
        assert shared["k"].wait(timeout=HANG_TIMEOUT) == "finished"
    with store_factory(f"sqlite:///{folder}/psched.db") as open_store:
        store = open_store()
        assert store.history.problem() is None
        [run] = store.history.runs()
    assert (run.key, run.type, run.outcome, run.fate) == ("k", "recorder", "finished", "finished")


def test_what_a_whole_host_left_behind_is_removed_by_the_next(service, own):
    master, folder = own
    everybody = [master.pid, *master.descendants]
    for number in signal.SIGSTOP, signal.SIGKILL:
        for pid in everybody:
            kill(pid, number)
    master.wait_until_nothing_is_left()
    assert folder.exists()
    next_one = service.start()
    assert not folder.exists()
    assert next_one.stop() == 0


def test_a_task_reaches_the_schedules_that_it_came_from(service, own):
    master, _ = own
    assert master.stop() == 0
    service.write(
        "jobs.py",
        """
        from recorder import Base, Dispatch as Before

        class Adds(Base):
            def run(self):
                self.schedules.push("added", "recorder")

        class Dispatch(Before):
            routes = {**Before.routes, "adds": Adds}
        """,
    )
    service.configure(dispatch="jobs:Dispatch")
    master = service.start()
    with opened(service) as shared:
        shared.push("adds", "adds")
        service.runs.wait("added")
        assert shared["added"].wait(timeout=HANG_TIMEOUT) == "finished"
    assert master.stop() == 0


def test_the_command_sees_those_of_the_one_master_that_runs(service):
    alone = service.psched("list", "--legacy")
    assert alone.returncode == 1
    assert "url: memory: is in the memory of a running master, and you have none" in alone.stderr
    master = service.start()
    assert service.psched("push", "k", "recorder", "{}", "--wait").stdout == "k: finished\n"
    second = service.start()
    assert (
        f"({', '.join(sorted(map(str, (master.pid, second.pid))))})"
        in service.psched("list", "--legacy").stderr
    )
    assert second.stop() == 0
    assert "1 entries." in service.psched("list", "--legacy").stdout
    assert master.stop() == 0


def test_a_program_has_its_own_until_it_ends(tmp_path):
    program = """
import os, psched
settings = {'url': 'memory:'}
with psched.open(settings) as first, psched.open(settings) as second:
    first.push('k')
    print(second['k'].exists(), len(os.listdir(os.environ['RUNTIME_DIRECTORY'])))
"""
    env = {**os.environ, "RUNTIME_DIRECTORY": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=env
    )
    assert done.stdout == "True 1\n"
    assert not [*tmp_path.iterdir()]
