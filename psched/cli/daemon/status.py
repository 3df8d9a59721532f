"""The command status."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from psched.base.quantities import format_duration
from psched.base.texts import visible
from psched.cli.daemon.masters import find_masters, judge
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.running_here import shown_progress
from psched.core.history.redaction import Redaction
from psched.master.reports.load import load_in
from psched.runner.progress import Progress

_SILENT_TOO_LONG = 15.0
"""Seconds without a message after which a worker is shown as silent. A worker sends a message every
10 s."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Show one JSON object per master.")
@click.option(
    "--all", "everyone", is_flag=True, help="Show all masters, whichever table they serve."
)
@click.pass_obj
@report_errors
def status(location: ConfigLocation, *, as_json: bool, everyone: bool) -> None:
    """Show the masters of this host, their workers and tasks.

    Only masters that serve the configured table are shown. If the configuration cannot be read,
    for example because it refers to a secret of the service, all masters are shown. The last
    warnings and errors of each master follow.
    """
    found = find_masters(location, everyone=everyone)
    redaction = Redaction(() if found.wanted is None else found.wanted.redact)
    for master in found.masters:
        judged = judge(master, found.default_limits)
        shown = {
            **master,
            "errors": [redaction.text(line) for line in master["errors"]],
            "workers": [_without_secrets(worker, redaction) for worker in master["workers"]],
        }
        lines = [json.dumps({**shown, **judged})] if as_json else _lines(shown, judged)
        for line in lines:
            click.echo(visible(line))
    for line in found.silent:
        click.echo(line, err=True)
    if not found.masters:
        raise click.ClickException(found.nobody)


def _without_secrets(worker: Mapping[str, Any], redaction: Redaction) -> Mapping[str, Any]:
    tasks = [{**task, "progress": shown_progress(task, redaction)} for task in worker["tasks"]]
    return {**worker, "tasks": tasks}


def _lines(master: Mapping[str, Any], judged: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"psched-master {master['pid']} {master['phase']},"
        f" generation {master['generation']}, up {format_duration(master['uptime'])}"
    )
    if not judged["ready"]:
        yield f"not ready: {judged['problem']}"
    if "url" in master:
        yield f"{master['url']}, table {master['table']}"
    # These fields are optional, because masters of older versions do not send them.
    if (load := load_in(master)) is not None:
        yield f"{load.capacity}; {load.waiting}" if load.due else load.capacity
    yield from (master[name] for name in ("programs", "triggers") if name in master)
    for worker in master["workers"]:
        yield from _worker_lines(worker)
    if (monitor := master.get("monitor")) is not None:
        yield f"monitor pid {monitor['pid']} {monitor['state']}"
    if master["problem"]:
        yield f"last restart failed: {master['problem']}"
    yield f"{master['worker_deaths']} workers have died"
    if master["errors"]:
        yield "last warnings and errors:"
    for line in master["errors"]:
        yield f"    {line}"


def _worker_lines(worker: Mapping[str, Any]) -> Iterator[str]:
    tasks = worker["tasks"]
    line = (
        f"worker {worker['number']} (gen {worker['generation']}) pid {worker['pid']}"
        f" {worker['state']}, {len(tasks)} tasks,"
        f"{'' if (load := load_in(worker)) is None else f' {load.capacity},'}"
        f" up {format_duration(worker['uptime'])}"
    )
    if worker["silent_for"] > _SILENT_TOO_LONG:
        line += f", silent for {format_duration(worker['silent_for'])}"
    yield line
    if worker["store_away"]:
        yield f"    {worker['store_away']}"
    if lost := worker.get("lost_records", 0):
        yield f"    {lost} records of the run history could not be written"
    if lost := worker.get("lost_outputs", 0):
        yield f"    the output of {lost} attempts could not be written"
    for task in tasks:
        progress = "" if task["progress"] is None else f", {Progress(**task['progress'])}"
        yield (
            f"    {task['occurrence']} {task['type']} attempt {task['attempt']}"
            f" pid {task['pid']} {_state(task)}, {_lease(task['lease_left'])}{progress}"
        )


def _state(task: Mapping[str, Any]) -> str:
    """How far a task is; the time since its start is not the time since it has ended."""
    since_start = format_duration(task["running_for"])
    match task["state"]:
        case "running":
            return f"running for {since_start}"
        case "ended":
            return f"ended, not recorded yet, started {since_start} ago"
        case reason:
            return f"being stopped ({reason}), started {since_start} ago"


def _lease(left: float) -> str:
    when = format_duration(abs(left))
    return f"lease ended {when} ago" if left < 0 else f"lease ends in {when}"
