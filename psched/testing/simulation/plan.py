"""What is done to a simulated psched, and when: drawn from the seed before anything runs.

So a failing simulation can be run again without some of it, until little is left: `shrink`.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class What(StrEnum):
    """What is done to a host, or to the store."""

    KILL_WORKER = "kill a worker"
    KILL_MASTER = "kill the master"
    KILL_TASK = "kill a task"
    POWER_FAILURE = "power failure"
    FREEZE_WORKER = "stop a worker"
    FREEZE_MASTER = "stop the master"
    FREEZE_ALL = "stop the master and all workers"
    SUSPEND = "suspend the machine"
    STEP_HOST = "set the host's clock"
    CUT = "cut the host off the store"
    RESTART = "restart by HUP"
    STOP = "stop by TERM"
    STORE_AWAY = "the store is away"
    STORE_BAD = "the store answers badly"
    STORE_BACK = "set the store's clock back"
    STORE_AHEAD = "set the store's clock forward"
    ROLL_BACK = "the store loses its last commits"


ON_STORE = frozenset(
    {What.STORE_AWAY, What.STORE_BAD, What.STORE_BACK, What.STORE_AHEAD, What.ROLL_BACK}
)
"""What is done to the store."""

RARE = frozenset({What.STORE_BACK, What.STORE_AHEAD, What.ROLL_BACK})
"""What breaks leases, or lets everything wait: if it were frequent, it would explain too much."""


MIXES = {
    "all": tuple(What),
    "processes": tuple(each for each in What if each not in {*ON_STORE, What.CUT, What.STEP_HOST}),
    "store": (What.STORE_AWAY, What.STORE_BAD, What.CUT, What.KILL_WORKER),
    "clocks": (What.STEP_HOST, What.SUSPEND, What.STORE_BACK, What.STORE_AHEAD, What.ROLL_BACK),
    "people": (),
}
"""The mixes of faults, by name. People change schedules in each of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault, or one change by a person."""

    at: float  # when, in seconds from the beginning
    what: str  # a `What`, or the name of a change: see `psched.testing.simulation.people`
    place: int  # the number of the host, or of the schedule
    seconds: float  # how long it lasts, or by how much a clock is set
    number: int  # decides details

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.what} {self.place} {self.seconds:.3f}"


CHANGES = (
    *("add", "push", "pause", "resume", "pause_type", "resume_type", "skip", "trigger"),
    *("backfill", "edit", "edit_data", "cancel", "requeue", "stop", "delete", "force_finish"),
)
"""What people do."""


def draw(
    rng: random.Random,
    *,
    seconds: float,
    hosts: int,
    schedules: int,
    every: float,
    mix: Sequence[What],
) -> list[Step]:
    """Draw a plan."""
    steps = []
    weights = [0.1 if what in RARE else 1.0 for what in mix]
    time = 5.0
    while mix and (time := time + rng.expovariate(1 / every)) < seconds:
        what = rng.choices(mix, weights)[0]
        length = rng.choice([rng.uniform(0.1, 3), rng.uniform(1, 30), rng.uniform(20, 90)])
        steps.append(Step(time, what, rng.randrange(hosts), length, rng.randrange(2**30)))
    time = 5.0
    while (time := time + rng.expovariate(3 / every)) < seconds:
        change, place = rng.choice(CHANGES), rng.randrange(schedules)
        steps.append(Step(time, change, place, rng.uniform(0, 120), rng.randrange(2**30)))
    return sorted(steps, key=lambda step: step.at)


_MOST_RUNS = 200  # after so many simulations, what is left is short enough


def shrink(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Find a small part of a plan that still fails; return the steps that are left."""
    left, size, runs = [*numbers], max(1, len(numbers) // 2), 0
    while True:
        place = 0
        while place < len(left) and runs < _MOST_RUNS:
            fewer = left[:place] + left[place + size :]
            runs += 1
            if fails(fewer):
                left = fewer
            else:
                place += size
        if size == 1 or runs >= _MOST_RUNS:
            return left
        size //= 2
