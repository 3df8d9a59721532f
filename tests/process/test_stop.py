"""TERM that arrives where Python ignores what is raised: it is raised again, in the handler."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from psched.handlers.exec import Exec
from psched.runner.shared_memory import Reason
from support.bench import Bench
from support.isolated import isolated, say, started_isolated
from support.processes import kill
from support.waiting import PATIENCE, wait_until


def midst(*_arguments):
    """Stay here, in a callback of the interpreter's, until TERM has been sent."""
    if Path("entered").exists():
        return  # once is enough
    Path("entered").touch()
    wait_until(Path("sent").exists, what="TERM")


def term_again():
    """Have TERM arrive where the handler cleans up: it is not to be interrupted twice."""
    for _ in range(5):
        kill(os.getpid(), signal.SIGTERM)


def if_asked():
    if Path("asked").exists():
        midst()


def fork():
    if os.fork() == 0:  # noqa: TID251  # as a handler may
        os._exit(0)


def in_a_fork():
    os.register_at_fork(before=midst)
    fork()


def after_a_fork():
    os.register_at_fork(after_in_parent=midst)
    fork()


def in_an_older_hook():
    """It was registered before the runner was forked, so it is called while TERM is blocked."""
    Path("asked").touch()
    fork()


def in_multiprocessing():
    os.register_at_fork(before=midst)
    multiprocessing.get_context("fork").Process(target=int).start()


def in_subprocess():
    os.register_at_fork(after_in_parent=midst)
    subprocess.Popen(["true"], preexec_fn=int)  # noqa: PLW1509  # that is the case


class Finalized:
    def __del__(self):
        midst()


def in_a_finalizer():
    Finalized()


def in_a_weak_reference():
    thing = Finalized.__new__(type("Thing", (), {}))
    _reference = weakref.ref(thing, midst)
    del thing


def in_garbage_collection():
    gc.callbacks.append(midst)
    gc.collect()


def in_a_finalizer_with_a_hook_of_its_own():
    sys.unraisablehook = lambda _unraisable: None
    Finalized()


PLACES = {
    function.__name__: function
    for function in (
        in_a_fork,
        after_a_fork,
        in_an_older_hook,
        in_multiprocessing,
        in_subprocess,
        in_a_finalizer,
        in_a_weak_reference,
        in_garbage_collection,
        in_a_finalizer_with_a_hook_of_its_own,
    )
}


def goes_there(task):
    try:
        PLACES[task.data["place"]]()
        say("went on")
        wait_until(Path("never").exists, what="nothing")
    except RuntimeError as error:
        say("raised", type(error).__name__, error)
        term_again()
        say("was not disturbed")
        raise
    finally:
        say("cleaned up")


def stopped_in_the_midst(bench, task):
    bench.until(Path("entered").exists)
    bench.tasks.stop(task, Reason.SHUTDOWN)
    bench.turn(0)
    Path("sent").touch()
    return bench.finish(task)


def stopped_there(place):
    os.register_at_fork(before=if_asked)
    bench = Bench({"goes": goes_there}, kill_interval=1000, graceful_kill_limit=1000)
    task = bench.start("goes", place=place)
    return stopped_in_the_midst(bench, task)


@pytest.mark.parametrize("place", PLACES)
def test_a_task_is_stopped_though_term_comes_where_exceptions_are_ignored(place):
    with started_isolated(stopped_there, place) as process:
        assert process.result() == "Release()"
        assert process.text.count("raised ProcessStopError shutdown") == 1
        assert process.text.count("was not disturbed") == 1
        assert process.text.count("cleaned up") == 1
        # What Python prints of an exception that it ignores; this one is not lost.
        assert "Exception ignored" not in process.text


class Kills:
    """Has a ``kill`` of its own, which raises."""

    def __init__(self, task):
        self.place = task.data["place"]

    def run(self):
        PLACES[self.place]()
        wait_until(Path("never").exists, what="nothing")

    def kill(self, reason):
        raise ValueError(f"killed for {reason}")


def killed_there(place):
    bench = Bench({"kills": Kills}, kill_interval=1000, graceful_kill_limit=1000)
    task = bench.start("kills", place=place)
    return stopped_in_the_midst(bench, task)


def test_what_a_kill_raises_where_it_is_ignored_is_raised_again():
    with started_isolated(killed_there, "in_a_finalizer") as process:
        assert process.result() == "Release()"
        assert "ValueError: killed for shutdown" in process.text


def program_stopped_while_it_is_forked():
    os.register_at_fork(before=if_asked)
    bench = Bench({"exec": Exec}, kill_interval=1000, graceful_kill_limit=1000)
    bench.pool.prepare()
    Path("asked").touch()
    task = bench.start("exec", command=["sleep", str(10 * PATIENCE)])
    return stopped_in_the_midst(bench, task)


def test_a_program_is_stopped_though_term_comes_while_it_is_forked():
    assert isolated(program_stopped_while_it_is_forked) == "Release()"


def ignores_other_things(_task):
    class Fails:
        def __del__(self):
            raise KeyError("of a finalizer")

    try:
        say("waits")
        wait_until(Path("never").exists, what="nothing")
    except RuntimeError:
        Fails()
        term_again()
        say("was not disturbed")
        raise


def stopped_beside_others():
    bench = Bench({"ignores": ignores_other_things}, kill_interval=0.02, graceful_kill_limit=1000)
    task = bench.start("ignores")
    bench.until(lambda: task.runner.stop_flags.begun)
    bench.turn(0.1)
    bench.tasks.stop(task, Reason.SHUTDOWN)
    return bench.finish(task)


def test_another_exception_that_is_ignored_is_told_and_disturbs_no_cleaning_up():
    with started_isolated(stopped_beside_others) as process:
        assert process.result() == "Release()"
        assert process.text.count("was not disturbed") == 1
        assert "KeyError: 'of a finalizer'" in process.text
