"""The HTTP server of metrics and of the command web: waitress, with deadlines for its clients.

One thread reads all requests, and others answer them. A connection serves one request. No client
may keep a thread for long, whatever it sends, reads or asks for. An answer can go on without a
thread: the application calls ``psched.keep_open`` of its environment with a function that takes the
connection, a `Kept`.
"""

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import waitress
from typing_extensions import override
from waitress import wasyncore
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.task import WSGITask

from psched.base.clock import Clock

_LONGEST_BODY = 65_536  # the most bytes of the body of a request; none needs one
_LONGEST_HEAD = 16_384  # the most bytes of the head of a request
_MOST_CONNECTIONS = 100  # the most clients that are connected at the same time
_LONGEST = 30.0  # seconds in which a client must have sent its request and received its answer
_MOST_UNREAD = 65_536  # the most bytes of an answer that goes on, and that its client has not read


class Kept:
    """A connection on which an answer goes on; several threads may use it."""

    def __init__(self, channel: "_Channel", *, is_chunked: bool) -> None:
        self._channel = channel
        self._is_chunked = is_chunked

    def is_open(self) -> bool:
        """Whether the client is still connected."""
        return bool(self._channel.connected)

    def send(self, data: bytes) -> None:
        """Send some bytes soon, or raise an `OSError` if the client has gone, or does not read."""
        channel = self._channel
        if channel.total_outbufs_len > _MOST_UNREAD:
            raise TimeoutError("the client does not read")
        try:
            channel.write_soon(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        except ClientDisconnected:
            raise ConnectionError("the client has hung up") from None
        channel.server.pull_trigger()

    def close(self) -> None:
        """End the answer, and disconnect the client."""
        # What it has not read is lost; its thread closes the socket.
        self._channel.will_close = True
        with suppress(OSError):
            self._channel.server.pull_trigger()


class _Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    """Answers a request, and closes its connection, unless the answer goes on.

    Otherwise a client could send many requests at once and read no answer: as soon as waitress
    keeps 16 MiB of answers, its thread waits for this client.
    """

    _follow: Callable[[Kept], None] | None = None

    @override
    def get_environment(self) -> Mapping[str, Any]:
        return {**super().get_environment(), "psched.keep_open": self._keep_open}

    def _keep_open(self, follow: Callable[[Kept], None]) -> None:
        self._follow = follow

    @override
    def build_response_header(self) -> bytes:
        self.set_close_on_finish()
        head: bytes = super().build_response_header()
        return head

    @override
    def finish(self) -> None:
        if self._follow is None:
            super().finish()
            return
        self.close_on_finish = False
        self.channel.keep()
        self._follow(Kept(self.channel, is_chunked=self.chunked_response))


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A client, which is disconnected when its time is over.

    If there are too many clients, the oldest of those is disconnected that have not sent their
    whole request, or do not read their answer. If all wait for answers, it is the newest.
    """

    task_class = _Task

    def __init__(self, clock: Clock, server: Any, *args: Any, **more: Any) -> None:  # noqa: ANN401
        self._clock = clock
        self.until = clock.monotonic() + _LONGEST
        channels = server.active_channels
        if len(channels) >= _MOST_CONNECTIONS:
            idle = (e for e in channels.values() if not e.requests and e.until != inf)
            (next(idle, None) or [*channels.values()][-1]).handle_close()
        super().__init__(server, *args, **more)

    def keep(self) -> None:
        """Let the answer go on, and read no further request."""
        self.until = inf

    @override
    def handle_write(self) -> None:
        # Waitress takes no lock here if no request is being answered; but `Kept` writes meanwhile.
        with self.outbuf_lock:
            super().handle_write()

    @override
    def received(self, data: bytes) -> bool:
        return self.until != inf and bool(super().received(data))

    # Waitress asks both before it waits, once a second or more often. A closed channel that says
    # yes would end its loop.

    @override
    def readable(self) -> bool:
        if self._clock.monotonic() >= self.until:
            self.handle_close()
        return self.connected and bool(super().readable())

    @override
    def writable(self) -> bool:
        return self.connected and bool(super().writable())


class HttpServer:
    """Serves a WSGI application on a socket that listens."""

    def __init__(
        self,
        application: Any,  # noqa: ANN401  # a WSGI application
        listener: socket.socket,
        clock: Clock,
        *,
        threads: int,  # how many threads call the application
        # Whether it notices that a client hangs up before its answer is made. A client that has
        # only ended its own sending has hung up then, too.
        notices_hangups: bool = False,
    ) -> None:
        # It warns of each request that waits for another one.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._channels: dict[int, Any] = {}
        self._server = waitress.create_server(
            application,
            map=self._channels,
            sockets=[listener],
            threads=threads,
            ident="psched",
            max_request_body_size=_LONGEST_BODY,
            max_request_header_size=_LONGEST_HEAD,
            outbuf_high_watermark=1 << 30,  # or the threads would wait for slow readers
            connection_limit=10 * _MOST_CONNECTIONS,  # `_Channel` keeps a lower one
            channel_request_lookahead=int(notices_hangups),
            asyncore_use_poll=True,  # select refuses descriptors of 1024 and above
        )
        self._server.channel_class = partial(_Channel, clock)
        self.clients = self._server.active_channels  # those that are connected

    def run(self) -> None:
        """Answer requests until `close`, or until a signal ends this process."""
        self._server.run()

    def close(self) -> None:
        """Let `run` return in its thread; clients are disconnected, and no more are accepted."""
        # If an answer has woken the loop meanwhile, the loop has run `_close`, and the descriptor
        # that would wake it is closed.
        with suppress(OSError):
            self._server.trigger.pull_trigger(self._close)

    def _close(self) -> None:
        for client in [*self.clients.values()]:
            client.handle_close()  # this closes files with long answers, too
        wasyncore.close_all(self._channels)
