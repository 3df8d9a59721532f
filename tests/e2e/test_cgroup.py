"""Tasks in cgroups of their own: whatever ends them, nothing is left, of processes or cgroups."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from support.cgroups import below, cgroup_of, members, own_cgroup, populated
from support.process_trees import SCRIPTS
from support.processes import children, descendants, kill, runners, title
from support.run_log import never_two_at_once
from support.waiting import has_ended, wait_for_end, wait_for_text, wait_until

pytestmark = pytest.mark.extended

ESCAPES = "echo 0 >{}/cgroup.procs; " + SCRIPTS["daemons"] + "; sleep 1000"


@pytest.fixture
def group():
    """A cgroup for the masters of a test."""
    with own_cgroup("e2e") as made:
        yield made


@pytest.fixture
def walking(service):
    """A service without cgroups."""
    service.configure(alive_time=60, kill_timeout=0, graceful_timeout=0, graceful_kill_limit=1)
    return service


@pytest.fixture(params=["walk", "cgroup"])
def start(request, walking):
    """A function that starts a master, which has cgroups or has not."""
    if request.param == "walk":
        yield walking.start
        return
    with own_cgroup("e2e") as made:
        walking.configure(cgroup="on")
        yield lambda: started(walking, made)
        assert below(made) == []


def started(service, group, *arguments, **options):
    """Start a master in a cgroup."""
    enter = f'echo 0 >{group}/cgroup.procs && exec "$@"'
    command = [*service.master_command, "-c", service.config.name, *arguments]
    return service.start("/bin/sh", "-c", enter, "sh", *command, **options)


def add(service, key, script, **fields):
    """Add a task that runs a script, and goes on for as long as that does."""
    data = {"command": ["/bin/sh", "-c", script]}
    service.add(key, "exec", data=data, **fields)


def strangers(master):
    """What came of a master, but is not psched's own."""
    return [pid for pid in master.descendants if not is_ours(pid)]


def sessions(pids):
    found = set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found.add(os.getsid(pid))
    return found


def is_ours(pid):
    shown = title(pid)
    # The last is a program runner that has no title yet, because its interpreter just begins.
    ours = "psched.cli.daemon.master", "A process that runs programs for tasks"
    return shown.startswith("psched ") or any(part in shown for part in ours)


def is_of_attempt(number, pid):
    """Whether a process that is alive belongs to this attempt of a task's."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"PSCHED_ATTEMPT=%d" % number in environment and not has_ended(pid)


def runner(master):
    """The runner that has started something."""
    return busy_runners(master, 1)[0]


def busy_runners(master, number):
    """The runners that have started something, as soon as there are so many."""

    def found():
        below_workers = [pid for worker in master.workers() for pid in runners(worker)]
        busy = [pid for pid in below_workers if children(pid)]
        return busy if len(busy) >= number else []

    return wait_until(found, what=f"{number} tasks that have started something")


FLEEING = ("storm", "comet", "weed", "meteors")
"""Scripts that fork as fast as they can: each has the machine for itself."""

TOGETHER = [tuple(name for name in SCRIPTS if name not in FLEEING), *((name,) for name in FLEEING)]

each_script = pytest.mark.parametrize("names", TOGETHER, ids=["others", *FLEEING])


def add_scripts(service, names):
    """Add a task for each of these scripts, which run at the same time."""
    service.configure(concurrency=len(names))
    for name in names:
        add(service, name, SCRIPTS[name] + "; sleep 1000", retry_wait=600)


# --- ends ----------------------------------------------------------------------------


@each_script
def test_nothing_is_left_of_a_killed_workers_tasks_when_they_run_again(walking, start, names):
    service = walking
    add_scripts(service, names)
    master = start()
    busy = busy_runners(master, len(names))
    before = {*busy, *(pid for each in busy for pid in descendants(each))}
    [worker] = master.workers()

    kill(worker)

    for name in names:
        master.wait_for_log(f"{name}: released, its worker has died")
    assert all(has_ended(pid) for pid in before)
    for name in names:
        service.wait_for_row(name, lambda seen: seen.row.attempt == 2)
    assert [pid for pid in master.descendants if is_of_attempt(1, pid)] == []
    assert master.stop(signal.SIGQUIT) == 0
    wait_until(lambda: not strangers(master), what="the end of all that the task has started")
    assert master.descendants == []


@each_script
def test_nothing_is_left_of_a_task_whose_runner_was_killed(walking, start, names):
    service = walking
    add_scripts(service, names)
    master = start()

    for each in busy_runners(master, len(names)):
        kill(each)

    for name in names:
        service.wait_for_row(name, lambda seen: "killed by SIGKILL" in (seen.row.reason or ""))
    assert strangers(master) == []
    assert master.stop() == 0
    assert master.descendants == []


@pytest.mark.parametrize("name", ["daemons", "deaf", "regrouped"])
def test_nothing_is_left_of_a_task_that_has_finished(walking, start, name):
    service = walking
    script = SCRIPTS[name].removesuffix("sleep 1000").removesuffix("; ") + "\nexit 0"
    add(service, "s", script)
    master = start()
    service.wait_for_finish("s")
    assert strangers(master) == []
    assert master.stop() == 0
    assert master.descendants == []


# --- cgroups -------------------------------------------------------------------------


@pytest.mark.landing
def test_each_run_and_each_worker_has_a_cgroup_and_the_master_stays_where_it_was(walking, group):
    service = walking
    service.configure(cgroup="auto", processors=2)
    for key in "one", "two":
        service.add(key, data={"until": "gate", "processes": ["child", "daemon"]})
    master = started(service, group)
    assert cgroup_of(master.pid) == f"/{group.name}"

    places = []
    for key in "one", "two":
        run = service.runs.wait(key, lambda runs: len({n["pid"] for n in runs[-1].notes}) == 3)[-1]
        [place] = {cgroup_of(note["pid"]) for note in run.notes}
        assert re.fullmatch(rf"{cgroup_of(run.worker)}/run-\d+", place)
        places.append(place)
    assert len({*places, *map(cgroup_of, master.workers())}) == 4
    assert f"/psched.{master.pid}." in places[0]
    master.wait_for_log(rf"each task runs in a cgroup of its own, below {group}/psched")

    service.open_gate("gate")
    for key in "one", "two":
        service.wait_for_finish(key)
    old = {*below(group)}
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    wait_until(lambda: len(master.workers()) == 2, what="the end of the old workers")
    wait_until(lambda: len(old & {*below(group)}) == 1, what="the end of the old cgroups")
    assert master.stop() == 0
    assert below(group) == []


@pytest.mark.parametrize("name", ["daemons", "weed", "deaf"])
def test_a_master_finds_what_one_that_was_killed_with_all_its_workers_has_left(
    walking, group, name
):
    service = walking
    service.configure(cgroup="auto")
    add(service, "s", SCRIPTS[name] + "; sleep 1000", retry_wait=600)
    dead = started(service, group)
    # Its first process dies with the runner; those in sessions of their own do not.
    wait_until(lambda: len(sessions(strangers(dead))) > 1, what="a daemon of the task's")
    workers = dead.workers()
    for pid in workers:
        kill(pid, signal.SIGSTOP)
    dead.send(signal.SIGKILL)
    for pid in workers:
        kill(pid)
    dead.wait()
    [old] = [path for path in group.iterdir() if path.is_dir()]
    assert populated(old)

    master = started(service, group)

    assert not old.exists()
    master.wait_for_log(re.escape(f"{old}: left by a master that is dead; killing all"))
    assert f"psched.{dead.pid}." in old.name
    dead.wait_until_nothing_is_left()
    # Its lease has most of a minute to run.
    master.wait_for_log("s: released, its worker has died")
    assert master.stop() == 0
    assert below(group) == []


def daemon(service, group):
    """Start a daemon below a process 1 that reaps no orphan; its pid, and that process's tree."""
    shell = started(service, group, "--daemon", "pid", generation=0, leave_zombies=True)
    assert shell.wait() == 0, shell.text
    return int((service.folder / "pid").read_text()), shell


def killed_with_its_workers(pid):
    """Kill a master and its workers so that none has a moment to act for another."""
    workers = children(pid)
    for each in workers:
        kill(each, signal.SIGSTOP)
    for each in [pid, *workers]:
        kill(each)
    for each in [pid, *workers]:
        wait_for_end(each)
    assert Path(f"/proc/{pid}").exists(), "somebody has reaped it"


def test_a_killed_daemon_that_process_1_does_not_reap_leaves_nothing_to_the_next_ones(
    walking, group
):
    service, log = walking, walking.folder / "log"
    service.configure(cgroup="auto", log="log")
    service.add("s", data={"until": "gate", "processes": ["daemon"]})
    shells, killed = [], []
    for number in 1, 2:
        pid, shell = daemon(service, group)
        shells.append(shell)
        [*cut, run] = service.runs.wait(
            "s", lambda runs, number=number: len(runs) == number and len(pids_of(runs[-1])) == 2
        )
        assert len(killed) == len(cut)
        wait_for_text(log, f"psched.{pid}.")
        killed_with_its_workers(pid)
        killed.append(pids_of(run))
    pid, shell = daemon(service, group)
    service.runs.wait("s", lambda runs: len(runs) == 3)
    assert all(has_ended(each) for tree in killed for each in tree)
    assert log.read_text().count("s: released, its worker has died") == 2
    service.open_gate("gate")
    service.wait_for_finish("s")
    never_two_at_once(service.runs.runs())

    kill(pid, signal.SIGTERM)

    for each in [*shells, shell]:
        each.wait_until_nothing_is_left()
    assert below(group) == []


def pids_of(run):
    return {note["pid"] for note in run.notes}


def test_the_workers_of_a_killed_master_may_release_what_they_hold(walking, group):
    service = walking
    service.configure(cgroup="auto")
    service.add("s", data={"until": "gate", "processes": ["daemon"]})
    dead = started(service, group)
    service.runs.wait("s")
    dead.send(signal.SIGKILL)
    master = started(service, group)
    # A lease lasts for 60 s: nobody has waited for its end.
    service.runs.wait("s", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    service.wait_for_finish("s")
    assert master.stop() == 0
    assert below(group) == []


def test_a_task_that_leaves_its_cgroup_is_found_by_walking(walking, group):
    service = walking
    service.configure(cgroup="on")
    add(service, "s", ESCAPES.format(group), retry_wait=600)
    master = started(service, group)
    wait_until(lambda: len(members(group)) > 6, what="its processes in another cgroup")
    kill(runner(master))
    service.wait_for_row("s", lambda seen: "killed by SIGKILL" in (seen.row.reason or ""))
    assert strangers(master) == []
    assert master.stop() == 0
    assert below(group) == []


def test_a_worker_and_a_run_without_a_cgroup_cost_no_task(walking, group):
    service = walking
    service.configure(cgroup="on", processors=2, concurrency=2)
    for key in "abcd":
        service.add(key, data={"processes": ["daemon"]})
    # One for the master, one for a worker, and one for a runner.
    (group / "cgroup.max.descendants").write_text("3")
    master = started(service, group)
    for key in "abcd":
        service.wait_for_finish(key)
    assert strangers(master) == []
    assert re.search("(workers|runners) have no cgroups of their own: ", master.text)
    assert master.stop() == 0
    assert below(group) == []


# --- the setting ---------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
AS_UNDER_SYSTEMD = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && "


def undelegated(service, group, **options):
    """Start a master as on a host of systemd's that has not delegated this cgroup."""
    os.removexattr(group, "user.delegate")
    inner = f'{AS_UNDER_SYSTEMD}echo 0 >{group}/cgroup.procs && exec "$@"'
    command = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", inner, "sh"]
    words = [*service.master_command, "-c", service.config.name]
    return service.start(*command, *words, **options)


@as_root
@pytest.mark.landing
def test_what_must_be_and_cannot_is_refused_with_the_mend(walking, group):
    walking.configure(cgroup="on")
    master = undelegated(walking, group, generation=0)
    assert master.wait() == 78
    [line] = [line for line in master.text.splitlines() if "cgroup: " in line]
    assert f"systemd has not delegated {group}; set Delegate=yes" in line
    assert below(group) == []


@as_root
def test_what_may_be_and_cannot_is_done_without(walking, group):
    service = walking
    service.configure(cgroup="auto")
    service.add("s", data={"processes": ["daemon"]})
    master = undelegated(service, group)
    master.wait_for_log(rf"without cgroups: systemd has not delegated {group}")
    service.wait_for_finish("s")
    assert below(group) == []
    assert master.stop() == 0


def test_without_the_wish_there_is_none(walking, group):
    master = started(walking, group)
    assert below(group) == []
    assert "cgroup" not in master.text
    assert master.stop() == 0


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_program_has_them_too(walking, group, mode):
    service = walking
    service.write(
        "program.py",
        f"""
        import recorder, psched
        psched.Worker.run(recorder.Dispatch, lambda: {{**SETTINGS, "cgroup": "{mode}"}})
        """.replace("SETTINGS", repr({"url": service._settings["url"], "poll_interval": 0.2})),
    )
    service.add("s", data={"until": "gate"})
    enter = f'echo 0 >{group}/cgroup.procs && exec "$@"'
    master = service.start(*["/bin/sh", "-c", enter, "sh", *service.master_command, "program.py"])
    [run] = service.runs.wait("s")
    assert cgroup_of(run.pid).rpartition("/")[2].startswith("run-") is (mode == "auto")
    service.open_gate("gate")
    service.wait_for_finish("s")
    assert master.stop() == 0
    assert below(group) == []


def test_a_worker_that_is_frozen_is_killed_by_the_kernel_before_its_lease_ends(walking, group):
    service = walking
    service.configure(cgroup="on", alive_time=6)
    service.add("s", data={"until": "gate", "processes": ["child", "daemon"]})
    master = started(service, group)
    service.runs.wait("s", lambda runs: len({note["pid"] for note in runs[0].notes}) == 3)
    [worker] = master.workers()
    [cgroup] = [path.parent for path in group.rglob("run-*")][:1]

    (cgroup / "cgroup.freeze").write_text("1")

    # Long before the master would miss its signs of life.
    master.wait_for_log(rf"worker 0 \(gen 1\), pid {worker}, was killed by its lease timer")
    service.runs.wait("s", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    service.wait_for_finish("s")
    never_two_at_once(service.runs.runs())
    assert master.stop() == 0
    assert below(group) == []


@pytest.mark.monitor
def test_the_monitor_has_a_leaf_of_its_own_which_goes_with_it(walking, group):
    service = walking
    service.configure(cgroup="on")
    master = started(service, group)
    [masters_own] = [path for path in group.iterdir() if path.name.startswith("psched.")]

    def leaf_of(monitor):
        return Path(f"/proc/{monitor}/cgroup").read_text().strip().rpartition("/")[2]

    first = master.wait_for_monitor()
    wait_until(lambda: leaf_of(first).startswith("monitor-"), what="its cgroup")
    assert (masters_own / "cgroup.procs").read_text() == ""
    left = leaf_of(first)
    kill(first)
    second = master.wait_for_monitor(other_than=first)
    wait_until(lambda: leaf_of(second).startswith("monitor-"), what="the next cgroup")
    assert not (masters_own / left).exists()

    assert master.stop() == 0
    assert below(group) == []
