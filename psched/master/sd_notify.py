"""Telling a service manager how we are: sd_notify(3), which is one datagram to a socket."""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

_PATIENCE = 1.0
"""Seconds; a manager that does not even take a datagram must not stop its services."""

_MICROSECONDS = 1_000_000


class Notifier:
    """Speaks to the service manager, if there is one.

    Args:
        environ: where ``NOTIFY_SOCKET`` stands. It is taken out: only the master notifies, and
            what a task starts must not be mistaken for it.

    Attributes:
        watchdog: seconds within which the manager wants signs of life; None: it wants none.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        limit, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = limit.isdecimal() and meant in ("", str(os.getpid()))
        self.watchdog = int(limit) / _MICROSECONDS if ours and int(limit) else None

    def send(self, **fields: object) -> None:
        """Send fields such as ``READY=1``; nobody listening is no error."""
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.settimeout(_PATIENCE)
            sender.sendto(text.encode(), self._address)


def microseconds(seconds: float) -> int:
    """Seconds, as sd_notify(3) counts time."""
    return int(seconds * _MICROSECONDS)
