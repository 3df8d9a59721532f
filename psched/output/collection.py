"""The worker's side of the collector: its pipes, and the output of attempts that have ended."""

import logging
import os
import select
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.base.log import Log
from psched.base.log_lines import COPIED
from psched.output.captured import (
    FROM_COLLECTOR,
    LONGEST_LIVE,
    LOST_OUTPUT,
    MOST_FORGOTTEN,
    NO_OUTPUT,
    TO_COLLECTOR,
    UNKNOWN,
    CapturedOutput,
    LiveOutput,
    Pipe,
    Whose,
    is_empty,
    unread,
)
from psched.output.collector import Collector, Inherited
from psched.output.masking import Masking, Secrets
from psched.output.service_output import ServiceOutput
from psched.process import tree
from psched.process.kernel import OomScore
from psched.process.link import Channel
from psched.process.spawn import launch

_log = logging.getLogger("psched.worker")

_PATIENCE = 1.0
"""The seconds that an attempt which has ended waits for its output. If the collector does not
answer within the same time again, it counts as hanging: it is killed, and another one is started.
The second wait is for a service whose processes were all stopped for a while."""

_LONGEST_PATIENCE = 10.0
"""The seconds after which a collector counts as hanging if it does not give one of the answers,
even if it gives others."""

_CHECK = 5.0
"""Seconds between two checks whether the collector still reads the pipes of running tasks."""

_PAUSE = 1.0
"""The least seconds between two starts of a collector."""

_DYING = 0.05
"""The most seconds to wait for the end of a collector that was killed."""

_LAST_WORDS = 1.5
"""The most seconds that a worker waits for its collector, when it ends."""

_OOM_RAISE = 250
"""By how much its score exceeds that of the worker, in thousandths of the memory; that of tasks is
higher, see `psched.runner.forker`. When the collector is killed, no run's outcome changes."""

_PING = 0
"""The key in `_asked` of the question whether the collector works. The others are numbers of
pipes."""


class _Question(NamedTuple):
    """What the collector was asked, and has not answered; seconds of the monotonic clock."""

    overdue: float  # when the answer is overdue
    begun: float  # when the question was asked


class OutputCollection:
    """Collects the output of a worker's runners, by a collector process.

    A task that prints nothing causes no message. The collector is started by `start`, or by the
    first task whose output is collected.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        secrets: Iterable[str] = (),  # texts that are masked in all output
        log: Log | None = None,  # it can be the file that standard output is
    ) -> None:
        # Is called with the pid of each new collector, which belongs to no task.
        self.spare: Callable[[int], object] = lambda _pid: None
        # Is called before a fork, and closes what the collector must not inherit.
        self.before_fork: Callable[[], object] = lambda: None
        # Finds out whose output a pipe carries now.
        self.whose: Callable[[Pipe], Whose] = lambda _pipe: UNKNOWN
        self._clock = clock
        self._secrets = Secrets(secrets, [COPIED])
        self._log = log
        self._channel: Channel | None = None
        # The pid of the collector; 0 if there is none, or it was reaped.
        self._pid = 0
        self._start_at = inf
        self._check_at = inf
        self._next = 0
        self._pipes: dict[int, Pipe] = {}
        self._in_use: dict[int, Pipe] = {}
        self._forgotten: list[Pipe] = []
        self._asked: dict[int, _Question] = {}
        self._doubted = self._is_deaf = False
        self._answers: dict[int, CapturedOutput] = {}
        # The pipes for which `peek` has asked, and those for which the collector has answered.
        self._peeking: set[int] = set()
        self._peeked: dict[int, CapturedOutput] = {}
        # The pipes that are read, by the number of the reader.
        self._readers: dict[int, Pipe] = {}
        self._live: list[LiveOutput] = []
        self._to_go_on: list[int] = []
        # Readers that have missed output, because a collector has died.
        self._missed: set[int] = set()
        self._deaths = FaultLog("the collector of output died", _log, clock)

    @property
    def links(self) -> list[Channel]:
        """The connection to wait on."""
        return [] if self._channel is None else [self._channel]

    @property
    def wakes(self) -> float:
        """When to call `take` again, seconds of the monotonic clock."""
        return min(
            self._start_at if self._channel is None else inf,
            self._check_at if self._in_use else inf,
            *(question.overdue for question in self._asked.values()),
            inf,
        )

    def open(self) -> Pipe:
        """Create the pipe of a new runner."""
        self._next += 1
        return Pipe(self._next)

    def watch(self, pipes: Sequence[Pipe]) -> None:
        """Have the collector read these pipes, whose runners were forked."""
        self._pipes.update((pipe.number, pipe) for pipe in pipes)
        self._tell_pipes(pipes)

    def forget(self, pipe: Pipe) -> None:
        """Close a pipe to which nobody writes any more."""
        if self._pipes.pop(pipe.number, None) is None:
            return
        for each in self._in_use, self._asked, self._answers, self._peeked:
            each.pop(pipe.number, None)
        self._peeking.discard(pipe.number)
        for reader in [each for each, read in self._readers.items() if read is pipe]:
            self.unfollow(reader)
        # The collector is told later, so that it wakes up less often.
        self._forgotten.append(pipe)
        if len(self._forgotten) == MOST_FORGOTTEN:
            self._tell_pipes(())

    def begin(self, pipe: Pipe) -> None:
        """Note that the runner of a pipe begins a task whose output is collected."""
        if self._start_at == inf:
            self.start()
        if not self._in_use:
            self._check_at = self._clock.monotonic() + _CHECK
        self._in_use[pipe.number] = pipe
        self._peeked.pop(pipe.number, None)
        if pipe.prints:  # the runner has printed something since its last task
            self._name(pipe)

    def end(self, pipe: Pipe) -> CapturedOutput | None:
        """The output of an attempt that has ended, and of which no process is left.

        None if the collector must be asked for it. Then `take` returns it later.
        """
        self._in_use.pop(pipe.number, None)
        self._peeked.pop(pipe.number, None)
        if not pipe.prints and is_empty(pipe.reader):
            # What the collector has read already, it has announced before.
            if self._channel is not None and not is_empty(self._channel.fileno()):
                self._receive()
            if not pipe.prints:
                return NO_OUTPUT
        if self._channel is None:
            return self._salvage(pipe)
        if not pipe.prints:
            self._name(pipe)
        self._ask(pipe.number, {"end": pipe.number})
        return None

    def take(self) -> dict[int, CapturedOutput]:
        """Return the output for which `end` has asked, by the number of its pipe.

        Restart the collector if it has ended or hangs.
        """
        self._receive()
        if self._deaths.ongoing:
            self._deaths.passed()
        self._watch(self._clock.monotonic())
        answers, self._answers = self._answers, {}
        return answers

    def _watch(self, now: float) -> None:
        """Restart the collector if it has ended or hangs; ask it now and then whether it works."""
        if self._channel is None:
            if now >= self._start_at:
                self.start()
        elif self._channel.closed:
            self._restart(self._channel.fault or "it has ended")
        elif self._is_deaf:
            self._restart("it receives no messages")
        elif now >= min((question.overdue for question in self._asked.values()), default=inf):
            begun = min(question.begun for question in self._asked.values())
            if self._doubted or now >= begun + _LONGEST_PATIENCE:
                self._restart("it does not answer")
            else:
                self._doubted = True
                for number, question in self._asked.items():
                    self._asked[number] = question._replace(overdue=now + _PATIENCE)
        elif now >= self._check_at and self._in_use:
            self._check_at = now + _CHECK
            if not self._asked and not all(is_empty(each.reader) for each in self._in_use.values()):
                self._ask(_PING, {"ping": True})

    def peek(self, pipe: Pipe) -> None:
        """Ask for the output of the present attempt so far, unless it has printed nothing.

        `take_peeked` returns it later; it never does if the attempt or the collector ends before.
        """
        if not pipe.prints:
            self._peeked[pipe.number] = NO_OUTPUT
        elif pipe.number not in self._peeking and self._channel is not None:
            self._peeking.add(pipe.number)
            self._say({"peek": pipe.number})

    def take_peeked(self) -> dict[int, CapturedOutput]:
        """Return the output for which `peek` has asked, by the number of its pipe."""
        peeked, self._peeked = self._peeked, {}
        return peeked

    def follow(self, pipe: Pipe, reader: int) -> None:
        """Have the output of the present attempt sent to a reader while it is printed."""
        self._readers[reader] = pipe
        self._say({"follow": pipe.number, "reader": reader})

    def unfollow(self, reader: int) -> None:
        """Send a reader nothing more; no effect if nothing is sent to it."""
        if (pipe := self._readers.pop(reader, None)) is not None:
            self._missed.discard(reader)
            self._say({"unfollow": pipe.number, "reader": reader})

    def take_live(self) -> list[LiveOutput]:
        """Return what has arrived for readers. They get no more before `go_on` is called."""
        live, self._live = self._live, []
        self._to_go_on += [each.reader for each in live]
        return live

    def go_on(self) -> None:
        """Say that what `take_live` has returned was passed on."""
        for reader in self._to_go_on:
            if (pipe := self._readers.get(reader)) is not None:
                self._say({"more": pipe.number, "reader": reader})
        self._to_go_on.clear()

    def stop(self) -> None:
        """Let the collector write what it has read, and end; wait for that, but not for long."""
        if self._channel is None:
            return
        self._channel.close()
        self._channel = None
        for pipe in [*self._pipes.values(), *self._forgotten]:
            pipe.close()
        self._pipes.clear()
        self._forgotten.clear()
        if self._pid:
            _wait_for_end(self._pid)

    def reaped(self, pids: Iterable[int]) -> None:
        """Note that the worker has reaped these children, whose pids can be reused."""
        if self._pid in pids:
            self._pid = 0

    def start(self) -> None:
        """Start a collector, and have it read all pipes. A failure is logged."""
        self._start_at = self._clock.monotonic() + _PAUSE
        self._is_deaf = self._doubted = False
        for pipe in self._forgotten:
            pipe.close()
        self._forgotten.clear()
        try:
            channel, theirs = Channel.pair(FROM_COLLECTOR, TO_COLLECTOR)
        except OSError as error:  # no descriptor is left
            self._deaths.failed(f"cannot start another one: {error}")
            return
        try:
            channel.never_wait()
            # A new collector inherits the pipes, because messages need descriptors, too.
            pipes = [
                Inherited(pipe.number, pipe.reader, self._message(pipe) if pipe.prints else None)
                for pipe in self._pipes.values()
            ]
            self.before_fork()
            live = partial(_live, theirs, self._secrets, self._clock, pipes, self._log)
            keep = [theirs.fileno(), *(pipe.reader for pipe in self._pipes.values())]
            if self._log is not None:
                keep += self._log.descriptors
            self._pid = launch(live, keep=keep)
        except (OSError, RuntimeError) as error:
            channel.close()
            self._deaths.failed(f"cannot fork: {error}")
            return
        finally:
            theirs.close()
        self._channel = channel
        self.spare(self._pid)
        for reader, pipe in self._readers.items():
            self.follow(pipe, reader)

    def _restart(self, how: str) -> None:
        """Start another collector; what the first one has read of living attempts is lost."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        if self._pid:
            tree.send(self._pid, signal.SIGKILL)
        # Its last messages say which pipes it has read. They can still be received if the channel
        # was closed because a message could not be sent.
        channel.closed = channel.fault is not None
        until = self._clock.monotonic() + _DYING
        while not channel.closed and (left := until - self._clock.monotonic()) > 0:
            if (received := channel.receive(wait=left)) is not None:
                self._handle(*received)
        channel.close()
        printed = [pipe for pipe in self._pipes.values() if pipe.prints]
        for pipe in printed:
            pipe.lost = True
        self._missed.update(each for each, pipe in self._readers.items() if pipe.lost)
        self._peeking.clear()
        asked, self._asked = self._asked, {}
        for number in asked:
            if (asking := self._pipes.get(number)) is not None:
                self._answers[number] = self._salvage(asking)
        self._deaths.failed(f"{how}; output of {len(printed)} tasks is lost")
        if self._clock.monotonic() >= self._start_at:
            self.start()

    def _salvage(self, pipe: Pipe) -> CapturedOutput:
        """Read what no collector has read of an attempt that has ended."""
        chunks: list[bytes] = []
        # What is added meanwhile is not the task's: a process outside it has opened the pipe.
        left = unread(pipe.reader)
        with suppress(BlockingIOError):
            while left > 0 and (chunk := os.read(pipe.reader, left)):
                chunks.append(chunk)
                left -= len(chunk)
        masking = Masking(self._secrets)
        text = (masking.feed(b"".join(chunks)) + masking.rest()).replace(COPIED, b"")
        dropped = max(0, len(text) - self.whose(pipe).keep)
        output = CapturedOutput(text[dropped:], None if pipe.lost else dropped)
        for reader in [each for each, read in self._readers.items() if read is pipe]:
            self._note_live(reader, text[-LONGEST_LIVE:], max(0, len(text) - LONGEST_LIVE), 0)
        pipe.prints = pipe.lost = False
        return output

    def _receive(self) -> None:
        channel = self._channel
        while channel is not None and (received := channel.receive()) is not None:
            self._handle(*received)

    def _handle(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        self._doubted = False
        try:
            if "prints" in message:
                if (pipe := self._pipes.get(message["prints"])) is not None and not pipe.prints:
                    self._name(pipe)
            elif "pong" in message:
                self._asked.pop(_PING, None)
            elif "live" in message:
                self._handle_live(message, descriptors)
            elif "peeked" in message:
                self._note_peeked(message, descriptors)
            elif (pipe := self._pipes.get(message["tail"])) is not None:
                self._end(pipe, message, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _note_peeked(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        number = message["peeked"]
        output = os.pread(descriptors[0], message["size"], 0) if descriptors else b""
        # The file is missing if there was no descriptor left.
        if number in self._peeking and len(output) == message["size"]:
            dropped = None if self._pipes[number].lost else message["dropped"]
            self._peeked[number] = CapturedOutput(output, dropped)
        self._peeking.discard(number)

    def _end(self, pipe: Pipe, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Note the output that a collector has sent."""
        if self._asked.pop(pipe.number, None) is None:
            return
        size, dropped = message["size"], None if pipe.lost else message["dropped"]
        tail = os.pread(descriptors[0], size, 0) if descriptors else b""
        # The file is missing if there was no descriptor left.
        is_whole = len(tail) == size
        self._answers[pipe.number] = CapturedOutput(tail, dropped) if is_whole else LOST_OUTPUT
        pipe.prints = pipe.lost = False
        self._peeked.pop(pipe.number, None)

    def _handle_live(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        reader, dropped = message["live"], message["dropped"]
        output = os.pread(descriptors[0], message["size"], 0) if descriptors else b""
        if len(output) < message["size"]:  # there was no descriptor left
            self._missed.add(reader)
        if reader in self._readers:
            self._note_live(reader, output, dropped, message["waiting"])

    def _note_live(self, reader: int, output: bytes, dropped: int | None, waiting: int) -> None:
        if output and reader in self._missed:
            self._missed.discard(reader)
            dropped = None
        self._live.append(LiveOutput(reader, output, dropped, waiting))

    def _tell_pipes(self, new: Sequence[Pipe]) -> None:
        """Tell the collector of new pipes, and of those that were forgotten meanwhile."""
        if self._channel is not None:
            forgotten = [pipe.number for pipe in self._forgotten]
            message = {"watch": [pipe.number for pipe in new], "forget": forgotten}
            self._say(message, [pipe.reader for pipe in new])
        for pipe in self._forgotten:
            pipe.close()
        self._forgotten.clear()

    def _name(self, pipe: Pipe) -> None:
        pipe.prints = True
        self._say(self._message(pipe))

    def _message(self, pipe: Pipe) -> dict[str, Any]:
        whose = self.whose(pipe)
        return {
            "whose": pipe.number,
            "name": whose.name,
            "keep": whose.keep,
            "forward": whose.forward,
        }

    def _ask(self, number: int, message: dict[str, Any]) -> None:
        now = self._clock.monotonic()
        self._asked[number] = _Question(now + _PATIENCE, now)
        self._say(message)

    def _say(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message, descriptors)
        except BlockingIOError:
            self._is_deaf = True  # `take` starts another one
        except OSError:
            # It has died, or there is no memory left. `take` starts another one.
            self._channel.closed = True


def _wait_for_end(child: int) -> None:
    """Wait until a child has ended, at most `_LAST_WORDS`; it stays a zombie."""
    with suppress(OSError):
        descriptor = os.pidfd_open(child)
        try:
            waiter = select.poll()
            waiter.register(descriptor, select.POLLIN)
            waiter.poll(_LAST_WORDS * 1000)
        finally:
            os.close(descriptor)


def _live(
    channel: Channel, secrets: Secrets, clock: Clock, pipes: Sequence[Inherited], log: Log | None
) -> int:
    score = OomScore()
    score.exceed(_OOM_RAISE)
    score.close()
    output = ServiceOutput(1) if log is None else ServiceOutput(1, log.follow)
    return Collector(channel, output, secrets, clock, pipes).run()
