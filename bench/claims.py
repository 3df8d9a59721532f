"""Claims on tables of ten thousand, a million and five million schedules; see README.md."""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import harness
from harness import KINDS, LATER, LEASE
from psched.core.hosts import MOST_LANES
from psched.core.model import WAITING, Settlement
from support.stores import make_store

SIZES = (10_000, 1_000_000, 5_000_000)

CLAIMS = 50
"""Timed claims in a run."""

TAKEN = 20
"""Rows that each takes."""

NAMES = [f"host{number}" for number in range(MOST_LANES)]
"""The name and the labels of the host that claims, so as many lanes as a host can have."""


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--databases", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument(
        "--hosts", type=int, default=0, help="measure also tables whose rows are for so many hosts"
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="where the databases are made, and removed again")
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="psched-bench-", dir=given.folder) as folder:
        Path(folder).chmod(0o711)  # a server that refuses to be root is another user
        for kind in given.databases:
            with harness.database(kind, Path(folder)) as url:
                found[kind] = measured(kind, url, given.sizes, given.hosts, given.runs)
    host = {"python": platform.python_version(), "cores": os.cpu_count()}
    json.dump({"host": host, "runs": given.runs, "databases": found}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def measured(kind: str, url: str, sizes: list[int], hosts: int, runs: int) -> dict[str, Any]:
    """What was measured on one database: runs take turns, so that noise meets all tables alike."""
    sizes_of = {f"t{size}": size for size in sizes}
    loaded = {name: harness.load(kind, url, size, name) for name, size in sizes_of.items()}
    bases = dict.fromkeys(loaded, f"t{sizes[0]}")
    for size in sizes if hosts else ():
        name = f"t{size}_hosts"
        loaded[name] = harness.load(kind, url, size, name, hosts=hosts)
        sizes_of[name], bases[name] = size, f"t{size}"
    store = make_store(url, table=f"t{sizes[0]}", timeout=600)
    server = dict(store.examine())["server"]
    strategies = ["skip_locked", "cas"] if store._connector.dialect.skips_locked else ["cas"]
    store.disconnect()
    samples: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(runs):
        for name, size in sizes_of.items():
            for way in strategies:
                settings = {"host_name": NAMES[0], "host_labels": NAMES[1:]} if hosts else {}
                store = make_store(url, table=name, timeout=600, claim_strategy=way, **settings)
                samples.setdefault((way, name), []).append(run(store, size, hosts))
                store.disconnect()
        harness.tell(f"{kind}: a run of each")
    ways = {
        way: {name: summary(samples[way, name], samples[way, bases[name]]) for name in sizes_of}
        for way in strategies
    }
    return {"server": server, "load_seconds": loaded, "strategies": ways}


def summary(these: list[dict[str, float]], base: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the runs on one table, and of the ratios of each run to that of another table."""
    medians = {name: statistics.median(run[name] for run in these) for name in these[0]}
    ratios = {
        f"{name}_ratio": statistics.median(
            run[name] / other[name] for run, other in zip(these, base, strict=True)
        )
        for name in medians
    }
    return {name: round(value, 3) for name, value in (medians | ratios).items()}


def run(store: Any, size: int, hosts: int) -> dict[str, float]:  # noqa: ANN401  # of the tests
    """Make rows due, all over the table; claim them, settle them, and ask when none is left."""
    wanted = CLAIMS * TAKEN
    numbers = list(range(0, max(1, size // wanted) * wanted, max(1, size // wanted)))
    if hosts:
        # Those that the host may run.
        mine = [number for number in range(size) if number % hosts < MOST_LANES]
        numbers = mine[:: max(1, len(mine) // wanted)][:wanted]
        assert len(numbers) == wanted, "too many hosts for so few rows"
    keys = [f"k{number}" for number in numbers]
    # When a row is due has nothing to do with where it is. In the order of their keys, some of a
    # claim's rows would be neighbours, which share pages, but in a small table only.
    random.Random(size).shuffle(keys)  # noqa: S311
    since, found = int(store.now()) - len(keys), store.look(keys)
    for place, key in enumerate(keys):
        due = changed(found[key], next_run_time=since + place, status=WAITING)
        assert store.replace(found[key], due)
    claims, settles, idle = [], [], []
    nonce = f"bench{time.monotonic_ns()}"
    for count in range(CLAIMS):
        rows = timed(
            claims,
            lambda count=count: (
                store.claim(f"{nonce}.{count}", limit=TAKEN, horizon=5, **LEASE).rows
            ),
        )
        assert len(rows) == TAKEN, len(rows)
        ends = [
            Settlement(
                key=row.key,
                token=row.token,
                version=row.version,
                next_time=LATER,
                not_before=LATER,
            )
            for row in rows
        ]
        timed(settles, lambda ends=ends: store.settle(ends))
    for count in range(CLAIMS):
        owner = f"{nonce}.{CLAIMS + count}"
        timed(idle, lambda owner=owner: store.claim(owner, limit=TAKEN, horizon=5, **LEASE))
    return {
        "rows_claimed_per_second": CLAIMS * TAKEN / sum(claims),
        "claim_ms_p50": statistics.median(claims) * 1000,
        "claim_ms_p99": sorted(claims)[CLAIMS * 99 // 100] * 1000,
        "settle_ms_p50": statistics.median(settles) * 1000,
        "idle_claim_ms_p50": statistics.median(idle) * 1000,
    }


def timed(samples: list[float], work: Callable[[], Any]) -> Any:  # noqa: ANN401  # whatever it is
    """Do something, and add to the samples how long it took."""
    begun = time.perf_counter()
    result = work()
    samples.append(time.perf_counter() - begun)
    return result


if __name__ == "__main__":
    main()
