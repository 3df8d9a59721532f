"""A log that is a pipe, a socket or a terminal: nobody waits for a reader that stands still."""

import fcntl
import logging
import multiprocessing
import os
import pty
import re
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from psched.base import log
from support.isolated import isolated
from support.waiting import wait_until

LOG = logging.getLogger("test")

LINES = 3000
LOGGED = "a line of some length, number %d of them, " + "." * 100


def ends(kind):
    """A reader's end, whose reads do not wait, and a writer's end."""
    if kind == "socket":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader, writer = ours.detach(), theirs.detach()
    else:
        reader, writer = pty.openpty() if kind == "terminal" else os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


def read_all(reader):
    found = bytearray()
    with suppress(BlockingIOError):
        while chunk := os.read(reader, 2**20):
            found += chunk
    return found.decode()


def noted_waits():
    """The list of seconds that lines wait for the reader at most, from now on."""
    waits, wait_for_room = [], log._wait_for_room

    def wait(descriptor, seconds):
        if seconds:
            waits.append(seconds)
        return wait_for_room(descriptor, seconds)

    log._wait_for_room = wait
    return waits


def standing(kind):
    reader, writer = ends(kind)
    os.dup2(writer, 2)
    log.start(None, "info", "writer")
    waits = noted_waits()
    for number in range(LINES):
        LOG.info(LOGGED, number)
    waited = [*waits]
    first = read_all(reader)
    LOG.info("somebody reads again")
    LOG.info("and goes on")
    return {
        "waited": waited,
        "first": first,
        "then": read_all(reader),
        "blocking": os.get_blocking(2),
    }


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_reader_that_stands_still_makes_one_line_wait_and_is_told_what_is_missing(kind):
    found = isolated(standing, kind)
    # One line waits for a tenth of a second; a few others may, if the kernel makes room late.
    assert max(found["waited"]) == 0.1
    assert sum(found["waited"]) < 1
    assert found["blocking"], "other processes have the descriptor, too"
    logged = [int(number) for number in re.findall(r"number (\d+) of", found["first"])]
    assert 0 < len(logged) < LINES
    assert logged == [*range(len(logged))]
    note, again, further = found["then"].splitlines()[-3:]
    assert "WARNING writer" in note
    [missing] = re.findall(r"(\d+) lines of the log are left out here", note)
    # On a terminal, the last line can be there in part.
    assert LINES - len(logged) <= int(missing) <= LINES - len(logged) + 1
    assert "somebody reads again" in again
    assert "and goes on" in further


def log_all():
    for number in range(LINES):
        LOG.info(LOGGED, number)


def slow(kind):
    reader, writer = ends(kind)
    os.dup2(writer, 2)
    os.close(writer)
    log.start(None, "info", "writer")
    found = []
    child = multiprocessing.get_context("fork").Process(target=log_all)
    child.start()
    os.close(2)

    def has_ended():
        found.append(read_all(reader))
        return not child.is_alive()

    wait_until(has_ended, what="the end of the writer")
    found.append(read_all(reader))
    return "".join(found)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_reader_that_is_only_slow_misses_nothing(kind):
    with_all = isolated(slow, kind)
    found = [int(number) for number in re.findall(r"number (\d+) of", with_all)]
    assert found == [*range(LINES)]


def long_line():
    reader, writer = ends("pipe")
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2**20)
    os.dup2(writer, 2)
    log.start(None, "info", "writer")
    LOG.info("x" * 200_000)
    LOG.info("next")
    return read_all(reader)


def test_a_line_that_is_longer_than_one_write_is_whole():
    text = isolated(long_line)
    assert text.splitlines()[1].endswith("next")
    assert len(text.splitlines()) == 2


def foreign():
    reader, writer = ends("pipe")
    os.fchmod(writer, 0o600)
    os.dup2(writer, 2)
    log.start(None, "info", "writer")
    os.setuid(65534)
    with suppress(PermissionError):
        os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        return "could be opened"
    for number in range(LINES):
        LOG.info(LOGGED, number)
    text = read_all(reader)
    LOG.info("again")
    return text + read_all(reader)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_pipe_of_another_user_stops_nobody_either():
    text = isolated(foreign)
    assert "number 0 of" in text
    assert text.splitlines()[-1].endswith("again")
    assert "lines of the log are left out here" in text


def gone():
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    log.start(None, "info", "writer")
    os.close(reader)
    waits = noted_waits()
    for number in range(100):
        LOG.info(LOGGED, number)
    Path("done").touch()
    return waits


def test_a_reader_that_is_gone_is_not_waited_for():
    assert isolated(gone) == []


def forked():
    reader, writer = ends("pipe")
    os.dup2(writer, 2)
    log.start(None, "info", "writer")
    log_all()
    child = multiprocessing.get_context("fork").Process(target=LOG.info, args=("a child",))
    read_all(reader)
    child.start()
    child.join()
    of_child = read_all(reader)
    LOG.info("the parent")
    return of_child, read_all(reader)


def test_a_forked_process_does_not_count_the_lines_of_the_other():
    of_child, of_parent = isolated(forked)
    assert "a child" in of_child
    assert "left out" not in of_child
    assert "left out" in of_parent


def gathered(kind):
    """Lines of several processes, which each of them writes together."""
    reader, writer = ends(kind)
    os.set_blocking(reader, True)
    os.dup2(writer, 2)
    os.close(writer)
    context, count = multiprocessing.get_context("fork"), 300

    def write(who):
        journal = log.start(None, "info", "writer")
        with journal.gathering():
            for number in range(count):
                LOG.info("%s %d %s", who, number, who * 50)
        os._exit(0)

    writers = [context.Process(target=write, args=(who,)) for who in "ab"]
    for each in writers:
        each.start()
    os.close(2)
    found = b""
    with open(reader, "rb", closefd=False) as stream:
        while chunk := stream.read1():
            found += chunk
    for each in writers:
        each.join()
    words = [line.split()[-3:] for line in found.decode().splitlines()]
    whole = all(last == who * 50 for who, _, last in words)
    return whole, {who: sum(word[0] == who for word in words) for who in "ab"}


def test_gathered_lines_of_several_processes_do_not_mix():
    assert isolated(gathered, "pipe") == [True, {"a": 300, "b": 300}]
