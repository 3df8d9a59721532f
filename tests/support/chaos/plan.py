"""What is done to psched, and when: drawn from the seed before anything runs."""

import random
from collections.abc import Mapping, Sequence

from psched.core.operations.extra_runs import schedule_key
from psched.testing.simulation.plan import Step

HOSTS = 3

PROCESSES = ("master", "worker", "fork server", "collector", "task")
"""The kinds of processes that are killed and stopped."""

ON_PROCESSES = (
    *(f"kill a {kind}" for kind in PROCESSES),
    *(f"stop a {kind}" for kind in PROCESSES),
    *("stop a worker", "stop a worker", "freeze a host", "power failure", "term", "hup", "hup"),
)
"""What is done most often puts most promises to the test: a stopped worker cannot keep a lease."""

ON_HOST = ("another name", "two masters")
"""A host returns under another name, and later as itself; another master has the same name."""

ON_NETWORK = ("cut", "black hole", "slow answers", "lose a request", "lose an answer", "late")
"""What the proxy of one host does. ``late``: a request arrives after its sender has given up."""

ON_SERVER = ("kill the store", "stop the store", "restart the store")

ON_SQLITE = ("lock the store",)
"""Another program holds the write lock, as a backup or a long transaction does."""

ON_DYNALITE = ("stop the store",)
"""Dynalite keeps its tables in memory, so it is stopped and continued, and never killed."""

VERBS = (
    *("push", "push", "push", "push", "add", "edit", "pause", "resume", "resume", "skip"),
    *("trigger", "backfill", "cancel", "requeue", "requeue", "requeue", "stop", "delete"),
    *("pause_type", "resume_type"),
)
"""What people do. What undoes something is done more often, so that schedules go on running."""

VERBS_OF_TEMPLATES = ("add", "add", "edit", "edit", "delete", "look", "retire", "delete row")
"""What people do with what each host runs: ``look`` and ``retire`` are what a host does by itself,
but once a minute, or after `host_gone_after`. The host whose rows are retired may well be there."""

SCHEDULES: Sequence[tuple[Mapping[str, object], Mapping[str, float]]] = (
    ({"every": "2s"}, {"longest": 1}),
    ({"every": "2s", "catchup": "latest"}, {"longest": 3}),
    ({"every": "3s", "catchup": "skip"}, {"longest": 8}),
    ({"every": "3s", "delay": 1}, {"longest": 1}),
    ({"every": "4s", "retry_wait": 0}, {"longest": 2}),
    ({"every": "4s", "catchup": "latest", "kill_timeout": 6}, {"longest": 1, "overruns": True}),
    ({"every": "5s", "jitter": 2}, {"longest": 3}),
    ({"every": "5s", "pause_after_failures": 3}, {"longest": 2}),
    ({"every": "6s", "alive_time": 16}, {"longest": 5}),
    ({"every": "7s", "max_attempts": 2, "retry_backoff": "exponential"}, {"longest": 2}),
    ({"every": "8s", "catchup": "latest", "kill_timeout": 9}, {"longest": 2, "overruns": True}),
    ({"every": "10s", "catchup": "latest"}, {"longest": 30}),
)
"""The schedules: their settings, and what their tasks do, see `support.chaos.tasks`."""

HOSTS_OF: Sequence[Sequence[str] | None] = (None, None, ["h1"], ["h0", "h2"], ["h*"])
"""The hosts of schedules and tasks, by the remainder of the number in their keys."""

TEMPLATES: Sequence[tuple[Mapping[str, object], Sequence[str] | None]] = (
    ({"every": "2s"}, None),
    ({"every": "3s", "catchup": "latest"}, ["h*"]),
    ({"every": "4s"}, ["h0", "x*"]),
    ({"every": "5s", "delay": 1}, ["second", "h1"]),
)
"""What each host runs, with the keys ``e0`` and so on: the settings, and the hosts. ``second`` is a
label of the second masters, which the first ones do not have."""

VERBS_UNRECORDED = ("push", "push", "push", "add", "trigger")
"""What people do where nothing is recorded: nothing that would let an occurrence not run. Not
even a stop: it can meet an occurrence that a worker has leased, and has died before its start."""

_FAULTS_EVERY = 1.2
_VERBS_EVERY = 0.7
"""The mean seconds between two faults, and between two changes by people."""

_ON_TEMPLATES = 0.3
"""The part of the changes that is of what each host runs."""

_BEGIN = 3.0
"""Seconds from the start of the masters to the first fault."""


def is_by_people(step: Step) -> bool:
    """Whether people do it."""
    return step.what in VERBS or step.what.endswith(" each")


def hosts_of_key(key: str) -> Sequence[str] | None:
    """Which hosts may run what has this key, in a store that leaves rows to hosts."""
    if (of_host := schedule_key(key).partition("@")[2]) != "":
        return [of_host]
    return HOSTS_OF[int(schedule_key(key)[1:]) % len(HOSTS_OF)]


def draw(seed: int, seconds: float, store: str) -> list[Step]:
    """Draw a plan.

    Args:
        seed: decides everything.
        seconds: for how long something is done.
        store: the kind of store.
    """
    rng = random.Random(f"{seed} plan")  # noqa: S311  # no secret
    verbs = VERBS_UNRECORDED if store == "dynalite" else VERBS
    on_server = ON_DYNALITE if store == "dynalite" else ON_SERVER
    sqlite = store == "sqlite"
    groups = [ON_PROCESSES, ON_SQLITE] if sqlite else [ON_PROCESSES, ON_NETWORK, on_server]
    weights = [6.0, 1.0] if sqlite else [6.0, 4.0, 1.0]
    if store != "dynalite":
        groups, weights = [*groups, ON_HOST], [*weights, 1.0]
    longest = min(20.0, seconds / 3)  # longer than a lease, if there is time
    steps = []
    time = _BEGIN
    while (time := time + rng.expovariate(1 / _FAULTS_EVERY)) < seconds:
        what = rng.choice(rng.choices(groups, weights)[0])
        lasts = rng.choice([rng.uniform(0.1, 2), rng.uniform(longest / 2, longest)])
        steps.append(Step(time, what, rng.randrange(HOSTS), lasts, rng.randrange(2**30)))
    time = 0.0
    while (time := time + rng.expovariate(1 / _VERBS_EVERY)) < seconds:
        place, lasts = rng.randrange(len(SCHEDULES)), rng.uniform(0, 5)
        what = rng.choice(verbs)
        if store != "dynalite" and rng.random() < _ON_TEMPLATES:
            what, place = f"{rng.choice(VERBS_OF_TEMPLATES)} each", rng.randrange(len(TEMPLATES))
        steps.append(Step(time, what, place, lasts, rng.randrange(2**30)))
    return sorted(steps, key=lambda step: step.at)
