"""The collector: a process that reads what the tasks of one worker print.

::

    runner ── pipe ──▶ collector ──▶ the service's standard output
                           └───────▶ worker: the last bytes, when the attempt has ended

A task's processes write to a pipe. If the worker read it, a task that prints would wait while the
worker waits for the database. The collector has no store and runs no user's code, so that nothing
delays it. If it dies, its worker starts another one, which reads the same pipes.
"""

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from psched.base.clock import Clock
from psched.base.log_lines import COPIED
from psched.output.live import LONGEST_LIVE, PAUSE, LiveReader
from psched.output.messages import LONGEST_TAIL
from psched.output.service_output import ServiceOutput
from psched.output.tail import Tail
from psched.process.channel import Channel
from psched.process.titles import set_title

_CHUNK = 1 << 16
"""The most bytes that are read from one pipe before the others have their turn."""

_LONGEST_LINE = 4000
"""A longer line is forwarded in pieces of so many bytes."""

_LAST_WORDS = 1.0
"""The seconds for which a collector whose worker has ended still writes what it has read."""

Mask = Callable[[bytes], bytes]


class _Pipe:
    """The output of one runner, which runs one attempt after another.

    Attributes:
        descriptor: the read end.
        told: whether the worker knows that the present attempt has printed something.
        named: whether the worker has said whose output it is.
        tail: what is kept of it.
        readers: who reads the output of the present attempt while it runs, by number.
        over: whether everybody who could write to it has ended.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.over = False
        self.begin()

    def begin(self) -> None:
        """Begin an attempt."""
        self.told = self.named = self._forward = False
        self._prefix = b""
        self._line = bytearray()
        self._lines: list[bytes] = []
        self.tail = Tail(LONGEST_TAIL)
        self.readers: dict[int, LiveReader] = {}

    def name(self, message: Mapping[str, Any]) -> None:
        """Note whose output it is, and what is to be done with it."""
        self.named = True
        self._prefix = message["name"].encode()
        self._forward = message["forward"]
        self.tail.limit = message["keep"]

    def add(self, chunk: bytes) -> None:
        """Add output that was read."""
        self.tail.add(chunk)
        for reader in self.readers.values():
            reader.add(chunk)
        if self.named and not self._forward:
            return
        self._line += chunk
        while (end := self._line.find(b"\n", 0, _LONGEST_LINE)) >= 0 or (
            len(self._line) >= _LONGEST_LINE
        ):
            end = end + 1 if end >= 0 else _LONGEST_LINE
            self._lines.append(bytes(self._line[:end]))
            del self._line[:end]

    def lines(self, *, last: bool = False) -> list[bytes]:
        """The complete lines that are to be forwarded; with ``last``, the incomplete one, too."""
        if not self.named:
            return []
        if last and self._line:
            self._lines.append(bytes(self._line) + b"\n")
            self._line.clear()
        lines, self._lines = self._lines, []
        if not self._forward:
            return []
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z").encode()
        return [
            b"%s %s: %s" % (now, self._prefix, line if line.endswith(b"\n") else line + b"\n")
            for line in lines
            if not line.startswith(COPIED)
        ]


class Collector:
    """Reads pipes, forwards their lines, and keeps their tails.

    Args:
        channel: the connection to the worker.
        output: where lines are forwarded to.
        secrets: texts that are masked in output.
        clock: limits the time that the collector takes after its worker has ended.
    """

    def __init__(
        self, channel: Channel, output: ServiceOutput, secrets: Sequence[bytes], clock: Clock
    ) -> None:
        self._clock = clock
        self._channel = channel
        self._output = output
        self._secrets = secrets
        self._mask = masking(secrets)
        self._pipes: dict[int, _Pipe] = {}
        self._numbers: dict[int, int] = {}
        self._followed: set[int] = set()
        self._waiter = select.poll()

    def run(self) -> int:
        """Work until the worker has ended; return the exit status."""
        set_title("collector")
        self._waiter.register(self._channel, select.POLLIN)
        while not self._channel.closed:
            self._turn(None)
        until = self._clock.monotonic() + _LAST_WORDS
        while (self._pipes or self._output.waits) and self._clock.monotonic() < until:
            self._turn(_LAST_WORDS / 10)
            for number, pipe in [*self._pipes.items()]:
                if pipe.over:
                    self._forget(number)
        return 0

    def _turn(self, timeout: float | None) -> None:
        """Wait until something can be done, and do it."""
        if self._output.waits:
            self._waiter.register(self._output, select.POLLOUT)
        timeout = self._send_live(timeout)
        ready = dict(self._waiter.poll(None if timeout is None else timeout * 1000))
        if ready.pop(self._output.fileno(), 0):
            self._output.flush()
            if not self._output.waits:
                self._waiter.unregister(self._output)
        if ready.pop(self._channel.fileno(), 0):
            self._obey_all()
        for descriptor in ready:
            if (number := self._numbers.get(descriptor)) is not None:
                self._read(number)

    def _obey_all(self) -> None:
        while (received := self._channel.receive()) is not None:
            self._obey(*received)
        if self._channel.closed:
            self._waiter.unregister(self._channel)

    def _obey(self, message: Mapping[str, Any], descriptors: list[int]) -> None:
        if "watch" in message:
            number = message["watch"]
            for descriptor in descriptors:
                os.set_blocking(descriptor, False)
                self._pipes[number] = _Pipe(descriptor)
                self._numbers[descriptor] = number
                self._waiter.register(descriptor, select.POLLIN)
            return
        number = next(iter(message.values()))
        if (pipe := self._pipes.get(number)) is None:
            return
        if "whose" in message:
            pipe.name(message)
            self._forward(pipe)
        elif "reader" in message:
            self._obey_about(number, pipe, message["reader"], message)
        elif "end" in message:
            self._end(number, pipe)
        else:
            self._forget(number)

    def _read(self, number: int) -> None:
        """Read some output of a pipe."""
        pipe = self._pipes[number]
        if not pipe.told:
            # The worker is told before the output is read. So if the worker finds the pipe empty,
            # and was not told, then the attempt has printed nothing.
            pipe.told = True
            self._say({"prints": number})
        chunk = self._chunk(pipe)
        if chunk == b"":
            pipe.over = True
            self._waiter.unregister(pipe.descriptor)

    def _chunk(self, pipe: _Pipe) -> bytes | None:
        """Read and handle at most one chunk; b"" at the end of the stream, None if it is empty."""
        try:
            chunk = os.read(pipe.descriptor, _CHUNK)
        except BlockingIOError:
            return None
        pipe.add(chunk)
        self._forward(pipe)
        return chunk

    def _forward(self, pipe: _Pipe, *, last: bool = False) -> None:
        for line in pipe.lines(last=last):
            self._output.write(self._mask(line))
        self._output.flush()

    def _end(self, number: int, pipe: _Pipe) -> None:
        """Read the rest of an attempt's output, and send its tail to the worker."""
        # Nobody writes meanwhile, so this ends: the pipe contains at most its capacity.
        while self._chunk(pipe):
            pass
        self._forward(pipe, last=True)
        for reader_number, reader in pipe.readers.items():
            for output, dropped in reader.rest():
                self._say_live(reader_number, reader, output, dropped)
        tail = self._mask(pipe.tail.take())
        self._say_bytes({"tail": number, "dropped": pipe.tail.dropped}, tail)
        pipe.begin()
        self._followed.discard(number)

    def _forget(self, number: int) -> None:
        pipe = self._pipes.pop(number)
        self._followed.discard(number)
        del self._numbers[pipe.descriptor]
        self._forward(pipe, last=True)
        with suppress(KeyError):  # it was unregistered at the end of its stream
            self._waiter.unregister(pipe.descriptor)
        os.close(pipe.descriptor)

    def _obey_about(
        self, number: int, pipe: _Pipe, reader: int, message: Mapping[str, Any]
    ) -> None:
        """Obey a message about a reader of live output."""
        if "follow" in message:
            pipe.readers[reader] = LiveReader(pipe.tail.take(), pipe.tail.dropped, self._secrets)
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
                    reader.may_send, reader.due = False, now + PAUSE
                    self._say_live(reader_number, reader, *reader.take())
                else:
                    wait = reader.due - now
                    timeout = wait if timeout is None else min(timeout, wait)
        return timeout

    def _say_live(self, number: int, reader: LiveReader, output: bytes, dropped: int) -> None:
        # A mask can be longer than the secret.
        output = self._mask(output)[-LONGEST_LIVE:]
        self._say_bytes({"live": number, "dropped": dropped, "waiting": reader.waiting}, output)

    def _say_bytes(self, message: dict[str, Any], output: bytes) -> None:
        """Send a message with bytes, in a memory file."""
        file = os.memfd_create("output", os.MFD_CLOEXEC)
        try:
            os.write(file, output)
            self._say({**message, "size": len(output)}, [file])
        finally:
            os.close(file)

    def _say(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        with suppress(OSError):  # the worker has ended
            self._channel.send(message, descriptors or [])


def masking(secrets: Sequence[bytes]) -> Mask:
    """A function that replaces secrets in output by three asterisks."""

    def mask(text: bytes) -> bytes:
        for secret in secrets:
            if secret in text:
                text = text.replace(secret, b"***")
        return text

    return mask
