"""Captured output after tasks and disks that misbehave."""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from psched.output.service_output import MOST_WAITING, ServiceOutput
from support.bench import Bench
from support.isolated import isolated
from support.processes import kill
from support.waiting import has_ended, wait_until


def write(task):
    text = task.data["text"].encode()
    while text:
        text = text[os.write(1, text) :]


def close_streams(_task):
    os.close(1)
    os.close(2)


def redirect_streams(_task):
    elsewhere = os.open("elsewhere", os.O_WRONLY | os.O_CREAT)
    os.dup2(elsewhere, 1)
    os.dup2(elsewhere, 2)
    os.close(elsewhere)


def set_nonblocking(_task):
    os.set_blocking(1, False)


HANDLERS = {
    "write": write,
    "close": close_streams,
    "redirect": redirect_streams,
    "set nonblocking": set_nonblocking,
}


def after_bad_manners(type_, output):
    service = os.open("service", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(service, 1)
    # A type with another place has runners save the service's streams.
    types = {"unused": {"output": "raw" if output == "both" else "both"}}
    bench = Bench(
        HANDLERS, log_file="log", output=output, types=types, max_tasks_per_child=1000
    )  # fmt: skip
    first = bench.start(type_)
    bench.finish(first)
    second = bench.start("write", text="captured\n")
    bench.finish(second)
    bench.output.stop()
    return first.runner is second.runner, second.output.tail.decode(), Path("service").read_text()


@pytest.mark.parametrize("type_", ["close", "redirect"])
def test_a_task_that_loses_its_streams_does_not_take_those_of_the_next_task(type_):
    same, output, forwarded = isolated(after_bad_manners, type_, "both")
    assert same, "the tasks have run in one process"
    assert output == "captured\n"
    assert forwarded.endswith(" write: captured\n")


def after_another_mode():
    bench = Bench(HANDLERS, log_file="log", output="history", max_tasks_per_child=1000)
    first = bench.start("set nonblocking")
    bench.finish(first)
    kill(bench.collector, signal.SIGSTOP)
    second = bench.start("write", text="x" * 200_000)
    try:
        # The pipe is full, so that the task waits.
        wait_until(lambda: not is_writable(second.runner.pipe.writer), what="a full pipe")
    finally:
        kill(bench.collector, signal.SIGCONT)
    outcome = bench.finish(second)
    return first.runner is second.runner, outcome


def is_writable(descriptor):
    waiter = select.poll()
    waiter.register(descriptor, select.POLLOUT)
    return bool(waiter.poll(0))


def test_a_task_that_sets_the_mode_of_its_streams_does_not_fail_the_next_task():
    assert isolated(after_another_mode) == [True, "Finish()"]


@pytest.mark.parametrize("type_", ["close", "redirect"])
def test_nor_is_the_services_output_lost_to_the_next_task(type_):
    same, _, printed = isolated(after_bad_manners, type_, "raw")
    assert same, "the tasks have run in one process"
    assert printed == "captured\n"


# --- the service's output ------------------------------------------------------------


class Disk(ServiceOutput):
    """Standard output on a disk that has room for some bytes; the rest is real."""

    room = 0

    def _send(self, piece):
        accepted = min(len(piece), self.room)
        if not accepted:
            raise OSError(28, "No space left on device")
        self.room -= accepted
        return super()._send(piece[:accepted])


@pytest.fixture
def disk(tmp_path):
    """Standard output on a disk without room, and the file."""
    path = tmp_path / "output"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    yield Disk(descriptor), path
    os.close(descriptor)


def test_after_a_full_disk_the_number_of_missing_lines_is_right_and_no_line_is_torn(disk):
    output, path = disk
    output.room = 19
    for number in range(30):
        output.write(b"line %03d\n" % number)
        output.flush()
    assert path.read_bytes() == b"line 000\nline 001\nl"
    output.room = 1000
    output.write(b"line 030\n")
    output.flush()
    note = b"\npsched: 28 lines of output are left out here\n"
    assert path.read_bytes() == b"line 000\nline 001\nl" + note + b"line 030\n"
    assert output.dropped == 0


def test_that_the_last_lines_are_missing_is_told_when_nothing_follows():
    reader, writer = os.pipe()
    try:
        output = ServiceOutput(writer)
        line = b"x" * 999 + b"\n"
        for _ in range(MOST_WAITING // len(line) + 500):
            output.write(line)
            output.flush()
        missing = output.dropped
        assert missing > 0
        os.set_blocking(reader, False)
        found = bytearray()
        while output.waits:
            with suppress(BlockingIOError):
                found += os.read(reader, 2**20)
            output.flush()
        with suppress(BlockingIOError):
            found += os.read(reader, 2**20)
        last = b"psched: %d lines of output are left out here\n" % missing
        assert found.endswith(b"x\n" + last)
        assert found.count(line) == MOST_WAITING // len(line) + 500 - missing
    finally:
        os.close(reader)
        os.close(writer)


def stopped_at_the_end():
    bench = Bench(HANDLERS, log_file="log", output="both")
    collector = bench.collector
    kill(collector, signal.SIGSTOP)
    bench.close()
    return collector


def test_a_stopped_collector_does_not_outlive_its_worker():
    collector = isolated(stopped_at_the_end)
    wait_until(lambda: has_ended(collector), what="its end")
