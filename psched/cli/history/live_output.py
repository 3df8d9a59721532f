"""Reads what a running attempt prints: from a master of this host, or in another way."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from psched.app import CLOCK
from psched.cli.running_here import serves
from psched.config import Config
from psched.core.output.output import Output
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.master.reports.output_query import follow
from psched.master.reports.status_query import ask_all
from psched.master.runtime_folders import socket_folders, sockets

WORKER_ENDED = "worker ended"
"""The reason why nothing follows if the worker was killed, or its host has died."""

_PATIENCE = 15.0
"""The usual seconds in which all masters of this host must have said whether they run a task."""

_LONGEST = 5.0
"""Seconds in which a master must have sent what an attempt has printed so far."""

_WHY = {
    WORKER_ENDED: "the worker that ran it has ended; psched history says what becomes of it",
    "too slow": "the rest is left out, because it was read too slowly; psched logs shows the end",
    "too many": "too many others are reading output from this master; try again",
    "no answer": "no worker of this master answers; psched status says more",
}
"""Texts for the reasons why the rest of the output is not shown."""


class Live(ABC):
    """The output of a running attempt, which is read while it is printed.

    Args:
        attempt: the attempt.

    Attributes:
        attempt: the attempt.
        over: why nothing follows; ``ended`` means that the attempt has ended, and that all of its
            output was read. Empty until then.
    """

    def __init__(self, attempt: RunningAttempt) -> None:
        self.attempt = attempt
        self.over = ""

    @abstractmethod
    def pieces(self) -> Iterator[tuple[int | None, bytes]]:
        """Yield how many bytes were left out, and the bytes after them, until the attempt ends.

        None instead of a number means that output is lost.
        """

    @abstractmethod
    def so_far(self) -> Output | None:
        """What the attempt has printed so far; None if this is not known, see `over`."""

    def why_over(self) -> str:
        """Why the rest of the output is not shown."""
        why = _WHY.get(self.over, "the connection to the master was lost")
        return f"{self.attempt.key}: {why}"

    def output(self, output: bytes, dropped: int | None) -> Output:
        """Some output of the attempt."""
        return Output(
            OutputRecord(
                key=self.attempt.key,
                scheduled_time=self.attempt.scheduled_time,
                owner=self.attempt.owner,
                attempt=self.attempt.attempt,
                ended=0,
                output=output,
                dropped=dropped,
                is_live=True,
            )
        )


class LiveHere(Live):
    """The output of an attempt that runs on this host.

    Args:
        key: the key of the task.
        first: the first message of its master.
        messages: the others, which are read while they arrive. The last one contains a reason for
            `over`, see `psched.master.messages.OVER`.

    Attributes:
        is_collected: whether the task's output is collected, by the setting ``output``.
    """

    def __init__(
        self, key: str, first: Mapping[str, Any], messages: Iterator[Mapping[str, Any]]
    ) -> None:
        super().__init__(
            RunningAttempt(
                key=key,
                scheduled_time=first["scheduled_time"],
                owner=first["owner"],
                attempt=first["attempt"],
            )
        )
        self.is_collected = bool(first["collected"])
        self._messages = messages

    @override
    def pieces(self) -> Iterator[tuple[int | None, bytes]]:
        for message in self._messages:
            if "over" in message:
                self.over = message["over"]
            elif "output" in message:
                yield message["dropped"], message["data"]

    @override
    def so_far(self) -> Output:
        """What the attempt has printed so far."""
        output, left = b"", 0
        dropped: int | None = 0
        until = CLOCK.monotonic() + _LONGEST
        for message in self._messages:
            if "over" in message or "nothing" in message:
                break
            if CLOCK.monotonic() >= until:
                raise TimeoutError("the master does not answer; psched status says more")
            if not message:
                continue
            if not output:
                dropped, left = message["dropped"], message["waiting"]
            else:
                left -= len(message["data"]) + (message["dropped"] or 0)
            output += message["data"]
            if left <= 0:
                break
        return self.output(output, dropped)


def find_live(
    settings: Config, key: str, patience: float | None = None
) -> tuple[LiveHere | None, int, list[str]]:
    """Find the master of this host that runs a task now.

    Returns:
        The task's output, which is read while it is printed; None if no master runs the task. Then
        the number of masters that have said that they do not run it, and a text about each master
        that cannot be asked.
    """
    absent, problems = 0, list[str]()
    until = CLOCK.monotonic() + (patience or _PATIENCE)
    for pid, path in _masters(settings, problems, patience):
        try:
            messages = follow(path, key, max(until - CLOCK.monotonic(), 0))
            first = next(messages)
        except OSError as error:
            problems.append(f"psched-master {pid}: {error.strerror or error}")
            continue
        if "follows" in first:
            return LiveHere(key, first, messages), absent, []
        if (over := first.get("over")) == "absent":
            absent += 1
        else:
            problems.append(f"psched-master {pid}: {_WHY.get(str(over), over)}")
    return None, absent, problems


def _masters(
    settings: Config, problems: list[str], patience: float | None
) -> Iterator[tuple[int, Path]]:
    """Yield the pid and the socket of each master on this host that serves the configured table."""
    folders = socket_folders(os.environ)
    paths = dict[int, Path]()
    for folder in folders:
        with suppress(OSError):
            paths.update(sockets(folder))
    for pid, answer in ask_all(folders, patience):
        if isinstance(answer, OSError):
            problems.append(f"psched-master {pid}: {answer.strerror or answer}")
        elif serves(answer, settings) and pid in paths:
            yield pid, paths[pid]
