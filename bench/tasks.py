"""Empty tasks per second and their cost, in several layouts of workers, beside the machine's own.

A layout is a number of workers and of slots, such as 4x1, or "shipped": as the defaults have it.
Other settings may follow: 4x1,cgroup=off. Each is measured with a fresh process for each task, with
processes that are reused, and with tasks of type exec.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet
from harness import Sample

LAYOUTS = ["4x1", "shipped", "2x16"]

REUSED = 1000
"""Tasks for which a process is used, where they are."""

MORE = 4
"""Where processes are reused, there are so many times more tasks: each takes far less time."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5, kinds=(*harness.KINDS, "redis"))
    parser.add_argument("--tasks", type=int, help="default: 2000; with --short, 40")
    parser.add_argument(
        "--layouts",
        nargs="+",
        metavar="WORKERSxSLOTS[,SETTING=VALUE...]",
        help=f"or shipped; default: {' '.join(LAYOUTS)}; with --short, 1x1 shipped",
    )
    parser.add_argument(
        "--floor-processes", type=int, default=4, help="of a yardstick; default: %(default)s"
    )
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 2000, 40, given.tasks)
    given.layouts = harness.choose(given, LAYOUTS, ["1x1", "shipped"], given.layouts)
    harness.report("tasks", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    contestants = harness.task_floors(url, given.tasks, folder, given.floor_processes)
    layouts: dict[str, dict[str, int]] = {}
    with ExitStack() as stack:
        for name, fleet, drain in fleets(stack, given.layouts, given.tasks, url, folder):
            settings = fleet.settings
            layouts[name] = {"workers": settings.processors, "concurrency": settings.concurrency}
            contestants[name] = drain
        samples = harness.rounds(given.rounds, contestants)
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    found["durability"] = harness.durability(kind, url)
    for name, layout in layouts.items():
        found[name] |= layout
    for name in samples:
        found[name] |= harness.of_floors(samples, name)
    cost = harness.cost_in(samples)
    for what in "fresh", "reused", "exec":
        names = [f"{what}_{layout}" for layout in given.layouts]
        # What lacks a feature is not the best layout.
        alike = [name for name in names if "," not in name] or names
        best = max(alike, key=lambda name: found[name]["per_second"])
        cheapest = min(alike, key=lambda name: found[name][cost])
        for name in names:
            found[name]["of_best"] = harness.of(samples, name, "per_second", best)
            found[name]["cpu_of_best"] = harness.of(samples, name, cost, cheapest)
    return found


def fleets(
    stack: ExitStack, layouts: Sequence[str], tasks: int, url: str, folder: Path
) -> Iterator[tuple[str, Fleet, Callable[[], Sample]]]:
    """Open a fleet for each layout: with a fresh process for each task, with reused ones, for exec.

    Args:
        stack: closes them.
        layouts: see `settings_of`.
        tasks: how many tasks a fleet with fresh processes runs.
        url: the database's.
        folder: below which each fleet makes its own.

    Yields:
        Its name, such as fresh_4x1; the fleet; what measures it.
    """
    kinds = (
        ("fresh", "noop", 1, tasks),
        ("reused", "noop", REUSED, MORE * tasks),
        ("exec", "exec", 1, tasks),
    )
    for what, type_, most, count in kinds:
        for place, layout in enumerate(layouts):
            chosen = settings_of(layout) | {"max_tasks_per_child": most, "exec_type": True}
            fleet = Fleet(folder, url, table=f"{what}{place}", **chosen)
            stack.enter_context(fleet)
            yield f"{what}_{layout}", fleet, partial(drained, fleet, count, type_)


def settings_of(layout: str) -> dict[str, Any]:
    """The settings of a layout; None: as it is shipped."""
    slots, *others = layout.split(",")
    chosen = (None, None) if slots == "shipped" else map(int, slots.split("x"))
    found: dict[str, Any] = dict(zip(("processors", "concurrency"), chosen, strict=True))
    pairs = (other.split("=", 1) for other in others)
    return found | {name: _value(text) for name, text in pairs}


def _value(text: str) -> object:
    """A setting's value: a number, true or false, or else a word, such as off."""
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def drained(fleet: Fleet, count: int, type_: str) -> Sample:
    """Tasks per second, what each costs, and a worker's size."""
    drain = fleet.drain(count, type_=type_)
    return {
        "per_second": drain.per_second,
        **drain.costs,
        "tasks": len(drain.starts),
        "rss_mib": drain.rss,
    }


if __name__ == "__main__":
    main()
