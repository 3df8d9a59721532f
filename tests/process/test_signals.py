"""Signals as data: nothing is lost, nothing blocks, nothing reaches the wrong process."""

import os
import signal

from psched.base.clock import SystemClock
from psched.process import tree
from psched.process.child import reap
from psched.process.signals import SignalInbox, unblock
from psched.process.spawn import spawn
from support.isolated import isolated, say, started_isolated
from support.processes import kill

CLOCK = SystemClock()
TERM, USR1, CHLD = signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD


def names(numbers):
    return sorted(number.name for number in numbers)


def inbox_in_a_storm():
    inbox = SignalInbox([USR1, TERM])
    say("ready")
    seen = set()
    while TERM not in seen:
        seen |= inbox.wait(1000)
    return names(seen)


def test_a_term_is_seen_after_a_storm_of_20000_other_signals():
    with started_isolated(inbox_in_a_storm) as process:
        process.said("ready")
        for _ in range(20_000):
            kill(process.pid, USR1)
        kill(process.pid, TERM)
        assert process.result() == ["SIGTERM", "SIGUSR1"]
        assert "wakeup" not in process.text  # no complaint about a full pipe


def inbox_that_nobody_empties():
    inbox = SignalInbox([USR1, TERM])
    for _ in range(20_000):
        signal.raise_signal(USR1)
    signal.raise_signal(TERM)
    return names(inbox.wait(1000)), names(inbox.wait(0))


def test_a_full_pipe_loses_no_signal_and_blocks_nobody():
    assert isolated(inbox_that_nobody_empties) == [["SIGTERM", "SIGUSR1"], []]


def signal_to_a_loop_that_is_over():
    # Its last user lets go of it, as one does whose work is done and who is about to exit.
    SignalInbox([USR1, CHLD])
    for number in USR1, CHLD:
        signal.raise_signal(number)


def test_a_signal_that_comes_when_the_loop_is_over_is_no_error():
    with started_isolated(signal_to_a_loop_that_is_over) as process:
        process.result()
        assert process.text == ""


def signal_between_the_check_and_the_sleep():
    inbox = SignalInbox([USR1])

    def links():
        # Called after the inbox was found empty, and before the process goes to sleep.
        signal.raise_signal(USR1)
        yield from ()

    return names(inbox.wait(1000, links()))


def test_a_signal_that_comes_between_the_check_and_the_sleep_ends_the_sleep():
    assert isolated(signal_between_the_check_and_the_sleep) == ["SIGUSR1"]


def sleeps(timeouts):
    inbox = SignalInbox([USR1])
    slept = []
    for timeout in timeouts:
        begun = CLOCK.monotonic()
        assert not inbox.wait(timeout)
        slept.append(CLOCK.monotonic() - begun)
    return slept


def test_no_sleep_ends_before_its_time():
    timeouts = [0.0003, 0.0015, 0.0107, 0.0199, 0.0201, 0.0509]
    slept = isolated(sleeps, timeouts)
    assert all(took >= timeout for took, timeout in zip(slept, timeouts, strict=True))


def signal_during_the_sleep():
    inbox = SignalInbox([USR1])
    say("ready")
    return names(inbox.wait(1000))


def test_a_signal_ends_the_sleep():
    with started_isolated(signal_during_the_sleep) as process:
        process.said("ready")
        kill(process.pid, USR1)
        assert process.result() == ["SIGUSR1"]


def two_hundred_deaths():
    inbox = SignalInbox([CHLD])
    signal.pthread_sigmask(signal.SIG_BLOCK, [CHLD])
    pids = {spawn(lambda _link: 0)[0] for _ in range(200)}
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    unblock()
    arrived = names(inbox.wait(1000))
    return arrived, {ended.pid for ended in reap()} == pids, names(inbox.wait(0))


def test_many_deaths_are_one_signal_and_all_are_reaped():
    assert isolated(two_hundred_deaths) == [["SIGCHLD"], True, []]


def children_stopped_at_birth():
    inbox = SignalInbox([TERM, CHLD])

    def with_an_inbox(_link):
        own = SignalInbox([TERM])
        while TERM not in own.wait(1000):
            pass
        return 7

    def without(_link):
        unblock()
        while True:
            signal.pause()

    arrived, ends = set(), []
    for n in range(300):
        pid, _ = spawn(with_an_inbox if n % 2 else without)
        tree.send(pid, TERM)
        while not (ended := list(reap())):
            arrived |= inbox.wait(1000)
        ends += map(str, ended)
    return names(arrived | inbox.wait(0)), sorted({end: ends.count(end) for end in ends}.items())


def test_a_signal_to_a_newborn_child_reaches_the_child_and_never_its_parent():
    arrived, ends = isolated(children_stopped_at_birth)
    assert arrived == ["SIGCHLD"]
    assert ends == [["exited with status 7", 150], ["was killed by SIGTERM", 150]]
