"""Asks the helper of root whether it would start the programs of rows that run as other users."""

import os
import socket
from collections.abc import Iterable, Iterator
from typing import cast

from psched.application.task import Holder, Task
from psched.base.errors import PschedError
from psched.config import Config
from psched.core.columns import plain_text
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.handlers.exec import Command, Exec
from psched.process.program_runner import SOCKET, packed

_PATIENCE = 10.0
"""Seconds to wait for an answer; a name service can be slow."""


def refusals(rows: Iterable[Row], settings: Config) -> Iterator[tuple[str, str]]:
    """The key of each row that runs as another user and would be refused, and why.

    An OSError says that the helper cannot be asked.
    """
    for row in rows:
        if row.run_as is not None:
            try:
                command = _command(row, settings)
            except PschedError as error:
                yield row.key, str(error)
                continue
            answer = _ask(row.run_as, command)
            if answer != "allowed":
                yield row.key, answer


def _command(row: Row, settings: Config) -> Command:
    """What a worker would have the helper start for a row."""
    definition = parse_row(row, settings)
    fields = {**definition.assignment(row, row.next_time or 0), "owner": ""}
    text = plain_text("data", row.data or "{}", most=settings.data_limit)
    # The task asks for nothing, so it needs no holder.
    return Exec(Task({**fields, "data": text}, cast("Holder", None))).command


def _ask(user: str, command: Command) -> str:
    variables = [f"{name}={value}" for name, value in command.environment.items()]
    arguments = [*command.arguments]
    fields = ["ask", user, command.folder or "", str(len(arguments)), *arguments, *variables]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(SOCKET)
        connection.sendall(packed([os.fsencode(field) for field in fields]))
        with connection.makefile(encoding="utf-8", errors="replace") as answers:
            return answers.readline().strip().removeprefix("refused ") or "it has ended"
