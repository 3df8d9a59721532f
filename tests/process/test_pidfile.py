"""A pid file that is never stale: what counts is the lock on it."""

import os
import signal
from pathlib import Path

import pytest

from psched.master.pidfile import AlreadyRunningError, PidFile
from psched.process.spawn import spawn
from support.isolated import say, started_isolated
from support.odd_files import EMPTY, KINDS, leave
from support.processes import kill
from support.waiting import has_ended


def holder(path):
    PidFile(Path(path)).acquire()
    say("taken")
    signal.pause()


def taken(path):
    """Take it, as the next master would, and give it back; what was in it."""
    pid_file = PidFile(path)
    pid_file.acquire()
    content = path.read_text()
    pid_file.release()
    return content


@pytest.fixture
def path(tmp_path):
    return tmp_path / "psched.pid"


def test_it_holds_the_pid_while_it_is_held_and_is_gone_afterwards(path):
    assert taken(path) == f"{os.getpid()}\n"
    assert not path.exists()


def test_a_second_taker_is_refused_and_told_who_holds_it(path):
    with started_isolated(holder, str(path)) as process:
        process.said("taken")
        with pytest.raises(AlreadyRunningError, match=rf"pid {process.pid}$"):
            PidFile(path).acquire()
        # The refusal has taken nothing away.
        with pytest.raises(AlreadyRunningError):
            PidFile(path).acquire()
        assert path.read_text() == f"{process.pid}\n"


def test_the_file_of_a_holder_that_was_killed_can_be_taken(path):
    with started_isolated(holder, str(path)) as process:
        process.said("taken")
        kill(process.pid)
        process.wait()
        assert path.read_text() == f"{process.pid}\n"
        assert taken(path) == f"{os.getpid()}\n"


@pytest.mark.parametrize("content", ["1\n", "nonsense", "", "9" * 5000, "\0\xff"])
def test_what_is_in_an_old_file_does_not_matter(path, content):
    path.write_text(content)
    assert taken(path) == f"{os.getpid()}\n"


def holder_with_a_child(path):
    PidFile(Path(path)).acquire()
    # By other means than spawn, which takes all descriptors away.
    if child := os.fork():  # noqa: TID251
        say("child", child)
    while True:
        signal.pause()


def test_a_forked_child_does_not_keep_it_when_its_holder_dies(path):
    with started_isolated(holder_with_a_child, str(path)) as process:
        child = int(process.said("child"))
        with pytest.raises(AlreadyRunningError):
            PidFile(path).acquire()
        kill(process.pid)
        process.wait()
        assert not has_ended(child)
        assert taken(path) == f"{os.getpid()}\n"


def holder_whose_child_has_ended(path):
    PidFile(Path(path)).acquire()
    pid, link = spawn(lambda _link: 0)
    link.wait()
    os.waitpid(pid, 0)
    say("taken")
    signal.pause()


def test_the_end_of_a_forked_child_does_not_free_it(path):
    with started_isolated(holder_whose_child_has_ended, str(path)) as process:
        process.said("taken")
        with pytest.raises(AlreadyRunningError, match=rf"pid {process.pid}$"):
            PidFile(path).acquire()


@pytest.mark.parametrize("kind", EMPTY)
def test_what_a_task_has_put_in_its_place_is_removed_and_not_followed(path, kind):
    leave(kind, path)
    assert taken(path) == f"{os.getpid()}\n"
    if kind == "link to a file":
        assert path.with_name("psched.pid.precious").read_text() == "content"


@pytest.mark.parametrize("kind", ["full folder", "device"])
def test_what_may_be_somebodys_is_refused_and_stays(path, kind):
    leave(kind, path)
    with pytest.raises(OSError, match="no regular file"):
        PidFile(path).acquire()
    assert path.exists()


@pytest.mark.parametrize("kind", [*KINDS, "nothing"])
def test_what_has_taken_its_place_is_not_in_the_way_of_an_end(path, kind):
    pid_file = PidFile(path)
    pid_file.acquire()
    path.unlink()
    leave(kind, path)
    pid_file.release()
    assert os.path.lexists(path) == (kind != "nothing")


@pytest.mark.parametrize("said", ["\x1b[2J", "1" * 32 + "x", "\xff"])
def test_only_a_number_is_told_of_what_a_held_file_says(path, said):
    with started_isolated(holder, str(path)) as process:
        process.said("taken")
        path.write_text(said, encoding="latin-1")
        with pytest.raises(AlreadyRunningError, match=r"pid (unknown|1{32})$"):
            PidFile(path).acquire()


def test_what_was_never_taken_is_not_removed(path):
    path.write_text("somebody's\n")
    PidFile(path).release()
    assert path.exists()


def takers(path, times):
    """Take and release again and again; whether another held it, and what was in the file."""
    wrong = []
    won = 0
    while won < times:
        pid_file = PidFile(Path(path))
        try:
            pid_file.acquire()
        except AlreadyRunningError:
            continue
        won += 1
        # By its own descriptor: closing another one would free the lock.
        content = os.pread(pid_file._descriptor, 100, 0).decode()
        if content != f"{os.getpid()}\n" or not Path(path).exists():
            wrong.append(content)
        pid_file.release()
    return wrong


def test_of_several_takers_each_finds_itself_in_the_file_it_holds(path):
    with (
        started_isolated(takers, str(path), 300) as one,
        started_isolated(takers, str(path), 300) as two,
    ):
        assert one.result() + two.result() == []
