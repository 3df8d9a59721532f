"""Sends notifications to a service manager, each as one datagram, as sd_notify(3) describes."""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

_TIMEOUT = 1.0
"""Seconds after which the sending of a notification is given up, so that a service manager that
hangs does not block the master."""

_MICROSECONDS = 1_000_000


class Notifier:
    """Sends notifications to the service manager, if there is one.

    What the environment says of it is removed, so that programs of tasks cannot send notifications.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        # An abstract address begins with a zero byte. The variable contains "@" instead of the zero
        # byte, so replace it.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        limit, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = limit.isdecimal() and meant in ("", str(os.getpid()))
        # The most seconds that the service manager allows between two signs of life. None if it
        # expects no signs of life.
        self.watchdog = int(limit) / _MICROSECONDS if ours and int(limit) else None

    def send(self, **fields: object) -> None:
        """Send fields such as ``READY=1``. Do nothing if no service manager listens."""
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.settimeout(_TIMEOUT)
            sender.sendto(text.encode(), self._address)


def microseconds(seconds: float) -> int:
    """Convert seconds to whole microseconds, the unit of sd_notify(3)."""
    return int(seconds * _MICROSECONDS)
