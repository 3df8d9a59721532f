"""The worker's side of the collector: its pipes, and the output of attempts that have ended."""

import fcntl
import logging
import os
import signal
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.output.collector import Collector
from psched.output.live import LONGEST_LIVE
from psched.output.messages import FROM_COLLECTOR, LONGEST_TAIL, TO_COLLECTOR
from psched.output.service_output import ServiceOutput
from psched.process import tree
from psched.process.channel import Channel
from psched.process.spawn import launch

_log = logging.getLogger("psched.worker")

_PATIENCE = 1.0
"""The seconds that an attempt which has ended waits for its output. After that the collector counts
as hanging: it is killed, and another one is started."""

_NOTHING = bytes(4)
"""What FIONREAD returns for an empty pipe."""


class Whose(NamedTuple):
    """Whose output a pipe carries, and what is to be done with it.

    Attributes:
        name: stands before each line in the service's output.
        keep: how many bytes of its end are kept.
        forward: whether its lines are written to the service's output.
    """

    name: str
    keep: int
    forward: bool


UNKNOWN = Whose("runner", 0, forward=True)
"""The output of a runner that runs no task."""


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The output of one attempt.

    Attributes:
        tail: its last bytes; empty if the attempt has printed nothing, or if it is lost.
        dropped: the number of bytes before the tail; None if the output is lost.
    """

    tail: bytes
    dropped: int | None


NO_OUTPUT = CapturedOutput(b"", 0)
LOST_OUTPUT = CapturedOutput(b"", None)


class LiveOutput(NamedTuple):
    """Some output of a running attempt, for one reader.

    Attributes:
        reader: the reader's number.
        output: the next bytes; empty if nothing was printed when the reader began.
        dropped: how many bytes were left out before them; None if output was lost.
        waiting: how many bytes wait to be sent after them.
    """

    reader: int
    output: bytes
    dropped: int | None
    waiting: int


class Pipe:
    """The pipe that carries the output of one runner; the worker's and the runner's end.

    Attributes:
        number: identifies the pipe in messages.
        reader: the read end, which the worker keeps open so that another collector can read it.
        prints: whether the present attempt has printed something, as far as is known.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        self.prints = False
        self._writer_closed = False

    @property
    def is_empty(self) -> bool:
        """Whether it contains nothing that was not read."""
        return fcntl.ioctl(self.reader, termios.FIONREAD, _NOTHING) == _NOTHING

    def close_writer(self) -> None:
        """Close the write end in this process; the runner has inherited it."""
        if not self._writer_closed:
            self._writer_closed = True
            os.close(self.writer)

    def close(self) -> None:
        """Close both ends in this process."""
        self.close_writer()
        os.close(self.reader)


class OutputCollection:
    """Collects the output of a worker's runners, by a collector process.

    A task that prints nothing causes no message.

    Args:
        clock: measures when an answer is overdue.
        keep: descriptors that the collector must not inherit are closed; these are kept.
        secrets: texts that are masked in all output.

    Attributes:
        spare: is called with the pid of each new collector, which belongs to no task.
        whose: finds out whose output a pipe carries now.
    """

    def __init__(self, *, clock: Clock, secrets: Sequence[str] = ()) -> None:
        self.spare: Callable[[int], object] = lambda _pid: None
        self.before_fork: Callable[[], object] = lambda: None
        self.whose: Callable[[Pipe], Whose] = lambda _pipe: UNKNOWN
        self._clock = clock
        self._secrets = [secret.encode() for secret in secrets if secret]
        self._channel: Channel | None = None
        self._pid = 0
        self._next = 0
        self._pipes: dict[int, Pipe] = {}
        self._asked: dict[int, float] = {}
        self._answers: dict[int, CapturedOutput] = {}
        self._readers: dict[int, int] = {}
        self._live: list[LiveOutput] = []
        self._to_go_on: list[int] = []
        self._missed: set[int] = set()
        self._deaths = FaultLog("the collector of output died", _log, clock)

    @property
    def links(self) -> list[Channel]:
        """The connection to wait on."""
        return [] if self._channel is None else [self._channel]

    @property
    def wakes(self) -> float:
        """When to call `receive` again, seconds of the monotonic clock."""
        return min(self._asked.values(), default=inf)

    def open(self) -> Pipe:
        """Create the pipe of a new runner.

        Raises:
            OSError: there is no descriptor left.
        """
        self._next += 1
        return Pipe(self._next)

    def watch(self, pipe: Pipe) -> None:
        """Have the collector read a pipe, whose runner was forked."""
        pipe.close_writer()
        self._pipes[pipe.number] = pipe
        if self._channel is None:
            self.start()
        else:
            self._say({"watch": pipe.number}, [pipe.reader])

    def forget(self, pipe: Pipe) -> None:
        """Close a pipe to which nobody writes any more."""
        if self._pipes.pop(pipe.number, None) is not None:
            for reader in [r for r, number in self._readers.items() if number == pipe.number]:
                del self._readers[reader]
            self._asked.pop(pipe.number, None)
            self._answers.pop(pipe.number, None)
            self._say({"forget": pipe.number})
            pipe.close()

    def end(self, pipe: Pipe) -> CapturedOutput | None:
        """The output of an attempt that has ended, and of which no process is left.

        Returns:
            The output; None if the collector must be asked for it. Then `take` returns it later.
        """
        if not pipe.prints and pipe.is_empty:
            # What the collector has read already, it has announced before.
            self._receive()
            if not pipe.prints:
                return NO_OUTPUT
        if not pipe.prints:
            self._name(pipe)
        self._asked[pipe.number] = self._clock.monotonic() + _PATIENCE
        self._say({"end": pipe.number})
        return None

    def take(self) -> dict[int, CapturedOutput]:
        """Return the output for which `end` has asked, by the number of its pipe."""
        self._receive()
        if self._channel is not None and self._channel.closed:
            self._restart("it has ended")
        elif self.wakes <= self._clock.monotonic():
            self._restart("it does not answer")
        answers, self._answers = self._answers, {}
        return answers

    def follow(self, pipe: Pipe, reader: int) -> None:
        """Have the output of the present attempt sent to a reader while it is printed."""
        self._readers[reader] = pipe.number
        self._say({"follow": pipe.number, "reader": reader})

    def unfollow(self, reader: int) -> None:
        """Send a reader nothing more; no effect if nothing is sent to it."""
        if (number := self._readers.pop(reader, None)) is not None:
            self._missed.discard(reader)
            self._say({"unfollow": number, "reader": reader})

    def take_live(self) -> list[LiveOutput]:
        """Return what has arrived for readers. They get no more before `go_on` is called."""
        live, self._live = self._live, []
        self._to_go_on += [each.reader for each in live]
        return live

    def go_on(self) -> None:
        """Say that what `take_live` has returned was passed on."""
        for reader in self._to_go_on:
            if reader in self._readers:
                self._say({"more": self._readers[reader], "reader": reader})
        self._to_go_on.clear()

    def stop(self) -> None:
        """Close the connection to the collector, which then ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def start(self) -> None:
        """Start a collector, and have it read all pipes. A failure is logged."""
        self.before_fork()
        self._channel, theirs = Channel.pair(FROM_COLLECTOR, TO_COLLECTOR)
        try:
            self._pid = launch(
                partial(_live, theirs, self._secrets, self._clock), keep=[theirs.fileno()]
            )
        except (OSError, RuntimeError) as error:
            self._channel.close()
            self._channel = None
            self._deaths.failed(str(error))
            return
        finally:
            theirs.close()
        self.spare(self._pid)
        for pipe in self._pipes.values():
            self._say({"watch": pipe.number}, [pipe.reader])
            if pipe.prints:
                self._name(pipe)
        for reader, number in self._readers.items():
            self._say({"follow": number, "reader": reader})

    def _restart(self, how: str) -> None:
        """Start another collector; what the first one has read is lost."""
        self._deaths.failed(f"{how}; what it had read is lost")
        tree.send(self._pid, signal.SIGKILL)
        self.stop()
        lost = [*self._asked]
        self._missed.update(self._readers)
        self._asked.clear()
        for pipe in self._pipes.values():
            if pipe.number in lost:
                pipe.prints = False
        self._answers.update(dict.fromkeys(lost, LOST_OUTPUT))
        self.start()

    def _receive(self) -> None:
        channel = self._channel
        while channel is not None and (received := channel.receive()) is not None:
            self._handle(*received)

    def _handle(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if "prints" in message:
            if (pipe := self._pipes.get(message["prints"])) is not None and not pipe.prints:
                self._name(pipe)
            return
        if "live" in message:
            self._handle_live(message, descriptors)
            return
        number = message["tail"]
        try:
            if (pipe := self._pipes.get(number)) is not None and number in self._asked:
                del self._asked[number]
                pipe.prints = False
                tail = os.pread(descriptors[0], LONGEST_TAIL, 0) if descriptors else b""
                self._answers[number] = CapturedOutput(tail, message["dropped"])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _handle_live(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        reader = message["live"]
        output = os.pread(descriptors[0], LONGEST_LIVE, 0) if descriptors else b""
        for descriptor in descriptors:
            os.close(descriptor)
        if reader in self._readers:
            dropped = message["dropped"]
            if output and reader in self._missed:
                self._missed.discard(reader)
                dropped = None
            self._live.append(LiveOutput(reader, output, dropped, message["waiting"]))

    def _name(self, pipe: Pipe) -> None:
        pipe.prints = True
        whose = self.whose(pipe)
        self._say({"whose": pipe.number, **whose._asdict()})

    def _say(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._channel is not None:
            with suppress(OSError):  # it has died, which `take` notices
                self._channel.send(message, descriptors)


def _live(channel: Channel, secrets: Sequence[bytes], clock: Clock) -> int:
    return Collector(channel, ServiceOutput(1), secrets, clock).run()
