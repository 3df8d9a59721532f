"""The server of the command web: waitress, which answers one request of each connection."""

import logging
import socket

import waitress
from typing_extensions import override
from waitress.channel import HTTPChannel
from waitress.task import WSGITask

from psched.cli.web.site import Site

_MOST_BODY = 65_536
"""The most bytes of the body of a request; no page needs one."""


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
    task_class = _Task


def serve(site: Site, listener: socket.socket) -> None:
    """Answer requests until a signal ends this process.

    Args:
        site: the pages.
        listener: the socket to accept connections from.
    """
    # It warns of each request that waits for another one.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    # One thread, because the site has one connection to the store.
    server = waitress.create_server(
        site, sockets=[listener], threads=1, ident="psched", max_request_body_size=_MOST_BODY
    )
    server.channel_class = _Channel
    server.run()
