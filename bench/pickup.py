"""From the commit of a push to the start of its task, on an idle installation, by `wake`."""

import random
import time
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet, once
from harness import CORES, Sample
from idle import passes
from psched.app import CLOCK, hint_of, make_store, new_nonce, read_config
from psched.client.collection import ScheduleCollection

WAKES = ("off", "local")
"""The values of the setting `wake` that are measured."""

SPACING = (0.1, 1.1)
"""The least and the most seconds from the start of a task to the next push: the task has ended by
then, and poll_interval is one second, so a push comes at any time between two polls."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, workers=CORES, concurrency=5)
    parser.add_argument("--pushes", type=int, help="of a round; default: 200; with --short, 3")
    given = harness.parsed(parser)
    given.pushes = harness.choose(given, 200, 3, given.pushes)
    harness.report("pickup", given, lambda kind, url, folder: measured(given, kind, url, folder))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    wakes = [*WAKES, *["notify"] * (kind == "postgresql")]
    how = {"processors": given.workers, "concurrency": given.concurrency}
    samples = harness.rounds(
        given.rounds,
        {wake: lambda wake=wake: picked_up(given, url, folder, wake, **how) for wake in wakes},
    )
    return {wake: harness.medians(these) for wake, these in samples.items()}


def picked_up(given: Any, url: str, folder: Path, wake: str, **how: int) -> Sample:  # noqa: ANN401
    """Push tasks one by one, each when nothing else happens; how long each has waited.

    With ``notify``, the program sends no hint itself, as if it ran on another host.
    """
    table = f"pickup_{wake}"
    with Fleet(folder, url, table=table, wake=wake, **how) as fleet:
        fleet.start()
        prefix, pushed = fleet.name("pickup"), dict[str, tuple[float, float]]()
        committed: list[float] = []
        with opened(fleet, committed) as schedules:
            for number in range(given.pushes + 1):
                passes(random.uniform(*SPACING))  # noqa: S311  # no secret
                key = f"{prefix}{number}"
                called = time.time()
                schedules.push(key, "noop")
                pushed[key] = called, committed[-1]
                fleet.wait_for_starts(number + 1)
        starts = fleet.wait_for_ends(prefix, [*pushed])
        fleet.stop()
    once((start.key for start in starts), [*pushed])
    # The first push has opened the connection.
    found = [start for start in starts if start.key != f"{prefix}0"]
    commit = [1000 * (start.at - pushed[start.key][1]) for start in found]
    call = [1000 * (start.at - pushed[start.key][0]) for start in found]
    return {
        **harness.spread(commit, "from_commit_ms"),
        **harness.spread(call, "from_call_ms"),
        "tasks": len(found),
    }


def opened(fleet: Fleet, committed: list[float]) -> ScheduleCollection:
    """The schedules, as a program opens them, but the time of each commit is noted.

    The hint is sent right after the commit, before the push returns: the workers, which the hint
    has woken, can keep this process from its processor by then.
    """
    settings = read_config(fleet.config)
    hint = None if settings.wake == "notify" else hint_of(settings)

    def note() -> None:
        committed.append(time.time())
        if hint is not None:
            hint()

    return ScheduleCollection(
        make_store(settings), settings, clock=CLOCK, draw_nonce=new_nonce, hint=note
    )


if __name__ == "__main__":
    main()
