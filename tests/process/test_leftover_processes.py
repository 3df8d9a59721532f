"""What the tasks of dead masters have left: found by its mark, and nothing else is touched."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psched.master import leftover_processes
from psched.process import kernel, tree
from psched.process.spawn import spawn
from support.isolated import isolated
from support.process_trees import SCRIPTS
from support.processes import kill
from support.waiting import has_ended, wait_for_end, wait_until


def mark(pid, start, *, namespace=None, user=None):
    namespace = namespace or Path("/proc/self/ns/pid").stat().st_ino
    return f"{pid}.{start}.{namespace}.{os.geteuid() if user is None else user}"


def orphan(name, mark, script="exec sleep 1000"):
    """Start a program with a mark whose parent exits at once; its pid."""
    command = 'sh -c "echo \\$\\$ >$0.tmp && mv $0.tmp $0; $1" &'
    environment = {**os.environ, "PSCHED_MASTER": mark}
    subprocess.run(["sh", "-c", command, name, script], env=environment, check=True)
    wait_until(Path(name).exists, what="its pid")
    return int(Path(name).read_text())


def dead():
    """A process that has ended: its pid, and when it was started."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        start = tree.start_time(process.pid)
        process.kill()
    return process.pid, start


def cases():
    me, (gone, then) = os.getpid(), dead()
    mine = tree.start_time(me)
    doomed = {
        "dead": mark(gone, then),
        "another has its pid": mark(me, mine - 1),
    }
    spared = {
        "living": mark(me, mine),
        "namespace": mark(gone, then, namespace=1),
        "user": mark(gone, then, user=os.geteuid() + 1),
        "garbage": "x",
        "longer": f"{mark(gone, then)}.1",
        "empty": "",
    }
    pids = {name.replace(" ", "_"): orphan(name.replace(" ", "_"), text)
            for name, text in {**doomed, **spared}.items()}  # fmt: skip
    # Handed to somebody who is alive, as to a batch system.
    clerk = subprocess.Popen(
        ["sh", "-c", 'PSCHED_MASTER="$0" sleep 1000 & echo $! >handed; wait', mark(gone, then)],
        env={name: text for name, text in os.environ.items() if name != "PSCHED_MASTER"},
    )
    wait_until(lambda: Path("handed").exists() and Path("handed").read_text(), what="its pid")
    pids["handed"] = int(Path("handed").read_text())
    leftover_processes.kill()
    found = sorted(name for name, pid in pids.items() if has_ended(pid))
    clerk.kill()
    return found


def test_only_orphans_that_a_dead_master_of_this_user_and_namespace_has_marked_are_killed():
    assert isolated(cases) == ["another_has_its_pid", "dead"]


def left_by_a_master(script):
    """A master starts a tree and dies; nobody reaps it."""

    def master(_link):
        with leftover_processes.marked():
            subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True)
            wait_until(lambda: tree.children(os.getpid()), what="the tree")
            os.kill(os.getpid(), 9)  # noqa: TID251  # as anybody may
        return 0

    pid, _link = spawn(master)
    wait_for_end(pid)
    return pid


def all_that_carry_a_mark():
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PSCHED_MASTER={os.environ['OF_DEAD']}.".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def cleared(script):
    os.environ["OF_DEAD"] = str(left_by_a_master(script))
    wait_until(all_that_carry_a_mark, what="what the dead master has left")
    leftover_processes.kill()
    return all_that_carry_a_mark()


@pytest.mark.parametrize("name", ["daemons", "deaf", "stopped", "weed"])
def test_nothing_is_left_of_what_the_tasks_of_a_killed_master_execute(name):
    assert isolated(cleared, SCRIPTS[name]) == []


def suspended_worker_that_outlives_its_master():
    def worker(_link):
        kernel.set_title("worker 0 (gen 1): 1 tasks")
        with leftover_processes.marked():
            os.environ["PSCHED_MASTER"] = mark(os.getppid(), tree.start_time(os.getppid()))
            subprocess.Popen(["sleep", "1000"])
        Path("pids").write_text(f"{os.getpid()} {tree.children(os.getpid())[0]}")
        os.kill(os.getpid(), signal.SIGSTOP)  # noqa: TID251  # as anybody may
        return 0

    def master(_link):
        pid, _link = spawn(worker)
        os.waitpid(pid, os.WUNTRACED)
        os.kill(os.getpid(), 9)  # noqa: TID251  # as anybody may
        return 0

    wait_for_end(spawn(master)[0])
    suspended, started = map(int, Path("pids").read_text().split())
    seen = [(leftover_processes.search(), has_ended(started)) for _ in range(3)]
    kill(suspended)
    wait_until(lambda: not leftover_processes.search(), what="the end of the search")
    return seen, has_ended(started)


def test_what_a_suspended_worker_of_a_dead_master_leaves_later_is_killed_then():
    assert isolated(suspended_worker_that_outlives_its_master) == [[[True, False]] * 3, True]


def search_beside_a_daemon_of_psched():
    title = "from psched.process.kernel import set_title; set_title('web --url …')"
    script = f"""exec {sys.executable} -c "{title}; import time; time.sleep(1000)" """
    daemon = orphan("pid", mark(os.getpid(), tree.start_time(os.getpid())), script)
    wait_until(lambda: tree.read(f"/proc/{daemon}/cmdline")[:10] == b"psched web", what="its title")
    goes_on, is_alive = leftover_processes.search(), tree.alive(daemon)
    kill(daemon)
    return goes_on, is_alive


def test_the_search_is_over_although_commands_of_psched_run_as_daemons():
    assert isolated(search_beside_a_daemon_of_psched) == [False, True]


def marked_for_a_while():
    before = "PSCHED_MASTER" in os.environ
    with leftover_processes.marked():
        code = "import os; print(os.environ['PSCHED_MASTER'])"
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    expected = mark(os.getpid(), tree.start_time(os.getpid()))
    return before, shown.stdout.strip() == expected, "PSCHED_MASTER" in os.environ


def test_the_mark_is_there_while_a_master_runs_and_no_longer():
    assert isolated(marked_for_a_while) == [False, True, False]
