"""Waiting for a database no longer than was promised, whatever it does in the meantime.

A driver's own timeouts hold for one answer, or for one packet of it. A request is several
answers, a connection a dozen, and a server that sends a byte now and then never comes to an end.
See `psched.timing` for what depends on it.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psched.clock import Clock


class Budget:
    """How long the present request may still take.

    Args:
        clock: this host's clocks.
        seconds: that each request is given.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._ends = clock.monotonic() + seconds

    def begin(self) -> None:
        """A request begins."""
        self._ends = self._clock.monotonic() + self._seconds

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Give a step no more than this share of the time that is left."""
        ends, now = self._ends, self._clock.monotonic()
        self._ends = now + max(ends - now, 0.0) * share
        try:
            yield
        finally:
            self._ends = ends

    @property
    def left(self) -> float:
        """Seconds.

        Raises:
            TimeoutError: none are.
        """
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        return left


class _Socket(socket.socket):
    """A socket on which nothing takes longer than its budget has left."""

    budget: Budget

    def recv(self, *args: Any, **more: Any) -> bytes:  # noqa: ANN401  # socket's
        self.settimeout(self.budget.left)
        return super().recv(*args, **more)

    def recv_into(self, *args: Any, **more: Any) -> int:  # noqa: ANN401  # socket's
        self.settimeout(self.budget.left)
        return super().recv_into(*args, **more)

    def sendall(self, *args: Any, **more: Any) -> None:  # noqa: ANN401  # socket's
        self.settimeout(self.budget.left)
        super().sendall(*args, **more)


class _EncryptedSocket(ssl.SSLSocket):
    """The same, encrypted. It is made by its context, which knows the budget."""

    def do_handshake(self, *args: Any, **more: Any) -> None:  # noqa: ANN401  # ssl's
        self._bound()
        super().do_handshake(*args, **more)

    def recv(self, *args: Any, **more: Any) -> bytes:  # noqa: ANN401  # ssl's
        self._bound()
        return super().recv(*args, **more)

    def recv_into(self, *args: Any, **more: Any) -> int:  # noqa: ANN401  # ssl's
        self._bound()
        return super().recv_into(*args, **more)

    def send(self, *args: Any, **more: Any) -> int:  # noqa: ANN401  # ssl's
        self._bound()
        return super().send(*args, **more)

    def _bound(self) -> None:
        self.settimeout(self.context.budget.left)  # type: ignore[attr-defined]  # see `bound`


def bound(context: ssl.SSLContext, budget: Budget) -> None:
    """Have the sockets that a context encrypts keep to a budget."""
    context.sslsocket_class = _EncryptedSocket
    context.budget = budget  # type: ignore[attr-defined]


def connect(host: str, port: int, budget: Budget) -> socket.socket:
    """Open a connection, to whichever of the host's addresses takes it first.

    Raises:
        OSError: none does, or not in time.
    """
    failure: OSError | None = None
    # As text, the tables for names in other scripts are loaded for every name.
    name = host.encode() if host.isascii() else host
    for family, kind, protocol, _, address in socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM
    ):
        opened = _Socket(family, kind, protocol)
        opened.budget = budget
        try:
            opened.settimeout(budget.left)
            opened.connect(address)
        except OSError as error:
            opened.close()
            failure = error
            continue
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return opened
    raise failure or OSError(f"{host} has no address")


def connect_here(path: str, budget: Budget) -> socket.socket:
    """Open a connection through a socket of this host's.

    Raises:
        OSError: nobody listens there, or not in time.
    """
    opened = _Socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.budget = budget
    try:
        opened.settimeout(budget.left)
        opened.connect(path)
    except OSError:
        opened.close()
        raise
    return opened
