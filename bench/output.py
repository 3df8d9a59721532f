"""What the capture of output costs tasks that print nothing or two lines; a collector's memory."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from fleet import Fleet
from harness import CORES, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

REUSED = 1000
"""Tasks for which a process is used, where they are."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5, workers=CORES, concurrency=16)
    parser.add_argument("--tasks", type=int, help="default: 2000; with --short, 50")
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 2000, 50, given.tasks)
    harness.report("output", given, lambda _kind, url, folder: measured(given, url, folder))


def measured(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """Tasks per second with capture and without, by turns."""
    how = {"processors": given.workers, "concurrency": given.concurrency}
    layouts: dict[str, dict[str, Any]] = {
        "fresh": how,
        "reused": how | {"max_tasks_per_child": REUSED},
    }
    # A process that is reused takes a tenth of the time, so that more tasks are needed.
    counts = {"fresh": given.tasks, "reused": 5 * given.tasks}
    types = {"silent": "noop", "printing": "say"}
    with ExitStack() as stack:
        contestants: dict[str, Callable[[], Sample]] = {}
        for layout, settings in layouts.items():
            for output in "raw", "both":
                fleet = stack.enter_context(
                    Fleet(folder, url, table=f"{layout}_{output}", output=output, **settings)
                )
                collectors = given.workers if output == "both" else 0
                for what, type_ in types.items():
                    contestants[f"{layout}_{what}_{output}"] = partial(
                        drained, fleet, counts[layout], type_, collectors
                    )
        samples = harness.rounds(given.rounds, contestants)
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    for layout in layouts:
        for what in types:
            name = f"{layout}_{what}"
            for figure in "per_second", "own_cpu_ms":
                found[f"{name}_both"][f"{figure}_of_raw"] = harness.ratio(
                    samples[f"{name}_both"], figure, samples[f"{name}_raw"], figure
                )
    return found


def drained(fleet: Fleet, count: int, type_: str, collectors: int) -> Sample:
    """Tasks per second, what each costs, and the memory of a collector."""
    drain = fleet.drain(count, type_=type_, stop=False)
    found = [harness.memory(pid) for pid in fleet.collectors]
    assert len(found) == collectors
    fleet.stop()
    memory = {f"collector_{name}_mib": found[0][name] for name in ("pss", "private") if found}
    return {"per_second": drain.per_second, "own_cpu_ms": drain.costs["own_cpu_ms"], **memory}


if __name__ == "__main__":
    main()
