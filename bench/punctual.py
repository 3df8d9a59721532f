"""How late tasks start: one a second, alone or beside one that prints much; a herd due at once."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet, Start
from harness import BENCH, CORES, LATER, Measured, Sample
from support.waiting import wait_until

AHEAD = 3
"""Seconds before a herd is due at which idle workers can see it coming: twice poll_interval."""

AFTER = 10
"""Tasks that fall due after the herd, one a second: they are not to start before it has."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, workers=CORES, concurrency=8)
    parser.add_argument("--seconds", type=int, help="default: 30; with --short, 2")
    parser.add_argument("--herds", type=int, nargs="+", help="default: 1000 10000; short, 40")
    given = harness.parsed(parser)
    given.seconds = harness.choose(given, 30, 2, given.seconds)
    given.herds = harness.choose(given, [1000, 10_000], [40], given.herds)
    harness.report("punctual", given, lambda _kind, url, folder: measured(given, url, folder))


def measured(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    after, ahead = (1, 1) if given.short else (AFTER, AHEAD)
    how = {"processors": given.workers, "concurrency": given.concurrency}
    with (
        Fleet(folder, url, table="seconds") as seconds,
        Fleet(folder, url, table="beside", concurrency=2, output="both") as beside,
        Fleet(folder, url, table="herd", **how) as herd,
    ):
        late = harness.rounds(
            given.rounds,
            {
                "tasks": lambda: each_second(seconds, given.seconds),
                "beside": lambda: beside_a_flood(beside, given.seconds),
            },
        )
        herds = harness.rounds(
            given.rounds,
            {
                str(count): lambda count=count: released(herd, count, after=after, ahead=ahead)
                for count in given.herds
            },
        )
    return {
        "each_second": harness.medians(late["tasks"]),
        "beside_a_flood": harness.medians(late["beside"]),
        "herd": {count: harness.medians(samples) for count, samples in herds.items()},
    }


def beside_a_flood(fleet: Fleet, seconds: int) -> Sample:
    """Lateness of such tasks beside a task of their worker that prints 10,000 lines per second."""
    printed = fleet.folder / "printed"
    for old in printed, fleet.gate:
        old.unlink(missing_ok=True)
    fleet.push([fleet.name("flood")], "flood")

    def end() -> None:
        assert not printed.exists(), "it has ended before the others"
        fleet.gate.touch()
        wait_until(lambda: printed.exists() and printed.read_text(), what="the end of the flood")

    sample = each_second(fleet, seconds, end=end)
    return {**sample, "printed_per_second": float(printed.read_text())}


def each_second(fleet: Fleet, seconds: int, *, end: Callable[[], object] = lambda: None) -> Sample:
    """Run a task in each second, beside a bare process that does nothing but sleep.

    Args:
        fleet: runs the tasks.
        seconds: how many.
        end: is called when all were started.
    """
    command = [Measured.python, str(BENCH / "floors.py"), "sleep", str(seconds), ""]
    pipe = subprocess.PIPE
    key = fleet.name("tick")
    fleet.start()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as bare:
        assert bare.stdin is not None
        assert bare.stdout is not None
        bare.stdout.readline()  # it is ready
        bare.stdin.write("go\n")
        bare.stdin.flush()
        first = int(time.time()) + 2
        with fleet.schedules() as schedules:
            schedules.add(key, "noop", cron="@every 1", next_time=first)
            starts = fleet.wait_for_starts(seconds)
            schedules[key].delete()
        bare_late = json.loads(bare.stdout.readline())["late"]
    end()
    fleet.stop()
    starts = fleet.starts()
    instants = [start.scheduled_time for start in starts]
    assert len(instants) >= seconds
    # None left out, none twice; there may have been another before the end.
    assert instants == [*range(first, first + len(instants))], instants
    late = [1000 * (start.at - start.scheduled_time) for start in starts[:seconds]]
    assert min(late) >= 0, "one was early"
    ours = harness.spread(late, "late_ms")
    floor = harness.spread([1000 * each for each in bare_late], "bare_ms")
    above = {
        f"above_bare_ms_{name}": ours[f"late_ms_{name}"] - floor[f"bare_ms_{name}"]
        for name in ("p50", "p99")
    }
    return {**ours, **floor, **above, "tasks": seconds}


def released(fleet: Fleet, count: int, *, after: int, ahead: int) -> Sample:
    """Have so many fall due at once, and some after them, while idle workers wait for them."""
    prefix = fleet.name("herd")
    keys = [f"{prefix}{number}" for number in range(count + after)]
    fleet.start()
    fleet.push(keys, at=LATER)
    # All are there: now, in an instant, they get their times.
    due = int(time.time()) + ahead
    times = "SET next_time = :due, next_run_time = :due, version = version + 1"
    fleet.sql(f"UPDATE {{table}} {times} WHERE next_time = :later", due=due, later=LATER)
    with fleet.sql.session() as sql:
        for number, key in enumerate(keys[count:], start=1):
            sql(f"UPDATE {{table}} {times} WHERE id = :key", due=due + number, key=key)
    starts = fleet.wait_for_ends(prefix, keys)
    fleet.stop()
    herd = [start for start in starts if start.scheduled_time == due]
    assert len(herd) == count
    last = herd[-1].at - due
    return {
        "per_second": (count - 1) / (herd[-1].at - herd[0].at),
        "first_start_ms": 1000 * (herd[0].at - due),
        "last_start_s": last,
        # Beyond what the rate of its own middle half explains.
        "above_throughput_ms": 1000 * (last - count / _steady(herd)),
        "out_of_order": _out_of_order(starts),
        "tasks": len(starts),
    }


def _out_of_order(starts: list[Start]) -> int:
    """How many were started after one that was due later."""
    late = newest = 0
    for start in starts:
        late += start.scheduled_time < newest
        newest = max(newest, start.scheduled_time)
    return late


def _steady(herd: list[Start]) -> float:
    """Tasks per second in the middle half of a herd."""
    quarter = len(herd) // 4
    return 2 * quarter / (herd[3 * quarter].at - herd[quarter].at)


if __name__ == "__main__":
    main()
