"""Pages of psched web over very many schedules and runs: their time, and the server's memory.

Each page should take less than a second, and the server less than 100 MiB. Memory that a page has
needed stays with the server in part, so the figures of later pages contain that of earlier ones.
"""

import http
import http.client
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

import harness
import psched
from harness import CHUNK, Measured, Sample
from support.big_tables import fill, joined, number

SPAN = 30 * 86_400
"""For so many seconds before now there are runs."""

KEY = "k7"
PAGES = {
    "timeline of 12 h": "/",
    "timeline of 2 weeks": "/?span=2w",
    "timeline of a label": "/?q=label:l07",
    "timeline as JSON": "/api/v1/timeline.json",
    "now": "/now",
    "schedules": "/schedules",
    "schedules of a label": "/schedules?q=label:l07",
    "schedules that fail": "/schedules?q=state:failing",
    "schedules by a pattern": "/schedules?q=*99",
    "5000 schedules": "/schedules?limit=5000",
    "schedule": f"/schedule?key={KEY}",
    "occurrence": f"/occurrence?key={KEY}&time=-1d",
    "queue": "/queue",
    "queue of what fails": "/queue?q=state:failing",
    "runs": "/runs",
    "runs of a schedule": f"/runs?key={KEY}",
    "runs of a type": "/runs?type=t7",
    "runs that failed": "/runs?failed=1&since=14d",
    "5000 runs": "/runs?limit=5000",
    "events of an hour": "/events?from=-1h",
    "events of a week": "/events?from=-7d",
    "hosts": "/hosts",
}
"""The addresses of the pages."""


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, kinds=["postgresql", "mariadb"])
    parser.add_argument("--schedules", type=int, help="default: 100000; with --short, 1000")
    parser.add_argument("--runs", type=int, help="default: 10 million; with --short, 20000")
    parser.set_defaults(databases=["postgresql"])
    given = harness.parsed(parser)
    given.schedules = harness.choose(given, 100_000, 1000, given.schedules)
    given.runs = harness.choose(given, 10_000_000, 20_000, given.runs)
    harness.report("web_large", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """Time of each page, and the largest memory of the server after it was made."""
    filled = gather(kind, url, given.schedules, given.runs)
    config = folder / "psched.yml"
    config.write_text(f"url: {url}\n")
    with served(config, folder) as (pid, port):
        asked(pid, port, "/now")  # what the first page imports is not its own
        contestants = {
            name: lambda path=path: asked(pid, port, path) for name, path in PAGES.items()
        }
        samples = harness.rounds(given.rounds, contestants)
    return {
        "filled_seconds": filled,
        **{name: harness.medians(found) for name, found in samples.items()},
    }


def gather(kind: str, url: str, schedules: int, runs: int) -> float:
    """Fill the tables by SQL; the seconds that it took."""
    harness.load(kind, url, schedules, "psched")
    begun = time.monotonic()
    with psched.open({"url": url, "database_timeout": 7}) as opened:
        now = int(opened.now())
    store = harness.make_store(url, table="psched", timeout=600)
    quote, bigint = store._connector.quote, "SIGNED" if kind == "mariadb" else "BIGINT"
    store._connector.run(
        lambda c: c.exec_driver_sql(
            "UPDATE psched SET type = CONCAT('t', MOD(LENGTH(id), 3), RIGHT(id, 1)),"
            " label = CONCAT('l', RIGHT(id, 2))"
        )
    )
    for start in range(0, runs, CHUNK):
        run = f"(i + {start})"
        ended = f"({1000 * (now - SPAN)} + CAST({run} AS {bigint}) * {1000 * SPAN // runs})"
        whole = f"FLOOR({ended} / 1000)" if kind == "mariadb" else f"({ended} / 1000)"
        failed = f"{run} % 1009 = 7"
        columns = {
            "key": joined(kind, "'k'", number(kind, f"({run} % {schedules})")),
            "type": joined(kind, "'t'", number(kind, f"({run} % 30)")),
            "scheduled_time": f"{whole} - 9",
            "count": "1",
            "attempt": "1",
            "owner": joined(kind, "'w.'", number(kind, run)),
            "fence": "1",
            "host": "'host1'",
            "due": f"{ended} - 9000",
            "started": f"{ended} - 8000",
            "ended": ended,
            "outcome": f"CASE WHEN {failed} THEN 'failed' ELSE 'finished' END",
            "fate": f"CASE WHEN {failed} THEN 'gave_up' ELSE 'finished' END",
            "reason": f"CASE WHEN {failed} THEN 'ValueError: no' ELSE NULL END",
        }
        quoted = {quote(name): value for name, value in columns.items()}
        rows = min(CHUNK, runs - start)

        def insert(connection: Connection, rows: int = rows, quoted: Any = quoted) -> None:  # noqa: ANN401
            fill(connection, kind, rows, table="psched_runs", **quoted)

        store._connector.run(insert)
    analyze = "ANALYZE" if kind == "postgresql" else "ANALYZE TABLE"
    store._connector.run(lambda c: c.exec_driver_sql(f"{analyze} psched, psched_runs").close())
    store.disconnect()
    took = round(time.monotonic() - begun, 1)
    harness.tell(f"{kind}: {runs} runs in {took} s")
    return took


@contextmanager
def served(config: Path, folder: Path) -> Iterator[tuple[int, int]]:
    """The process and the port of psched web."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ["--listen", f"127.0.0.1:{port}", "--token-file", str(folder / "web-token")]
    command = [Measured.python, "-m", "psched", "-c", str(config), "web", "--open", *place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise AssertionError("psched web has not started")
            yield process.pid, port
        finally:
            process.terminate()


def asked(pid: int, port: int, path: str) -> Sample:
    """Ask for a page; MiB is the largest memory of the server meanwhile."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the largest memory begins anew
    spent, begun = harness.cpu_seconds(pid), time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    size = len(answer.read())
    took = time.perf_counter() - begun
    connection.close()
    if answer.status != http.HTTPStatus.OK:
        harness.tell(f"{path}: {answer.status}")
    status = Path(f"/proc/{pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+)", status)
    assert peak is not None
    return {
        "ms": 1000 * took,
        "own_cpu_ms": 1000 * (harness.cpu_seconds(pid) - spent),
        "peak_mib": int(peak[1]) / 1024,
        "bytes": size,
        "status": answer.status,
    }


if __name__ == "__main__":
    main()
