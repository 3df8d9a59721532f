"""Asks a master for the output of a running task, as a client of its `status_socket`."""

import select
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from psched.master.messages import LONGEST_PIECE, TO_READER
from psched.master.runtime_folders import short_address
from psched.process.link import Link

_SILENCE = 1.0
"""The most seconds between two messages that the caller gets."""


def follow(path: Path, key: str, patience: float) -> Iterator[Mapping[str, Any]]:
    """Yield a master's messages about the output of a running task, see `TO_READER`.

    The first one is "follows" or "over", and the last one is "over". Between them are empty
    ones, at least each second, so that the caller can give up a master that hangs.
    """
    until = time.monotonic() + patience
    link = _asked(path, key)
    try:
        yield from _messages(link, until)
    finally:
        link.close()


def _asked(path: Path, key: str) -> Link:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Otherwise, to connect to a master that accepts nobody would take forever.
    connection.setblocking(False)  # noqa: FBT003  # its parameter has no name
    try:
        # By the address, the master knows that this client sends a request. The kernel chooses the
        # address, in the abstract namespace: unix(7), "Autobind feature".
        connection.bind("")
        with short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    link = Link(connection)
    link.expects, link.data_limit = TO_READER, LONGEST_PIECE
    link.send({"follow": key})
    return link


def _messages(link: Link, until: float) -> Iterator[Mapping[str, Any]]:
    """Yield the messages until "over"; the first one must arrive until then."""
    begun = False
    waiter = select.poll()
    waiter.register(link, select.POLLIN)
    while not link.closed:
        waiter.poll((_SILENCE if begun else max(0, until - time.monotonic())) * 1000)
        if begun:
            yield {}
        for message in link.receive():
            begun = True
            yield message
            if "over" in message:
                return
        if not begun and time.monotonic() > until:
            raise TimeoutError("the master does not answer")
    if begun:
        what = f"the master has sent {link.fault}" if link.fault else "the master has hung up"
        raise ConnectionResetError(what)
    # A master of an older version sends its status, or hangs up.
    raise ConnectionAbortedError(
        "the master refuses the request; if it is of another release of psched, restart the service"
    )
