"""What a worker knows about an attempt that has ended: exit status, usage, error."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from psched.core.history.records import LONGEST_ERROR, Outcome
from psched.handlers.exec import Exec
from psched.process.cgroup import Cgroup, OomCounter
from psched.process.kernel import usage_of_zombie
from support.bench import Bench
from support.cgroups import leave, own_cgroup, populated
from support.isolated import isolated
from support.misbehaving_handlers import HANDLERS

MIB = 1024
"""In KiB."""


def burn(seconds):
    """Use so much CPU time in this process."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def hold(mebibytes):
    """Use so much memory in this process, for a moment."""
    return len(bytearray(b"x") * (mebibytes << 20))


# --- handlers ------------------------------------------------------------------------


def burns(_task):
    burn(0.3)


def burns_and_dies(_task):
    burn(0.3)
    os._exit(3)


def hogs_and_is_killed(_task):
    hold(200)
    signal.raise_signal(signal.SIGKILL)


def burns_in_a_child(_task):
    subprocess.run([sys.executable, "-c", BURNER], check=True)


def leaves_a_burner(_task):
    """Leave a process that burns until it has used 0.3 s, and lives on."""
    reads, writes = os.pipe()
    subprocess.Popen([sys.executable, "-c", BURNER + END_OF_BURNER], stdout=writes, process_group=0)
    os.close(writes)
    os.read(reads, 1)


BURNER = "import time\nwhile time.process_time() < 0.3: pass\n"
END_OF_BURNER = "print(flush=True)\ntime.sleep(1000)\n"


def hogs(_task):
    hold(200)


def hogs_in_a_child(_task):
    subprocess.run([sys.executable, "-c", "len(bytearray(b'x') * (200 << 20))"], check=True)


def exits(task):
    sys.exit(task.data["code"])


def checks(task):
    subprocess.run(task.data["command"], shell=True, check=True)  # noqa: S602


def lies(task):
    raise subprocess.CalledProcessError(task.data["code"], "program")


def chains(_task):
    try:
        fails_twice()
    except OSError as error:
        raise ValueError("two lines\nof text") from error


def fails_twice():
    try:
        {}["the first cause"]
    except KeyError as error:
        raise OSError("the second cause") from error


def raises_huge(_task):
    error = None
    for number in range(300):
        following = ValueError(f"cause {number} " + "x" * 1000)
        following.__cause__, error = error, following
    raise ValueError("y" * 10_000_000 + "the end") from error


def raises_huge_lines(_task):
    raise ValueError("x\n" * 1_000_000 + "the last line")


def raises_escapes(_task):
    raise ValueError("\x1b[2J" * 100_000 + "\ud800\0\u202e and é鍵")


def stops(task):
    task.finish()
    raise ValueError("after its end")


def waits(_task):
    signal.pause()


MINE = {
    each.__name__: each
    for each in (
        burns, burns_and_dies, hogs_and_is_killed, burns_in_a_child, leaves_a_burner, hogs,
        hogs_in_a_child, exits, checks, lies, chains, raises_huge, raises_huge_lines,
        raises_escapes, stops, waits,
    )
}  # fmt: skip

ALL = {**HANDLERS, **MINE, "exec": Exec}


def ended(bench, type, **data):  # noqa: A002
    """Run a task; return what is known about the attempt."""
    return known(bench, bench.start(type, **data))


def known(bench, task):
    bench.finish(task)
    fields = ("exit_status", "exit_signal", "cpu_ms", "peak_kb", "out_of_memory", "error")
    found = {name: getattr(task.attempt, name) for name in ("outcome", "reason", *fields)}
    assert task.attempt.result is None
    return found


def many(cases, tasks, where=None):
    if where is not None:
        Path(where, "cgroup.procs").write_text("0")
    cgroup = None if where is None else Cgroup(Path(where)).below("worker")
    bench = Bench(ALL, max_tasks_per_child=tasks, cgroup=cgroup)
    found = [ended(bench, type_, **data) for type_, data in cases]
    bench.close()
    if cgroup is not None:
        leave(cgroup, where)
    return found


def run_all(cases, tasks=1, where=None):
    return isolated(many, cases, tasks, where)


# --- exit status and signal ----------------------------------------------------------


def shell(text, **fields):
    return ["exec", {"command": text, "shell": True, **fields}]


EXITS = [
    (["returns", {}], (None, None)),
    (["raises", {}], (None, None)),
    (["exits", {"code": 0}], (0, None)),
    (["exits", {"code": 3}], (3, None)),
    (["exits", {"code": None}], (0, None)),
    (["exits", {"code": "enough"}], (1, None)),
    (["exits", {"code": 256 + 4}], (4, None)),
    (["exits", {"code": -1}], (255, None)),
    (["leaves", {"status": 3}], (3, None)),
    (["leaves", {"status": 0}], (0, None)),
    (["kills_itself", {}], (None, signal.SIGKILL)),
    (["crashes", {}], (None, signal.SIGSEGV)),
    (["exec", {"command": ["true"]}], (0, None)),
    (["exec", {"command": ["sh", "-c", "exit 7"]}], (7, None)),
    (["exec", {"command": ["no such program"]}], (None, None)),
    (shell("exit 0"), (0, None)),
    (shell("exit 7"), (7, None)),
    (shell("exit 7", ok_exit=[7]), (7, None)),
    (shell("kill -TERM $$"), (None, signal.SIGTERM)),
    (shell("kill -KILL $$"), (None, signal.SIGKILL)),
    (shell("(kill -KILL $(exec sh -c 'echo $PPID')); exit 137"), (137, None)),
    (["checks", {"command": "exit 5"}], (5, None)),
    (["checks", {"command": "kill -HUP $$"}], (None, signal.SIGHUP)),
    (["lies", {"code": 1000}], (None, None)),
    (["lies", {"code": -1000}], (None, None)),
    (["lies", {"code": "x"}], (None, None)),
    (["returns", {}], (None, None)),
]


@pytest.mark.parametrize("tasks", [1, 1000])
def test_the_exit_status_or_signal_of_an_attempt_is_known(tasks):
    found = run_all([case for case, _ in EXITS], tasks)
    for (case, expected), attempt in zip(EXITS, found, strict=True):
        assert (attempt["exit_status"], attempt["exit_signal"]) == expected, case


# --- errors --------------------------------------------------------------------------

CAUSES = (
    "The above exception was the direct cause of the following exception",
    "KeyError: 'the first cause'",
    "OSError: the second cause",
)


def test_an_error_is_kept_with_its_traceback_and_its_causes():
    (attempt,) = run_all([["chains", {}]])
    assert attempt["reason"] == "ValueError: two lines of text"
    error = attempt["error"]
    for text in CAUSES:
        assert text in error
    assert 'in chains\n    raise ValueError("two lines\\nof text")' in error
    assert error.endswith("\nValueError: two lines\nof text")
    assert "psched/runner" not in error


HUGE = [
    ("raises_huge", "ythe end"),
    ("raises_huge_lines", "x\nthe last line"),
    ("raises_escapes", "\\x1b[2J\\ud800\\x00\\u202e and é鍵"),
]


def test_however_long_an_error_is_its_text_is_short_and_has_the_last_lines():
    found = run_all([[name, {}] for name, _ in HUGE])
    for (name, end), attempt in zip(HUGE, found, strict=True):
        error = attempt["error"]
        assert len(error) <= LONGEST_ERROR, name
        assert len(error) > LONGEST_ERROR / 2, name
        assert error.endswith(end), name
        assert error.startswith("Traceback" if name != "raises_huge" else "ValueError: cause 0")
        assert "characters left out)" in error, name
        assert error.replace("\n", "").isprintable(), name


SHORT = {
    "raises_unprintable": "BrokenError: <exception str() failed>",
    "recurses": "RecursionError: maximum recursion depth exceeded",
    "exits_with_text": "SystemExit: enough",
    "raises_keyboard_interrupt": "KeyboardInterrupt",
    "raises_surrogates": "ValueError: \\ud800\\x00\\x1b[2J",
    "stops": "ValueError: after its end",
}


def test_every_exception_of_a_handler_has_a_text():
    found = run_all([[name, {}] for name in SHORT])
    for (name, end), attempt in zip(SHORT.items(), found, strict=True):
        assert attempt["error"].endswith(end), name
        assert attempt["error"].startswith("Traceback (most recent call last):\n"), name


WITHOUT_ERROR = ["returns", "unknown", "fails_without_a_word", "kills_itself", "leaves_threads"]


def test_there_is_no_error_if_the_reason_says_all():
    found = run_all([[name, {}] for name in WITHOUT_ERROR])
    assert [attempt["error"] for attempt in found] == [None] * len(WITHOUT_ERROR)


# --- CPU time and memory -------------------------------------------------------------


@pytest.fixture(params=["rusage", "cgroup"])
def where(request):
    """The cgroup of the worker; None if it has none."""
    if request.param == "rusage":
        yield None
        return
    with own_cgroup("reports") as group:
        yield str(group)
        assert not populated(group)


@pytest.mark.parametrize("tasks", [1, 1000])
def test_the_cpu_time_of_an_attempt_is_that_of_its_processes_alone(where, tasks):
    cases = [
        ["burns", {}],
        ["returns", {}],
        ["burns_in_a_child", {}],
        ["returns", {}],
        ["burns", {}],
    ]
    times = [attempt["cpu_ms"] for attempt in run_all(cases, tasks, where)]
    for number in 0, 2, 4:
        assert 290 <= times[number] < 900
    for number in 1, 3:
        assert times[number] < 100


@pytest.mark.parametrize("tasks", [1, 1000])
def test_a_cgroup_tells_the_cpu_time_also_of_what_outlives_the_handler(tasks):
    with own_cgroup("reports") as group:
        cases = [["leaves_a_burner", {}], ["returns", {}]]
        left, next_ = run_all(cases, tasks, str(group))
        assert 290 <= left["cpu_ms"] < 900
        assert next_["cpu_ms"] < 100


def test_a_cgroup_tells_the_cpu_time_of_a_process_that_tells_nothing():
    with own_cgroup("reports") as group:
        (found,) = run_all([["burns_and_dies", {}]], 1, str(group))
        assert 290 <= found["cpu_ms"] < 900


DYING = [["burns_and_dies", {}], ["hogs_and_is_killed", {}]]


def test_what_a_process_that_tells_nothing_has_used_is_known():
    burnt, killed = run_all(DYING)
    assert 290 <= burnt["cpu_ms"] < 900
    assert 0 < burnt["peak_kb"] < 150 * MIB
    assert 200 * MIB < killed["peak_kb"] < 300 * MIB
    assert killed["exit_signal"] == signal.SIGKILL


def test_what_a_reused_process_that_tells_nothing_has_used_for_its_last_task_is_not_known():
    _, left = run_all([["hogs", {}], ["leaves", {"status": 3}]], 1000)
    assert (left["cpu_ms"], left["peak_kb"]) == (None, None)


def zombie_usages():
    child = subprocess.Popen([*HOG[:2], BURNER + HOG[2]])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    usages = [usage_of_zombie(child.pid) for _ in range(2)]
    return usages, child.wait(), usage_of_zombie(child.pid)


def test_a_zombie_tells_what_it_has_used_and_remains_one():
    # A child's peak begins with the memory of its parent, and the tests' process can be large.
    usages, status, afterwards = isolated(zombie_usages)
    for cpu_us, peak_kb in usages:
        assert 290_000 <= cpu_us < 900_000
        assert 200 * MIB < peak_kb < 300 * MIB
    assert status == 0
    assert afterwards == [None, None]


HOG = [sys.executable, "-c", "len(bytearray(b'x') * (200 << 20))"]

HOGS = [
    ["returns", {}],
    ["hogs", {}],
    ["hogs_in_a_child", {}],
    ["exec", {"command": HOG}],
    ["exec", {"command": ["true"]}],
]


def test_the_peak_of_memory_is_that_of_the_largest_process():
    small, *large, program = (attempt["peak_kb"] for attempt in run_all(HOGS))
    for peak in large:
        assert 200 * MIB < peak < 300 * MIB
    assert 0 < small < 150 * MIB
    assert 0 < program < 150 * MIB


def test_the_peak_of_a_reused_process_is_not_that_of_an_earlier_task():
    cases = [["returns", {}], ["hogs", {}], ["returns", {}], ["exec", {"command": ["true"]}]]
    first, second, third, program = (attempt["peak_kb"] for attempt in run_all(cases, 1000))
    assert 0 < first < 150 * MIB
    assert 200 * MIB < second < 300 * MIB
    assert third is None
    assert 0 < program < 150 * MIB


# --- out of memory -------------------------------------------------------------------


def oom_cases(cases, counts):
    """Run tasks while a cgroup's counter has these values: at each start, and at each end."""
    bench = Bench(ALL)
    values = iter(counts)
    bench.pool.oom_kills = lambda: next(values)
    return [ended(bench, type_, **data)["out_of_memory"] for type_, data in cases]


KILLS = ["kills_itself", {}], shell("kill -KILL $$"), shell("exit 137")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((None, None), False),
        ((4, 5), True),
        ((4, 4), False),
        ((None, 5), False),
        ((4, None), False),
    ],
)
def test_a_kill_by_somebody_else_is_lack_of_memory_if_the_counter_has_grown(counts, expected):
    assert isolated(oom_cases, KILLS, counts * len(KILLS)) == [expected] * len(KILLS)


def test_other_ends_are_no_lack_of_memory_whatever_the_counter_says():
    others = [["raises", {}], ["crashes", {}], shell("kill -TERM $$"), shell("exit 1")]
    assert isolated(oom_cases, others, [*range(100)]) == [False] * len(others)


def stopped(kill_timeout, command):
    bench = Bench(
        ALL, kill_timeout=kill_timeout, kill_interval=0.1, graceful_kill_limit=5, log_file="log"
    )
    attempts = [ended(bench, "exec", command=["sh", "-c", command]), ended(bench, "waits")]
    return attempts, Path("log").read_text()


def test_a_kill_at_the_time_limit_is_no_lack_of_memory():
    (program, handler), log = isolated(stopped, 5, "trap '' TERM; sleep 1000 & wait; wait; wait")
    assert program["outcome"] == handler["outcome"] == Outcome.TIMED_OUT
    assert (program["exit_status"], program["exit_signal"]) == (None, signal.SIGKILL)
    assert not program["out_of_memory"]
    assert (handler["exit_status"], handler["exit_signal"]) == (None, None)
    # The traceback shows where the handler has hung.
    assert "signal.pause()" in handler["error"]
    assert handler["error"].endswith("ProcessStopError: timeout")
    assert "memory" not in log


def logged_end():
    bench = Bench(ALL, log_file="log")
    counts = itertools.count()
    bench.pool.oom_kills = lambda: next(counts)
    task = bench.start("kills_itself")
    found = known(bench, task)
    task.log_end()
    return found, Path("log").read_text()


def test_lack_of_memory_is_logged_once():
    found, log = isolated(logged_end)
    assert found["out_of_memory"]
    assert found["reason"] == "its process was killed by SIGKILL"
    [line] = [each for each in log.splitlines() if "memory" in each]
    assert "WARNING" in line
    assert line.endswith("its process was killed by SIGKILL; memory has probably run out")


EVENTS = "low 0\nhigh 0\nmax 7\noom 3\noom_kill {}\noom_group_kill 1\n"


def test_the_counter_of_the_nearest_cgroup_that_has_one_is_read(tmp_path):
    for name, kills in ("far", 1), ("far/near", 2):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.events").write_text(EVENTS.format(kills))
    own = tmp_path / "far/near/psched.1.2/nonce"
    own.mkdir(parents=True)
    counter = OomCounter(own)
    assert counter.read() == 2
    (tmp_path / "far/near/memory.events").write_text(EVENTS.format(3))
    assert counter.read() == 3


def test_the_counter_of_the_machine_is_read_if_no_cgroup_counts(tmp_path):
    before, read, after = (OomCounter(tmp_path / "none").read() for _ in range(3))
    assert 0 <= before <= read <= after


def test_nothing_is_known_if_the_counter_cannot_be_read(tmp_path):
    (tmp_path / "memory.events").write_text("of another form")
    counter = OomCounter(tmp_path)
    assert counter.read() is None
    (tmp_path / "memory.events").unlink()
    assert counter.read() is None
