"""The collector: a process that reads what the tasks of one worker print.

::

    runner ── pipe ──▶ collector ──▶ the service's standard output
                           └───────▶ worker: the last bytes, when the attempt has ended

A task's processes write to a pipe. If the worker read it, a task that prints would wait while the
worker waits for the database. The collector has no store and runs no user's code, so that nothing
delays it. If it dies, its worker starts another one, which reads the same pipes.

All signals are blocked in it, so that a signal to all processes of a service does not end it before
its worker. It ends when its worker has ended.
"""

import errno
import os
import select
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.log_lines import COPIED
from psched.output.captured import LONGEST_LIVE, LONGEST_TAIL, is_empty, unread
from psched.output.masking import Masking, Secrets
from psched.output.service_output import ServiceOutput
from psched.process.kernel import set_title
from psched.process.link import Channel

MOST_PENDING = 2**18
"""The most bytes that wait for one reader. Of more output, the oldest is left out."""

_LIVE_PAUSE = 0.1
"""Seconds between two messages to one reader. With `LONGEST_LIVE`, this limits the work that a task
which prints much causes in its worker and in the master."""


class LiveReader:
    """One reader of a running attempt, whose output began with ``dropped`` bytes and ``begin``."""

    def __init__(self, begin: bytes, dropped: int) -> None:
        self.may_send = True  # whether the worker has passed on the message before
        self.due = 0.0  # the earliest time of the next message, seconds of the monotonic clock
        self._pending = bytearray()
        self._dropped = dropped
        self._begins = True
        self.add(begin)

    @property
    def waiting(self) -> int:
        """How many bytes can be sent now."""
        return len(self._pending)

    @property
    def has_news(self) -> bool:
        """Whether there is something to send. The first message is sent in any case."""
        return self._begins or bool(self._pending)

    def add(self, chunk: bytes) -> None:
        """Add output that was read."""
        self._pending += chunk
        if (excess := len(self._pending) - MOST_PENDING) > 0:
            del self._pending[:excess]
            self._dropped += excess

    def take(self) -> tuple[bytes, int]:
        """Return the next bytes, and how many were left out before them."""
        taken, dropped = bytes(self._pending[:LONGEST_LIVE]), self._dropped
        del self._pending[:LONGEST_LIVE]
        self._begins, self._dropped = False, 0 if taken else dropped
        return taken, dropped if taken else 0

    def rest(self) -> Iterator[tuple[bytes, int]]:
        """Yield what is left, like `take`; nothing follows."""
        while self.has_news:
            yield self.take()


class Tail:
    """The last bytes of a stream, at most ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0  # how many bytes before the kept ones were dropped

    @property
    def limit(self) -> int:
        """How many bytes are kept at most."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._cut(limit)

    def add(self, chunk: bytes) -> None:
        """Append bytes."""
        self._kept += chunk
        # Twice as many bytes are held as are kept, so that each byte is moved only once.
        if len(self._kept) > 2 * self._limit:
            self._cut(self._limit)

    def take(self) -> bytes:
        """Return the kept bytes."""
        self._cut(self._limit)
        return bytes(self._kept)

    def _cut(self, most: int) -> None:
        if (excess := len(self._kept) - most) > 0:
            del self._kept[:excess]
            self.dropped += excess


_CHUNK = 1 << 16
"""The most bytes that are read from one pipe before the others have their turn."""

_LONGEST_LINE = 2900
"""A longer line is forwarded in pieces of so many bytes. With time and key, which has at most 1020
bytes, a piece is short enough for one write (`service_output.ONCE`)."""

_MOST_UNNAMED = 2**16
"""The most bytes that wait to be forwarded until the worker has said whose output it is. Usually it
says so at once; but it can wait for the database meanwhile."""

_LAST_WORDS = 1.0
"""The seconds for which a collector whose worker has ended still writes what it has read."""


class Inherited(NamedTuple):
    """A pipe that a new collector inherits from its worker."""

    number: int  # identifies the pipe in messages
    descriptor: int  # its read end
    whose: Mapping[str, Any] | None  # the message ``whose``; None if the worker has not named it


class _Pipe:
    """The output of one runner, which runs one attempt after another."""

    def __init__(self, descriptor: int, secrets: Secrets) -> None:
        self.descriptor = descriptor  # the read end
        self._secrets = secrets
        self.begin()

    def begin(self) -> None:
        """Begin an attempt."""
        self.told = False  # whether the worker knows that the attempt has printed something
        self.named = self._forward = False  # whether the worker has said whose output it is
        self._prefix = b""
        self._masking = Masking(self._secrets)
        self._line = b""
        # Whether `_line` continues a line of which a piece was forwarded, or that is not forwarded.
        self._continues = self._copied = False
        self.tail = Tail(LONGEST_TAIL)
        self.readers: dict[int, LiveReader] = {}  # who reads it while it runs, by number
        # How many lines were not forwarded, because the worker has not named it in time.
        self.dropped = 0

    def name(self, message: Mapping[str, Any]) -> None:
        """Note whose output it is, and what is to be done with it."""
        self.told = self.named = True
        self._prefix = message["name"].encode()
        self._forward = message["forward"]
        self.tail.limit = message["keep"]

    def add(self, chunk: bytes) -> None:
        """Add output that was read."""
        self._add(self._masking.feed(chunk))

    def _add(self, shown: bytes) -> None:
        kept = shown.replace(COPIED, b"")
        self.tail.add(kept)
        for reader in self.readers.values():
            reader.add(kept)
        if not self.named:
            room = _MOST_UNNAMED - len(self._line)
            self.dropped += shown.count(b"\n", max(room, 0))
            self._line += shown[: max(room, 0)]
        elif self._forward:
            self._line += shown

    def end(self) -> bytes:
        """End the attempt's output; return its tail."""
        self._add(self._masking.rest())
        return self.tail.take()

    def lines(self, moment: bytes, *, last: bool = False) -> list[bytes]:
        """The complete lines that are to be forwarded; with ``last``, the incomplete one, too.

        Each begins with ``moment`` and with the task's key.
        """
        if not self.named:
            return []
        *lines, rest = self._line.split(b"\n")
        whole = len(lines)
        if rest and (last or len(rest) >= _LONGEST_LINE):
            lines.append(rest)
            rest = b""
        self._line = rest
        if not self._forward:
            return []
        pieces: list[bytes] = []
        for number, line in enumerate(lines):
            own, copied, _ = line.partition(COPIED)
            if not self._copied and (own or not (copied or self._continues)):
                pieces += [
                    own[at : at + _LONGEST_LINE] for at in range(0, len(own) or 1, _LONGEST_LINE)
                ]
            self._continues = number >= whole
            self._copied = self._continues and (self._copied or bool(copied))
        return [b"%s%s: %s\n" % (moment, self._prefix, piece) for piece in pieces]


class Collector:
    """Reads pipes, forwards their lines, and keeps their tails."""

    def __init__(
        self,
        channel: Channel,
        output: ServiceOutput,
        secrets: Secrets,
        clock: Clock,
        pipes: Sequence[Inherited] = (),
    ) -> None:
        self._clock = clock
        self._channel = channel
        channel.never_wait()
        self._output = output
        self._secrets = secrets
        self._pipes: dict[int, _Pipe] = {}
        self._numbers: dict[int, int] = {}
        # The pipes that have readers.
        self._followed: set[int] = set()
        self._waiter = select.poll()
        # Messages that the worker has no room for, each with the descriptor that it carries.
        self._unsent: deque[tuple[dict[str, Any], int | None]] = deque()
        # Pipes that are not read before these messages are sent.
        self._unread: list[_Pipe] = []
        for each in pipes:
            self._watch(each.number, each.descriptor)
            if each.whose is not None:
                self._pipes[each.number].name(each.whose)

    def run(self) -> int:
        """Work until the worker has ended; return the exit status."""
        set_title("collector")
        while not self._channel.closed:
            self._turn(None)
        # The worker's runners end with it. What they have printed is read until all have ended.
        until = self._clock.monotonic() + _LAST_WORDS
        while (self._pipes or self._output.waits) and self._clock.monotonic() < until:
            self._turn(_LAST_WORDS / 10)
        return 0

    def _turn(self, timeout: float | None) -> None:
        """Wait until something can be done, and do it."""
        self._watch_for(self._output.fileno(), select.POLLOUT if self._output.waits else 0)
        if not self._channel.closed:
            events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            self._watch_for(self._channel.fileno(), events)
        timeout = self._send_live(timeout)
        ready = self._waiter.poll(None if timeout is None else timeout * 1000)
        for descriptor, events in ready:
            if (number := self._numbers.get(descriptor)) is not None:
                self._read(number, events)
                # The worker waits for answers, so it does not wait for all pipes.
                self._obey_all()
        self._obey_all()
        self._output.flush()

    def _watch_for(self, descriptor: int, events: int) -> None:
        if events:
            self._waiter.register(descriptor, events)
        else:
            with suppress(KeyError):
                self._waiter.unregister(descriptor)

    def _obey_all(self) -> None:
        self._send_unsent()
        while (received := self._channel.receive()) is not None:
            self._obey(*received)
        if self._channel.closed:
            self._watch_for(self._channel.fileno(), 0)

    def _obey(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if "watch" in message:
            if len(descriptors) < len(message["watch"]):
                # The next collector inherits the pipes, so that it needs no further descriptor.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            for number, descriptor in zip(message["watch"], descriptors, strict=True):
                self._watch(number, descriptor)
            for number in message["forget"]:
                self._forget(number)
        elif "ping" in message:
            self._say({"pong": True})
        elif "reader" in message:
            self._obey_about_reader(message, message["reader"])
        elif "end" in message:
            self._end(message["end"])
        elif "peek" in message:
            self._peek(message["peek"])
        elif (pipe := self._pipes.get(message["whose"])) is not None:
            pipe.name(message)
            self._forward(pipe)

    def _watch(self, number: int, descriptor: int) -> None:
        self._pipes[number] = _Pipe(descriptor, self._secrets)
        self._numbers[descriptor] = number
        self._watch_for(descriptor, select.POLLIN)

    def _read(self, number: int, events: int) -> None:
        """Read some output of a pipe."""
        pipe = self._pipes[number]
        if not events & select.POLLIN:
            # Nobody is left who could write to it. While the worker lives, it says so by a message,
            # which is obeyed in this turn. The descriptor can be that of a newer pipe meanwhile.
            if self._channel.closed:
                self._forget(number)
            return
        if not pipe.told:
            if is_empty(pipe.descriptor):
                return  # a message has had it read meanwhile
            # The worker is told before the output is read. So if the worker finds the pipe empty,
            # and was not told, then the attempt has printed nothing.
            pipe.told = True
            self._say({"prints": number})
            if self._unsent:
                # The worker has hundreds of messages to read. The pipe is read after them.
                self._watch_for(pipe.descriptor, 0)
                self._unread.append(pipe)
                return
        self._read_chunk(pipe)

    def _read_chunk(self, pipe: _Pipe) -> int:
        """Read at most one chunk; return its size."""
        try:
            chunk = os.read(pipe.descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        pipe.add(chunk)
        self._forward(pipe)
        return len(chunk)

    def _forward(self, pipe: _Pipe, *, last: bool = False) -> None:
        for line in pipe.lines(self._output.moment(), last=last):
            self._output.write(line)
        if pipe.named:
            self._output.dropped += pipe.dropped
            pipe.dropped = 0
        self._output.flush()

    def _end(self, number: int) -> None:
        """Read the rest of an attempt's output, and send its tail to the worker."""
        pipe = self._pipes[number]
        # What is added meanwhile is not the task's: a process outside it has opened the pipe.
        left = unread(pipe.descriptor)
        while left > 0 and (size := self._read_chunk(pipe)):
            left -= size
        tail = pipe.end()
        for number_of_reader, reader in pipe.readers.items():
            for output, dropped in reader.rest():
                self._say_live(number_of_reader, reader, output, dropped)
        self._followed.discard(number)
        self._forward(pipe, last=True)
        self._say_bytes({"tail": number, "dropped": pipe.tail.dropped}, tail)
        pipe.begin()

    def _forget(self, number: int) -> None:
        if (pipe := self._pipes.pop(number, None)) is None:
            return
        pipe.end()
        self._followed.discard(number)
        self._forward(pipe, last=True)
        del self._numbers[pipe.descriptor]
        self._watch_for(pipe.descriptor, 0)
        os.close(pipe.descriptor)

    def _peek(self, number: int) -> None:
        """Send the worker the output of an attempt so far."""
        if (pipe := self._pipes.get(number)) is not None:
            tail = pipe.tail.take()
            self._say_bytes({"peeked": number, "dropped": pipe.tail.dropped}, tail)

    def _obey_about_reader(self, message: Mapping[str, Any], reader: int) -> None:
        """Obey a message about somebody who reads the output of a running attempt."""
        number = next(iter(message.values()))
        if (pipe := self._pipes.get(number)) is None:
            return
        if "follow" in message:
            pipe.readers[reader] = LiveReader(pipe.tail.take(), pipe.tail.dropped)
            self._followed.add(number)
        elif "unfollow" in message:
            pipe.readers.pop(reader, None)
            if not pipe.readers:
                self._followed.discard(number)
        elif reader in pipe.readers:
            pipe.readers[reader].may_send = True

    def _send_live(self, timeout: float | None) -> float | None:
        """Send readers what is due; return the seconds until more is due, at most ``timeout``."""
        now = self._clock.monotonic() if self._followed else 0.0
        for number in self._followed:
            for reader_number, reader in self._pipes[number].readers.items():
                if not reader.may_send or not reader.has_news:
                    continue
                if now >= reader.due:
                    reader.may_send, reader.due = False, now + _LIVE_PAUSE
                    self._say_live(reader_number, reader, *reader.take())
                else:
                    wait = reader.due - now
                    timeout = wait if timeout is None else min(timeout, wait)
        return timeout

    def _say_live(self, number: int, reader: LiveReader, output: bytes, dropped: int) -> None:
        message = {"live": number, "dropped": dropped, "waiting": reader.waiting}
        self._say_bytes(message, output)

    def _say_bytes(self, message: dict[str, Any], output: bytes) -> None:
        """Send a message with bytes, in a memory file."""
        file = None
        if output:
            # Without a file, the worker notes that the output is lost.
            with suppress(OSError):
                file = os.memfd_create("output", os.MFD_CLOEXEC)
                os.write(file, output)
        self._say({**message, "size": len(output)}, file)

    def _say(self, message: dict[str, Any], file: int | None = None) -> None:
        """Send a message as soon as possible; close the file that it carries."""
        self._unsent.append((message, file))
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            message, file = self._unsent[0]
            try:
                self._channel.send(message, [] if file is None else [file])
            except BlockingIOError:
                return
            except ConnectionError:
                pass  # the worker has ended
            except OSError:
                if file is None:
                    raise  # there is no memory left; the worker starts another collector
                # Too many descriptors are on their way. Without the file, the worker notes that the
                # output is lost.
                self._unsent[0] = message, None
                os.close(file)
                continue
            self._unsent.popleft()
            if file is not None:
                os.close(file)
        for pipe in self._unread:
            if self._pipes.get(self._numbers.get(pipe.descriptor, 0)) is pipe:
                self._watch_for(pipe.descriptor, select.POLLIN)
        self._unread.clear()
