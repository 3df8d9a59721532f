"""Killing trees: whatever a process has started, however it hides, is found and killed.

By walking, and where a cgroup can be made, by that: see `psched.process.child`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.process import kernel, tree
from psched.process.cgroup import MasterCgroup
from psched.process.child import Child, OrphanReaper, reap
from psched.process.link import Link
from psched.runner.shared_memory import Reason
from support.bench import Bench
from support.cgroups import below, leave, own_cgroup
from support.isolated import isolated
from support.process_trees import COMET, SCRIPTS, SUBPROCESSES
from support.processes import kill
from support.waiting import has_ended, wait_until


def grown(script):
    """Start a tree and wait until there is something of it."""
    root = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL)
    wait_until(
        lambda: [pid for pid in tree.descendants(os.getpid()) if pid != root.pid],
        what="the tree",
    )
    return root.pid


def kill_all(pid, spare=frozenset()):
    """As a loop does, which comes back for what does not die at once."""
    wait_until(lambda: tree.kill_all_below(pid, spare), what="the end of the tree")


def living():
    return [pid for pid in tree.descendants(os.getpid()) if not has_ended(pid)]


def killed(script):
    kernel.adopt_orphans()
    grown(script)
    kill_all(os.getpid())
    left = living()
    list(reap())
    # What was forked just before would be seen later.
    return left + living()


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_left_of_a_tree(name):
    assert isolated(killed, SCRIPTS[name]) == []


def killed_again_and_again(script, times):
    kernel.adopt_orphans()
    left = []
    for _ in range(times):
        grown(script)
        kill_all(os.getpid())
        left += living()
        list(reap())
        left += living()
    return left


def test_a_process_that_flees_from_pid_to_pid_is_caught():
    assert isolated(killed_again_and_again, COMET, 100) == []


def killed_below_another():
    """As a worker does below a runner that it uses again: the orphans are not its own."""
    kernel.adopt_orphans()
    program = "import signal; from psched.process import kernel; kernel.adopt_orphans()"
    program += "; import subprocess; subprocess.Popen(['sh', '-c', 'COMET']); signal.pause()"
    program = program.replace("COMET", COMET)
    keeper = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: tree.descendants(keeper.pid), what="the tree")
    kill_all(keeper.pid)
    left = [pid for pid in tree.descendants(keeper.pid) if not has_ended(pid)]
    return left, has_ended(keeper.pid)


def test_nothing_is_left_below_another_process_which_lives_on():
    assert isolated(killed_below_another) == [[], False]


def some_spared():
    kernel.adopt_orphans()
    spared, doomed = grown(SUBPROCESSES), grown(SUBPROCESSES)
    wait_until(lambda: len(tree.descendants(spared)) == 4, what="the spared")
    before = sorted([spared, *tree.descendants(spared)])
    kill_all(os.getpid(), frozenset([spared]))
    return sorted(living()) == before, has_ended(doomed)


def test_who_is_spared_is_spared_with_all_below():
    assert isolated(some_spared) == [True, True]


def zombie():
    process = subprocess.Popen(["sh", "-c", "exit 0"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    start = tree.start_time(process.pid)
    before = start is not None, tree.alive(process.pid) or tree.lives(process.pid, start)
    kill_all(os.getpid())
    return [*before, process.wait(), tree.alive(process.pid)]


def test_a_zombie_is_not_alive():
    assert isolated(zombie) == [True, False, 0, False]


def seen_to_end():
    """Who are killed are seen to end by a pipe, as workers see their master end."""
    for _ in range(300):
        ours, theirs = os.pipe()
        child = subprocess.Popen(["sleep", "1000"], pass_fds=[theirs])
        os.close(theirs)
        start = tree.start_time(child.pid)
        if not tree.lives(child.pid, start) or tree.lives(child.pid, start - 1):
            return "it did not live, or another that had its pid before did"
        kill(child.pid)
        os.read(ours, 1)
        if tree.lives(child.pid, start):
            return "it did not end with its files"
        os.close(ours)
        child.wait()
    return ""


def test_a_process_does_not_live_once_its_files_are_closed_though_it_is_no_zombie_yet():
    assert not isolated(seen_to_end)


def with_a_misleading_name():
    """Its name is that of a zombie's line in /proc/PID/stat."""
    program = "import signal; open('/proc/self/comm', 'w').write('x) Z 1 '); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", program])
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: "(x) Z 1 )" in stat.read_text(), what="its name")
    alive = tree.alive(process.pid)
    kill_all(os.getpid())
    return alive, process.wait()


def test_the_state_of_a_process_does_not_depend_on_its_name():
    assert isolated(with_a_misleading_name) == [True, -signal.SIGKILL]


def children_of_threads():
    import threading  # noqa: PLC0415

    started, over = threading.Event(), threading.Event()
    pids = []

    def work():
        pids.append(subprocess.Popen(["sleep", "1000"]).pid)
        started.set()
        over.wait()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    found = tree.children(os.getpid())
    kill_all(os.getpid())
    over.set()
    thread.join()
    return found == pids, has_ended(pids[0])


def test_the_children_of_every_thread_are_found():
    assert isolated(children_of_threads) == [True, True]


def seen_offspring():
    """What `Offspring` says of a shell while it has a child, a zombie, a child of a thread."""
    program = (
        "import os, sys, threading\n"
        "say = lambda: (print(flush=True), sys.stdin.readline())\n"
        "say()\n"
        "child = os.fork() or os.execvp('sleep', ['sleep', '99'])\n"
        "say()\n"
        "os.kill(child, 9)\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"
        "say()\n"
        "os.waitpid(child, 0)\n"
        "say()\n"
        "thread = threading.Thread(target=say)\n"
        "thread.start()\n"
        "thread.join()\n"
        # The kernel lists a thread for a moment after it was joined.
        "while os.stat('/proc/self/task').st_nlink > 3: os.sched_yield()\n"
        "say()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
        offspring, found = tree.Offspring(process.pid), []
        for _ in range(6):
            process.stdout.readline()
            found.append(offspring.none)
            process.stdin.write(b"\n")
            process.stdin.flush()
    found.append(offspring.none)
    offspring.close()
    return found


def test_offspring_is_seen_also_if_it_is_a_zombie_and_unknown_if_there_are_threads():
    none, child, zombie, reaped, thread, joined, ended = isolated(seen_offspring)
    assert [none, reaped, joined] == [True, True, True]
    assert [child, zombie, thread, ended] == [False, False, False, False]


def test_a_kernels_file_that_stays_open_is_read_as_a_whole_and_anew():
    with subprocess.Popen(
        [sys.executable, "-c", "import ssl, json; input()"], stdin=subprocess.PIPE
    ) as process:
        path = f"/proc/{process.pid}/maps"
        wait_until(
            lambda: tree.read(f"/proc/{process.pid}/syscall").startswith(b"0 "), what="input"
        )
        file = tree.KernelFile(path)
        assert file.read() == file.read() == tree.read(path)
        assert len(file.read()) > 4096
        process.communicate(b"\n")
    file.close()
    changing = tree.KernelFile("/proc/self/stat")
    before = changing.read()
    sum(range(3_000_000))
    assert changing.read() != before
    changing.close()


def signals_to_nobody():
    process = subprocess.Popen(["sh", "-c", "exit 0"], start_new_session=True)
    process.wait()
    tree.send(process.pid, signal.SIGTERM)
    tree.send_group(process.pid, signal.SIGTERM)
    tree.kill_all_below(process.pid)
    return tree.children(process.pid), tree.descendants(process.pid), tree.alive(process.pid)


def test_who_is_gone_can_be_sent_signals_and_has_no_children():
    assert isolated(signals_to_nobody) == [[], [], False]


def without_its_first_thread():
    """A program may end its first thread and go on in others."""
    program = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[1000]).start()"
    )
    program += "; ctypes.CDLL(None).pthread_exit(None)"
    process = subprocess.Popen([sys.executable, "-c", program])
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: ") Z " in stat.read_text(), what="the end of its first thread")
    alive = tree.alive(process.pid)
    kill_all(os.getpid())
    return alive, tree.alive(process.pid), process.wait()


def test_a_process_whose_first_thread_has_ended_is_alive():
    assert isolated(without_its_first_thread) == [True, False, -signal.SIGKILL]


def told():
    process = subprocess.Popen(["sleep", "1000"])
    pid = process.pid
    wait_until(lambda: tree.describe(pid) == f"{pid} (sleep, state S)", what="the sleep")
    started = tree.start_time(pid), tree.start_time(os.getpid())
    process.kill()
    process.wait()
    return [started[0] >= started[1], tree.start_time(pid), tree.describe(pid) == str(pid)]


def test_a_process_is_told_by_its_name_and_state():
    assert isolated(told) == [True, None, True]


# --- what cannot be killed -----------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
NOBODY = 65534
NEVER = float("inf")


class Household:
    """A child of this process, with a child of its own that we may not kill; both wait.

    As if a task had run sudo.
    """

    def __init__(self):
        kernel.adopt_orphans()
        reader, self.writer = os.pipe()
        script = f"sh -c 'read line' <&{reader} & read line"
        self.child = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, pass_fds=[reader], text=True
        )
        os.close(reader)
        wait_until(lambda: len(tree.children(self.child.pid)) == 1, what="its child")
        [self.untouchable] = tree.children(self.child.pid)

    def end(self):
        """The child ends, its own goes on."""
        self.child.stdin.close()
        self.child.wait()

    def let_go(self):
        """The other ends, too."""
        os.close(self.writer)


def untouchable():
    household = Household()
    household.end()
    os.setresuid(NOBODY, NOBODY, NOBODY)
    orphan = subprocess.Popen(["sleep", "1000"])
    tree._LONGEST = NEVER  # it is not to be why this ends
    emptied = tree.kill_all_below(os.getpid())
    alone = {household.untouchable}
    wait_until(lambda: tree.living_below(os.getpid()) == alone, what="the other's end")
    household.let_go()
    kill_all(os.getpid())
    return emptied, orphan.wait()


@as_root
def test_who_cannot_be_killed_is_reported_and_saves_nobody_else():
    assert isolated(untouchable) == [False, -signal.SIGKILL]


def two_ends():
    """One child leaves what cannot be killed, and another, which was alive then, does not."""
    clock = SystemClock()
    household = Household()
    os.setresuid(NOBODY, NOBODY, NOBODY)
    neighbour = subprocess.Popen(["sh", "-c", "read line; setsid sleep 1000 &"], stdin=-1)
    one, other = (
        Child(process.pid, Link.pair()[0], 0.0) for process in (household.child, neighbour)
    )
    reaper = OrphanReaper(clock)

    household.end()
    reaper.add(one, None)
    found = [reaper.sweep(frozenset([neighbour.pid])) == []]

    neighbour.stdin.close()
    neighbour.wait()
    reaper.add(other, None)
    wait_until(lambda: reaper.sweep(frozenset()) == [other], what="the end of the other's tree")

    def late():
        return reaper.due and (reaper.sweep(frozenset()) or reaper.late)

    wait_until(late, what="word of what does not die")
    [(who, what)] = reaper.late
    found += [who is one, one.stuck, other.stuck]
    found += [what == f"{household.untouchable} (sh, state S, belongs to root, may not be killed)"]
    reaper.late.clear()
    found += [reaper.sweep(frozenset()) == [], not reaper.late, reaper.younger_than(1000)]

    household.let_go()
    wait_until(lambda: reaper.due and reaper.sweep(frozenset()) == [one], what="its end")
    return [*found, reaper.wakes == NEVER, reaper.younger_than(1000)]


@as_root
def test_a_tree_that_does_not_die_is_told_once_and_holds_up_no_other():
    assert isolated(two_ends) == [True, True, True, False, True, True, True, True, True, False]


# --- tasks ---------------------------------------------------------------------------


def grow(task):
    """A handler that starts a tree and ends in some way."""
    script = SCRIPTS[task.data["script"]]
    process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL)
    wait_until(lambda: tree.children(process.pid) or process.poll() is not None, what="the tree")
    match task.data["end"]:
        case "dies":
            kill(os.getpid())
        case "clings":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            process.wait()
            signal.pause()


def ended(group, end, tasks):
    """Run a task with each of the trees; what is left of them, at the instant of its end."""
    cgroup = master = None
    if group is not None:
        Path(group, "cgroup.procs").write_text("0")
        master = MasterCgroup()
        cgroup = master.below("worker")
    bench = Bench({"grow": grow}, cgroup=cgroup, max_tasks_per_child=tasks, graceful_kill_limit=0)
    left = {}
    for script in SCRIPTS:
        task = bench.start("grow", script, script=script, end=end)
        if end == "clings":
            bench.until(lambda task=task: tree.descendants(task.runner.pid))
            bench.tasks.stop(task, Reason.TIMEOUT, 0)
        bench.until(lambda task=task: task.empty)
        runners = {*bench.pool._alive}
        pids = [*tree.living_below(os.getpid()) - runners - {bench.server}]
        folders = below(cgroup.path) if cgroup else []
        # Those that wait for another runner have been found empty.
        known = len(runners) + (len(bench.pool._cgroups._free) if cgroup else 0)
        left[script] = [*pids, *folders[known:]]
        bench.tasks.remove(script)
    bench.close()
    if master is not None:
        leave(cgroup, group)
        master.close()
    return left


@pytest.mark.parametrize(
    ("end", "tasks"), [("returns", 1), ("returns", 1000), ("dies", 1), ("clings", 1)]
)
@pytest.mark.parametrize("means", ["walk", "cgroup"])
def test_when_a_task_is_over_nothing_is_left_of_its_tree(means, end, tasks):
    nothing = {script: [] for script in SCRIPTS}
    if means == "walk":
        assert isolated(ended, None, end, tasks) == nothing
        return
    with own_cgroup("tree") as group:
        assert isolated(ended, str(group), end, tasks) == nothing
        assert below(group) == []
