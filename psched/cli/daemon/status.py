"""The command status."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from psched.app import read_config
from psched.base.errors import ConfigError
from psched.base.quantities import format_duration
from psched.base.texts import visible
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.running_here import served_by, serves, shown_progress, table_of
from psched.core.history.redaction import Redaction
from psched.master.reports.load import Load
from psched.master.reports.status_query import ask_all
from psched.master.runtime_folders import socket_folders
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
    try:
        wanted = None if everyone else read_config(*location)
    except ConfigError as error:
        click.echo(f"{error}; showing every master", err=True)
        wanted = None
    redaction = Redaction(() if wanted is None else wanted.redact)
    folders = socket_folders(os.environ)
    found, silent, others = 0, [], []
    for pid, answer in ask_all(folders):
        if isinstance(answer, OSError):
            silent.append(f"psched-master {pid} does not answer: {answer.strerror or answer}")
            continue
        if wanted is not None and not serves(answer, wanted):
            others.append(f"; {pid} serves {served_by(answer)}")
            continue
        found += 1
        shown = {
            **answer,
            "errors": [redaction.text(line) for line in answer["errors"]],
            "workers": [_without_secrets(worker, redaction) for worker in answer["workers"]],
        }
        lines = [json.dumps(shown)] if as_json else _lines(shown)
        for line in lines:
            click.echo(visible(line))
    for line in silent:
        click.echo(line, err=True)
    if not found:
        what = f" that serves {table_of(wanted)}" if wanted is not None else ""
        where = ", ".join(map(str, folders))
        raise click.ClickException(
            f"no psched-master{what} answers on this host; searched {where}{''.join(others)}"
        )


def _without_secrets(worker: Mapping[str, Any], redaction: Redaction) -> Mapping[str, Any]:
    tasks = [{**task, "progress": shown_progress(task, redaction)} for task in worker["tasks"]]
    return {**worker, "tasks": tasks}


def _lines(master: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"psched-master {master['pid']} {master['phase']},"
        f" generation {master['generation']}, up {format_duration(master['uptime'])}"
    )
    if "url" in master:
        yield f"{master['url']}, table {master['table']}"
    # These fields are optional, because masters of older versions do not send them.
    if (load := _load(master)) is not None:
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


def _load(sender: Mapping[str, Any]) -> Load | None:
    """The load of a master or a worker; None if its version does not report it."""
    if not all(name in sender for name in Load._fields):
        return None
    return Load(*(sender[name] for name in Load._fields))


def _worker_lines(worker: Mapping[str, Any]) -> Iterator[str]:
    tasks = worker["tasks"]
    line = (
        f"worker {worker['number']} (gen {worker['generation']}) pid {worker['pid']}"
        f" {worker['state']}, {len(tasks)} tasks,"
        f"{'' if (load := _load(worker)) is None else f' {load.capacity},'}"
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
            f" pid {task['pid']} {task['state']} for {format_duration(task['running_for'])},"
            f" lease ends in {format_duration(task['lease_left'])}{progress}"
        )
