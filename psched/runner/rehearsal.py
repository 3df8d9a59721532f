"""Runs an empty task in a fork server before it forks, so that runners find their code warm.

CPython specializes code for what it meets when it runs (PEP 659): it writes into the code, counts
there what it cannot specialize, and fills caches. A runner that runs its code for the first time
would do so itself, and the kernel would copy each page that it writes to.
"""

import os
import re
from collections.abc import Mapping
from typing import ClassVar

from psched.application.dispatch import Dispatch, Router, Target
from psched.base.log import Log
from psched.process.link import Link
from psched.runner.messages import PIPE
from psched.runner.runner import Runner
from psched.runner.shared_memory import StopFlags, StopFlagTable
from psched.runner.stop import Stop

_TIMES = 8
"""CPython specializes what has run a few times; from then on nothing changes."""

_EMPTY = {
    "key": "rehearsal",
    "type": "rehearsal",
    "scheduled_time": 0,
    "attempt": 1,
    "cron": None,
    "timezone": "UTC",
    "delay": 0,
    "run_as": None,
    "owner": "rehearsal",
    "fence": 1,
    "data_limit": 1000,
    "on_return": "finish",
    "result": "explicit",
    "payload": None,
    "output": PIPE,
}


def _do_nothing(_task: object) -> None:
    pass


class _Routes(Dispatch):
    routes: ClassVar[Mapping[str | re.Pattern[str], Target]] = {"rehearsal": _do_nothing}


def rehearse(stop: Stop, log: Log) -> None:
    """Run the task a few times in this process; its title and signals are set afterwards.

    ``stop`` is the one of the runners. This process's log gets no line.
    """
    process, environment = log.process, dict(os.environb)
    try:
        table = StopFlagTable(1)
        table.close()
        for _ in range(_TIMES):
            _run(stop, log, table)
        stop.receive(StopFlags())  # so that nothing refers to the memory any more
    except OSError:
        return  # no descriptor is left; runners then copy more memory
    finally:
        log.process, log.subject, log.copies_to = process, "", None
        os.environb.clear()
        os.environb.update(environment)


def _run(stop: Stop, log: Log, table: StopFlagTable) -> None:
    dispatch = _Routes()
    runner = Runner(
        find=Router(dispatch, {}).find,
        log=log,
        open_schedules=dict,  # type: ignore[arg-type]  # nobody opens them
        judge=dict,
        tasks=1,
        hooks=dispatch,
        stop=stop,
    )
    runner.before_fork(collects=False)  # else what is registered for the end would run now
    ours, theirs = Link.pair()
    ours.send({"run": _EMPTY}, b"{}")
    runner.run(table, 0, theirs)
    ours.close()
    theirs.close()
