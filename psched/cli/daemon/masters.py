"""Finds the masters of this host that serve the configured table, for status and health."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from psched import config
from psched.base.errors import ConfigError
from psched.cli.options import ConfigLocation
from psched.cli.running_here import served_by, serves, table_of
from psched.config import Config
from psched.master.reports.health import Limits, facts_in, why_not_ready
from psched.master.reports.status_query import ask_all
from psched.master.runtime_folders import socket_folders


@dataclass(slots=True)
class Found:
    """The answers of the masters of this host."""

    wanted: Config | None  # names the table; None if the masters of all tables are wanted
    masters: list[Mapping[str, Any]] = field(default_factory=list)  # their status documents
    silent: list[str] = field(default_factory=list)  # why they do not answer
    others: list[str] = field(default_factory=list)  # those of other tables: what they serve

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


def find_masters(location: ConfigLocation, *, everyone: bool = False) -> Found:
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


def judge(master: Mapping[str, Any], limits: Limits) -> Mapping[str, Any]:
    """Judge a master by its status document.

    The problem says why it is not ready, or why its last restart failed although it still serves.
    """
    reason = why_not_ready(facts_in(master), limits)
    return {"ready": reason is None, "problem": master["problem"] if reason is None else reason}
