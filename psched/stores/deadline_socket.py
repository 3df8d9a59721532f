"""Sockets that enforce a time limit for a whole request, even if the server stops responding.

A driver's own timeouts limit only the wait for one answer, or for one packet of an answer. They do
not limit a request: a request waits for several answers, connecting waits for about a dozen, and a
server that sends one byte at a time might never finish an answer. Each request must end in time,
because a worker can extend its leases only between requests: see `psched.base.lease_times`.
"""

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from psched.base.clock import Clock

KEEPALIVE = 60
"""The seconds after which the kernel sends something on an idle connection.

Firewalls and load balancers forget a connection that was idle for some minutes. Linux would send
something after two hours.
"""


class Budget:
    """Limits the time of each request to a server.

    A request consists of steps: connecting, setting up the session, and each statement. A step
    with one answer fails after ``seconds``. A step with several answers fails if no part of an
    answer arrives for ``seconds``, or if its request has taken twice ``seconds``. If a request has
    already taken longer than ``seconds``, its next step does not begin, except for the step that
    `finish` begins. So each request ends after at most twice ``seconds``, unless `renew` is called.

    Args:
        seconds: the longest wait for an answer; follows the setting ``database_timeout``.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._begun = clock.monotonic()
        self._ends = self._begun + seconds
        self._latest: float | None = None

    def begin(self) -> None:
        """Begin a new request and its first step."""
        self._begun = self._clock.monotonic()
        self.renew()

    def renew(self) -> None:
        """Begin a step of ``seconds``, however long the current request has already taken."""
        self._ends, self._latest = self._clock.monotonic() + self._seconds, None

    def step(self, *, answers: bool = False, ahead: float = 0.0) -> None:
        """Begin a step of the current request."""
        now = self._clock.monotonic()
        used = now - self._begun
        if used + ahead > self._seconds:
            rest = f", the others would take {ahead:.1f} s" if ahead else ""
            raise TimeoutError(
                f"its first answers took {used:.1f} s{rest}, and database_timeout is"
                f" {self._seconds:g} s"
            )
        self._ends = now + self._seconds
        self._latest = self._begun + 2 * self._seconds if answers else None

    def finish(self) -> None:
        """Begin the last step of the current request, which has all the time that is left."""
        self._ends, self._latest = max(self._ends, self._begun + 2 * self._seconds), None

    def answered(self) -> None:
        """Extend the current step if it has several answers.

        This method must be called whenever a part of an answer has arrived.
        """
        if self._latest is not None:
            self._ends = min(self._clock.monotonic() + self._seconds, self._latest)

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Within the block, allow only a share (0 to 1) of the time that the step has left."""
        ends, now = self._ends, self._clock.monotonic()
        self._ends = now + max(ends - now, 0.0) * share
        try:
            yield
        finally:
            self._ends = ends

    @property
    def left(self) -> float:
        """The seconds that the current step has left."""
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        return left


class LimitedSocket(socket.socket):
    """A socket whose operations time out at the end of the current step of its budget."""

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


class EncryptedSocket(LimitedSocket, ssl.SSLSocket):
    """An encrypted socket whose operations time out at the end of the current step of its budget.

    An SSL context creates this socket, so the socket reads its budget from its context.
    """

    @property
    def budget(self) -> Budget:  # type: ignore[override]  # a property
        """The budget of the socket's context, which has no other connection."""
        budget: Budget = self.context.budget  # type: ignore[attr-defined]  # `limit` sets it
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
    """Make a budget limit the operations on all sockets that an SSL context encrypts."""
    context.sslsocket_class = EncryptedSocket
    context.budget = budget  # type: ignore[attr-defined]


def connect(host: str, port: int, budget: Budget) -> socket.socket:
    """Connect to the first address of a host that accepts the connection."""
    failure: OSError | None = None
    # An ASCII name is passed as bytes, because Python would load its tables for international
    # names if the name were a text.
    name = host.encode() if host.isascii() else host
    for family, kind, protocol, _, address in socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM
    ):
        opened = LimitedSocket(family, kind, protocol)
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
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE)
        return opened
    raise failure or OSError(f"{host} has no address")


def connect_unix(path: str, budget: Budget) -> socket.socket:
    """Connect through a Unix socket."""
    opened = LimitedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.budget = budget
    try:
        opened.settimeout(budget.left)
        opened.connect(path)
    except OSError:
        opened.close()
        raise
    return opened


def has_ended(descriptor: int) -> bool:
    """Whether the other side has closed a connection, or the network has reported its end.

    Servers close connections that have been idle for longer than, for example, ``wait_timeout``.
    Whoever looks before a request knows that nothing was applied, and can open a new connection.
    """
    poll = select.poll()
    # Not POLLIN, because something can have arrived that nobody has asked for.
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))
