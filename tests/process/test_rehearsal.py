"""A fork server runs an empty task itself, so that its runners copy fewer pages of memory."""

import atexit
import gc
import logging
import os
from functools import partial
from pathlib import Path

from psched.base.log import Log
from psched.process.inheritance import open_descriptors
from psched.process.link import Link
from psched.runner import rehearsal
from psched.runner.rehearsal import rehearse
from psched.runner.runner import Runner
from psched.runner.shared_memory import StopFlagTable
from psched.runner.stop import Stop
from support.isolated import isolated
from support.page_faults import pages_copied


def run_one(runner, flags):
    ours, theirs = Link.pair()
    ours.send({"run": rehearsal._EMPTY}, b"{}")
    runner.run(flags, 0, theirs)
    [end] = ours.receive()
    assert end["done"] is None


def copied_before_and_after():
    log, stop, dispatch = Log(Path("log"), "fork server"), Stop(), rehearsal._Routes()
    runner = Runner(
        find=dispatch.find,
        log=log,
        open_schedules=dict,
        judge=dict,
        tasks=1,
        hooks=dispatch,
        stop=stop,
    )
    runner.before_fork(collects=False)
    gc.freeze()
    flags = StopFlagTable(1)
    before = pages_copied(partial(run_one, runner, flags))
    rehearse(stop, log)
    gc.freeze()
    return before, pages_copied(partial(run_one, runner, flags))


def test_a_runner_copies_fewer_pages_after_a_rehearsal():
    before, after = isolated(copied_before_and_after, forked=False)
    assert after < before - 30


def what_it_leaves():
    path, ended = Path("log"), []
    log = Log(path, "fork server")
    log.subject = "one"
    os.environ["PSCHED_KEY"] = "of a task that has started this service"
    atexit.register(ended.append, "users'")
    environment = dict(os.environ)
    descriptors = open_descriptors()
    rehearse(Stop(), log)
    log.emit(logging.makeLogRecord({"msg": "works", "levelno": logging.INFO, "levelname": "INFO"}))
    return [
        dict(os.environ) == environment,
        open_descriptors() == descriptors,
        log.process,
        log.copies_to,
        ended,
        path.read_text().count("\n"),
    ]


def test_it_leaves_the_process_as_it_was_and_runs_nothing_of_others():
    assert isolated(what_it_leaves, forked=False) == [True, True, "fork server", None, [], 1]
