"""The nonces that a killed master leaves to the next."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from psched.base import regular_files
from psched.base.clock import SystemClock
from psched.master import nonce_file
from psched.master.generation_spec import GenerationSpec
from psched.master.nonce_file import NonceFile
from psched.master.workers import Workers
from psched.process import cgroup, tree
from psched.process.cgroup import Cgroup, MasterCgroup
from psched.process.child import SystemSpawner
from psched.process.spawn import spawn
from psched.testing import MasterDriver
from support.cgroups import below, own_cgroup
from support.isolated import isolated
from support.odd_files import KINDS, leave
from support.waiting import wait_for_end, wait_until

HERE = "boot 1 2 /here"
DEAD = "4194305.1"
"""A pid that is never used."""


@pytest.fixture
def make(tmp_path):
    """A function that makes the file of a master, by default one that is dead."""

    def make(place=HERE, *, folder=tmp_path, master=DEAD, group="group"):
        made = NonceFile(folder, place, Cgroup(tmp_path / group), SystemClock())
        made._name = f"nonces.{master}"
        return made

    return make


@pytest.fixture
def ours(make):
    """The file of this process."""

    def ours(place=HERE, **options):
        return make(place, master=f"{os.getpid()}.{tree.start_time(os.getpid())}", **options)

    return ours


def record(file, *nonces, own=True):
    for nonce in nonces:
        file.add(nonce, own_cgroup=own)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def make_cgroup(path, *, populated=(), pids=()):
    """What looks like a cgroup with these processes."""
    path.mkdir(parents=True)
    (path / "cgroup.events").write_text(f"populated {int(bool(populated or pids))}\nfrozen 0\n")
    (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_what_is_written_is_inherited_once_by_the_next_in_the_same_place(tmp_path, make, ours):
    dead = make()
    record(dead, "a", "b", "c")
    dead.remove(["c", "unknown"])
    for place in "boot 1 2 /elsewhere", "boot 1 3 /here", "boot 2 2 /here":
        assert ours(place).inherit() == []

    next_one = ours()
    assert next_one.inherit() == ["a", "b"]
    # Now they are that one's to release.
    [name] = names(tmp_path)
    assert name == next_one._name
    assert ours().inherit() == []
    Path(tmp_path, name).rename(tmp_path / f"nonces.{DEAD}")
    assert ours().inherit() == ["a", "b"]


def test_a_file_that_lists_nothing_is_removed(tmp_path, make):
    file = make()
    record(file, "a")
    file.remove(["a"])
    assert names(tmp_path) == []


def test_two_masters_that_share_a_folder_do_not_touch_each_others(tmp_path, make, ours):
    one, other = ours("boot 1 2 /one"), make("boot 1 2 /other")
    record(one, "a")
    record(other, "b")
    assert (one.inherit(), other.inherit()) == (["a"], ["b"])
    one.remove(["a"])
    assert names(tmp_path) == [f"nonces.{DEAD}"]
    other.remove(["b"])
    assert names(tmp_path) == []


def test_a_living_master_keeps_what_is_its(make, ours):
    record(ours(), "a")
    assert make().inherit() == []


def test_files_from_before_the_last_boot_are_removed(tmp_path, make, ours):
    record(make("before 1 2 /here"), "a")
    record(make("before 7 7 /elsewhere", master="4194306.1"), "a")
    assert ours().inherit() == []
    assert names(tmp_path) == []


def test_a_nonce_is_inherited_once_its_own_cgroup_is_empty_or_gone(tmp_path, make, ours):
    file = make()
    record(file, "gone", "empty", "lives")
    make_cgroup(tmp_path / "group" / f"psched.{DEAD}" / "empty")
    make_cgroup(tmp_path / "group" / f"psched.{DEAD}" / "lives", populated=[7])
    assert ours().inherit() == ["empty", "gone"]
    # What was left is found by a later one.
    (tmp_path / "group" / f"psched.{DEAD}" / "lives" / "cgroup.events").write_text("populated 0\n")
    assert "lives" in ours().inherit()
    assert not (tmp_path / f"nonces.{DEAD}").exists()


def test_a_stop_removes_what_no_later_master_will_inherit(tmp_path, make, ours):
    record(make(master="4194305.1"), "a", own=False)
    record(make(master="4194306.1"), "b", own=True)
    make_cgroup(tmp_path / "group" / "psched.4194306.1" / "b", populated=[7])
    record(make("boot 1 2 /elsewhere", master="4194307.1"), "c", own=False)
    this = ours()
    assert this.inherit() == []
    this.clear()
    assert names(tmp_path) == ["group", "nonces.4194306.1", "nonces.4194307.1"]


def test_the_workers_of_three_large_generations_are_inherited(make, ours):
    nonces = [f"a-host-with-a-long-name1-{number:016x}" for number in range(3000)]
    file = make()
    file._in_own_cgroup = dict.fromkeys(nonces, True)
    file.add("last", own_cgroup=True)
    assert ours().inherit() == [*nonces, "last"]


def test_files_without_end_do_not_keep_a_worker_busy_without_end(tmp_path, ours):
    for number in range(10):
        lines = "".join(f"{number}-{line} own\n" for line in range(2000))
        (tmp_path / f"nonces.419430{number}.1").write_text(f"{HERE}\n{lines}")
    assert len(ours().inherit()) == 4000
    # The next start finds the others.
    assert len(names(tmp_path)) == 8 + 1


@pytest.mark.parametrize(
    ("pids", "found"), [([os.getpid()], ["own", "shared"]), ([os.getpid(), 1], ["own"])]
)
def test_one_that_shared_its_masters_cgroup_is_inherited_by_who_is_alone_there(
    tmp_path, make, ours, pids, found
):
    file = make()
    record(file, "own")
    record(file, "shared", own=False)
    make_cgroup(tmp_path / "group", pids=pids)
    assert ours().inherit() == found


def test_where_cgroups_cannot_be_seen_nothing_is_inherited(tmp_path, make):
    record(make(), "own")
    record(make(), "shared", own=False)
    assert NonceFile(tmp_path, HERE, None, SystemClock()).inherit() == []


def test_a_folder_that_is_gone_is_said_and_costs_nothing(tmp_path, make, caplog):
    record(make(folder=tmp_path / "gone"), "a")
    assert "its tasks wait for alive_time" in caplog.text


@pytest.mark.parametrize("kind", [*KINDS, "bytes", "names", "long", "nothing", "too much", "place"])
def test_what_a_task_leaves_beside_it_is_removed_and_stops_nobody(tmp_path, make, ours, kind):
    left = tmp_path / "nonces.7.7"
    content = {
        "bytes": b"boot 1 2 /here\n\xff\xfe\n",
        "names": b"boot 1 2 /here\nnonce\n../\x1b[2J\n",
        # A worker would refuse the message that tells it to release this one.
        "long": b"boot 1 2 /here\n" + b"n" * 65 + b" own\n",
        "nothing": b"",
        "too much": b"boot 1 2 /here\n" + b"nonce\n" * 100_000,
        "place": b"/here\nnonce\n",
    }
    if kind in content:
        left.write_bytes(content[kind])
    else:
        leave(kind, left)
    record(make(), "a")
    assert ours().inherit() == ["a"]
    assert not os.path.lexists(left)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_where_it_is_to_be_written_is_replaced(tmp_path, make, ours, kind):
    dead = make()
    for name in dead._name, f".{dead._name}":
        leave(kind, tmp_path / name)
    record(dead, "a")
    assert ours().inherit() == ["a"]
    leave(kind, tmp_path / dead._name)
    dead.remove(["a"])
    assert not os.path.lexists(tmp_path / dead._name)


def test_it_is_kept_whoever_has_started_the_master(tmp_path):
    record(nonce_file.make({"RUNTIME_DIRECTORY": f"{tmp_path}:/other"}, SystemClock()), "a")
    assert len(names(tmp_path)) == 1


@pytest.mark.parametrize("kind", ["nothing", *KINDS])
def test_a_master_writes_it_again_when_a_task_has_removed_or_replaced_it(tmp_path, kind):
    with closing(MasterDriver(processors=2)) as driver:
        file = driver.workers._nonce_file = NonceFile(tmp_path, HERE, None, driver.clock)
        driver.boot()
        path = tmp_path / file._name
        content = regular_files.read(path)
        path.unlink()
        if kind != "nothing":
            leave(kind, path)
        driver.advance(5)
        assert regular_files.read(path) == content  # it does not wait for a FIFO


def test_a_master_writes_it_when_there_is_room_again(tmp_path, caplog):
    with closing(MasterDriver(processors=2)) as driver:
        folder = tmp_path / "folder"
        driver.workers._nonce_file = NonceFile(folder, HERE, None, driver.clock)
        driver.boot()
        folder.mkdir()
        driver.advance(5)
        assert len(names(folder)) == 1
        driver.advance(10)
        assert "its tasks wait for alive_time: over" in caplog.text


# --- with real cgroups ---------------------------------------------------------------


@pytest.fixture
def group():
    with own_cgroup("nonces") as made:
        yield made


def leave_a_record(folder, *, own):
    """Be a master with one worker, which exits after it; the pid of the worker."""
    Path("ready").unlink(missing_ok=True)

    def master(_link):
        with_cgroup = MasterCgroup() if own else None
        file = nonce_file.make({"RUNTIME_DIRECTORY": folder}, SystemClock())
        if with_cgroup is not None:
            with_cgroup.below("nonce")
        record(file, "nonce", own=own)
        os._exit(9)

    pid, _link = spawn(master)
    wait_for_end(pid)


def inherited(folder):
    return nonce_file.make({"RUNTIME_DIRECTORY": folder}, SystemClock()).inherit()


def with_cgroups(group, folder):
    Path(group, "cgroup.procs").write_text("0")
    leave_a_record(folder, own=True)
    made = MasterCgroup()
    found = inherited(folder), names(Path(folder))
    made.close()
    return found[0], len(found[1])


def test_after_the_masters_cgroup_was_cleared_its_nonces_are_inherited(group, tmp_path):
    assert isolated(with_cgroups, str(group), str(tmp_path)) == [["nonce"], 1]
    assert below(group) == []


def recorded(group, folder):
    """What is on file of two ready workers, of which only the first enters its cgroup."""
    Path(group, "cgroup.procs").write_text("0")
    made = MasterCgroup()
    file = nonce_file.make({"RUNTIME_DIRECTORY": folder}, SystemClock())
    numbers = iter("ab")
    workers = Workers(
        SystemClock(),
        SystemSpawner(),
        draw_nonce=lambda: next(numbers),
        keep=lambda: (),
        cgroup=made,
        nonce_file=file,
        inherited=(),
    )

    def work(link, identity):
        if identity.number == 0:
            identity.cgroup.add(0)
        link.send({"ready": None})
        link.wait()
        Path(group, "cgroup.procs").write_text("0")
        return 0

    spec = GenerationSpec(
        processors=2, work=work, clean_up=work, start_timeout=20, heartbeat_limit=20,
        graceful_timeout=0, kill_limit=0, about={},
    )  # fmt: skip
    before = names(Path(folder))
    for number in range(2):
        worker = workers.spawn(number, 1, spec)
        wait_until(worker.link.receive, what="a worker that is ready")
        workers.became_ready(worker)
    lines = Path(folder, *names(Path(folder))).read_text().splitlines()
    for worker in workers:
        worker.drain(None, 0)
    wait_until(lambda: workers.reap() and not len(workers), what="the end of both")
    made.close()
    return before, lines[1:], names(Path(folder))


def test_a_worker_counts_as_being_in_its_cgroup_when_it_is(group, tmp_path):
    assert isolated(recorded, str(group), str(tmp_path)) == [[], ["a own", "b"], []]
    assert below(group) == []


def without_cgroups(group, folder, *, alone):
    Path(group, "cgroup.procs").write_text("0")
    leave_a_record(folder, own=False)
    other = None
    if not alone:
        reading, writing = os.pipe()
        other = spawn(lambda _link: os.read(reading, 1) and 0, keep=[reading])[0]
    found = inherited(folder)
    if other is not None:
        os.write(writing, b"\n")
        wait_for_end(other)
    return found, cgroup.own_names()[0] in nonce_file.here()


def alone_again(group, folder):
    return without_cgroups(group, folder, alone=True)


def beside_another(group, folder):
    return without_cgroups(group, folder, alone=False)


def test_who_is_alone_in_the_dead_masters_cgroup_inherits(group, tmp_path):
    assert isolated(alone_again, str(group), str(tmp_path)) == [["nonce"], True]


def test_while_something_of_the_last_master_may_live_nothing_is_inherited(group, tmp_path):
    assert isolated(beside_another, str(group), str(tmp_path)) == [[], True]
