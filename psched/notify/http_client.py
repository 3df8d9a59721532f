"""Sends one HTTP request to a server that somebody else has chosen.

- A connection is made only to a public address, unless the configuration allows others. The very
  address that is connected to is judged, so no answer of the DNS can change between the judgement
  and the connection.
- Redirects are not followed.
- One time limit holds for everything: the DNS, the connection, TLS, the request and the answer,
  even if the server sends one byte at a time.
- Only the first bytes of an answer are read.
- Proxies that the environment names (``https_proxy``) are not used: the proxy would make the
  connection, and nobody would judge its address.
- Errors name the host and the port, but no other part of a URL, because a path can be a secret.
  They contain no header and nothing of the request's body.
"""

import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any

from typing_extensions import override

from psched.base.clock import Clock, SystemClock
from psched.base.errors import PschedError
from psched.base.texts import brief
from psched.config.kinds import Network
from psched.config.monitoring import PORTS, Target, header_problem, parse_url
from psched.notify.addresses import refusal
from psched.stores.deadline_socket import Budget, EncryptedSocket, LimitedSocket

LARGEST_ANSWER = 4096  # the number of bytes of an answer's body that are read

_REDIRECTS = range(300, 400)
_SUCCESSES = range(200, 300)

Found = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""One address of a host, as `socket.getaddrinfo` returns it."""


class HttpError(PschedError):
    """No answer to a request, or a redirect; the text says why, in one line."""

    def __init__(self, problem: str, *, retry: bool) -> None:
        super().__init__(problem)
        self.retry = retry  # whether the same request may succeed later


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server."""

    status: int  # the status code; none of 300 to 399
    body: bytes  # the first bytes of the body
    # The headers, with names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the status says that the request has succeeded."""
        return self.status in _SUCCESSES

    @property
    def retry(self) -> bool:
        """Whether it may succeed later: the server has failed, is busy, or asks for patience."""
        return self.status not in range(400, 500) or self.status in {408, 425, 429}

    @property
    def text(self) -> str:
        """The status and the begin of the body as one short line that is safe to show."""
        body = brief(self.body.decode(errors="replace"))
        return f"answered {self.status}: {body}" if body else f"answered {self.status}"


def addresses_of(host: str, port: int) -> Sequence[Found]:
    """The addresses of a host."""
    return socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)


class HttpClient:
    """Sends requests; it keeps no connection. Several threads may use it at the same time."""

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        clock: Clock | None = None,
        # Finds the addresses of a host. It is called in a thread, because nothing can interrupt it.
        # The thread stays until the DNS answers, or the process ends.
        find: Callable[[str, int], Sequence[Found]] = addresses_of,
    ) -> None:
        self._allowed = allowed
        self._clock = clock or SystemClock()
        self._find = find
        self._tls: ssl.SSLContext | None = None

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        seconds: float,
        largest: int = LARGEST_ANSWER,
    ) -> Answer:
        """Send a request, and return the answer.

        An answer counts as soon as its headers are complete. If the time then ends before the body
        does, the part that has arrived is returned.
        """
        try:
            target = parse_url(url)
        except ValueError as error:
            raise HttpError(f"the URL {error}", retry=False) from None
        budget = Budget(self._clock, seconds)
        complete = _complete(headers or {}, target)
        try:
            with ExitStack() as stack:
                connection = HTTPConnection(target.host, target.port)
                connection.sock = stack.enter_context(self._open(target, budget))
                connection.request(method, target.path, body, complete)
                # It is closed, too, because its file keeps the socket open.
                response = stack.enter_context(connection.getresponse())
                named = {name.lower(): value for name, value in response.getheaders()}
                answer = Answer(response.status, _begin_of(response, largest), named)
        except HttpError:
            raise
        except ssl.SSLCertVerificationError as error:
            problem = f"its certificate is not trusted: {error.verify_message}"
            raise HttpError(f"{target.shown}: {problem}", retry=True) from None
        except TimeoutError:
            problem = f"no answer within {seconds:g} s"
            raise HttpError(f"{target.shown}: {problem}", retry=True) from None
        except OSError as error:
            problem = brief(error.strerror or str(error) or type(error).__name__)
            raise HttpError(f"{target.shown}: {problem}", retry=True) from None
        except HTTPException:
            # Its text can be anything that the server has sent.
            problem = "what it answers is not HTTP"
            raise HttpError(f"{target.shown}: {problem}", retry=True) from None
        if answer.status in _REDIRECTS:
            problem = f"answered {answer.status}, a redirect, and redirects are not followed"
            raise HttpError(f"{target.shown}: {problem}", retry=False)
        return answer

    def _open(self, target: Target, budget: Budget) -> socket.socket:
        plain = self._connect(target, budget)
        if not target.encrypted:
            return plain
        with plain:  # nothing is left to close there when the encrypted socket has taken it over
            return self._encrypt(plain, target.host, budget)

    def _connect(self, target: Target, budget: Budget) -> socket.socket:
        """Connect to the first address that may be, and can be, connected to."""
        found = self._look_up(target, budget)
        failure: OSError | None = None
        refused: list[str] = []
        for index, (family, kind, protocol, _, address) in enumerate(found):
            if why := refusal(address[0], self._allowed):
                refused.append(why)
                continue
            opened = LimitedSocket(family, kind, protocol)
            opened.budget = budget
            try:
                # An address that does not answer leaves time for the others.
                opened.settimeout(budget.left / (len(found) - index))
                opened.connect(address)
            except OSError as error:
                opened.close()
                failure = error
                continue
            return opened
        if failure is None and refused:
            problem = (
                f"{target.shown}: leads to {refused[0]}, and allow_private_addresses does not allow"
                " that"
            )
            raise HttpError(problem, retry=False)
        raise failure or OSError("it has no address")

    def _look_up(self, target: Target, budget: Budget) -> Sequence[Found]:
        found: list[Sequence[Found]] = []
        failures: list[OSError] = []

        def look_up() -> None:
            try:
                found.append(self._find(target.host, target.port))
            except OSError as error:
                failures.append(error)
            except UnicodeError:  # a part of the name is too long
                failures.append(OSError("it is no name of a host"))

        thread = threading.Thread(target=look_up, name="psched-dns", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            raise OSError("this process can start no more threads") from None
        thread.join(budget.left)
        if failures:
            raise failures[0]
        if not found:
            raise TimeoutError
        return found[0]

    def _encrypt(self, plain: socket.socket, host: str, budget: Budget) -> ssl.SSLSocket:
        # Reading the system's authorities takes a while, so it is done once. If two threads do it
        # at the same time, one result is dropped.
        context = self._tls
        if context is None:
            context = ssl.create_default_context()
            context.sslsocket_class = _Encrypted
            self._tls = context
        encrypted = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        encrypted.budget = budget  # type: ignore[attr-defined]  # of `_Encrypted`
        try:
            encrypted.do_handshake()
        except BaseException:
            encrypted.close()
            raise
        return encrypted


class _Encrypted(EncryptedSocket):
    """Its budget is its own: requests at the same time share the context, but not their limit."""

    budget = None  # type: ignore[assignment]  # set when the socket is made

    @override
    def recv(self, *args: Any, **more: Any) -> bytes:
        # `ssl` reads while it makes the socket, without waiting, if the peer has gone already.
        if self.budget is None:
            return ssl.SSLSocket.recv(self, *args, **more)
        return super().recv(*args, **more)


def _complete(headers: Mapping[str, str], target: Target) -> dict[str, bytes]:
    """All headers of a request, except its length."""
    standard = PORTS["https" if target.encrypted else "http"]
    complete = {
        "host": target.authority if target.port == standard else target.shown,
        "user-agent": "psched",
        "connection": "close",
    }
    if target.authorization is not None:
        complete["authorization"] = target.authorization
    for name, value in headers.items():
        if problem := header_problem(name, value):
            raise HttpError(f"a header {problem}", retry=False)
        complete[name.lower()] = value
    return {name.title(): value.encode() for name, value in complete.items()}


def _begin_of(answer: HTTPResponse, largest: int) -> bytes:
    body = bytearray()
    # A body that does not end in time, or is cut off, does not change what the status says.
    with suppress(OSError, HTTPException):
        while len(body) < largest and (part := answer.read1(largest - len(body))):
            body += part
    return bytes(body)
