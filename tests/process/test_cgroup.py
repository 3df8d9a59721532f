"""Cgroups: made, emptied and removed, and what a master that is dead has left, too."""

import contextlib
import ctypes
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from psched.process import cgroup, tree
from psched.process.cgroup import Cgroup, MasterCgroup, UnavailableError, own_path
from psched.process.spawn import spawn
from support.bench import Bench
from support.cgroups import below, cgroup_of, leave, members, own_cgroup, populated
from support.isolated import isolated, say, started_isolated
from support.process_trees import SCRIPTS
from support.processes import kill
from support.waiting import PATIENCE, wait_for_end, wait_until


@pytest.fixture
def group():
    """A cgroup for what the test runs isolated."""
    with own_cgroup("cgroup") as made:
        yield made


def enter(group):
    Path(group, "cgroup.procs").write_text("0")


def planted(group, cgroup, script):
    """Start a tree in a cgroup, from outside."""
    enter(cgroup.path)
    root = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL)
    enter(group)
    wait_until(lambda: tree.children(root.pid) or root.poll() is not None, what="the tree")
    return root


# --- one -----------------------------------------------------------------------------


def killed(group, script, kept):
    enter(group)
    leaf = Cgroup(Path(group)).below("leaf", kept=kept)
    planted(group, leaf, script)
    before = leaf.populated, leaf.pids != []
    leaf.kill()
    empty = leaf.wait_until_empty(20)
    after = leaf.populated, leaf.pids
    leaf.remove()
    return [*before, empty, *after]


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in ("daemons", "comet")])
@pytest.mark.parametrize("kept", [False, True])
def test_nothing_is_left_of_a_tree(group, name, kept):
    assert isolated(killed, str(group), SCRIPTS[name], kept) == [True, True, True, False, []]
    assert below(group) == []


def killed_without_its_root(group, script):
    enter(group)
    leaf = Cgroup(Path(group)).below("leaf")
    planted(group, leaf, script).wait()
    before = leaf.populated
    leaf.kill()
    empty = leaf.wait_until_empty(20)
    leaf.remove()
    return before, empty, leaf.pids


def test_those_who_have_fled_from_their_parents_are_reached(group):
    assert isolated(killed_without_its_root, str(group), SCRIPTS["daemons"]) == [True, True, []]
    assert below(group) == []


def with_further_ones(group):
    enter(group)
    leaf = Cgroup(Path(group)).below("leaf")
    planted(group, leaf.below("further").below("still"), SCRIPTS["subprocesses"])
    held = len(leaf.pids) > 1, leaf.members, leaf.wait_until_empty(0.1)
    leaf.kill()
    leaf.wait_until_empty(20)
    leaf.remove()
    return held


def test_cgroups_that_a_task_has_made_below_its_own_go_with_it(group):
    assert isolated(with_further_ones, str(group)) == [True, [], False]
    assert below(group) == []


def gone(group):
    leaf = Cgroup(Path(group)).below("leaf")
    leaf.remove()
    leaf.kill()
    leaf.remove()
    return leaf.populated, leaf.pids, leaf.wait_until_empty(1)


def test_one_that_somebody_has_removed_is_empty(group):
    assert isolated(gone, str(group)) == [False, [], True]


# --- the master's --------------------------------------------------------------------


def masters(group):
    enter(group)
    with contextlib.closing(MasterCgroup()) as made:
        name = f"psched.{os.getpid()}.{tree.start_time(os.getpid())}"
        return made.path.name == name, cgroup_of(os.getpid()) == f"/{Path(group).name}"


def test_the_master_makes_one_removes_it_and_stays_outside(group):
    found = isolated(masters, str(group))
    assert found[0]
    assert below(group) == []


def refusal():
    with pytest.raises(UnavailableError) as caught:
        MasterCgroup()
    return str(caught.value)


def without_delegation(group, *, mark):
    """As under systemd: in a view of the files of our own, where /run is systemd's."""
    enter(group)
    private_files()
    mount("tmpfs", "/run", "tmpfs", 0)
    Path("/run/systemd/system").mkdir(parents=True)
    os.removexattr(group, "user.delegate")
    if mark is not None:
        os.setxattr(group, mark, b"1")
        with contextlib.closing(MasterCgroup()):
            return below(Path(group)) != []
    return refusal()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    0x20000,
    1,
    32,
    4096,
    16384,
    1 << 18,
)


def private_files():
    assert LIBC.unshare(CLONE_NEWNS) == 0
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def mount(source, target, kind, flags):
    names = [None if text is None else text.encode() for text in (source, target, kind)]
    assert LIBC.mount(*names, ctypes.c_ulong(flags), None) == 0, os.strerror(ctypes.get_errno())


def not_delegated(group):
    return without_delegation(group, mark=None)


def delegated(group, mark):
    return without_delegation(group, mark=mark)


@as_root
def test_what_systemd_has_not_delegated_is_left_alone(group):
    assert isolated(not_delegated, str(group)) == f"systemd has not delegated {group}"
    assert below(group) == []


@as_root
@pytest.mark.parametrize("mark", ["user.delegate", "trusted.delegate"])
def test_what_systemd_has_delegated_is_used(group, mark):
    assert isolated(delegated, str(group), mark)
    assert below(group) == []


def read_only(group):
    enter(group)
    private_files()
    top = str(Path(group).parent)
    mount(None, top, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
    return refusal()


@as_root
def test_what_cannot_be_written_to_is_not_used(group):
    assert "be written to" in isolated(read_only, str(group))


def unseen(group):
    enter(group)
    private_files()
    mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0)
    return refusal()


@as_root
def test_what_cannot_be_seen_is_not_used(group):
    assert "can be seen from here" in isolated(unseen, str(group))


# --- what a dead master has left -----------------------------------------------------


def left_behind(group, script):
    """Die with a tree in a run's cgroup; the worker died before."""
    enter(group)
    made = MasterCgroup()
    leaf = made.below("worker").below("run-1")
    enter(leaf.path)
    subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True)
    enter(group)
    wait_until(lambda: leaf.pids, what="the tree")
    say("left", made.path.name)
    kill(os.getpid())


def next_master(group):
    enter(group)
    with contextlib.closing(MasterCgroup()) as made:
        return below(Path(group)) == [made.path.name]


@pytest.mark.parametrize("name", ["daemons", "weed", "deaf"])
def test_what_a_killed_master_has_left_is_killed_and_removed(group, name):
    with started_isolated(left_behind, str(group), SCRIPTS[name]) as dead:
        old = dead.said("left")
        dead.wait()
        assert old in below(group)
        assert populated(group / old)
        with started_isolated(next_master, str(group)) as new:
            assert new.result() is True
            assert "left by a master that is dead" not in "".join(below(group))
    assert below(group) == []


def master_after_a_zombie(group, script):
    """The dead master's parent, this process, does not reap it."""
    enter(group)
    dead, _link = spawn(lambda _link: left_behind(group, script))
    wait_for_end(dead)
    with contextlib.closing(MasterCgroup()) as made:
        state = Path(f"/proc/{dead}/stat").read_text().rpartition(")")[2].split()[0]
        return state, below(Path(group)) == [made.path.name]


@pytest.mark.parametrize("name", ["daemons", "deaf"])
def test_a_killed_master_that_nobody_has_reaped_is_dead(group, name):
    assert isolated(master_after_a_zombie, str(group), SCRIPTS[name]) == ["Z", True]
    assert below(group) == []


def alive(group):
    enter(group)
    with contextlib.closing(MasterCgroup()) as made:
        planted(group, made.below("worker"), "sleep 1000 & exec sleep 1000")
        say("made", made.path.name)
        wait_until(lambda: not members(made.path), what="its end")


def test_what_belongs_to_a_living_master_is_left_alone(group):
    with started_isolated(alive, str(group)) as other:
        name = other.said("made")
        assert isolated(next_master, str(group)) is False
        assert name in below(group)
        assert len(members(group / name)) == 2
        (group / name / "cgroup.kill").write_text("1")
        other.result()
    assert below(group) == []


def locked_only(group):
    """Its name says that it is dead, its lock that it lives: in another pid namespace."""
    enter(group)
    path = Path(group) / "psched.1.1"
    path.mkdir()
    number = os.open(path, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    with contextlib.closing(MasterCgroup()):
        kept = path.exists()
    os.close(number)
    with contextlib.closing(MasterCgroup()):
        return kept, path.exists()


def test_a_lock_speaks_for_a_master_that_cannot_be_seen(group):
    assert isolated(locked_only, str(group)) == [True, False]
    assert below(group) == []


# --- runs ----------------------------------------------------------------------------


def leaves_its_cgroup(task):
    """Only root can do that."""
    enter(task.data["group"])
    subprocess.Popen(["sh", "-c", SCRIPTS["daemons"]], stdin=subprocess.DEVNULL).wait()


def disowns(_task):
    """Its orphans do not come to it any more, but to its worker: prctl(2)."""
    LIBC.prctl(36, 0, 0, 0, 0)
    subprocess.Popen(["sh", "-c", SCRIPTS["daemons"]], stdin=subprocess.DEVNULL).wait()


def nothing(_task):
    pass


HANDLERS = {"leaves_its_cgroup": leaves_its_cgroup, "disowns": disowns, "nothing": nothing}


def ran(group, *types):
    """Run tasks, one after another, in one runner if that is clean after each."""
    # What is killed may take as long to die as the machine needs.
    tree._DYING = tree._LONGEST = PATIENCE
    enter(group)
    pids, left = [], []
    with contextlib.closing(MasterCgroup()) as master:
        worker = master.below("worker")
        bench = Bench(HANDLERS, cgroup=worker, max_tasks_per_child=1000)
        for type_ in types:
            task = bench.start(type_, group=group)
            bench.until(lambda task=task: task.empty)
            pids.append(task.runner.pid)
            runners = {cgroup_of(pid) for pid in bench.pool._alive}
            known = [os.getpid(), bench.server, *bench.pool._alive]
            found = {*tree.living_below(os.getpid()), *members(worker.path)}.difference(known)
            left += [pid for pid in found if cgroup_of(pid) not in runners]
        bench.close()
        leave(worker, group)
    return [pids[0] == pid for pid in pids], left


def test_who_leaves_its_cgroup_is_found_by_walking(group):
    assert isolated(ran, str(group), "leaves_its_cgroup", "nothing") == [[True, True], []]
    assert below(group) == []


def test_a_runner_that_leaves_something_in_its_cgroup_is_not_used_again(group):
    assert isolated(ran, str(group), "nothing", "disowns", "leaves_its_cgroup") == [
        [True, True, False],
        [],
    ]
    assert below(group) == []


def nests(_task):
    (own_path() / "mine").mkdir()


def dies(_task):
    kill(os.getpid())


def cgroups(group, *types):
    """The cgroups of runners, by name, each of which runs one task."""
    handlers = {"nothing": nothing, "nests": nests, "dies": dies}
    enter(group)
    found = []
    with contextlib.closing(MasterCgroup()) as master:
        worker = master.below("worker")
        bench = Bench(handlers, cgroup=worker)
        for type_ in types:
            task = bench.start(type_)
            found.append(task.runner.cgroup.path.name)
            bench.finish(task)
        bench.close()
        leave(worker, group)
    return found


def test_a_cgroup_is_used_again_as_long_as_it_is_as_new(group):
    types = ["nothing", "nothing", "nests", "nothing", "dies", "nothing"]
    names = ["run-1", "run-1", "run-1", "run-2", "run-2", "run-3"]
    assert isolated(cgroups, str(group), *types) == names
    assert below(group) == []


def full(group):
    """There may be no more cgroups below: two for the master and its worker, one for a run."""
    Path(group, "cgroup.max.descendants").write_text("3")
    enter(group)
    with contextlib.closing(MasterCgroup()) as master:
        worker = master.below("worker")
        bench = Bench({"run": lambda _task: None}, cgroup=worker, log_file="log")
        tasks = [bench.start("run", key) for key in "abc"]
        for task in tasks:
            bench.until(lambda task=task: task.empty)
        bench.pool.dismiss()
        bench.until(lambda: not bench.tasks.links)
        leave(worker, group)
    return [str(task.conclusion) for task in tasks], Path("log").read_text()


def test_a_run_for_which_there_is_no_cgroup_runs_without(group):
    conclusions, log = isolated(full, str(group))
    assert conclusions == ["Finish()"] * 3
    assert log.count("runners have no cgroups of their own: ") == 1
    assert below(group) == []


# --- what tasks can make -------------------------------------------------------------


@pytest.mark.extended
def test_cgroups_in_any_depth_are_removed(tmp_path):
    deep = top = tmp_path / "run-1"
    deep.mkdir()
    for _ in range(1500):
        deep /= "x"
        deep.mkdir()
    made = Cgroup(top)
    assert made.pids == []
    made.remove()
    assert not top.exists()


def test_cgroups_of_any_name_are_removed(tmp_path):
    left = tmp_path / "psched.1.1"
    for name in (b"host-0123abcd", b"\xff\xfe", b"a b", "ü".encode(), b"x" * 200):
        os.makedirs(os.path.join(os.fsencode(left), name))  # noqa: PTH103, PTH118  # bytes
    cgroup._clear(left, 0.0)
    assert not left.exists()
