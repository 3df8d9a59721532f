"""A task's process ends as a Python program ends, before the task counts as finished."""

import atexit
import concurrent.futures
import gc
import gzip
import io
import logging
import logging.handlers
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from importlib import import_module
from pathlib import Path

import pytest

from psched.application import Dispatch
from support.bench import Bench
from support.isolated import isolated
from support.waiting import PATIENCE

FAILED = "Retry(wait=None, reason='at the end of its process: {}')".format
KEPT = []
"""Keeps what a handler has left, as a global variable of a user's module does."""


def note(text, path="out"):
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


# --- what is done before a task counts as finished -------------------------------------


def registers(_task):
    for name in "first", "last":
        atexit.register(note, name)


def leaves_text(_task):
    KEPT.append(Path("out").open("w"))  # noqa: SIM115
    KEPT[-1].write("text\n")


def leaves_bytes(_task):
    KEPT.append(Path("out").open("wb"))  # noqa: SIM115
    KEPT[-1].write(b"bytes\n")


def leaves_compressed(_task):
    KEPT.append(gzip.open("out", "wt"))  # noqa: SIM115
    KEPT[-1].write("compressed\n")


def wraps_output(_task):
    raw = os.fdopen(os.open("out", os.O_WRONLY | os.O_CREAT, 0o600), "wb", buffering=0)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw))
    print("printed")  # noqa: T201


def logs_to_memory(_task):
    target = logging.FileHandler("out")
    handler = logging.handlers.MemoryHandler(1000, target=target)
    logging.getLogger("user").addHandler(handler)
    logging.getLogger("user").warning("logged")
    KEPT.append(handler)


def leaves_a_thread(_task):
    gate = threading.Event()
    threading.Thread(target=lambda: (gate.wait(), note("thread"))).start()
    threading.Timer(0.1, gate.set).start()


def leaves_an_executor(_task):
    KEPT.append(concurrent.futures.ThreadPoolExecutor(1))
    gate = threading.Event()
    KEPT[-1].submit(lambda: (gate.wait(), note("thread")))
    threading.Timer(0.1, gate.set).start()


def leaves_a_pool(_task):
    KEPT.append(concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")))
    KEPT[-1].submit(note, "pool")


def leaves_a_process(_task):
    context = multiprocessing.get_context("fork")
    KEPT.append(context.Process(target=note, args=["process"]))
    KEPT[-1].start()


def leaves_a_folder(_task):
    KEPT.append(tempfile.TemporaryDirectory(dir="."))
    weakref.finalize(KEPT[-1], note, "removed")


def leaves_and_raises(task):
    registers(task)
    raise ValueError("no")


def leaves_and_exits(task):
    leaves_text(task)
    sys.exit("enough")


async def leaves_in_a_loop(task):
    registers(task)
    leaves_a_thread(task)


def forks(task):
    if pid := os.fork():  # noqa: TID251
        os.waitpid(pid, 0)
        return
    leaves_text(task)


def prints_in_c(_task):
    # The C library writes to a pipe or a file only when its buffer is full, or at the exit.
    import ctypes  # noqa: PLC0415

    library = ctypes.CDLL(None)
    library.fopen.restype = ctypes.c_void_p
    library.fputs(b"from C\n", ctypes.c_void_p(library.fopen(b"out", b"w")))


LEFT = {
    registers: "last\nfirst\n",
    leaves_text: "text\n",
    leaves_bytes: "bytes\n",
    wraps_output: "printed\n",
    logs_to_memory: "logged\n",
    leaves_a_thread: "thread\n",
    leaves_an_executor: "thread\n",
    leaves_a_pool: "pool\n",
    leaves_a_process: "process\n",
    leaves_a_folder: "removed\n",
    leaves_and_raises: "last\nfirst\n",
    leaves_and_exits: "text\n",
    leaves_in_a_loop: "thread\nlast\nfirst\n",
    forks: "text\n",
    prints_in_c: "from C\n",
}
HANDLERS = {each.__name__: each for each in LEFT} | {"leaves_compressed": leaves_compressed}


def left_behind(tasks):
    bench = Bench(HANDLERS, max_tasks_per_child=tasks)
    found = {}
    for name in HANDLERS:
        bench.run(name)
        if name == "leaves_compressed":
            found[name] = gzip.decompress(Path("out").read_bytes()).decode()
        else:
            found[name] = Path("out").read_text()
        Path("out").unlink()
    return {**found, "folders": [each.name for each in Path().iterdir() if each.is_dir()]}


def test_all_that_a_python_program_does_at_its_exit_is_done_before_its_task_has_ended():
    found = isolated(left_behind, 1)
    expected = {each.__name__: text for each, text in LEFT.items()}
    assert found == {**expected, "leaves_compressed": "compressed\n", "folders": []}


# --- processes that run several tasks ---------------------------------------------------


def tells_its_process(_task):
    note(os.getpid(), "pids")


def read_after_each(names):
    bench = Bench({**HANDLERS, "tells": tells_its_process}, max_tasks_per_child=1000)
    bench.run("tells")
    found = []
    for name in names:
        bench.run(name)
        found.append(Path("out").read_text() if Path("out").exists() else "")
        bench.run("tells")
    bench.close()
    return [*found, Path("out").read_text()], len({*Path("pids").read_text().split()})


@pytest.mark.parametrize(
    "name", ["leaves_text", "wraps_output", "logs_to_memory", "leaves_a_thread"]
)
def test_a_process_that_goes_on_has_joined_its_threads_and_written_its_buffers(name):
    found, processes = isolated(read_after_each, [name])
    assert found[0] == next(text for each, text in LEFT.items() if each.__name__ == name)
    assert processes == 1


def joins_a_thread(task):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    tells_its_process(task)


def count_processes(times):
    bench = Bench({"joins": joins_a_thread}, max_tasks_per_child=1000)
    for _ in range(times):
        bench.run("joins")
    bench.close()
    return len({*Path("pids").read_text().split()})


def test_a_thread_that_was_joined_never_keeps_its_process_from_going_on():
    assert isolated(count_processes, 100) == 1


class Node:
    """An object that can refer to itself, so that only `gc` deletes it."""


def leaves_much(task):
    leaves_text(task)
    leaves_compressed_at(task)
    KEPT.extend([] for _ in range(50_000))
    node = Node()
    vars(node)["node"] = node
    weakref.finalize(node, note, "deleted", "garbage")


def leaves_compressed_at(_task):
    KEPT.append(gzip.open("compressed", "wt"))  # noqa: SIM115
    KEPT[-1].write("compressed\n")


def writes_more(_task):
    KEPT[0].write("more\n")
    note(len(gc.get_objects()), "objects")


def run_after_a_first_task_that_leaves_much():
    bench = Bench({"much": leaves_much, "more": writes_more}, max_tasks_per_child=1000)
    bench.run("much")
    deleted = Path("garbage").read_text()
    bench.run("more")
    text, objects = Path("out").read_text(), Path("objects").read_text()
    bench.close()
    return deleted, text, int(objects), gzip.decompress(Path("compressed").read_bytes()).decode()


def test_what_the_first_task_has_left_is_not_searched_after_each_task_but_its_files_are_written():
    deleted, text, objects, compressed = isolated(run_after_a_first_task_that_leaves_much)
    assert (deleted, text, compressed) == ("deleted\n", "text\nmore\n", "compressed\n")
    assert objects < 50_000


def test_exit_functions_are_called_when_the_process_of_several_tasks_ends():
    assert isolated(read_after_each, ["registers"]) == [["", "last\nfirst\n"], 1]


def test_threads_of_an_executor_end_with_their_process_before_their_task_has_ended():
    assert isolated(read_after_each, ["leaves_an_executor"]) == [["thread\n", "thread\n"], 2]


# --- failures, and the time limit -------------------------------------------------------


def fails_at_exit(_task):
    atexit.register(note, "another")
    atexit.register(exec, "1 / 0")


def leaves_what_cannot_be_written(_task):
    KEPT.append(Path("/dev/full").open("w"))  # noqa: SIM115
    KEPT[-1].write("lost")


def exits_at_exit(_task):
    atexit.register(sys.exit)


def leaves_a_pipe_that_nobody_reads(_task):
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as program:
        KEPT.append(os.fdopen(os.dup(program.stdin.fileno()), "w"))
    KEPT[-1].write("unread")


FAILURES = {
    fails_at_exit: FAILED("ZeroDivisionError: division by zero"),
    leaves_what_cannot_be_written: FAILED("OSError: [Errno 28] No space left on device"),
    exits_at_exit: "Finish()",
    leaves_a_pipe_that_nobody_reads: "Finish()",
}


def fail(tasks):
    bench = Bench({each.__name__: each for each in FAILURES}, max_tasks_per_child=tasks)
    found = {each.__name__: bench.run(each.__name__) for each in FAILURES}
    return found, Path("out").read_text()


def test_a_failure_at_the_exit_is_a_failed_attempt_and_the_rest_is_done():
    found, written = isolated(fail, 1)
    assert found == {each.__name__: how for each, how in FAILURES.items()}
    assert written == "another\n"


def hangs_at_exit(_task):
    atexit.register(note, "another")
    atexit.register(threading.Event().wait)
    note("begun")


def hangs_in_a_thread(_task):
    threading.Thread(target=threading.Event().wait).start()
    atexit.register(note, "another")
    note("begun")


def run_to_the_limit(name):
    handlers = {each.__name__: each for each in (hangs_at_exit, hangs_in_a_thread)}
    bench = Bench(handlers, kill_timeout=2 * PATIENCE, kill_interval=0.1)
    task = bench.start(name)
    bench.until(Path("out").exists)
    task.started -= 2 * PATIENCE  # as if it had run for so long
    how = bench.finish(task)
    return how, task.attempt.outcome, task.runner.exit.signal, Path("out").read_text()


@pytest.mark.parametrize("name", ["hangs_at_exit", "hangs_in_a_thread"])
def test_the_time_limit_of_the_task_ends_what_hangs_at_its_exit(name):
    how, outcome, number, written = isolated(run_to_the_limit, name)
    assert how == "Retry(wait=None, reason='stopped at its time limit')"
    assert (outcome, number, written) == ("timed_out", None, "begun\nanother\n")


def hangs_between_tasks(_task):
    atexit.register(threading.Event().wait)


def close_one_that_hangs():
    bench = Bench({"hangs": hangs_between_tasks}, max_tasks_per_child=1000)
    task = bench.start("hangs")
    how = bench.finish(task)
    bench.close()
    return how, task.runner.exit.signal


@pytest.mark.extended
def test_an_exit_function_that_hangs_between_two_tasks_is_killed():
    assert isolated(close_one_that_hangs) == ["Finish()", signal.SIGALRM]


# --- hooks ------------------------------------------------------------------------------


class Hooks(Dispatch):
    """Tells when its hooks are called."""

    def after_fork(self):
        note("after_fork")
        atexit.register(note, "registered")

    def before_exit(self):
        note("before_exit")


class BrokenHooks(Dispatch):
    """Raises before the first task of a process."""

    def after_fork(self):
        raise ValueError("no database")


class BrokenEnd(Dispatch):
    """Raises after the last task of a process."""

    def before_exit(self):
        raise ValueError("no database")


def says(_task):
    note("task")


def call_hooks(hooks, tasks):
    kind = {each.__name__: each for each in (Hooks, BrokenHooks, BrokenEnd)}[hooks]
    # What was registered before the fork is not called in tasks.
    atexit.register(note, "the worker's")
    bench = Bench({"says": says}, max_tasks_per_child=tasks, hooks=kind())
    found = [bench.run("says") for _ in range(2)]
    bench.close()
    atexit.unregister(note)
    return found, Path("out").read_text().split() if Path("out").exists() else []


@pytest.mark.parametrize(
    ("tasks", "called"),
    [
        (1, [*["after_fork", "task", "registered", "before_exit"] * 2]),
        (1000, ["after_fork", "task", "task", "registered", "before_exit"]),
    ],
)
def test_hooks_are_called_once_in_each_process_of_tasks(tasks, called):
    assert isolated(call_hooks, "Hooks", tasks) == [["Finish()"] * 2, called]


def test_a_hook_that_raises_is_a_failed_attempt():
    raised = "Retry(wait=None, reason='ValueError: no database')"
    assert isolated(call_hooks, "BrokenHooks", 1000) == [[raised] * 2, []]
    assert isolated(call_hooks, "BrokenEnd", 1) == [
        [FAILED("ValueError: no database")] * 2,
        ["task"] * 2,
    ]


NUMPY = """
import random
_global = random.Random(1)
seed = _global.seed
rand = _global.random
"""


def draws(_task):
    numbers = sys.modules["numpy.random"].rand(), random.random()  # noqa: S311, TID251
    note(" ".join(map(str, numbers)))


def draw():
    # It stands for numpy, whose global generator a fork copies, too.
    Path("numpy").mkdir()
    Path("numpy/__init__.py").touch()
    Path("numpy/random.py").write_text(NUMPY)
    sys.path.insert(0, str(Path.cwd()))
    import_module("numpy.random")
    bench = Bench({"draws": draws})
    for _ in range(3):
        bench.run("draws")
    return Path("out").read_text().split()


def test_each_process_of_tasks_draws_other_random_numbers():
    drawn = isolated(draw)
    assert len({*drawn}) == len(drawn) == 6
