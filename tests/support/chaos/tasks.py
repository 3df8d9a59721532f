"""The tasks of a chaos, which bear witness in the run log; see `support.run_log`.

A copy of this file stands beside the run log in the folder of each host, as a user's module would.
What a task does is drawn from the seed, its occurrence and its attempt, so that no occurrence fails
for ever. Its data say:

============  =====================================================================================
``seed``      the seed
``longest``   the most seconds that it works
``overruns``  whether some attempts never end by themselves: they are for a ``kill_timeout``
============  =====================================================================================
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import yaml
from recorder import Recorder

from psched.application import Dispatch as BaseDispatch

_BEAT = 0.05
"""Seconds between two signs of life."""

_WAYS = {
    "works": 70,
    "fails": 8,
    "crashes": 3,
    "exits": 3,
    "is deaf": 6,
    "starts a child": 5,
    "starts a daemon": 5,
}
"""What attempts do, and how often."""


_SETTINGS = yaml.safe_load(Path("psched.yml").read_text())
_NAMES = [_SETTINGS["host_name"], *_SETTINGS.get("host_labels", [])]
"""The names of the host, as the workers know them: a master can be started under others."""


class ChaosError(Exception):
    """The attempt fails, as it was drawn."""


class Chaotic(Recorder):
    """Works for some time, and ends in one of many ways."""

    def run(self) -> None:
        """Run the task."""
        # The store's clock is the one of this machine.
        self.note("start", worker=os.getppid(), store_time=time.time(), names=_NAMES)
        data, task = self.task.data, self.task
        rng = random.Random(f"{data['seed']} {task.idempotency_key} {task.attempt}")  # noqa: S311
        [way] = rng.choices([*_WAYS], [*_WAYS.values()])
        seconds = rng.choice([rng.uniform(0.01, 0.2), rng.uniform(0.01, data["longest"])])
        if way == "is deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif way.startswith("starts"):
            self.start_process(way.rpartition(" ")[2])
        if data.get("overruns") and rng.random() < 0.5:
            seconds = float("inf")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.note("alive")
            time.sleep(min(left, _BEAT))
        if way == "fails":
            raise ChaosError
        if way == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if way == "exits":
            sys.exit(3)
        self.note("completed")


class Dispatch(BaseDispatch):
    """Routes all types of the schedules."""

    routes = {"t0": Chaotic, "t1": Chaotic, "t2": Chaotic}  # noqa: RUF012  # as users write it
