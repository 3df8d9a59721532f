"""The page of the hosts that run tasks, and of what they run now."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import floor
from typing import NamedTuple

from psched.cli.daemon.hosts import COLUMNS
from psched.cli.output import one_line
from psched.cli.text_table import Column, View
from psched.cli.time_format import format_took
from psched.core.history.records import nonce_of
from psched.core.model import RUNNING, Row
from psched.reports.hosts import SHOWN_FOR, hosts_seen
from psched.web.asked import REFRESH, Asked, Page, run_link, schedule_link, table_of

_SHOWN = 100  # the most tasks that are listed


class _Running(NamedTuple):
    """A task that runs now; the host is empty if it is not known."""

    host: str
    row: Row


def _since(task: _Running, view: View) -> str:
    claimed = task.row.claimed_at
    return "" if claimed is None else format_took(max(0.0, view.now - claimed))


_RUNNING: Sequence[Column[_Running]] = (
    Column("HOST", lambda task, _: one_line(task.host)),
    Column("KEY", lambda task, _: one_line(task.row.key)),
    Column("TYPE", lambda task, _: one_line(task.row.type)),
    Column("ATTEMPT", lambda task, _: str(task.row.attempt)),
    Column("RUNS FOR", _since),
)


def hosts_page(asked: Asked) -> Page:
    """The page of the hosts."""
    seen = asked.schedules.overview(_SHOWN)
    workers = asked.schedules.workers_seen(SHOWN_FOR)
    hosts = [*hosts_seen(workers, floor(seen.now))]
    names = {worker.nonce: worker.host for worker in workers}
    running = [_Running(names.get(nonce_of(row.owner or ""), ""), row) for row in seen.running]
    running.sort(key=lambda task: task.host)
    view = View(seen.now, asked.redaction)
    values = {
        "title": "Hosts",
        "hosts": table_of(COLUMNS, hosts, view, lambda _: {}),
        "running": table_of(_RUNNING, running, view, _links),
        "number": seen.counts.get(RUNNING, len(running)),
    }
    return Page("hosts", values, lambda: [*map(asdict, hosts)], refresh=REFRESH)


def _links(task: _Running) -> Mapping[str, str]:
    row = task.row
    links = {"KEY": schedule_link(row.key)}
    if row.next_time is not None:
        links["RUNS FOR"] = run_link(row.key, row.next_time)
    return links
