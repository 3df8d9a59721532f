"""Runners: whatever a handler does, its worker learns what came of it, stops it, and goes on."""

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from psched.base.errors import CommandError, ConfigError, PreemptedError, TransientStoreError
from psched.process import kernel, tree
from psched.process.link import Link
from psched.runner.messages import TO_RUNNER
from psched.runner.runner import _Holder
from psched.runner.shared_memory import Reason
from psched.runner.stop import Stop
from support.bench import Bench
from support.isolated import isolated, say, started_isolated
from support.misbehaving_handlers import HANDLERS
from support.processes import kill, title
from support.waiting import PATIENCE, has_ended, wait_until

# --- what came of it -----------------------------------------------------------------

FAILED = "Retry(wait=None, reason={!r})".format
OUTCOMES = {
    "returns": "Finish()",
    "raises": FAILED("ValueError: no"),
    "raises_unprintable": FAILED("BrokenError"),
    "raises_surrogates": FAILED(r"ValueError: \ud800\x00\x1b[2J"),
    "fails_without_a_word": FAILED("CommandError"),
    "fails_unprintably": FAILED("BrokenCommandError"),
    "stops_without_a_word": FAILED("stopped: ProcessStopError"),
    "raises_keyboard_interrupt": FAILED("KeyboardInterrupt"),
    "recurses": FAILED("RecursionError: maximum recursion depth exceeded"),
    "exits": FAILED("SystemExit: 0"),
    "exits_with_text": FAILED("SystemExit: enough"),
    "crashes": FAILED("its process was killed by SIGSEGV"),
    "kills_itself": FAILED("its process was killed by SIGKILL"),
    "closes_everything": FAILED("its process exited with status 0"),
    "has_files_in_their_place": FAILED("its process exited with status 0"),
    "uses_up_descriptors": "Finish()",
    "loses_its_output": "Finish()",
    "leaves_threads": "Finish()",
    "leaves_processes": "Finish()",
    "leaves_a_zombie": "Finish()",
    "unknown": FAILED("no handler for the type 'unknown'; add it to the routes of your Dispatch"),
    "finishes_and_raises": "Finish()",
    "retries": "Retry(wait=7, reason='retry asked for by the handler')",
    "writes_too_much": FAILED(
        "InvalidError: data: has 16777224 bytes as JSON, and data_limit is 16777216; store such"
        " large data elsewhere and pass a reference to them, or raise data_limit"
    ),
    "releases": "Release()",
    "decides_twice": "Release()",
    "asks_from_threads": "Finish()",
    "uses_a_pool": "Finish()",
    "terminates_a_process": "Finish()",
}


def outcomes(names, tasks):
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    return [bench.run(name) for name in names]


@pytest.mark.parametrize("tasks", [1, 1000])
def test_whatever_a_handler_does_its_worker_knows_how_it_ended_and_goes_on(tasks):
    found = isolated(outcomes, [*OUTCOMES], tasks)
    assert dict(zip(OUTCOMES, found, strict=True)) == OUTCOMES


def read_what_a_handler_has_got():
    Bench(HANDLERS).run("has_files_in_their_place")
    return Path("mine").read_text()


PAYLOADS = {
    "no JSON": "x",
    "a list": "[]",
    "half a character": '{"a":"\\ud800"}',
    "not UTF-8": b'{"a":"\xff"}',
    "half a character itself": '{"a":"\ud800"}',
    "too deep": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
    "broken gzip": b"\x1f\x8b\x08\x00",
    "a bomb": gzip.compress(b'{"a":"' + b"x" * 20 * 2**20 + b'"}'),
    "too many digits": '{"a":' + "9" * 5000 + "}",
}


def payloads_run(tasks):
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    found = [bench.finish(bench.start_row("returns", data)) for data in PAYLOADS.values()]
    return [*found, bench.run("returns")]


@pytest.mark.parametrize("tasks", [1, 1000])
def test_a_payload_that_cannot_be_understood_is_quarantined_and_nothing_runs(tasks):
    *found, last = isolated(payloads_run, tasks)
    for outcome in found:
        assert outcome.startswith(("Quarantine(reason='data: ", 'Quarantine(reason="data: '))
    assert last == "Finish()"


LONG = 10_000_000


def raises_long(_task):
    raise ValueError("x" * LONG)


def raises_long_lines(_task):
    raise ValueError("x\n" * LONG)


def raises_long_chain(_task):
    error = None
    for _ in range(300):
        following = ValueError("x" * 100_000)
        following.__cause__, error = error, following
    raise error


def raises_long_notes(_task):
    error = ValueError("short")
    error.add_note("x" * LONG)
    error.__notes__ += ["y" * 1000] * 1000
    raise error


def raises_long_syntax(_task):
    raise SyntaxError("x", ("file", 1, 5, "y" * LONG))


def raises_long_group(_task):
    raise ExceptionGroup("x", [ValueError("y" * 1_000_000) for _ in range(30)])


def raises_long_name(_task):
    raise type("N" * 1_000_000, (Exception,), {})("x")


def raises_odd_notes(_task):
    error = ValueError("short")
    error.__notes__ = [Unprintable()]
    raise error


class Unprintable:
    def __repr__(self):
        raise SystemExit("no text")

    __str__ = __repr__


def exits_long(_task):
    sys.exit("x" * LONG)


def fails_long(_task):
    raise CommandError("x" * LONG)


def logs_long(_task):
    logging.getLogger("mine").warning("%s", "x" * LONG)
    raise ValueError("short")


def forks_and_raises_long(_task):
    if pid := os.fork():  # noqa: TID251
        os.waitpid(pid, 0)
        raise ValueError("short")
    raise ValueError("x" * LONG)


def has_a_thread_that_raises_long(_task):
    thread = threading.Thread(target=raises_long, args=(None,))
    thread.start()
    thread.join()
    raise ValueError("short")


def has_a_finalizer_that_raises_long(_task):
    class Broken:
        def __del__(self):
            raises_long(None)

    Broken()
    raise ValueError("short")


LENGTHY = [
    has_a_thread_that_raises_long, has_a_finalizer_that_raises_long,
    raises_long, raises_long_lines, raises_long_chain, raises_long_notes, raises_long_syntax,
    raises_long_group, raises_long_name, raises_odd_notes, exits_long, fails_long, logs_long,
    forks_and_raises_long,
]  # fmt: skip


def long_errors():
    handlers = {handler.__name__: handler for handler in LENGTHY}
    bench = Bench(handlers, log_file="log")
    found = {}
    for name in handlers:
        before = Path("log").stat().st_size
        outcome = bench.run(name)
        found[name] = len(outcome), outcome[:60], Path("log").stat().st_size - before
    return found


@pytest.mark.extended
def test_however_long_an_error_is_its_reason_and_its_log_are_short():
    with started_isolated(long_errors) as process:
        found = process.result()
        printed = len(process.text)
    assert printed < 100_000
    for name, (length, outcome, logged) in found.items():
        assert outcome.startswith("Retry(wait=None, reason="), name
        assert length < 5000, name
        assert 0 < logged < 100_000, name
    assert "(9998000 characters more)" in str(isolated(reason_of_a_long_error))


def reason_of_a_long_error():
    return Bench({"raises_long": raises_long}).run("raises_long")


def test_nothing_is_written_into_a_file_that_has_the_number_of_a_line_of_ours():
    assert not isolated(read_what_a_handler_has_got)


def asked_after_the_end():
    ours, theirs = Link.pair()
    holder = _Holder(ours, Stop(), list, data_limit=1024, tell_progress=bytes)
    theirs.send({"held": True})
    holder.extend()
    holder.close()
    try:
        holder.extend()
    except PreemptedError as error:
        return str(error), len(theirs.receive())
    return "asked"


def test_nobody_can_speak_for_a_task_that_is_over():
    assert isolated(asked_after_the_end) == ["the task is over", 1]


def told_of_an_update(answer):
    ours, theirs = Link.pair()
    ours.expects = TO_RUNNER
    holder = _Holder(ours, Stop(), list, data_limit=1024, tell_progress=bytes)
    theirs.send({answer: "the connection broke"})
    try:
        holder.update_data({})
    except TransientStoreError as error:
        return [type(error).__name__, str(error)]
    return "no error"


@pytest.mark.parametrize(
    ("answer", "error"),
    [("unavailable", "StoreUnavailableError"), ("unanswered", "UnknownOutcomeError")],
)
def test_a_handler_is_told_whether_its_update_may_have_been_applied(answer, error):
    assert isolated(told_of_an_update, answer) == [error, "the connection broke"]


def test_a_thread_that_goes_on_asking_does_not_spoil_the_end_of_its_task():
    assert set(isolated(outcomes, ["leaves_threads"] * 50, 1000)) == {"Finish()"}


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_that_leaves_without_a_word_has_failed(status):
    assert isolated(left, status) == FAILED(f"its process exited with status {status}")


def left(status):
    return Bench(HANDLERS).run("leaves", status=status)


@pytest.mark.parametrize(
    ("way", "status"), [("exits", 0), ("returns", 0), ("raises", 70), ("decides", 70)]
)
def test_a_child_that_a_handler_forks_does_not_speak_for_the_task(way, status):
    expected = f"ValueError: of the parent, whose child ended with {status}"
    assert isolated(forked, way) == [FAILED(expected), "Finish()"]


def forked(way):
    bench = Bench(HANDLERS)
    return bench.run("forks", way=way), bench.run("returns")


def test_a_crash_and_an_exception_are_told_in_the_log_with_their_stacks():
    with started_isolated(outcomes, ["raises", "crashes"], 1) as process:
        process.result()
        assert "ERROR   task [raises.60] the handler of 'raises' raised" in process.text
        assert 'raise ValueError("no")' in process.text
        assert "Segmentation fault" in process.text
        assert "in crashes" in process.text


def asked():
    bench = Bench(HANDLERS)
    outcome = bench.run("updates", length=2_500_000)
    [data] = bench.ledger.data
    return outcome, len(json.loads(data)["text"]), bench.ledger.extended


def test_a_task_may_replace_its_data_by_five_megabytes():
    assert isolated(asked) == ["Finish()", 2_500_000, 1]


# --- what a task finds ---------------------------------------------------------------


def shown(name):
    bench = Bench(HANDLERS, log_file="log")
    socket = open("elsewhere", "w")  # noqa: PTH123, SIM115  # as a connection to a database is
    assert bench.run(name) == "Finish()"
    socket.close()
    return json.loads(bench.ledger.data[0])


def test_a_task_has_its_output_its_log_and_the_line_to_its_worker_and_nothing_else():
    found = isolated(shown, "shows_descriptors")
    output = found["open"].pop("1")
    assert found["open"].pop("2") == output
    # For a task whose output is not collected: the service's output, which no program inherits.
    found["open"] = {number: each for number, each in found["open"].items() if each != output}
    *link, file = sorted(found["open"].values(), key=lambda target: target.endswith("/log"))
    assert file.endswith("/log")
    assert [target.partition(":")[0] for target in link] == ["socket"]
    assert found["executed"] == ["0", "1", "2", "3"]  # 3 is the listing's own


def test_what_a_task_executes_has_no_signals_blocked_or_ignored():
    found = isolated(shown, "shows_signals")
    valid = sum(1 << (number - 1) for number in signal.valid_signals())
    assert int(found["blocked"], 16) == 0
    assert int(found["ignored"], 16) & valid == 0


def test_a_task_is_not_interrupted_when_a_child_of_its_own_ends():
    caught = int(isolated(shown, "shows_signals")["caught"], 16)
    [terminated, ended] = (caught >> number - 1 & 1 for number in (signal.SIGTERM, signal.SIGCHLD))
    assert (terminated, ended) == (1, 0)


def printing():
    bench = Bench(HANDLERS)
    task = bench.start("prints", gate="gate")
    say("folder", Path.cwd())
    return bench.finish(task)


def test_what_a_task_prints_appears_at_once_and_once():
    with started_isolated(printing) as process:
        process.said("in a line")
        wait_until(
            lambda: "WARNING task [prints.60] logged" in process.text, what="what it has logged"
        )
        Path(process.said("folder"), "gate").touch()
        process.result()
        for text in "in a line\n", "no line", "logged":
            assert process.text.count(text) == 1


# --- being stopped -------------------------------------------------------------------

STRAY = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT", "SIGWINCH"]


def sent_to_everybody():
    bench = Bench(HANDLERS)
    task = bench.start("cleans_up", gate="gate")
    bench.until(lambda: "cleans_up.60" in title(task.runner.pid))
    for _ in range(1000):
        for name in STRAY:
            tree.send(task.runner.pid, signal.Signals[name])
    bench.turn(0.1)
    Path("gate").touch()
    return bench.finish(task)


def test_storms_of_signals_that_are_sent_to_everybody_cost_no_task():
    assert isolated(sent_to_everybody) == "Finish()"


def stopped(type_, reason, limit, interval):
    bench = Bench(HANDLERS, kill_interval=interval, graceful_kill_limit=limit)
    task = bench.start(type_, gate="gate")
    bench.until(lambda: title(task.runner.pid).endswith("attempt 1"))
    bench.turn(0.1)
    bench.tasks.stop(task, Reason[reason])
    return bench.finish(task)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("TIMEOUT", FAILED("stopped at its time limit")), ("SHUTDOWN", "Release()")],
)
def test_a_task_is_interrupted_once_and_may_clean_up(reason, outcome):
    with started_isolated(stopped, "cleans_up", reason, 1000, 0.02) as process:
        assert process.result() == outcome
        lines = process.text.splitlines()
        assert lines.count(f"ProcessStopError {reason.lower()}") == 1
        assert lines.count("cleaned up") == 1


def test_a_task_that_clings_is_killed_at_the_limit():
    with started_isolated(stopped, "clings", "DELETED", 5, 0.1) as process:
        assert process.result() == "Release()"
        assert process.text.count("ProcessStopError deleted") == 1


def test_a_handler_with_a_kill_of_its_own_is_called_each_time_and_loses_no_answer():
    with started_isolated(stopped, "Listens", "SHUTDOWN", 1000, 0.02) as process:
        assert process.result() == "Finish()"
        assert process.text.splitlines().count(" ".join(["shutdown"] * 20)) == 1


def test_what_a_kill_raises_is_raised_in_the_handler():
    with started_isolated(stopped, "Refuses", "SHUTDOWN", 1000, 1000) as process:
        assert process.result() == "Release()"
        assert "ValueError: killed for shutdown" in process.text


def stopped_while_asking(times):
    bench = Bench(HANDLERS, kill_interval=0.005, graceful_kill_limit=1000)
    # Whoever took another question's answer for this one's would be granted it.
    bench.ledger.refuses = True
    outcomes = Counter()
    for _ in range(times):
        task = bench.start("decides_when_stopped")
        asked = bench.ledger.extended
        bench.until(lambda asked=asked: bench.ledger.extended > asked + 20)
        bench.tasks.stop(task, Reason.SHUTDOWN)
        outcomes[bench.finish(task)] += 1
    return dict(outcomes), len(bench.ledger.data)


def test_a_stop_in_the_middle_of_a_question_loses_no_answer():
    decided = "Retry(wait=7, reason='retry asked for by the handler')"
    assert isolated(stopped_while_asking, 50) == [{decided: 50}, 50]


def stopped_before_it_began():
    bench = Bench(HANDLERS, kill_interval=1000, graceful_kill_limit=1000)
    bench.pool.prepare()
    [runner] = bench.pool._alive.values()
    bench.until(lambda: title(runner.pid).endswith("idle"))
    tree.send(runner.pid, signal.SIGSTOP)
    task = bench.start("cleans_up", gate="never")
    bench.tasks.stop(task, Reason.SHUTDOWN)
    bench.turn(0)
    tree.send(runner.pid, signal.SIGCONT)
    return bench.finish(task)


def test_a_task_that_is_stopped_before_it_began_does_not_begin():
    with started_isolated(stopped_before_it_began) as process:
        assert process.result() == "Release()"
        assert "working" not in process.text


# --- being used again ----------------------------------------------------------------


def in_turn(tasks, *between):
    """Where tasks run, with others between them."""
    # On a busy machine, what a task has left dies late.
    tree._DYING = tree._LONGEST = PATIENCE
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    for name in [None, *between]:
        if name is not None:
            bench.run(name, way="exits")
        bench.run("shows_itself")
    return [json.loads(data) for data in bench.ledger.data]


def test_a_runner_runs_as_many_tasks_as_it_may():
    pids = [seen["pid"] for seen in isolated(in_turn, 4, "returns", "raises", "retries", "returns")]
    # Two of each kind fit into four.
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert len(set(pids)) == 3


def test_a_runner_is_used_once_by_default():
    assert len({seen["pid"] for seen in isolated(in_turn, 1, "returns", "returns")}) == 3


@pytest.mark.parametrize("between", ["leaves_processes", "leaves_a_zombie", "forks"])
def test_nothing_is_left_of_a_task_when_the_next_one_begins_in_its_process(between):
    first, second = isolated(in_turn, 1000, between)
    assert first["pid"] == second["pid"]
    assert second["below"] == 0


@pytest.mark.parametrize("between", ["leaves_threads", "crashes", "closes_everything"])
def test_a_process_that_is_no_longer_clean_is_not_used_again(between):
    first, second = isolated(in_turn, 1000, between)
    assert first["pid"] != second["pid"]


def stray_after_a_stop():
    bench = Bench(HANDLERS, max_tasks_per_child=1000)
    first = bench.start("cleans_up", gate="never")
    bench.until(lambda: title(first.runner.pid).endswith("attempt 1"))
    bench.turn(0.1)
    bench.tasks.stop(first, Reason.TIMEOUT)
    outcome = bench.finish(first)
    second = bench.start("cleans_up", gate="gate")
    bench.until(lambda: title(second.runner.pid).endswith("attempt 1"))
    bench.turn(0.1)
    tree.send(second.runner.pid, signal.SIGTERM)
    bench.turn(0.2)
    Path("gate").touch()
    return outcome, bench.finish(second), first.runner.pid == second.runner.pid


def test_why_a_task_was_stopped_does_not_concern_the_next_one_in_its_process():
    expected = [FAILED("stopped at its time limit"), "Finish()", True]
    assert isolated(stray_after_a_stop) == expected


def idle_runner_killed():
    bench = Bench(HANDLERS)
    bench.pool.prepare()
    [pid] = bench.pool._alive
    tree.send(pid, signal.SIGKILL)
    bench.until(lambda: not bench.pool._alive)
    return bench.run("returns")


def test_a_waiting_runner_that_dies_costs_no_task():
    assert isolated(idle_runner_killed) == "Finish()"


def fork_server_lost():
    bench = Bench(HANDLERS)
    bench.pool.prepare()
    [runner] = bench.pool._alive.values()
    tree.send(runner.pid, signal.SIGSTOP)  # it does not end by itself
    bench.pool.start().channel.cut("a test")
    bench.pool.reap()
    return bench.pool.waiting, bench.run("returns")


def test_a_waiting_runner_whose_fork_server_has_died_is_given_no_task():
    assert isolated(fork_server_lost) == [False, "Finish()"]


def unused_runner():
    bench = Bench(HANDLERS, max_tasks_per_child=1000)
    task = bench.start("returns")
    used = task.runner
    bench.finish(task)
    bench.tasks.prepare(unused=True)
    return [bench.pool.acquire() is used, bench.pool.acquire() is used]


def test_a_runner_that_has_run_no_task_is_forked_where_one_is_needed():
    assert isolated(unused_runner) == [False, True]


def many(tasks):
    own = subprocess.Popen(["sleep", "1000"])  # as a handler's module may when it is imported
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    bench.run("leaves_processes")
    before = len([*Path("/proc/self/fd").iterdir()])
    for number in range(100):
        bench.run("leaves_processes" if number % 5 == 0 else "returns")
    bench.turn(0)
    after = len([*Path("/proc/self/fd").iterdir()])
    children = {*tree.children(os.getpid())}
    [server] = children - {own.pid}
    runners = {*tree.children(server)}
    return after - before, runners <= bench.pool._alive.keys(), has_ended(own.pid)


@pytest.mark.parametrize("tasks", [1, 1000])
def test_many_tasks_leave_no_descriptor_and_no_process_with_their_worker(tasks):
    more, nobody_else, own_has_ended = isolated(many, tasks)
    assert more < 10  # another runner may be waiting now, or one may just have ended
    assert nobody_else
    assert not own_has_ended


# --- the worker's death --------------------------------------------------------------


def worker_with_two_runners():
    bench = Bench(HANDLERS)
    task = bench.start("cleans_up", gate="never")
    bench.pool.prepare()
    bench.until(lambda: len(bench.pool._alive) > 1)
    say("pids", task.runner.pid, *bench.pool._alive)
    signal.pause()


def test_runners_die_with_their_worker_also_those_that_wait():
    with started_isolated(worker_with_two_runners) as process:
        pids = {int(word) for word in process.said("pids").split()}
        kill(process.pid)
        process.wait()
        assert len(pids) == 2
        wait_until(lambda: all(map(has_ended, pids)), what="the runners' end")


# --- signals to others ---------------------------------------------------------------


def tries_to_signal_everybody(task):
    own = subprocess.Popen(["sleep", "1000"])
    refused = []
    for pid in task.data["others"]:
        try:
            kill(pid, signal.SIGSTOP)
        except PermissionError:
            refused.append(pid)
    own.terminate()
    ended = own.wait()
    # So do the programs that it starts.
    shell = f"kill -STOP {task.data['others'][0]} 2>&1"
    said = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=False)
    task.update_data({"refused": refused, "ended": ended, "shell": said.returncode})


def signalled_by_a_task():
    try:
        bench = Bench({"tries": tries_to_signal_everybody}, concurrency=2, task_signals="own")
    except ConfigError as error:
        return "not here", str(error)
    bench.pool.prepare(2)
    other = subprocess.Popen(["sleep", "1000"])
    runners = [*bench.pool._alive]
    others = [os.getpid(), bench.server, other.pid, runners[0]]
    outcome = bench.run("tries", others=others)
    other.kill()
    told = json.loads(bench.ledger.data[0])
    refused = [pid in told["refused"] for pid in others]
    return outcome, refused, told["ended"], told["shell"] > 0


def test_a_task_that_may_signal_only_its_own_processes_is_refused_all_others():
    outcome, *found = isolated(signalled_by_a_task)
    if outcome == "not here":
        assert not kernel.can_confine_signals()
        assert found == ["task_signals: own needs Linux 6.12 with Landlock; set any"]
    else:
        assert (outcome, *found) == ("Finish()", [True] * 4, -signal.SIGTERM, True)
