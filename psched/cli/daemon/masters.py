"""What the masters of this host tell, and the commands status and health, which ask them."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from psched import config
from psched.base.errors import ConfigError
from psched.base.quantities import format_duration
from psched.base.texts import visible
from psched.cli import options
from psched.config import Config
from psched.master.reports.health import Limits, facts_in, load_in, why_not_ready
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders
from psched.reports.redaction import Redaction
from psched.runner.shared_memory import Progress

_SILENT_TOO_LONG = 15.0
"""Seconds without a message after which a worker is shown as silent. A worker sends a message every
10 s."""


def served_by(master: Mapping[str, Any]) -> str | None:
    """The table that a master serves, by its status; None if it does not know it yet."""
    return f"table {master['table']} on {master['url']}" if "url" in master else None


def table_of(settings: Config) -> str:
    """The table that the settings name, in the same form."""
    return f"table {settings.table} on {settings.safe_url}"


def serves(master: Mapping[str, Any], settings: Config) -> bool:
    """Whether a master, by its status, serves the configured table, as far as it tells."""
    return served_by(master) in {None, table_of(settings)}


def shown_progress(task: Mapping[str, Any], redaction: Redaction) -> Mapping[str, Any] | None:
    """The progress of a task in a master's status, with values hidden; None if there is none."""
    progress = task.get("progress")  # masters of older versions do not send it
    if progress is None:
        return None
    return {"percent": progress["percent"], "text": redaction.text(progress["text"])}


@dataclass(slots=True)
class Found:
    """The answers of the masters of this host: the status documents of those that serve the table.

    There are sentences about those that are silent, and those that serve other tables. ``wanted``
    names the table; None if the masters of all tables are wanted.
    """

    wanted: Config | None
    masters: list[Mapping[str, Any]] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def nobody(self) -> str:
        """Says that no master answers, and where they were searched."""
        what = "" if self.wanted is None else f" that serves {table_of(self.wanted)}"
        where = ", ".join(map(str, socket_folders(os.environ)))
        others = "".join(f"; {other}" for other in self.others)
        return f"no psched-master{what} answers on this host; searched {where}{others}"

    @property
    def default_limits(self) -> Limits:
        """When a master of the table is still ready, unless somebody says otherwise."""
        return Limits() if self.wanted is None else Limits.for_polls(self.wanted.poll_interval)


def _find_masters(location: options.ConfigLocation, *, everyone: bool = False) -> Found:
    """Ask the masters of this host for their status.

    If the configuration cannot be read, standard error says so, and the masters of all tables are
    found.
    """
    wanted = None
    if not everyone:
        try:
            wanted = config.load(location.config, location.environment)
        except ConfigError as error:
            click.echo(f"{error}; asking every master", err=True)
    found = Found(wanted)
    for pid, answer in ask_all(socket_folders(os.environ)):
        if isinstance(answer, OSError):
            why = answer.strerror or answer
            found.silent.append(f"psched-master {pid} does not answer: {why}")
        elif wanted is not None and not serves(answer, wanted):
            found.others.append(f"{pid} serves {served_by(answer)}")
        else:
            found.masters.append(answer)
    return found


def _judge(master: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
    """Say whether a master is ready, by its status document, and if not, why.

    The problem of one that is ready is why its last restart failed, although it still serves.
    """
    reason = why_not_ready(facts_in(master), limits)
    return {"ready": reason is None, "problem": master["problem"] if reason is None else reason}


# --- health ----------------------------------------------------------------------------------


@click.command()
@options.lasting(
    "--claims-within",
    least=0,
    help="The longest time since a worker has searched for due tasks. Default: 30s, or twice"
    " poll_interval if that is longer.",
)
@options.lasting(
    "--late-within",
    least=0,
    help="The longest time for which a due task may wait for a free slot. Default: 5m.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def health(
    location: options.ConfigLocation,
    *,
    claims_within: float | None,
    late_within: float | None,
    as_json: bool,
) -> None:
    """Tell whether this host can run due tasks.

    For containers, monitors and load balancers: one line gives the reason, and the exit status is
    0 if the master of this host is ready, else 1.

    It is ready if the database has lately answered one of its workers that searched for due tasks,
    and no due task waits too long for a free slot. The master is asked, not the database.
    """
    found = _find_masters(location)
    limits = found.default_limits
    if claims_within is not None:
        if found.wanted is not None and claims_within <= found.wanted.poll_interval:
            raise click.UsageError(
                "--claims-within must be longer than the setting poll_interval"
                f" ({found.wanted.poll_interval:g} s), because workers search only so often."
            )
        limits = limits._replace(claims_within=claims_within)
    if late_within is not None:
        limits = limits._replace(late_within=late_within)
    judged = _judge_all(found, limits)
    click.echo(visible(json.dumps(judged) if as_json else _line(judged)))
    if not judged["ready"]:
        sys.exit(1)


def _judge_all(found: Found, limits: Limits) -> Mapping[str, Any]:
    """Judge the masters of this host together; see `_judge`.

    One master that is ready is enough for each table. Two masters serve one table, for example,
    while one takes the place of the other.
    """
    if not found.masters:
        return {"ready": False, "problem": found.silent[0] if found.silent else found.nobody}
    by_table: dict[str | None, Mapping[str, Any]] = {}
    for master in found.masters:
        # With a known table, a master that does not know its own table yet serves this one.
        table = served_by(master) if found.wanted is None else None
        if not by_table.get(table, {}).get("ready"):
            by_table[table] = _judge(master, limits)
    judged = [*by_table.values()]
    return next((each for each in judged if not each["ready"]), judged[0])


def _line(judged: Mapping[str, Any]) -> str:
    problem = judged["problem"]
    if not judged["ready"]:
        return f"not ready: {problem}"
    return "ready" if problem is None else f"ready, but the last restart failed: {problem}"


# --- status ----------------------------------------------------------------------------------


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Show one JSON object per master.")
@click.option(
    "--all", "everyone", is_flag=True, help="Show all masters, whichever table they serve."
)
@click.pass_obj
def status(location: options.ConfigLocation, *, as_json: bool, everyone: bool) -> None:
    """Show the masters of this host, their workers and tasks.

    Only masters that serve the configured table are shown. If the configuration cannot be read,
    for example because it refers to a secret of the service, all masters are shown. The last
    warnings and errors of each master follow.
    """
    found = _find_masters(location, everyone=everyone)
    redaction = Redaction(() if found.wanted is None else found.wanted.redact)
    for master in found.masters:
        judged = _judge(master, found.default_limits)
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
