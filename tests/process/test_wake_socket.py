"""The socket on which a master gets hints, in a folder that tasks can write, too."""

import contextlib
import os
import socket
import stat
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from psched.base.clock import SystemClock
from psched.config.urls import wake_code
from psched.master import hints, waking
from psched.master.hints import HINT, HintSender, hint_folders, listed_sockets, socket_name, sockets
from psched.master.waking import Looks, WakeSocket
from psched.testing import ManualClock
from support.odd_files import KINDS, leave

CODE, OTHER = "0a1b", "0a1c"

STRANGER, GROUP, OTHERS = 65_532, 65_533, 65_534

NO_PID = 4_194_305
"""No process has it: it is greater than any pid can be."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / socket_name(os.getpid(), CODE)


@pytest.fixture
def master(tmp_path):
    """A master's socket."""
    made = WakeSocket([tmp_path], SystemClock())
    made.keep(CODE)
    yield made
    made.close()


@pytest.fixture
def folder():
    """A folder with a path so short that the kernel lists the sockets in it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def send_hint(folders, code):
    """Send one hint as a program does that has just begun."""
    HintSender(folders, code, SystemClock())()


def keep(master, code=CODE):
    master._next_check = 0.0
    master.keep(code)


def send(path, data):
    """Send a datagram; it must fit the queue."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto(data, str(path))


def test_a_hint_arrives_once(master, tmp_path):
    assert not master.take()
    send_hint([tmp_path], CODE)
    assert master.take()
    assert not master.take()


def test_many_hints_neither_block_nor_fail_and_are_one(master, tmp_path):
    for _ in range(5000):
        send_hint([tmp_path], CODE)
    while master.take():
        pass
    assert not master.take()
    send_hint([tmp_path], CODE)
    assert master.take()


@pytest.mark.parametrize("garbage", [b"", b"loo", b"looks", b"\x00" * 60_000, b"LOOK"])
def test_other_datagrams_are_dropped_and_hide_no_hint(master, path, tmp_path, garbage):
    send(path, garbage)
    assert not master.take()
    send(path, garbage)
    send_hint([tmp_path], CODE)
    send(path, garbage)
    assert master.take()


def test_one_call_reads_a_limited_number_of_datagrams(master, path, monkeypatch):
    monkeypatch.setattr(waking, "_MOST_AT_ONCE", 2)
    for data in b"garbage", b"garbage", HINT:
        send(path, data)
    assert not master.take()
    assert master.take()


def test_only_masters_of_the_table_are_woken(master, tmp_path):
    send_hint([tmp_path], OTHER)
    assert not master.take()
    keep(master, OTHER)  # after a restart with another table
    assert [code for _, code, _ in sockets(tmp_path)] == [OTHER]
    send_hint([tmp_path], OTHER)
    assert master.take()


def test_a_master_that_wants_no_hints_has_no_socket(master, tmp_path):
    keep(master, None)
    assert master.links == []
    assert not [*tmp_path.iterdir()]
    send_hint([tmp_path], CODE)
    assert not master.take()
    keep(master)
    send_hint([tmp_path], CODE)
    assert master.take()


@pytest.mark.usefixtures("master")
def test_owner_and_group_may_send_and_nobody_else(path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@contextlib.contextmanager
def another_user(group):
    """Do what follows as another user, whose only group is this one."""
    before = os.getgroups()
    os.setgroups([])
    os.setegid(group)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


@contextlib.contextmanager
def asked_as_another_user(group, arrives):
    """The folder of a master's socket, which this group may write to; then whether a hint came."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        master = WakeSocket([folder], SystemClock())
        master.keep(CODE)
        [path] = folder.iterdir()
        os.chown(path, 0, GROUP)
        with another_user(group):
            yield path
        assert bool(master.take()) == arrives
        master.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("group", "arrives"), [(GROUP, True), (OTHERS, False)])
def test_a_member_of_the_group_wakes_the_master_and_others_do_not_and_do_not_notice(group, arrives):
    with asked_as_another_user(group, arrives) as path:
        send_hint([path.parent], CODE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("group", "arrives"), [(GROUP, True), (OTHERS, False)])
def test_the_kernels_list_gives_nobody_more_rights(group, arrives):
    with asked_as_another_user(group, arrives) as path:
        assert path in [*listed_sockets(CODE)]
        send_hint([], CODE)


@pytest.mark.parametrize("name", [b"run", b"a b\xff c"])
def test_a_program_finds_a_master_whose_folder_it_does_not_know(folder, name):
    master = WakeSocket([folder / os.fsdecode(name)], SystemClock())
    master.keep(CODE)
    send_hint([folder / "elsewhere"], OTHER)
    assert not master.take()
    send_hint([folder / "elsewhere"], CODE)
    assert master.take()
    master.close()


def test_a_sender_finds_the_next_master_in_another_folder_and_lists_seldom(folder, monkeypatch):
    listings = []
    monkeypatch.setattr(hints, "listed_sockets", lambda code: listings.append(code) or listed(code))
    listed, clock = listed_sockets, ManualClock()
    send = HintSender([], CODE, clock)
    send()
    send()  # there is none, and it was searched just now
    assert len(listings) == 1
    for number in range(2):
        clock.advance(10)
        made = WakeSocket([folder / str(number)], SystemClock())
        made.keep(CODE)
        for _ in range(3):
            send()
            assert made.take()
        assert len(listings) == 2 + number
        made.close()


def test_a_dead_socket_in_a_known_folder_hides_no_master_elsewhere(folder):
    master = WakeSocket([folder], SystemClock())
    master.keep(CODE)
    known = folder / "known"
    known.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(known / socket_name(NO_PID, CODE)))
    send_hint([known], CODE)
    assert master.take()
    master.close()


def test_a_full_socket_in_a_known_folder_is_not_searched_for(master, tmp_path, monkeypatch):
    def unexpected(code):
        raise AssertionError(code)

    monkeypatch.setattr(hints, "listed_sockets", unexpected)
    send = HintSender([tmp_path], CODE, SystemClock())
    for _ in range(5000):
        send()
    assert master.take()


@pytest.mark.parametrize("kind", [*KINDS, "file", "nothing"])
def test_a_socket_that_was_removed_or_replaced_is_made_again(master, path, tmp_path, kind):
    path.unlink()
    path.write_text("") if kind == "file" else leave(kind, path)
    send_hint([tmp_path], CODE)  # it reaches nobody
    keep(master)
    assert not master.take()
    send_hint([tmp_path], CODE)
    assert master.take()


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_there_before_a_start_is_not_in_the_way(tmp_path, path, kind):
    leave(kind, path)
    stale = tmp_path / socket_name(NO_PID, CODE)
    leave(kind, stale)
    master = WakeSocket([tmp_path], SystemClock())
    master.keep(CODE)
    send_hint([tmp_path], CODE)
    assert master.take()
    master.close()
    assert not os.path.lexists(path)


def test_the_socket_of_a_master_that_was_killed_is_removed(tmp_path):
    stale = tmp_path / socket_name(NO_PID, OTHER)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(stale))
    send_hint([tmp_path], OTHER)
    master = WakeSocket([tmp_path], SystemClock())
    master.keep(CODE)
    assert not stale.exists()
    master.close()


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    folder = tmp_path / "run"
    master = WakeSocket([folder], SystemClock())
    master.keep(CODE)
    [path] = folder.iterdir()
    path.unlink()
    folder.rmdir()
    send_hint([folder], CODE)
    keep(master)
    send_hint([folder], CODE)
    assert master.take()
    master.close()


def test_without_a_folder_there_is_no_socket_and_the_log_says_so(tmp_path, caplog):
    (tmp_path / "file").touch()
    master = WakeSocket([tmp_path / "file" / "run"], SystemClock())
    for _ in range(3):
        keep(master)
    assert (master.links, master.take()) == ([], None)
    assert caplog.text.count("wakes no worker") == 1
    (tmp_path / "file").unlink()
    keep(master)
    send_hint([tmp_path / "file" / "run"], CODE)
    assert master.take()
    master.close()


@pytest.mark.parametrize("data", [HINT, b"x"])
def test_no_datagrams_keep_the_master_busy(master, path, data):
    clock = ManualClock()
    looks = Looks(master, [], clock)
    spec = SimpleNamespace(wake_code=CODE)
    looks.step(spec)
    assert looks.links
    send(path, data)
    looks.step(spec)
    assert looks.links == []
    assert looks.wakes > clock.monotonic()
    clock.advance(looks.wakes - clock.monotonic())
    assert looks.links


def test_a_link_to_the_socket_of_another_program_is_not_followed(tmp_path, path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other:
        other.bind(str(tmp_path / "other"))
        path.symlink_to(tmp_path / "other")
        send_hint([tmp_path], CODE)
        with pytest.raises(BlockingIOError):
            other.recv(10)


def test_a_long_path_is_no_hindrance(tmp_path):
    folder = tmp_path / ("x" * 120)
    master = WakeSocket([folder], SystemClock())
    master.keep(CODE)
    send_hint([folder], CODE)
    assert master.take()
    master.close()


def test_a_program_with_a_runtime_folder_of_its_own_searches_the_usual_ones_too():
    found = hint_folders({"RUNTIME_DIRECTORY": "/run/shop", "HOME": "/home/ann"})
    assert [*map(str, found)] == ["/run/shop", "/run/psched", "/home/ann/.local/state/psched"]
    assert [*map(str, hint_folders({}))] == ["/run/psched"]


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://shop:secret@127.0.0.1:3306/app?charset=utf8mb4",
        "mysql+pymysql://psched:***@localhost/app",
        "mysql+other://[::1]:3306/%61pp",
    ],
)
def test_programs_that_reach_a_database_by_different_ways_have_the_same_code(url):
    assert wake_code(url, "psched") == wake_code("mysql+pymysql://localhost/app", "psched")
    assert wake_code(url, "other") != wake_code(url, "psched")
    assert "secret" not in wake_code(url, "psched")


def test_files_in_different_folders_have_different_codes_unless_a_link_leads_there(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")

    def code(folder):
        return wake_code(f"sqlite:///{tmp_path / folder}/psched.db", "psched")

    assert code("link") == code("a") != code("b")
