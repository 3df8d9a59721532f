"""Waiting for a database no longer than was promised, whatever it does in the meantime.

A driver's own timeouts hold for one answer, or for one packet of it. A request is several
answers, a connection a dozen, and a server that sends a byte now and then never comes to an end.
See `psched.base.lease_times` for what depends on it.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psched.base.clock import Clock


class Budget:
    """How long the present request may still take.

    A request may have several steps: to connect, to greet, a statement, another. None begins when
    the request has used up more than the time that an answer is given. A step has that time, too;
    one of many answers has it for each, but its request ends after twice that time. So a request
    is given up after the time in which nothing arrives, and after twice the time in any case.

    Args:
        clock: this host's clocks.
        seconds: that an answer is given.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._begun = clock.monotonic()
        self._ends = self._begun + seconds
        self._latest: float | None = None

    def begin(self) -> None:
        """A request begins."""
        self._begun = self._clock.monotonic()
        self.renew()

    def renew(self) -> None:
        """A step begins, however long those before have taken."""
        self._ends, self._latest = self._clock.monotonic() + self._seconds, None

    def step(self, *, answers: bool = False) -> None:
        """A step begins.

        Args:
            answers: it is several, and each is given the whole time.

        Raises:
            TimeoutError: those before have taken too long.
        """
        used = self._clock.monotonic() - self._begun
        if used > self._seconds:
            raise TimeoutError(
                f"its first answers took {used:.1f} s, and database_timeout is {self._seconds:g} s"
            )
        self.renew()
        if answers:
            self._latest = self._begun + 2 * self._seconds

    def answered(self) -> None:
        """Something has arrived."""
        if self._latest is not None:
            self._ends = min(self._clock.monotonic() + self._seconds, self._latest)

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
        received = super().recv(*args, **more)
        self.budget.answered()
        return received

    def recv_into(self, *args: Any, **more: Any) -> int:  # noqa: ANN401  # socket's
        self.settimeout(self.budget.left)
        received = super().recv_into(*args, **more)
        self.budget.answered()
        return received

    def sendall(self, *args: Any, **more: Any) -> None:  # noqa: ANN401  # socket's
        self.settimeout(self.budget.left)
        super().sendall(*args, **more)


class _EncryptedSocket(ssl.SSLSocket):
    """The same, encrypted. It is made by its context, which knows the budget."""

    def do_handshake(self, *args: Any, **more: Any) -> None:  # noqa: ANN401  # ssl's
        self._bound()
        super().do_handshake(*args, **more)
        self._budget.answered()

    def recv(self, *args: Any, **more: Any) -> bytes:  # noqa: ANN401  # ssl's
        self._bound()
        received = super().recv(*args, **more)
        self._budget.answered()
        return received

    def recv_into(self, *args: Any, **more: Any) -> int:  # noqa: ANN401  # ssl's
        self._bound()
        received = super().recv_into(*args, **more)
        self._budget.answered()
        return received

    def send(self, *args: Any, **more: Any) -> int:  # noqa: ANN401  # ssl's
        self._bound()
        return super().send(*args, **more)

    def _bound(self) -> None:
        self.settimeout(self._budget.left)

    @property
    def _budget(self) -> Budget:
        budget: Budget = self.context.budget  # type: ignore[attr-defined]  # see `bound`
        return budget


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
        budget.answered()
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
