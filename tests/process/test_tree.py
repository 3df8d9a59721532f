"""Killing trees: whatever a process has started, however it hides, is found and killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psched.supervisor import kernel, tree
from psched.supervisor.child import reap
from support.apart import apart
from support.waiting import has_ended, wait_until

SUBPROCESSES = "sleep 1000 & sh -c 'sleep 1000 & sleep 1000 & wait' & wait"
DAEMONS = "for i in 1 2 3; do setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 &'; done"
STOPPED = "sleep 1000 & kill -STOP $!; kill -STOP $$"
DEAF = "trap '' TERM INT HUP; sh -c 'sleep 1000; sleep 1000' & sleep 1000"

STORM = "f() { [ $1 -gt 9 ] && exec sleep 1000; f $(($1 + 1)) & f $(($1 + 1)) & }; f 1; wait"
"""A thousand processes, each of which forks two; whoever has done so exits."""

COMET = "f() { [ $1 -gt 30000 ] && exit; f $(($1 + 1)) & exit; }; f 1 & exec sleep 1000"
"""One process that forks and exits, and so goes on under ever new pids, for some seconds."""

WEED = "while [ $((n += 1)) -lt 30000 ]; do setsid sh -c 'sleep 1000 &'; done"
"""Plants daemons until it is killed."""


def grown(script):
    """Start a tree and wait until there is something of it."""
    root = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL)
    wait_until(
        lambda: [pid for pid in tree.descendants(os.getpid()) if pid != root.pid],
        what="the tree",
    )
    return root.pid


def living():
    return [pid for pid in tree.descendants(os.getpid()) if not has_ended(pid)]


def killed(script):
    kernel.adopt_orphans()
    grown(script)
    tree.kill_all_below(os.getpid())
    left = living()
    list(reap())
    # What was forked just before would be seen later.
    return left + living()


SCRIPTS = {
    "subprocesses": SUBPROCESSES,
    "daemons": DAEMONS,
    "stopped": STOPPED,
    "deaf": DEAF,
    "storm": STORM,
    "comet": COMET,
    "weed": WEED,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_left_of_a_tree(name):
    assert apart(killed, SCRIPTS[name]) == []


def killed_again_and_again(script, times):
    kernel.adopt_orphans()
    left = []
    for _ in range(times):
        grown(script)
        tree.kill_all_below(os.getpid())
        left += living()
        list(reap())
        left += living()
    return left


def test_a_process_that_flees_from_pid_to_pid_is_caught():
    assert apart(killed_again_and_again, COMET, 100) == []


def killed_below_another():
    """As a worker does below a runner that it uses again: the orphans are not its own."""
    kernel.adopt_orphans()
    program = "import signal; from psched.supervisor import kernel; kernel.adopt_orphans()"
    program += "; import subprocess; subprocess.Popen(['sh', '-c', 'COMET']); signal.pause()"
    program = program.replace("COMET", COMET)
    keeper = subprocess.Popen([sys.executable, "-c", program])
    wait_until(lambda: tree.descendants(keeper.pid), what="the tree")
    tree.kill_all_below(keeper.pid)
    left = [pid for pid in tree.descendants(keeper.pid) if not has_ended(pid)]
    return left, has_ended(keeper.pid)


def test_nothing_is_left_below_another_process_which_lives_on():
    assert apart(killed_below_another) == [[], False]


def some_spared():
    kernel.adopt_orphans()
    spared, doomed = grown(SUBPROCESSES), grown(SUBPROCESSES)
    wait_until(lambda: len(tree.descendants(spared)) == 4, what="the spared")
    before = sorted([spared, *tree.descendants(spared)])
    tree.kill_all_below(os.getpid(), frozenset([spared]))
    return sorted(living()) == before, has_ended(doomed)


def test_who_is_spared_is_spared_with_all_below():
    assert apart(some_spared) == [True, True]


def zombie():
    process = subprocess.Popen(["sh", "-c", "exit 0"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    before = Path(f"/proc/{process.pid}/stat").exists(), tree.alive(process.pid)
    tree.kill_all_below(os.getpid())
    return [*before, process.wait(), tree.alive(process.pid)]


def test_a_zombie_is_not_alive():
    assert apart(zombie) == [True, False, 0, False]


def with_a_misleading_name():
    """Its name is that of a zombie's line in /proc/PID/stat."""
    program = "import signal; open('/proc/self/comm', 'w').write('x) Z 1 '); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", program])
    stat = Path(f"/proc/{process.pid}/stat")
    wait_until(lambda: "(x) Z 1 )" in stat.read_text(), what="its name")
    alive = tree.alive(process.pid)
    tree.kill_all_below(os.getpid())
    return alive, process.wait()


def test_the_state_of_a_process_does_not_depend_on_its_name():
    assert apart(with_a_misleading_name) == [True, -signal.SIGKILL]


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
    tree.kill_all_below(os.getpid())
    over.set()
    thread.join()
    return found == pids, has_ended(pids[0])


def test_the_children_of_every_thread_are_found():
    assert apart(children_of_threads) == [True, True]


def signals_to_nobody():
    process = subprocess.Popen(["sh", "-c", "exit 0"], start_new_session=True)
    process.wait()
    tree.send(process.pid, signal.SIGTERM)
    tree.send_group(process.pid, signal.SIGTERM)
    tree.kill_all_below(process.pid)
    return tree.children(process.pid), tree.descendants(process.pid), tree.alive(process.pid)


def test_who_is_gone_can_be_sent_signals_and_has_no_children():
    assert apart(signals_to_nobody) == [[], [], False]
