"""``psched status``: how the masters on this host stand that serve these schedules."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from psched.app import read_config
from psched.base.errors import ConfigError
from psched.base.texts import visible
from psched.cli.exit_status import refusing
from psched.cli.options import Place
from psched.config import Config
from psched.master import status_socket

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per master.")
@click.option("--all", "everyone", is_flag=True, help="Whatever table a master serves.")
@click.pass_obj
@refusing
def status(place: Place, *, as_json: bool, everyone: bool) -> None:
    """Ask the running masters: workers, tasks, leases, the last errors.

    Asks those on this host that serve the configured table; all of them, if the configuration
    cannot be read here, as when its password is a secret of the service's.
    """
    try:
        wanted = None if everyone else read_config(*place)
    except ConfigError as error:
        click.echo(f"{error}; asking every master", err=True)
        wanted = None
    folders = status_socket.folders(os.environ)
    found, silent, others = 0, [], []
    for pid, answer in status_socket.ask_all(folders):
        if isinstance(answer, OSError):
            silent.append(f"psched-master {pid} does not tell: {answer.strerror or answer}")
            continue
        served = _served(answer) if "url" in answer else None
        if wanted is not None and served not in (None, _wanted(wanted)):
            others.append(f"; {pid} serves {served}")
            continue
        found += 1
        lines = [json.dumps(answer)] if as_json else _lines(answer)
        for line in lines:
            click.echo(visible(line))
    for line in silent:
        click.echo(line, err=True)
    if not found:
        what = f" that it serves {_wanted(wanted)}" if wanted is not None else ""
        where = ", ".join(map(str, folders))
        raise click.ClickException(
            f"no psched-master here tells{what}; looked in {where}{''.join(others)}"
        )


def _served(master: Mapping[str, Any]) -> str:
    return f"table {master['table']} on {master['url']}"


def _wanted(settings: Config) -> str:
    return f"table {settings.table} on {settings.safe_url}"


def _lines(master: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"psched-master {master['pid']} {master['phase']},"
        f" generation {master['generation']}, up {_span(master['uptime'])}"
    )
    if "url" in master:
        yield f"{master['url']}, table {master['table']}"
    # A master of an older version does not tell.
    yield from (master[name] for name in ("programs", "triggers") if name in master)
    for worker in master["workers"]:
        yield from _worker_lines(worker)
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
        f" {worker['state']}, {len(tasks)} tasks, up {_span(worker['uptime'])}"
    )
    if worker["silent_for"] > 15:  # noqa: PLR2004  # seconds; it speaks every ten
        line += f", silent for {_span(worker['silent_for'])}"
    yield line
    if worker["store_away"]:
        yield f"    {worker['store_away']}"
    for task in tasks:
        yield (
            f"    {task['occurrence']} {task['type']} attempt {task['attempt']}"
            f" pid {task['pid']} {task['state']} for {_span(task['running_for'])},"
            f" lease ends in {_span(task['lease_left'])}"
        )


def _span(seconds: float) -> str:
    for unit, length in _UNITS:
        if abs(seconds) >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
