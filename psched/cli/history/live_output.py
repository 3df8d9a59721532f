"""Reads what a running attempt prints.

If it runs on this host, its master sends it. If it runs on another host, its worker writes it to
the store, as long as somebody asks for it.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from typing_extensions import override

from psched.app import CLOCK
from psched.base.clock import Clock
from psched.base.errors import NotFoundError, SchemaError, StoreError, TransientStoreError
from psched.cli.daemon.masters import serves
from psched.client.access import keeping_output
from psched.config import Config
from psched.core.output import Output, OutputRecord, RunningAttempt
from psched.core.store_protocol import Send, Store
from psched.master.reports.queries import ask_all, follow
from psched.master.runtime_folders import socket_folders, sockets

WORKER_ENDED = "worker ended"
"""The reason why nothing follows if the worker was killed, or its host has died."""

_PATIENCE = 15.0
"""The usual seconds in which all masters of this host must have said whether they run a task."""

_LONGEST = 5.0  # seconds in which a master must have sent what an attempt has printed so far

_WHY = {
    WORKER_ENDED: "the worker that ran it has ended; psched history says what becomes of it",
    "too slow": "the rest is left out, because it was read too slowly; psched logs shows the end",
    "too many": "too many others are reading output from this master; try again",
    "no answer": "no worker of this master answers; psched status says more",
}
"""Texts for the reasons why the rest of the output is not shown."""


_ASK_AGAIN = 5.0  # seconds between two requests for the output
_HOLDS = 15_000  # milliseconds for which a request holds
_POLL = 1.0  # seconds between two looks for what the worker has written

FIRST_ANSWER = 12.0
"""Seconds to wait for the first answer. The worker of a task that has just begun takes up to 6 s,
see `psched.worker.output_keeper`."""

SOON = 3.0  # seconds after its end within which the output and the record of an attempt are stored
PAUSE = 0.2  # seconds between two looks for what will be stored soon
_FEW = 64  # the least bytes by which the end of one output is found in the next one

NO_ANSWER = "no answer from its worker"
"""The reason why nothing is shown if the worker has written nothing."""


class Live(ABC):
    """The output of a running attempt, which is read while it is printed.

    ``over`` says why nothing follows; ``ended`` means that the attempt has ended, and that all of
    its output was read. It is empty until then.
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

    ``first`` is the first message of its master. The others are read while they arrive; the last
    one contains a reason for `over`, see `psched.master.messages.OVER`. ``is_collected`` says
    whether the setting ``output`` lets the task's output be collected.
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
    """Find the master of this host that runs a task now, and the task's output, if one runs it.

    Also returned are the number of masters that have said that they do not run it, and a text about
    each master that cannot be asked.
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


# --- on another host -------------------------------------------------------------------------


class State(Enum):
    """What the store says about an attempt."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = WORKER_ENDED
    """Its worker was killed, or its lease has expired."""


class LiveElsewhere(Live):
    """The output of an attempt that runs on another host.

    It is asked for and read in the store, which is disconnected at the end. ``state`` returns what
    the store says about the attempt now; ``where`` tells people where it runs.
    """

    def __init__(
        self,
        store: Store,
        attempt: RunningAttempt,
        *,
        send: Send,
        state: Callable[[], State],
        where: str,
        clock: Clock,
    ) -> None:
        super().__init__(attempt)
        self._store = store
        self._keeper = keeping_output(store)
        self._send = send
        self._state = state
        self._where = where
        self._clock = clock

    @override
    def pieces(self) -> Iterator[tuple[int | None, bytes]]:
        reading = Continuation()
        with closing(self._records()) as records:
            for record in records:
                left_out, new = reading.new(record)
                if new:
                    yield left_out, new

    @override
    def so_far(self) -> Output | None:
        with closing(self._records()) as records:
            return next(map(Output, records), None)

    @override
    def why_over(self) -> str:
        if self.over != NO_ANSWER:
            return super().why_over()
        return (
            f"{self._where}, and has not answered for {FIRST_ANSWER:.0f} s: its worker hangs, is of"
            " an older version, or does not reach the store"
        )

    def _records(self) -> Generator[OutputRecord, None, None]:
        """Yield what the worker has written, whenever it is new, until the attempt has ended."""
        try:
            yield from self._wait_for_records()
        finally:
            self._store.disconnect()

    def _wait_for_records(self) -> Iterator[OutputRecord]:
        before = self._read()
        # If nobody else reads the output, what is stored is that of an earlier request.
        seen = None if self._ask() or before is None else before.ended
        begun = asked = self._clock.monotonic()
        answered, over_at = False, 0.0
        while True:
            # The state is read first: what is read afterwards contains all that is written before.
            state = self._state()
            record = self._read()
            if record is not None and (record.ended != seen or not record.is_live):
                answered, seen = True, record.ended
                yield record
            now = self._clock.monotonic()
            if record is not None and not record.is_live:
                self.over = State.ENDED.value
            elif state is not State.RUNNING:
                over_at = over_at or now + SOON
                self.over = state.value if now >= over_at else ""
            elif not answered and now >= begun + FIRST_ANSWER:
                self.over = NO_ANSWER
            if self.over:
                return
            if state is State.RUNNING and now >= asked + _ASK_AGAIN:
                self._ask()
                asked = now
            self._clock.sleep(_POLL if state is State.RUNNING else PAUSE)

    def _read(self) -> OutputRecord | None:
        return self._send(lambda: self._keeper.output_of(self.attempt))

    def _ask(self) -> bool:
        """Ask for the output; return whether it was asked for already."""
        now = round(self._send(self._store.now) * 1000)
        try:
            return self._send(
                lambda: self._keeper.ask_for_output(self.attempt, now=now, until=now + _HOLDS)
            )
        except (TransientStoreError, SchemaError):
            raise
        except StoreError as error:
            text = "psched logs cannot ask for its output, because the store refuses to write"
            raise NotFoundError(f"{self._where}; {text}: {error}") from None


class Continuation:
    """Finds in each record of an attempt what was not in the records before."""

    def __init__(self) -> None:
        # How many bytes were printed up to the end of the last record; None if this is not known.
        self._end: int | None = 0
        self._last = b""

    def new(self, record: OutputRecord) -> tuple[int | None, bytes]:
        """Return how many bytes were left out, and the bytes after them; None if some are lost."""
        output, dropped = record.output, record.dropped
        known, self._end = self._end, None if dropped is None else dropped + len(output)
        last, self._last = self._last, output
        if dropped is None:
            seen = _overlap(last, output) if known is None else 0
            return (0 if seen else None), output[seen:]
        if known is None:
            return None, output
        return max(dropped - known, 0), output[max(known - dropped, 0) :]


def _overlap(last: bytes, output: bytes) -> int:
    """How many bytes at the beginning of an output are the end of the last one; 0 for a few."""
    if output.startswith(last):
        return len(last)
    # The beginning of the last output has fallen out of the tail.
    begin = output[:_FEW]
    at = last.find(begin)
    while at >= 0:
        if output.startswith(last[at:]):
            return len(last) - at
        at = last.find(begin, at + 1)
    return 0
