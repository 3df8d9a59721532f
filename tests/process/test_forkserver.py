"""The process that forks runners: what it keeps, and what it lets go."""

import os
import select
import signal
from pathlib import Path

from psched.supervisor import tree
from psched.supervisor.forkserver import MOST_AT_ONCE, ForkServer
from support.apart import apart
from support.processes import kill
from support.waiting import has_ended, wait_for_end, wait_until


def serving(main, before_fork=list, preload=list):
    return ForkServer(main, patience=1, before_fork=before_fork, preload=preload)


def waits(_place, link):
    return link.wait() or 0


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ended_and_buried():
    server = serving(waits)
    (one, link), (other, kept) = server.fork([1, 2])
    link.close()
    select.select([server.channel], [], [])
    found = [(each.pid == one, each.status) for each in server.exits()]
    again = server.exits()
    # Others may take their time to say so; until then its pid is not to be another's.
    [(third, line)] = server.fork([3])
    known = [state(one), third != one]
    server.bury([one])
    wait_until(lambda: not Path(f"/proc/{one}").exists(), what="its burial")
    kill(other)
    select.select([server.channel], [], [])
    found += [(each.pid == other, each.signal) for each in server.exits()]
    line.close()
    return found, again, known, kept.wait()


def test_the_pid_of_a_runner_that_has_ended_is_kept_until_that_was_taken_down():
    assert apart(ended_and_buried) == [[[True, 0], [True, 9]], [], ["Z", True], None]


def forked_while_others_end():
    server = serving(lambda place, _link: place)
    pids, found = set(), []
    for _ in range(20):
        born = server.fork([*range(MOST_AT_ONCE)])
        pids |= {pid for pid, _ in born}
        found += server.exits()
    while len(found) < len(pids):
        select.select([server.channel], [], [])
        found += server.exits()
    server.bury([each.pid for each in found])
    wait_until(lambda: not tree.children(server.pid), what="the burial of all")
    statuses = sorted(each.status for each in found)
    return len(pids), len({each.pid for each in found}), {*statuses} == {*range(MOST_AT_ONCE)}


def test_no_end_is_lost_while_others_are_forked():
    assert apart(forked_while_others_end) == [160, 160, True]


def killed():
    server = serving(waits)
    runners = [pid for pid, _ in server.fork([1, 2])]
    kill(server.pid)
    for pid in [server.pid, *runners]:
        wait_for_end(pid)
    try:
        server.fork([3])
    except OSError as error:
        return type(error).__name__, server.channel.closed
    return "forked"


def test_what_it_has_forked_dies_with_it_and_its_end_is_an_error_of_the_next_fork():
    assert apart(killed) == ["BrokenPipeError", True]


def let_go():
    server = serving(waits)
    server.close()
    _, status = os.waitpid(server.pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_it_ends_when_it_is_let_go():
    assert apart(let_go) == 0


def signalled():
    server = serving(waits)
    [(runner, one)] = server.fork([1])
    # As when a signal is sent to every process of a service.
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1:
        kill(server.pid, number)
    [(another, two)] = server.fork([2])
    return [has_ended(pid) for pid in (server.pid, runner, another)], one.closed or two.closed


def test_signals_to_all_processes_of_a_service_mean_nothing_to_it():
    assert apart(signalled) == [[False, False, False], False]


def hanging():
    server = serving(waits)
    [(runner, _)] = server.fork([1])
    kill(server.pid, signal.SIGSTOP)
    try:
        server.fork([2])
    except OSError as error:
        wait_for_end(server.pid)
        wait_for_end(runner)
        return type(error).__name__
    return "forked"


def test_one_that_does_not_answer_is_killed():
    assert apart(hanging) == "BrokenPipeError"


def told():
    calls = []

    def tells(place, link):
        link.deliver({"place": place, "calls": calls})
        return 0

    def fails():
        calls.append("preload")
        raise ValueError("of the module")

    server = serving(tells, before_fork=lambda: calls.append("fork"), preload=fails)
    first = [link.wait() for _, link in server.fork([4, 5])]
    server.preload()
    return first, [link.wait() for _, link in server.fork([6])], calls


def test_what_is_done_there_before_a_fork_is_done_once_for_all_that_are_forked():
    assert apart(told) == [
        [{"place": 4, "calls": ["fork"]}, {"place": 5, "calls": ["fork"]}],
        [{"place": 6, "calls": ["fork", "preload", "fork"]}],
        [],
    ]
