"""Asks a master for the output of a running task, as a client of its `status_socket`."""

import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psched.master.messages import LONGEST_PIECE, TO_READER
from psched.master.runtime_folders import short_address
from psched.process.link import Link, packed

_TRIES = 20
"""How often a client asks. If a request arrives late, the master takes its client for one that asks
for the status."""

_PATIENCE = 15.0
"""Seconds after which a master that does not answer at all is given up."""


def follow(path: Path, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield a master's messages about the output of a running task, see `TO_READER`.

    The first one is "follows" or "over", and the last one is "over".

    Args:
        path: the master's socket.
        key: the key of the task.

    Raises:
        OSError: no master listens, it is too old, it has sent an invalid message, or it has hung
            up.
    """
    for _ in range(_TRIES):
        link = _asked(path, key)
        try:
            messages = _messages(link)
            first = next(messages, None)
            if first is not None:
                yield first
                yield from messages
                return
        finally:
            link.close()
    raise ConnectionAbortedError(
        "the master does not answer; if it is of another release of psched, restart the service"
    )


def _asked(path: Path, key: str) -> Link:
    request = packed({"follow": key})
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with short_address(path) as address:
            connection.connect(address)
        # The request follows at once, because the master does not wait for it. If it has hung up
        # already, its answer is none of `TO_READER`.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
    except BaseException:
        connection.close()
        raise
    link = Link(connection)
    link.expects, link.data_limit = TO_READER, LONGEST_PIECE
    return link


def _messages(link: Link) -> Iterator[Mapping[str, Any]]:
    """Yield the messages until "over"; nothing at all if the first one is none of `TO_READER`.

    Raises:
        OSError: the master has hung up after its first message, or it hangs.
    """
    begun = False
    waiter = select.poll()
    waiter.register(link, select.POLLIN)
    until = time.monotonic() + _PATIENCE
    while not link.closed:
        waiter.poll(None if begun else max(0, until - time.monotonic()) * 1000)
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
