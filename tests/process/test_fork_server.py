"""The process that forks runners: what it keeps, and what it lets go."""

import contextlib
import json
import os
import resource
import select
import signal
import threading
from math import inf
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.process import kernel, tree
from psched.runner.fork_server import MOST_AT_ONCE
from support.bench import Bench
from support.forks import fork_server
from support.isolated import isolated
from support.misbehaving_handlers import HANDLERS
from support.processes import kill
from support.waiting import HANG_TIMEOUT, has_ended, wait_for_end, wait_until

RELEASED = "Retry(wait=0, reason='its fork server died')"
SHORT = {"child_heartbeat_limit": 8, "database_timeout": 3}


def waits(_place, link):
    return link.wait() or 0


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def told(server):
    """The next ends that it tells of."""
    return wait_until(server.exits, what="the end of a runner")


# --- beginnings and ends -------------------------------------------------------------


def ended_and_buried():
    server = fork_server(waits)
    (place, one, link, _), (_, other, kept, _) = server.fork(2)
    link.close()
    found = [(each.pid == one, each.status) for each in told(server)]
    again = server.exits()
    # Others may take their time to say so; until then its pid is not to be another's.
    [(second_place, third, line, _)] = server.fork(1)
    known = [state(one), third != one, second_place != place]
    server.bury([one])
    wait_until(lambda: not Path(f"/proc/{one}").exists(), what="its burial")
    kill(other)
    found += [(each.pid == other, each.signal) for each in told(server)]
    line.close()
    return found, again, known, kept.wait()


def test_the_pid_of_a_runner_that_has_ended_is_kept_until_that_was_taken_down():
    assert isolated(ended_and_buried) == [[[True, 0], [True, 9]], [], ["Z", True, True], None]


def forked_while_others_end():
    server = fork_server(lambda place, _link: place % 100)
    pids, found = set(), []
    for _ in range(20):
        pids |= {pid for _, pid, *_ in server.fork(MOST_AT_ONCE)}
        found += server.exits()
    while len(found) < len(pids):
        found += told(server)
    server.bury([each.pid for each in found])
    wait_until(lambda: not tree.children(server.pid), what="the burial of all")
    return len(pids), len({each.pid for each in found})


def test_no_end_is_lost_while_others_are_forked():
    assert isolated(forked_while_others_end) == [160, 160]


def ended_while_another_is_forked():
    older = []

    def seen_to_its_end():
        # In the fork server, right after a fork.
        if len(older) == 1:
            tree.send(older[0], signal.SIGKILL)
            os.waitid(os.P_PID, older[0], os.WEXITED | os.WNOWAIT)
        older[:] = tree.children(os.getpid())

    def before_fork():
        if not older:
            os.register_at_fork(after_in_parent=seen_to_its_end)

    server = fork_server(waits, before_fork=before_fork)
    [(_, one, _link, _)] = server.fork(1)
    _other = server.fork(1)  # which lives as long as its line
    return [each.pid == one for each in told(server)]


def test_an_end_in_the_midst_of_a_fork_is_told():
    assert isolated(ended_while_another_is_forked) == [True]


def no_descriptor_left():
    few, enough = (3, 4096), (4096, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, enough)
    limits = [few, enough, enough]
    server = fork_server(
        waits, before_fork=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits.pop(0))
    )
    found = []
    # By the second order the ends of the line cannot be passed; it ends the want.
    for _ in limits:
        try:
            found.append(len(server.fork(1)))
        except OSError as error:
            found.append(os.strerror(error.errno))
    return found


def test_it_survives_that_there_is_no_descriptor_to_look_with():
    assert isolated(no_descriptor_left) == ["Too many open files", "Too many open files", 1]


def heard_beside_an_answer():
    server = fork_server(waits)
    [(_, one, link, _)] = server.fork(1)
    link.close()
    wait_until(lambda: state(one) == "Z", what="its end")
    select.select([server.channel], [], [])
    _other = server.fork(1)  # which lives as long as its line
    return [server.untaken, [each.pid == one for each in server.exits()], server.untaken]


def test_an_end_that_is_heard_beside_an_answer_is_known_to_be_there():
    assert isolated(heard_beside_an_answer) == [True, [True], False]


def places_run_out():
    server = fork_server(lambda _place, _link: 0)
    try:
        while True:
            server.fork(MOST_AT_ONCE)
    except BlockingIOError as error:
        server.bury([each.pid for each in told(server)])
        return str(error), len(server.fork(1))


def test_there_are_no_more_than_there_are_places_until_some_are_buried():
    assert isolated(places_run_out) == [
        "no place for another runner: killed runners have not exited yet",
        1,
    ]


# --- its own end ---------------------------------------------------------------------


def killed():
    server = fork_server(waits)
    runners = [pid for _, pid, *_ in server.fork(2)]
    kill(server.pid)
    for pid in [server.pid, *runners]:
        wait_for_end(pid)
    try:
        server.fork(1)
    except OSError as error:
        return type(error).__name__, server.channel.closed
    return "forked"


def test_what_it_has_forked_dies_with_it_and_its_end_is_an_error_of_the_next_fork():
    assert isolated(killed) == ["BrokenPipeError", True]


def let_go():
    server = fork_server(waits)
    server.close()
    _, status = os.waitpid(server.pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_it_ends_when_it_is_let_go():
    assert isolated(let_go) == 0


def signalled():
    server = fork_server(waits)
    [(_, runner, one, _)] = server.fork(1)
    # As when a signal is sent to every process of a service.
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1:
        kill(server.pid, number)
    [(_, another, two, _)] = server.fork(1)
    return [has_ended(pid) for pid in (server.pid, runner, another)], one.closed or two.closed


def test_signals_to_all_processes_of_a_service_mean_nothing_to_it():
    assert isolated(signalled) == [[False, False, False], False]


# --- orders that nobody waits for ---


def ordered():
    server = fork_server(waits)
    server.order(3)
    server.order(2)  # without effect before the answer
    select.select([server.channel], [], [])
    server.exits()
    first = len(server.late())
    server.order(1)
    return first, len(server.fork(4)), len(server.fork(4)), server.late()


def test_what_was_ordered_arrives_later_and_a_fork_waits_for_it():
    assert isolated(ordered) == [3, 1, 4, []]


def order_fails():
    server = fork_server(waits)
    kill(server.pid)
    wait_for_end(server.pid)
    said = []
    for ask in server.order, server.fork:
        try:
            ask(1)
        except OSError as error:
            said.append(type(error).__name__)
    return said


def test_an_order_to_a_dead_server_is_an_error():
    assert isolated(order_fails) == ["BrokenPipeError"] * 2


def ordered_by_a_worker():
    bench = Bench(HANDLERS, concurrency=3)
    outcomes = [bench.run("returns")]
    bench.pool.order(3)
    bench.until(lambda: len(bench.pool._idle) == 3)
    bench.pool.order(2)  # that many wait already
    pids = {runner.pid for runner in bench.pool._idle}
    tasks = [bench.start("returns", str(number)) for number in range(3)]
    outcomes += [bench.finish(task) for task in tasks]
    used = {task.runner.pid for task in tasks} == pids
    server = bench.server
    kill(server)
    bench.pool.order(1)  # fails, or its answer never arrives
    bench.until(lambda: has_ended(server))
    return outcomes, used, bench.run("returns"), bench.server != server


def test_a_worker_has_runners_forked_while_it_works_and_does_without():
    assert isolated(ordered_by_a_worker) == [["Finish()"] * 4, True, "Finish()", True]


def dismissed_with_an_order():
    bench = Bench({"waits": waits_for_a_file}, concurrency=4)
    task = bench.start("waits")
    bench.pool.order(3)
    bench.pool.dismiss()
    bench.until(lambda: {*bench.pool._alive} == {task.runner.pid})
    alive = task.over
    Path("finish").touch()
    return alive, bench.finish(task)


def test_runners_that_were_ordered_before_the_dismissal_do_not_stay():
    assert isolated(dismissed_with_an_order) == [False, "Finish()"]


def trimmed():
    bench = Bench(HANDLERS | {"waits": waits_for_a_file}, concurrency=3, max_tasks_per_child=9)
    tasks = [bench.start("returns", str(number)) for number in range(2)]
    to_end_last = bench.start("waits")
    for task in tasks:
        bench.finish(task)
    Path("finish").touch()
    bench.finish(to_end_last)
    bench.pool.order(5)
    bench.until(lambda: len(bench.pool._idle) == 5)
    waiting = []
    for quiet in 9, 11, 599, 601:
        bench.pool.trim(quiet)
        left = {runner.pid for runner in bench.pool._idle}
        bench.until(lambda left=left: {*bench.pool._alive} == left)
        waiting.append((len(left), sum(not runner.used for runner in bench.pool._idle)))
    [last] = left
    bench.finish(again := bench.start("returns"))
    return waiting, again.runner.pid == last, last == to_end_last.runner.pid


def test_runners_exit_when_no_task_was_due_for_long_but_the_last_used_one():
    waiting, is_used_again, is_the_last_one = isolated(trimmed)
    assert waiting == [[5, 2], [4, 1], [4, 1], [1, 0]]
    assert is_used_again
    assert is_the_last_one


# --- one that does not answer --------------------------------------------------------


def late():
    server = fork_server(waits, hold_up=0.1)
    kill(server.pid, signal.SIGSTOP)
    said = []
    for _ in range(2):
        try:
            server.fork(3)
        except OSError as error:
            said.append(type(error).__name__)
    owed = server.owes
    kill(server.pid, signal.SIGCONT)
    server._hold_up = HANG_TIMEOUT
    select.select([server.channel], [], [])
    server.exits()
    return said, owed, server.owes, len(server.late()), len(server.fork(2))


def test_what_was_waited_for_in_vain_is_not_lost():
    assert isolated(late) == [["TimeoutError"] * 2, True, False, 3, 2]


class Shifted(SystemClock):
    """The system's clock, ahead by as many seconds as the test says."""

    ahead = 0.0

    def monotonic(self):
        return SystemClock.monotonic() + self.ahead


def checks_until_it_is_killed(seconds, standstill=0.0):
    """How many checks that are so far apart find that the server hangs."""
    clock = Shifted()
    server = fork_server(waits, hold_up=0.01, clock=clock)
    kill(server.pid, signal.SIGSTOP)
    with contextlib.suppress(TimeoutError):
        server.fork(1)
    clock.ahead += standstill
    checks = 0
    while server._owed:
        clock.ahead += seconds
        server.watch([])
        checks += 1
    wait_for_end(server.pid)
    return checks


def test_time_counts_and_not_how_often_the_worker_finds_it_to_check():
    assert isolated(checks_until_it_is_killed, 2) == 10
    assert isolated(checks_until_it_is_killed, 9) == 3


def test_a_standstill_of_the_whole_service_leaves_it_time_to_answer():
    # Half of its 20 seconds.
    assert isolated(checks_until_it_is_killed, 2, 3600) == 6


def waited_for_again():
    server = fork_server(waits, hold_up=0.01)
    kill(server.pid, signal.SIGSTOP)
    said = []
    for _ in range(2):
        try:
            server.fork(1)
        except TimeoutError as error:
            said.append(str(error))
        server._owed[0] -= HANG_TIMEOUT
        server._hold_up = HANG_TIMEOUT
    return said


def test_an_order_that_is_overdue_holds_up_the_worker_no_second_time():
    assert isolated(waited_for_again) == 2 * ["the fork server does not answer"]


def bench_with_a_stopped_server(**settings):
    bench = Bench(HANDLERS, **SHORT, **settings)
    bench.run("returns")
    server = bench.server
    kill(server, signal.SIGSTOP)
    return bench, server


def idle_runner_killed():
    bench, server = bench_with_a_stopped_server(max_tasks_per_child=1000)
    [runner] = bench.pool._alive
    kill(runner)
    turns = 0
    while not has_ended(server):
        bench.turn(1)
        turns += 1
    bench.turn(1)
    nothing_to_watch = bench.pool.wakes == inf
    return turns < 20, nothing_to_watch, bench.run("returns")


def test_an_idle_runner_whose_end_is_not_told_is_not_used_and_the_server_is_killed():
    assert isolated(idle_runner_killed) == [True, True, "Finish()"]


def runner_killed_whose_child_holds_its_line():
    kernel.adopt_orphans()
    bench = Bench(HANDLERS, **SHORT)
    task = bench.start("forks_and_waits")
    bench.until(lambda: tree.children(task.runner.pid))
    kill(bench.server, signal.SIGSTOP)
    kill(task.runner.pid)
    return bench.finish(task)


def test_an_end_that_is_not_told_is_seen_though_a_child_of_the_task_holds_its_line():
    assert isolated(runner_killed_whose_child_holds_its_line) == RELEASED


# --- what runners find ---------------------------------------------------------------


def prepared():
    calls = []

    def tells(_place, link):
        link.deliver({"calls": calls, "opened": str(Path("/proc/self/fd/99").readlink())})
        return 0

    os.dup2(os.open("opened", os.O_CREAT), 99)
    server = fork_server(tells, before_fork=lambda: calls.append("fork"))
    told = [link.wait() for _, _, link, _ in server.fork(2)]
    return [[each["calls"], each["opened"]] for each in told], calls


def test_what_is_done_there_is_done_once_for_all_and_what_was_open_before_nobody_has():
    assert isolated(prepared) == [[[["fork"], "/dev/null"]] * 2, []]


def with_a_thread_after_each_fork():
    over = threading.Event()
    os.register_at_fork(after_in_child=lambda: threading.Thread(target=over.wait).start())
    server = fork_server(waits)
    try:
        server.fork(1)
    except RuntimeError as error:
        return str(error)
    return "forked"


def test_it_does_not_fork_beside_a_thread_that_a_module_has_started_after_a_fork():
    assert "2 threads" in isolated(with_a_thread_after_each_fork)


# --- tasks that use the store --------------------------------------------------------


class SlowToOpen:
    """The schedules of a task; whoever opens them after the first waits for a gate."""

    def __init__(self):
        if Path("opened").exists():
            wait_until(Path("gate").exists, what="the gate")
        Path("opened").touch()

    def close(self):
        pass


def uses_the_store(task):
    assert task.schedules is not None


def shows_its_server(task):
    task.update_data({"server": os.getppid()})


def waits_for_a_file(_task):
    wait_until(Path("finish").exists, what="the end that the test allows")


def used_and_went_on():
    handlers = {
        "uses": uses_the_store,
        "shows": shows_its_server,
        "waits": waits_for_a_file,
    }
    bench = Bench(handlers, open_schedules=SlowToOpen, concurrency=4)
    server = bench.server
    running = bench.start("waits")
    outcomes = [bench.run("uses")]
    # The gate is shut: nobody but a task may wait for what it opens.
    waiting = bench.start("uses", "again")
    outcomes += [bench.run("shows", key) for key in ("a", "b", "c")]
    servers = [json.loads(data)["server"] for data in bench.ledger.data]
    for name in "gate", "finish":
        Path(name).touch()
    outcomes += [bench.finish(task) for task in (running, waiting)]
    bench.close()
    return outcomes, {*servers} == {server}, len(bench.pool.links)


def test_no_task_waits_for_what_another_opens_in_the_store():
    expected = [["Finish()"] * 6, True, 0]
    assert isolated(used_and_went_on) == expected


# --- when memory runs out ------------------------------------------------------------


def score(pid="self"):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def says_its_score(_place, link):
    link.send({"score": score()})
    return link.wait() or 0


def scores(user):
    """By how much the scores of two runners exceed the others, and who may read the fork server."""
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        kernel.allow_dump(allowed=False)
    server = fork_server(says_its_score)
    found = []
    for _, _, link, _ in [*server.fork(1), *server.fork(1)]:
        found.append(wait_until(link.receive, what="its score")[0]["score"])
        link.close()
    wait_until(lambda: score(server.pid) == score(), what="the score of the fork server")
    return [each - score() for each in found], Path(f"/proc/{server.pid}/mem").stat().st_uid


@pytest.mark.parametrize("user", [None, 65_534])
def test_the_kernel_kills_tasks_before_the_other_processes(user):
    if os.geteuid() and user is not None:
        pytest.skip("only root can become another user")
    assert isolated(scores, user) == [[500, 500], 0 if user else os.geteuid()]
