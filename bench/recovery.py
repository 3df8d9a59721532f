"""From the death of a worker or a runner to the next start of the task that it ran."""

import time
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet
from harness import Sample
from support.processes import kill
from support.run_log import RunLog, never_two_at_once
from support.waiting import PATIENCE

KILLED = ("worker", "runner")


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5)
    given = harness.parsed(parser)
    harness.report("recovery", given, lambda _kind, url, folder: measured(given, url, folder))


def measured(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    # A runner's death is a failed attempt: that is tried again after retry_wait.
    how = {"dispatch": "recorder:Dispatch", "processors": 2, "retry_wait": 0}
    with Fleet(folder, url, **how) as fleet:
        fleet.start()
        samples = harness.rounds(
            given.rounds, {whom: lambda whom=whom: survived(fleet, whom) for whom in KILLED}
        )
        fleet.stop()
    return {whom: harness.medians(these) for whom, these in samples.items()}


def survived(fleet: Fleet, whom: str) -> Sample:
    """KILL one, with a task that has a child and a daemon; see the task run again, and end."""
    log = RunLog(fleet.folder / "runs")
    key = fleet.name("killed")
    gate = fleet.folder / key
    with fleet.schedules() as schedules:
        data = {"until": key, "processes": ["child", "daemon"]}
        schedules.push(key, "recorder", data)
    [run] = log.wait(key, lambda runs: len({note["pid"] for note in runs[0].notes}) == len("abc"))
    killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    kill({"worker": run.worker, "runner": run.pid}[whom])
    log.wait(key, lambda runs: len(runs) == len(KILLED), what="the next start")
    gate.touch()
    with fleet.schedules() as schedules:
        assert schedules[key].wait(timeout=PATIENCE) == "finished"
    first, second = log.runs(key)
    assert (first.completed, second.completed) == (False, True)
    never_two_at_once([first, second])
    fleet.wait_for_workers()
    return {
        "next_start_s": second.started - killed_at,
        # The last that was written by anything of the first run: its tree was gone after that.
        "last_sign_s": max(first.last_sign - killed_at, 0.0),
        "runs": len([first, second]),
    }


if __name__ == "__main__":
    main()
