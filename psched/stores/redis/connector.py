"""One connection to a Redis server, opened when needed, dropped when broken.

Nothing is sent twice but by who asked for it: the driver's own tries are switched off, and none of
its pools is used. No request takes longer than its budget, whatever the server does.

Behind Sentinels, each connection begins with the question who the primary is, and the Sentinels'
news of a failover is read before each request and before the answer to a write is believed: see
`psched.stores.redis.sentinels`. The server must also say itself that it is a primary, and a
replica refuses all scripts that write.
"""

import logging
import ssl
from collections import deque
from functools import partial
from math import ceil
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError, ResponseError

from psched.base.clock import Clock
from psched.base.errors import (
    MissingTableError,
    SchemaError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config.redis_urls import Address
from psched.config.tls import Tls
from psched.core.catchup import iso
from psched.stores import encryption
from psched.stores.deadline_socket import Budget
from psched.stores.redis import faults, scripts
from psched.stores.redis.encoding import Argument
from psched.stores.redis.line import Line
from psched.stores.redis.lua import Script
from psched.stores.redis.sentinels import Sentinels

_log = logging.getLogger("psched.store")

VERSION = 1
"""Raised with every change of the layout; a newer one is refused."""

OLDEST = 7
"""The first version of Redis that knows flags of scripts."""


_REPLICATION_LAG = 1
"""Seconds: replicas tell their primary every second how far they have followed."""

_SHARE_OF_WAIT = 0.8
"""The part of the time left for a request that the server may wait for its replicas."""


class Server(NamedTuple):
    """What a server says of itself."""

    version: str
    mode: str
    role: str


class Connector:
    """Sends requests and tells their failures apart.

    Args:
        address: where the server is, or its Sentinels.
        table: the prefix of all keys.
        timeout: seconds; bound of every wait for the server.
        clock: measures it.
        tls: how connections are encrypted; None: as the address will.
        replicas: see below.
        checks: whether a server without our data is refused.

    Attributes:
        replicas: so many must have a write before it counts as done.
        shown: the server that was connected to last, for people.
        server: what it said of itself.
    """

    def __init__(
        self,
        address: Address,
        *,
        table: str,
        timeout: float,
        clock: Clock,
        tls: Tls | None,
        replicas: int = 0,
        checks: bool = True,
    ) -> None:
        self._address = address
        self._prefix = f"{{{table}}}:"
        self._table = table
        self._budget = Budget(clock, timeout)
        self._clock = clock
        self._tls = tls
        self.replicas = replicas
        self._checks = checks
        self._hosts = deque(address.hosts or [("", 0)])
        self._sentinels = None if address.service is None else self._watch(address.service)
        self._connection: Line | None = None
        self._may_write = False
        self.shown = ""
        self.server = Server("", "", "")

    @property
    def sentinels(self) -> str:
        """Which Sentinels there are, for people."""
        return "none" if self._sentinels is None else str(self._sentinels)

    @property
    def encryption(self) -> str | None:
        """How the connection is encrypted, for people."""
        opened = None if self._connection is None else self._connection.socket
        return opened.version() if isinstance(opened, ssl.SSLSocket) else None

    def run(self, script: Script, *arguments: Argument, writing: bool = True) -> Any:  # noqa: ANN401
        """Run a script.

        Args:
            script: all of it is done, or nothing.
            arguments: for it.
            writing: whether it may change something.

        Raises:
            StoreUnavailableError: nothing was applied; asking again later makes sense.
            UnknownOutcomeError: it may have been applied.
            SchemaError: there are no data of ours, or of another version.
            StoreError: the server will not do this.
        """
        line = self._connected()
        if writing and self._checks and not self._may_write:
            self._try(line)
        answer = self._evaluate(line, script, *arguments, writing=writing)
        if writing:
            self._make_sure(line)
        return answer

    def try_rights(self) -> None:
        """Try whether we may read and write; nothing is changed.

        Raises:
            StoreError: we may not; the text says what.
        """
        line = self._connected()
        self._try(line)

    def ask(self, *command: Argument) -> Any:  # noqa: ANN401
        """Send a command that changes nothing.

        Raises:
            StoreError: as `run` does.
        """
        line = self._connected()
        try:
            return line.ask(*command)
        except RedisError as error:
            raise self._failure(error, writing=False) from None

    def disconnect(self) -> None:
        """Close the connection; the next request opens another."""
        self._may_write = False
        line, self._connection = self._connection, None
        if line is not None:
            line.disconnect()
        if self._sentinels is not None:
            self._sentinels.close()

    def _make_sure(self, line: Line) -> None:
        """Believe the answer to a write only if a failover does not lose it.

        Raises:
            UnknownOutcomeError: it may be lost.
        """
        if self._sentinels is not None and self._sentinels.heard:
            raise UnknownOutcomeError(
                f"the Sentinels announce a failover: what {self.shown} has just acknowledged may"
                " be lost with it"
            )
        if not self.replicas:
            return
        try:
            # Part of the time is for its answer's way.
            patience = max(1, int(self._budget.left * _SHARE_OF_WAIT * 1000))
            # For all that was written on this connection, not only by the last request.
            followed = line.ask("WAIT", self.replicas, patience)
        except (RedisError, TimeoutError) as error:
            if not isinstance(error, ResponseError):
                self.disconnect()
            raise UnknownOutcomeError(
                f"{self.shown} does not tell whether its replicas have what was written to it:"
                f" {faults.explain(error)}"
            ) from None
        if followed < self.replicas:
            raise UnknownOutcomeError(
                f"{followed} of the {self.replicas} replicas that wait_replicas asks for have what"
                f" was written to {self.shown}: a failover may lose it"
            )

    def _try(self, line: Line) -> None:
        """Before the first write: a script that is stopped half-way is not undone."""
        refused = self._evaluate(line, scripts.TRY, writing=False)
        if refused:
            commands = ", ".join(dict.fromkeys(command.decode() for command in refused))
            raise StoreError(f"cannot {commands} keys that begin with {self._prefix}")
        if self.replicas:
            try:
                line.ask("WAIT", 0, 1)
            except RedisError as error:
                raise self._failure(error, writing=False) from None
        self._may_write = True

    def _evaluate(self, line: Line, script: Script, *arguments: Argument, writing: bool) -> Any:  # noqa: ANN401
        request = (1, self._prefix, *arguments)
        try:
            try:
                return line.ask("EVALSHA", script.digest, *request)
            except NoScriptError:
                # A server that was restarted, or is another, has to be told it once.
                return line.ask("EVAL", script.text, *request)
        except RedisError as error:
            raise self._failure(error, writing=writing) from None

    def _failure(self, error: RedisError, *, writing: bool) -> StoreError:
        if faults.breaks(error):
            self.disconnect()
            self._hosts.rotate(-1)
        return faults.exception_of(error, writing=writing)

    def _connected(self) -> Line:
        """The connection; the first step of a request has begun.

        What a slow server leaves undone in one request, the next one does.
        """
        if self._connection is not None and not self._connection.is_connected:
            # What is raised in the midst of a request makes the driver close it; it would then
            # connect by itself, to a server that nobody has looked at.
            self.disconnect()
        self._budget.begin()
        place = self._hosts[0] if self._sentinels is None else self._primary(self._sentinels)
        if self._connection is None:
            self._step(answers=True)
            try:
                self._connection = self._opened(*place)
            except StoreError:
                self._hosts.rotate(-1)
                raise
        self._step()
        return self._connection

    def _step(self, *, answers: bool = False) -> None:
        """A step of a request begins; see `Budget.step`."""
        try:
            self._budget.step(answers=answers)
        except TimeoutError as error:
            raise StoreSlowError(f"the database answers too slowly: {error}") from None

    def _primary(self, sentinels: Sentinels) -> tuple[str, int]:
        """The primary's address; the connection is closed if it leads to another server."""
        line = self._connection
        if line is not None and not sentinels.may_have_changed():
            return line.host, line.port
        sure = sentinels.sure
        found = sentinels.find()
        if line is not None and found != (line.host, line.port):
            self._may_write = False
            self._connection = None
            line.disconnect()
        if self.shown and self.shown != (shown := f"{found[0]}:{found[1]}"):
            _log.warning(
                "the Sentinels name another primary, %s: what %s acknowledged from %s to %s may be"
                " lost",
                shown, self.shown, iso(int(sure) - _REPLICATION_LAG), iso(ceil(sentinels.sure)),
            )  # fmt: skip
        return found

    def _opened(self, host: str, port: int) -> Line:
        login = {"username": self._address.user, "password": self._address.password}
        self.shown = self._address.path or f"{host}:{port}"
        line = self._dial(host, port, db=self._address.db, path=self._address.path, **login)
        try:
            self._greet(line)
        except BaseException as error:
            line.disconnect()
            if isinstance(error, RedisError):
                raise StoreUnavailableError(self._unreachable(self.shown, error)) from None
            raise
        return line

    def _watch(self, service: str) -> Sentinels:
        login: dict[str, Any] = {
            "username": self._address.sentinel_user,
            "password": self._address.sentinel_password,
        }
        return Sentinels(
            self._address.hosts,
            service,
            dial=partial(self._dial, **login),
            budget=self._budget,
            clock=self._clock,
        )

    def _dial(self, host: str, port: int, *, path: str | None = None, **how: Any) -> Line:  # noqa: ANN401
        place = path or f"{host}:{port}"
        try:
            line = Line(path, self._context(), self._budget, host=host, port=port, **how)
        except ValueError as error:
            raise StoreError(f"cannot connect to {place}: {error}") from None
        try:
            line.connect()
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(self._unreachable(place, error)) from None
        return line

    def _context(self) -> ssl.SSLContext | None:
        """What encrypts; the files are read anew for each connection."""
        if self._tls is not None:
            return encryption.context_of(self._tls)
        return ssl.create_default_context() if self._address.encrypted else None

    def _greet(self, line: Line) -> None:
        """Refuse a server on which we could not work."""
        said = line.ask("HELLO")
        facts = {key.decode(): value for key, value in zip(said[::2], said[1::2], strict=True)}
        version, mode, role = (facts.get(n, b"").decode() for n in ("version", "mode", "role"))
        self.server = Server(version, mode, role)
        if mode != "standalone":
            raise StoreError(f"{self.shown} is a Redis {mode.title()}, which cannot be used")
        if role != "master":
            raise StoreUnavailableError(
                f"the database is unavailable: {self.shown} is a replica; url must lead to the"
                " primary"
            )
        if int(version.partition(".")[0]) < OLDEST:
            raise StoreError(f"{self.shown} is Redis {version}; psched needs {OLDEST}.0 or newer")
        if self._checks:
            self.check(line.ask("HGET", f"{self._prefix}info", "version"))

    def check(self, found: bytes | None) -> None:
        """Make sure that the data are of a layout that we know.

        Raises:
            SchemaError: they are not, or there are none; the text names the mend.
        """
        if found is None:
            raise MissingTableError(
                f"there are no schedules under {self._table!r} in {self.shown}; run `psched init`,"
                " or find out where they have gone: a server that saves nothing loses all in a"
                " restart"
            )
        if found != str(VERSION).encode():
            version = found.decode(errors="replace")
            raise SchemaError(
                f"the schedules under {self._table!r} have the layout {version}, this psched knows"
                f" {VERSION}; upgrade psched on this host"
            )

    def _unreachable(self, place: str, error: BaseException) -> str:
        wanted = f" {self._tls.checklist}" if self._tls else ""
        return (
            f"cannot connect to {place}: {faults.explain(error)}; is the server running, and are"
            f" host, port, user and password right?{wanted}"
        )
