"""Handlers that do what no handler should, and some that do unusual things that are allowed."""

import faulthandler
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from psched.base.errors import (
    AlreadyFinishedError,
    CommandError,
    PreemptedError,
    ProcessStopError,
    TransientStoreError,
    UnknownOutcomeError,
)

DAEMON = "setsid sh -c 'setsid sleep 1000 & sleep 1000' & sleep 1000 &"


class BrokenError(Exception):
    """An error that cannot even be printed."""

    def __str__(self):
        raise RuntimeError("no text")


class BrokenCommandError(BrokenError, CommandError):
    """A command's error that cannot be printed."""


def returns(_task):
    pass


def raises(_task):
    raise ValueError("no")


def raises_unprintable(_task):
    raise BrokenError


def raises_surrogates(_task):
    raise ValueError("\ud800\0\x1b[2J")


def fails_without_a_word(_task):
    raise CommandError("")


def fails_unprintably(_task):
    raise BrokenCommandError


def stops_without_a_word(_task):
    raise ProcessStopError


def raises_keyboard_interrupt(_task):
    raise KeyboardInterrupt


def recurses(task):
    recurses(task)


def exits(_task):
    sys.exit(0)


def exits_with_text(_task):
    sys.exit("enough")


def leaves(task):
    os._exit(task.data["status"])


def crashes(_task):
    faulthandler._sigsegv()


def kills_itself(_task):
    os.kill(os.getpid(), signal.SIGKILL)


def closes_everything(_task):
    os.closerange(0, 1000)


def closes_everything_and_stays(task):
    os.closerange(0, 1000)
    wait_for(task)


def has_files_in_their_place(_task):
    """Close the inherited descriptors and open files, which get their numbers, as daemons do."""
    os.closerange(3, 1000)
    while os.open("mine", os.O_RDWR | os.O_CREAT, 0o600) < 100:
        pass


def uses_up_descriptors(_task):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        while True:
            os.dup(1)
    except OSError:
        return


def loses_its_output(_task):
    sys.stdout = sys.stderr = None


def leaves_threads(task):
    """Leave threads that never end; one sends requests for the task even when it is over."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    threading.Thread(target=nag, args=[task], daemon=True).start()


def nag(task):
    while True:
        task.extend()


def leaves_processes(_task):
    subprocess.run(["sh", "-c", DAEMON], check=True)


def leaves_a_zombie(_task):
    process = subprocess.Popen(["sh", "-c", "exit 0"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


# --- decisions -----------------------------------------------------------------------


def finishes_and_raises(task):
    task.finish()
    raise ValueError("afterwards")


def retries(task):
    task.retry(7)


def writes_too_much(task):
    task.update_data({"a": "x" * 2**24})


def releases(task):
    task.release()
    os._exit(1)


def decides_twice(task):
    task.release()
    try:
        task.finish()
    except AlreadyFinishedError:
        return
    raise AssertionError("a second decision was taken")


def updates(task):
    task.update_data({"text": "ü" * task.data["length"]})
    task.extend()


def asks_from_threads(task):
    """Send requests from eight threads at once; each must get its own answers."""
    answered = []

    def ask():
        for _ in range(50):
            task.extend()
        answered.append(True)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert len(answered) == len(threads), f"only {len(answered)} were answered"


def asks_while_away(task):
    """Send requests until the store has answered again after an outage."""
    refused = 0
    while True:
        try:
            task.extend()
        except TransientStoreError:
            refused += 1
            continue
        if refused:
            return


def learns_that_nobody_knows(task):
    """Fail unless the answer is that the update may have been written."""
    try:
        task.update_data({"a": 1})
    except UnknownOutcomeError:
        return
    raise AssertionError("its update was answered otherwise")


# --- forking -------------------------------------------------------------------------


def forks(task):
    """Fork a child that leaves the handler in the given way; then fail in the parent."""
    child = os.fork()
    if child == 0:
        comes_back(task, task.data["way"])
        return
    _, status = os.waitpid(child, 0)
    raise ValueError(f"of the parent, whose child ended with {os.waitstatus_to_exitcode(status)}")


def forks_and_waits(_task):
    """Fork a child, which has all that the parent has, and wait."""
    if os.fork() == 0:
        signal.pause()
    signal.pause()


def comes_back(task, way):
    if way == "exits":
        sys.exit(0)
    if way == "raises":
        raise ValueError("of the child")
    if way == "decides":
        task.release()


def uses_a_pool(_task):
    """Use a pool, whose processes are terminated by TERM when the block is left."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


def terminates_a_process(_task):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[1000])
    process.start()
    process.terminate()
    process.join(15)
    assert process.exitcode == -signal.SIGTERM


# --- what can be seen from inside ----------------------------------------------------


def shows_descriptors(task):
    """Show the open descriptors, except /dev/null, and those of an executed program."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        # The listing itself opens a folder.
        if target != os.devnull and not target.startswith("/proc/"):
            found[descriptor.name] = target
    listing = subprocess.run(
        ["ls", "/proc/self/fd"], stdout=subprocess.PIPE, check=True, close_fds=False
    )
    task.update_data({"open": found, "executed": listing.stdout.decode().split()})


def shows_signals(task):
    """Show the signal masks of an executed program, and the signals that this process receives."""
    own = Path("/proc/self/status").read_text()
    status = subprocess.run(["cat", "/proc/self/status"], stdout=subprocess.PIPE, check=True)
    ours, fields = (
        dict(line.split(":\t") for line in text.splitlines())
        for text in (own, status.stdout.decode())
    )
    masks = {"blocked": fields["SigBlk"], "ignored": fields["SigIgn"], "caught": ours["SigCgt"]}
    task.update_data(masks)


def shows_itself(task):
    """Show the pid, and the processes below this one."""
    below = subprocess.run(
        ["ps", "-o", "pid=,stat=", "--ppid", str(os.getpid())], stdout=subprocess.PIPE, check=False
    )
    others = [line for line in below.stdout.decode().splitlines() if " ps" not in line]
    task.update_data({"pid": os.getpid(), "session": os.getsid(0), "below": len(others) - 1})


def prints(task):
    print("in a line")  # noqa: T201  # as handlers do
    print("no line", end="")  # noqa: T201
    logging.getLogger("handler").warning("logged")
    wait_for(task)


def wait_for(task):
    """Wait until a file exists."""
    gate = Path(task.data["gate"])
    while not gate.exists():
        time.sleep(0.01)


# --- being stopped -------------------------------------------------------------------


def note(text):
    """Write a line that a test can read even if this process dies."""
    os.write(1, f"{text}\n".encode())


def cleans_up(task):
    """Be interrupted once, and clean up slowly."""
    note("working")
    try:
        wait_for(task)
    except BaseException as error:
        note(f"{type(error).__name__} {error}")
        raise
    finally:
        for _ in range(30):
            time.sleep(0.01)
        note("cleaned up")


def clings(task):
    """Ignore all requests to stop."""
    note("working")
    while True:
        try:
            wait_for(task)
        except BaseException as error:  # noqa: BLE001
            note(f"{type(error).__name__} {error}")


def decides_when_stopped(task):
    """Send requests all the time; when stopped, send one that is refused, and decide."""
    note("working")
    try:
        while True:
            task.extend()
    finally:
        try:
            task.update_data({"asked": "again"})
        except PreemptedError:
            task.retry(7)


class Listens:
    """Has a ``kill`` of its own, and sends requests all the time."""

    def __init__(self, task):
        self.task = task
        self.reasons = []

    def run(self):
        note("working")
        while len(self.reasons) < 20:
            self.task.extend()
        note(" ".join(self.reasons))

    def kill(self, reason):
        self.reasons.append(reason)


class Refuses:
    """Has a ``kill`` that raises."""

    def __init__(self, task):
        self.task = task

    def run(self):
        note("working")
        wait_for(self.task)

    def kill(self, reason):
        raise ValueError(f"killed for {reason}")


HANDLERS = {
    each.__name__: each
    for each in (
        returns,
        raises,
        raises_unprintable,
        raises_surrogates,
        fails_without_a_word,
        fails_unprintably,
        stops_without_a_word,
        raises_keyboard_interrupt,
        recurses,
        exits,
        exits_with_text,
        leaves,
        crashes,
        kills_itself,
        closes_everything,
        closes_everything_and_stays,
        has_files_in_their_place,
        uses_up_descriptors,
        loses_its_output,
        leaves_threads,
        leaves_processes,
        leaves_a_zombie,
        finishes_and_raises,
        retries,
        writes_too_much,
        releases,
        decides_twice,
        updates,
        asks_from_threads,
        asks_while_away,
        learns_that_nobody_knows,
        forks,
        forks_and_waits,
        uses_a_pool,
        terminates_a_process,
        shows_descriptors,
        shows_signals,
        shows_itself,
        prints,
        cleans_up,
        clings,
        decides_when_stopped,
        Listens,
        Refuses,
    )
}
"""The handlers by their types, which are the functions' names."""
