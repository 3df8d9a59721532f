"""Memory of a worker and its helpers, of an idle runner, and of one with a task."""

import statistics
import subprocess
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet
from harness import Measured, Sample
from support.waiting import wait_until


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, workers=4)
    parser.add_argument("--tasks", type=int, help="run before; default: 200; with --short, 8")
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 200, 8, given.tasks)
    harness.report("memory", given, lambda _kind, url, folder: measured(given, url, folder))


def measured(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    with (
        Fleet(folder, url, table="few", processors=1) as few,
        Fleet(folder, url, table="many", processors=1 + given.workers) as many,
    ):
        samples = harness.rounds(
            given.rounds,
            {
                "interpreter": interpreter,
                "few": lambda: weighed(few, 1, given.tasks),
                "many": lambda: weighed(many, 1 + given.workers, given.tasks),
            },
        )
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    more = harness.difference(samples["many"], "all_pss_mib", samples["few"], "all_pss_mib")
    # With each worker come its fork server, its collector and its idle runner.
    found["worker_and_runner_pss_mib"] = round(more / given.workers, 3)
    return found


def interpreter() -> Sample:
    """A Python that does nothing."""
    command = [Measured.python, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        running.stdout.readline()
        found = harness.memory(running.pid)
        running.communicate()
    return {f"{name}_mib": value for name, value in found.items()}


def weighed(fleet: Fleet, workers: int, tasks: int) -> Sample:
    """The memory of all processes of a fleet that has worked, is idle, and then has tasks."""
    drain = fleet.drain(tasks, stop=False)
    wait_until(lambda: len(fleet.runners) == workers, what="an idle runner for each worker")
    assert len(fleet.collectors) == workers
    everybody = [fleet.master.pid, *fleet.processes]
    whole = sum(harness.memory(pid)["pss"] for pid in everybody)
    workers_ = [harness.memory(pid) for pid in fleet.workers]
    idle = [harness.memory(pid) for pid in fleet.runners]
    master = harness.memory(fleet.master.pid)
    servers = [harness.memory(pid) for pid in fleet.servers]
    collectors = [harness.memory(pid) for pid in fleet.collectors]
    prefix = fleet.name("hold")
    keys = [f"{prefix}{number}" for number in range(workers)]
    fleet.push(keys, "hold")
    fleet.wait_for_starts(tasks + workers)
    busy = [harness.memory(pid) for pid in fleet.runners]
    fleet.gate.touch()
    starts = fleet.wait_for_ends(prefix, keys, before=drain.starts)
    fleet.gate.unlink()
    fleet.stop()
    middle = statistics.median
    return {
        "all_pss_mib": whole,
        "master_pss_mib": master["pss"],
        "worker_pss_mib": middle(each["pss"] for each in workers_),
        "worker_private_mib": middle(each["private"] for each in workers_),
        "fork_server_pss_mib": middle(each["pss"] for each in servers),
        "fork_server_private_mib": middle(each["private"] for each in servers),
        "collector_pss_mib": middle(each["pss"] for each in collectors),
        "collector_private_mib": middle(each["private"] for each in collectors),
        "idle_runner_pss_mib": middle(each["pss"] for each in idle),
        "idle_runner_private_mib": middle(each["private"] for each in idle),
        "busy_runner_pss_mib": middle(each["pss"] for each in busy),
        "busy_runner_private_mib": middle(each["private"] for each in busy),
        "tasks": len(starts),
    }


if __name__ == "__main__":
    main()
