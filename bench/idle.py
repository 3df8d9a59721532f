"""What workers cost while nothing is due: processor time, queries, growth."""

import socket
import statistics
import time
from pathlib import Path
from typing import Any

import harness
from fleet import Fleet
from harness import Sample
from support.waiting import LONGEST_PAUSE, wait_until

_SCRAPE_EVERY = 15.0
"""Seconds between two requests for metrics."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, workers=4)
    parser.add_argument("--seconds", type=int, help="of a round; default: 60; with --short, 1")
    parser.add_argument(
        "--monitor",
        choices=("on", "off", "metrics"),
        default="on",
        help="whether there is a monitor; metrics: it also shows metrics, and is asked every 15 s",
    )
    parser.add_argument("--schedules", type=int, help="default: 10000; with --short, 100")
    given = harness.parsed(parser)
    given.seconds = harness.choose(given, 60, 1, given.seconds)
    given.schedules = harness.choose(given, 10_000, 100, given.schedules)
    harness.report("idle", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    harness.load(kind, url, given.schedules, "idle")
    settings: dict[str, object] = {"monitor": given.monitor != "off"}
    if given.monitor == "metrics":
        settings["metrics"] = f"unix:{folder}/metrics.sock"
    with (
        Fleet(folder, url, table="idle", processors=given.workers, **settings) as fleet,
        fleet.sql.session() as ask,
    ):
        server = ask if kind == "mariadb" else None
        fleet.start()
        wait_until(lambda: bool(fleet.monitor) == settings["monitor"], what="the monitor")
        # The first looks and the first beats are not what an idle worker does.
        passes(0.2 if given.short else 5)
        first = _private(fleet)
        samples = harness.rounds(
            given.rounds,
            {
                "look_floor": lambda: harness.floor("look", 1, url, min(given.seconds, 20)),
                "idle": lambda: watched(
                    fleet,
                    server,
                    given.seconds,
                    folder / "metrics.sock" if given.monitor == "metrics" else None,
                ),
            },
        )
        growth = 1024 * (_private(fleet) - first)
        assert fleet.starts() == [], "nothing was due"
        fleet.stop()
    for idle, floor in zip(samples["idle"], samples["look_floor"], strict=True):
        # What one look in each second costs, of each worker.
        idle["of_look_floor"] = idle["cpu_percent"] / (given.workers * floor["own_cpu_ms"] / 10)
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    found["idle"] |= {"growth_kib": growth, "watched_for_s": given.rounds * given.seconds}
    return found


def watched(fleet: Fleet, server: Any, seconds: float, metrics: Path | None) -> Sample:  # noqa: ANN401
    """What a fleet spends in so many seconds, and asks of its server, if there is one.

    Args:
        fleet: the fleet.
        server: asks the server; None if there is none.
        seconds: how long.
        metrics: the socket of metrics, which are asked for; None: nobody asks.
    """
    before, wakes, asked = _spent(fleet), _wakes(fleet), _questions(server)
    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        if metrics is not None:
            _scrape(metrics)
        passes(min(left, _SCRAPE_EVERY))
    took = time.monotonic() - begun
    after, woken, answered = _spent(fleet), _wakes(fleet), _questions(server)
    assert before.keys() == after.keys(), "a process has come or gone"
    cpu = {pid: after[pid] - before[pid] for pid in after}
    woken = {pid: woken[pid] - wakes[pid] for pid in woken}
    found = {
        "cpu_percent": 100 * sum(cpu.values()) / took,
        "master_cpu_percent": 100 * cpu[fleet.master.pid] / took,
        "worker_cpu_percent": 100 * statistics.median(cpu[pid] for pid in fleet.workers) / took,
        "worker_wakes_per_second": statistics.median(woken[pid] for pid in fleet.workers) / took,
        "processes": len(cpu),
    }
    if fleet.monitor:
        [monitor] = fleet.monitor
        found["monitor_cpu_percent"] = 100 * cpu[monitor] / took
        found["monitor_wakes_per_second"] = woken[monitor] / took
        found["monitor_private_mib"] = harness.memory(monitor)["private"]
    if asked is not None and answered is not None:
        # The question itself is one of them. poll_interval is 1 s.
        found["queries_per_worker_and_poll"] = (answered - asked - 1) / took / len(fleet.workers)
    return found


def _scrape(path: Path) -> None:
    """Ask for metrics once, as Prometheus does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"psched_due " in answer


def passes(seconds: float) -> None:
    """Let some time pass."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, timeout=seconds + LONGEST_PAUSE, what="time")


def _spent(fleet: Fleet) -> dict[int, float]:
    """Processor time of master, workers, fork servers, collectors, runners and the monitor."""
    pids = [fleet.master.pid, *fleet.processes, *fleet.monitor]
    return {pid: harness.cpu_seconds(pid) for pid in pids}


def _wakes(fleet: Fleet) -> dict[int, int]:
    """How often each worker, and the monitor, has slept and gone on so far."""
    pids = [*fleet.workers, *fleet.monitor]
    status = {pid: Path(f"/proc/{pid}/status").read_text() for pid in pids}
    name = "\nvoluntary_ctxt_switches:"
    return {pid: int(text.partition(name)[2].split()[0]) for pid, text in status.items()}


def _private(fleet: Fleet) -> float:
    """What workers and master have alone, in MiB."""
    return sum(harness.memory(pid)["private"] for pid in [fleet.master.pid, *fleet.workers])


def _questions(server: Any) -> int | None:  # noqa: ANN401
    """Queries that the server has been asked so far; None: there is none that counts them."""
    if server is None:
        return None
    [[_, count]] = server("SHOW GLOBAL STATUS LIKE 'Questions'")
    return int(count)


if __name__ == "__main__":
    main()
