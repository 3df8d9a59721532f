"""Sockets that enforce a time limit for a whole request, even if the server stops responding.

A driver's own timeouts limit the wait for one answer, or for one packet of an answer. But a request
has several answers, connecting has a dozen, and a server that sends a byte now and then may never
finish its answer. `psched.base.lease_times` explains what depends on the limit.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from psched.base.clock import Clock


class Budget:
    """The time that the current request may still take.

    A request consists of steps: to connect, to set up the session, a statement, another one. A
    step may take ``seconds``; a step with many answers may take that for each of them, but its
    request ends after twice that time. No step begins when its request has already taken longer
    than ``seconds``. So a request fails when nothing has arrived for ``seconds``, and after twice
    that time in any case.

    Args:
        clock: measures the time.
        seconds: how long an answer may take, the setting ``database_timeout``.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._begun = clock.monotonic()
        self._ends = self._begun + seconds
        self._latest: float | None = None

    def begin(self) -> None:
        """Begin a request."""
        self._begun = self._clock.monotonic()
        self.renew()

    def renew(self) -> None:
        """Begin a step even if the steps before it have taken too long."""
        self._ends, self._latest = self._clock.monotonic() + self._seconds, None

    def step(self, *, answers: bool = False) -> None:
        """Begin a step.

        Args:
            answers: whether the step has several answers, each of which may take ``seconds``.

        Raises:
            TimeoutError: the steps before it have taken too long.
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
        """Extend a step with several answers, because a part of an answer has arrived."""
        if self._latest is not None:
            self._ends = min(self._clock.monotonic() + self._seconds, self._latest)

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Within the block, allow only this share of the time that is left."""
        ends, now = self._ends, self._clock.monotonic()
        self._ends = now + max(ends - now, 0.0) * share
        try:
            yield
        finally:
            self._ends = ends

    @property
    def left(self) -> float:
        """The seconds that are left.

        Raises:
            TimeoutError: no time is left.
        """
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        return left


class _Socket(socket.socket):
    """A socket on which nothing takes longer than its budget has left."""

    budget: Budget

    @override
    def recv(self, *args: Any, **more: Any) -> bytes:
        self.settimeout(self.budget.left)
        received = super().recv(*args, **more)
        self.budget.answered()
        return received

    @override
    def recv_into(self, *args: Any, **more: Any) -> int:
        self.settimeout(self.budget.left)
        received = super().recv_into(*args, **more)
        self.budget.answered()
        return received

    @override
    def sendall(self, *args: Any, **more: Any) -> None:
        self.settimeout(self.budget.left)
        super().sendall(*args, **more)


class _EncryptedSocket(_Socket, ssl.SSLSocket):
    """An encrypted socket on which nothing takes longer than its budget has left.

    The SSL context creates the socket and stores the budget.
    """

    @property
    def budget(self) -> Budget:  # type: ignore[override]  # read-only here
        budget: Budget = self.context.budget  # type: ignore[attr-defined]  # see `limit`
        return budget

    @override
    def do_handshake(self, *args: Any, **more: Any) -> None:
        self.settimeout(self.budget.left)
        super().do_handshake(*args, **more)
        self.budget.answered()

    @override
    def send(self, *args: Any, **more: Any) -> int:
        self.settimeout(self.budget.left)
        return super().send(*args, **more)


def limit(context: ssl.SSLContext, budget: Budget) -> None:
    """Limit the sockets that a context encrypts to a budget."""
    context.sslsocket_class = _EncryptedSocket
    context.budget = budget  # type: ignore[attr-defined]


def connect(host: str, port: int, budget: Budget) -> socket.socket:
    """Connect to the first of a host's addresses that accepts.

    Raises:
        OSError: no address accepts the connection in time.
    """
    failure: OSError | None = None
    # An ASCII name is passed as bytes, because for text Python would load its tables for
    # international names.
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


def connect_unix(path: str, budget: Budget) -> socket.socket:
    """Connect through a Unix socket.

    Raises:
        OSError: no server listens on this socket, or the server does not accept in time.
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
