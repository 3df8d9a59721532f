"""The connection of the driver redis-py, without retries, with a time limit for each request."""

import socket
import ssl
from typing import Any

from redis.connection import Connection

from psched.stores import deadline_socket
from psched.stores.deadline_socket import Budget
from psched.stores.redis.encoding import Argument


class DriverConnection(Connection):
    """The driver's connection, with a `Budget` that limits the time of each request.

    It is to the Unix socket ``path``; if that is None, to the server at ``host`` and ``port``.
    """

    def __init__(
        self,
        path: str | None,
        tls: ssl.SSLContext | None,
        budget: Budget,
        **how: Any,  # noqa: ANN401  # the driver's
    ) -> None:
        self._path = path
        self._tls = tls
        self._budget = budget
        # These arguments keep the driver from sending requests of its own.
        super().__init__(protocol=2, driver_info=None, health_check_interval=0, **how)

    def _connect(self) -> socket.socket:
        if self._path is not None:
            return deadline_socket.connect_unix(self._path, self._budget)
        opened = deadline_socket.connect(self.host, self.port, self._budget)
        if self._tls is None:
            return opened
        deadline_socket.limit(self._tls, self._budget)
        try:
            return self._tls.wrap_socket(opened, server_hostname=self.host)
        except OSError:
            opened.close()
            raise

    @property
    def socket(self) -> socket.socket | None:
        """The open socket; None if the connection is closed."""
        return self._sock

    @property
    def has_ended(self) -> bool:
        """Whether the server has closed the connection, for example because it was idle.

        The driver closes a connection if an exception interrupts a request.
        """
        return self._sock is None or deadline_socket.has_ended(self._sock.fileno())

    def ask(self, *command: Argument) -> Any:  # noqa: ANN401  # any type of answer
        """Send a command and return its answer."""
        self.send_command(*command)
        return self.read_response()
