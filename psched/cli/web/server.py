"""The server of the command web: waitress, which answers one request of each connection.

One thread reads all requests, and another one makes the pages, one after the other. So no client
may keep either for long, whatever it sends, reads or asks for.
"""

import logging
import socket
from functools import partial
from typing import Any

import waitress
from typing_extensions import override
from waitress.channel import HTTPChannel
from waitress.task import WSGITask

from psched.base.clock import Clock
from psched.cli.web.site import Site

_MOST_BODY = 65_536
"""The most bytes of the body of a request; no page needs one."""

_MOST_CONNECTIONS = 100
"""The most clients that are connected at the same time."""

_LONGEST = 30.0
"""Seconds in which a client must have sent its request and received its page."""


class _Task(WSGITask):  # type: ignore[misc]  # waitress has no types
    """Answers a request, and closes its connection.

    Otherwise a client could send many requests at once and read no answer: as soon as waitress
    keeps 16 MiB of answers, its only thread waits for this client.
    """

    @override
    def build_response_header(self) -> bytes:
        self.set_close_on_finish()
        head: bytes = super().build_response_header()
        return head


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A client, which is disconnected when its time is over.

    If there are too many clients, the oldest of those is disconnected that have not sent their
    whole request, or do not read their page. If all wait for their pages, it is the newest.
    """

    task_class = _Task

    def __init__(self, clock: Clock, server: Any, *args: Any, **more: Any) -> None:  # noqa: ANN401
        self._clock = clock
        self._until = clock.monotonic() + _LONGEST
        channels = server.active_channels
        if len(channels) >= _MOST_CONNECTIONS:
            idle = (each for each in channels.values() if not each.requests)
            (next(idle, None) or [*channels.values()][-1]).handle_close()
        super().__init__(server, *args, **more)

    # Waitress asks both before it waits, once a second or more often. A closed channel that says
    # yes would end its loop.

    @override
    def readable(self) -> bool:
        if self._clock.monotonic() >= self._until:
            self.handle_close()
        return self.connected and bool(super().readable())

    @override
    def writable(self) -> bool:
        return self.connected and bool(super().writable())


def serve(site: Site, listener: socket.socket, clock: Clock) -> None:
    """Answer requests until a signal ends this process."""
    # It warns of each request that waits for another one.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = waitress.create_server(
        site,
        sockets=[listener],
        threads=1,  # because the site has one connection to the store
        ident="psched",
        max_request_body_size=_MOST_BODY,
        outbuf_high_watermark=1 << 30,  # or the thread of the pages would wait for slow readers
        connection_limit=10 * _MOST_CONNECTIONS,  # `_Channel` keeps a lower one
        # Otherwise it would not notice that a client hangs up before its page is made.
        channel_request_lookahead=1,
        asyncore_use_poll=True,  # select refuses descriptors of 1024 and above
    )
    server.channel_class = partial(_Channel, clock)
    server.run()
