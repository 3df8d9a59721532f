"""One connection to a Redis server, which is opened when it is needed and closed when it breaks.

This module never repeats a request; only its callers do. So the driver's retries are switched off,
and the driver's connection pools are not used. `Budget` limits the time of each request, even if
the server stops responding.

If the url names Sentinels, psched asks the Sentinels which server is the primary before it opens a
connection. Before each request and after each write, psched checks whether the Sentinels have
reported a failover: see `psched.stores.redis.sentinels`. psched closes a new connection if the
server reports that it is a replica. If the server becomes a replica later, it refuses all scripts
that write, and psched closes the connection then.
"""

import logging
import select
import ssl
from collections import deque
from collections.abc import Callable
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
from psched.config.urls import RedisAddress, Tls
from psched.core.catchup import iso
from psched.stores import encryption
from psched.stores.connection_advice import network_fix
from psched.stores.deadline_socket import Budget
from psched.stores.forks import Ownership
from psched.stores.redis import errors, scripts
from psched.stores.redis.connection import DriverConnection
from psched.stores.redis.encoding import Argument
from psched.stores.redis.sentinels import Sentinels

_log = logging.getLogger("psched.store")

VERSION = 2
"""The version of the layout of the data; psched refuses data with another version.

It must be increased with every change of the layout.
"""

OLDEST = 7
"""The oldest major version of Redis that psched accepts: the first with flags of scripts."""

_REPLICATION_LAG = 1
"""Seconds between two reports in which a replica tells its primary which writes it has received."""

_LOOKS_PER_PROBE = 30
"""The seconds between two questions to the server while psched listens, because a connection can
break unnoticed."""

_SHARE_OF_WAIT = 0.8
"""The share of a request's remaining time for which the server waits at most for its replicas."""


class Server(NamedTuple):
    """The properties that a server reports in its answer to ``HELLO``."""

    version: str
    mode: str
    role: str


class Connector:
    """Sends requests to a Redis server, and raises psched's exceptions when they fail.

    Args:
        timeout: the longest wait for an answer of the server, in seconds.
        tls: how connections are encrypted; None means that ``address`` decides.
        checks: whether to refuse a server whose data are missing or have another layout, and to
            check the user's rights before the first write.
        observed: which variant of the scripts to run, see `scripts.find`.

    Attributes:
        replicas: how many replicas must have received a write before the write counts as done; 0
            means that psched does not wait for replicas.
        shown: the server's address, for messages; empty before the first connection.
        server: the server's properties; they are empty texts before the first connection.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        table: str,
        timeout: float,
        clock: Clock,
        tls: Tls | None,
        replicas: int = 0,
        checks: bool = True,
        observed: bool = False,
    ) -> None:
        self._address = address
        self._prefix = f"{{{table}}}:"
        self._channel = f"{self._prefix}wake"
        self._table = table
        self._budget = Budget(clock, timeout)
        self._clock = clock
        self._tls = tls
        self.replicas = replicas
        self._checks = checks
        self._find = partial(scripts.find, observed=observed)
        self._hosts = deque(address.hosts or [("", 0)])
        self._sentinels = None if address.service is None else self._watch(address.service)
        self._connection: DriverConnection | None = None
        self._ownership = Ownership()
        self._may_write = False
        self._wrote = 0.0  # when a write was last acknowledged, by this host's wall clock
        self.shown = ""
        self.server = Server("", "", "")

    @property
    def sentinels(self) -> str:
        """A text about the Sentinels for the report of `psched check`."""
        return "none" if self._sentinels is None else str(self._sentinels)

    @property
    def encryption(self) -> str | None:
        """The TLS version of the connection; None if the connection is closed or not encrypted."""
        opened = None if self._connection is None else self._connection.socket
        return opened.version() if isinstance(opened, ssl.SSLSocket) else None

    def run(self, name: str, *arguments: Argument, writing: bool | None = None) -> Any:  # noqa: ANN401
        """Run a script on the server, and return its answer.

        By default, the script's flags tell whether it is writing.
        """
        script = self._find(name)
        writing = script.writes if writing is None else writing
        connection = self._connected()
        if writing and self._checks and not self._may_write:
            self._try(connection)
        answer = self._evaluate(connection, script, *arguments, writing=writing)
        if writing:
            self._wrote = self._clock.wall()
            self._confirm(connection)
        return answer

    def try_rights(self) -> None:
        """Check that the url's user has the rights to read and write; change no data."""
        connection = self._connected()
        self._try(connection)

    def ask(self, *command: Argument) -> Any:  # noqa: ANN401
        """Send a command that changes no data, and return its answer."""
        connection = self._connected()
        try:
            return connection.ask(*command)
        except RedisError as error:
            raise self._failure(error, writing=False) from None

    def announce(self) -> None:
        """Tell all who listen, as `psched.core.operations.announcing.Announces` describes."""
        self.ask("PUBLISH", self._channel, b"")

    def listen(self, heard: Callable[[], object], is_over: Callable[[], bool]) -> None:
        """Listen to announcements, as `Announces.listen` describes."""
        connection = self._connected()
        try:
            connection.ask("SUBSCRIBE", self._channel)
            heard()
            quiet = 0
            while not is_over():
                quiet += 1
                self._budget.begin()
                if self._sentinels is not None and self._sentinels.may_have_changed():
                    raise StoreUnavailableError("the Sentinels may name another primary")
                if _is_readable(connection) or quiet >= _LOOKS_PER_PROBE:
                    quiet = 0
                    while _has_announcements(connection):
                        heard()
        except RedisError as error:
            raise self._failure(error, writing=False) from None
        finally:
            self.disconnect()  # it accepts no other commands any more

    def disconnect(self) -> None:
        """Close the connections to the server and to its Sentinels.

        The next request opens new connections.
        """
        self._may_write = False
        connection, self._connection = self._connection, None
        if self._ownership.lost:
            self._ownership.leave(connection)
        elif connection is not None:
            connection.disconnect()
        if self._sentinels is not None:
            self._sentinels.close()

    def _confirm(self, connection: DriverConnection) -> None:
        """Check that no failover loses the write that the server has just acknowledged."""
        if self._sentinels is not None and self._sentinels.heard:
            raise UnknownOutcomeError(
                f"the Sentinels announce a failover: what {self.shown} has just acknowledged may"
                " be lost with it"
            )
        if not self.replicas:
            return
        try:
            # We let the server wait for only a share of the time that is left, so that its answer
            # arrives before the time is over.
            wait = max(1, int(self._budget.left * _SHARE_OF_WAIT * 1000))
            # WAIT returns the number of replicas that have received all writes of this connection.
            followed = connection.ask("WAIT", self.replicas, wait)
        except (RedisError, TimeoutError) as error:
            if not isinstance(error, ResponseError):
                self.disconnect()
            raise UnknownOutcomeError(
                f"{self.shown} does not tell whether its replicas have what was written to it:"
                f" {errors.explain(error)}"
            ) from None
        if followed < self.replicas:
            raise UnknownOutcomeError(
                f"{followed} of the {self.replicas} replicas that wait_replicas asks for have what"
                f" was written to {self.shown}: a failover may lose it"
            )

    def _try(self, connection: DriverConnection) -> None:
        """Check, before the first write, that the user has the rights to run all scripts.

        Without this check, the server could refuse a command in the middle of a script, and would
        not undo the commands before it.
        """
        refused = self._evaluate(connection, self._find("try"), "rows", writing=False)
        if refused:
            commands = ", ".join(dict.fromkeys(command.decode() for command in refused[::2]))
            raise StoreError(f"cannot {commands} keys that begin with {self._prefix}")
        if self.replicas:
            try:
                connection.ask("WAIT", 0, 1)
            except RedisError as error:
                raise self._failure(error, writing=False) from None
        self._may_write = True

    def _evaluate(
        self,
        connection: DriverConnection,
        script: scripts.Script,
        *arguments: Argument,
        writing: bool,
    ) -> Any:  # noqa: ANN401
        request = (1, self._prefix, *arguments)
        try:
            try:
                return connection.ask("EVALSHA", script.digest, *request)
            except NoScriptError:
                # The server does not know the script, for example because the server was restarted.
                # So we send the source with ``EVAL``, and the server stores it.
                return connection.ask("EVAL", script.text, *request)
        except RedisError as error:
            raise self._failure(error, writing=writing) from None

    def _failure(self, error: RedisError, *, writing: bool) -> StoreError:
        if errors.breaks(error):
            self.disconnect()
            self._hosts.rotate(-1)
        return errors.exception_of(error, writing=writing)

    def _connected(self) -> DriverConnection:
        """Begin a request, open a connection if there is none, and return the connection.

        If connecting has used up the time of the request, the request fails, but the connection
        stays open for the next request.
        """
        if self._ownership.lost:
            self.disconnect()
        if self._connection is not None and self._connection.has_ended:
            # We drop the connection, because psched would not check the server (see `_greet`) if
            # the driver reopened it.
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
        """Begin a step of the current request; see `Budget.step`."""
        try:
            self._budget.step(answers=answers)
        except TimeoutError as error:
            raise StoreSlowError(f"the database answers too slowly: {error}") from None

    def _primary(self, sentinels: Sentinels) -> tuple[str, int]:
        """Return the primary's address; close the connection if it is to another server."""
        connection = self._connection
        if connection is not None and not sentinels.may_have_changed():
            return connection.host, connection.port
        sure = sentinels.sure
        found = sentinels.find()
        if connection is not None and found != (connection.host, connection.port):
            self._may_write = False
            self._connection = None
            connection.disconnect()
        if self.shown and self.shown != (shown := f"{found[0]}:{found[1]}"):
            since = int(sure) - _REPLICATION_LAG
            if self._wrote < since:
                _log.info("the Sentinels name another primary, %s; no write is affected", shown)
            else:
                _log.warning(
                    "the Sentinels name another primary, %s: what %s acknowledged from %s to %s may"
                    " be lost",
                    shown, self.shown, iso(since), iso(ceil(min(sentinels.sure, self._wrote))),
                )  # fmt: skip
        return found

    def _opened(self, host: str, port: int) -> DriverConnection:
        login = {"username": self._address.user, "password": self._address.password}
        self.shown = self._address.path or f"{host}:{port}"
        connection = self._dial(host, port, db=self._address.db, path=self._address.path, **login)
        try:
            self._greet(connection)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, RedisError):
                raise StoreUnavailableError(self._unreachable(self.shown, error)) from None
            raise
        return connection

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

    def _dial(
        self,
        host: str,
        port: int,
        *,
        path: str | None = None,
        **how: Any,  # noqa: ANN401  # the driver's
    ) -> DriverConnection:
        place = path or f"{host}:{port}"
        try:
            connection = DriverConnection(
                path, self._context(), self._budget, host=host, port=port, **how
            )
        except ValueError as error:
            raise StoreError(f"cannot connect to {place}: {error}") from None
        try:
            connection.connect()
        except (RedisError, OSError) as error:
            raise StoreUnavailableError(self._unreachable(place, error)) from None
        return connection

    def _context(self) -> ssl.SSLContext | None:
        """Create the SSL context of a new connection; return None for no encryption.

        Each call reads the certificates again, because somebody may have renewed them.
        """
        if self._tls is not None:
            return encryption.ssl_context(self._tls)
        return ssl.create_default_context() if self._address.encrypted else None

    def _greet(self, connection: DriverConnection) -> None:
        """Raise an error if psched cannot use the server of a new connection.

        The server must be a primary and no Redis Cluster, its version must not be too old, and its
        data must have the current layout.
        """
        said = connection.ask("HELLO")
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
            found = connection.ask("HGET", f"{self._prefix}layout", "version")
            older = f"{self._prefix}info", f"{self._prefix}upgrading"
            if found is None and connection.ask("EXISTS", *older):
                raise SchemaError(
                    f"the schedules under {self._table!r} have an older layout, or their upgrade"
                    " has not ended; run `psched init`, which upgrades them in place"
                )
            self.check(found)

    def check(self, found: bytes | None) -> None:
        """Check that this version of psched knows the layout of the data."""
        if found is None:
            raise MissingTableError(
                f"there are no schedules under {self._table!r} in {self.shown}; run `psched init`,"
                " or find out where they are: a server that saves nothing loses all data when it"
                " restarts"
            )
        if found != str(VERSION).encode():
            version = found.decode(errors="replace")
            raise SchemaError(
                f"the schedules under {self._table!r} have the layout {version}, this psched knows"
                f" {VERSION}; upgrade psched on this host"
            )

    def _unreachable(self, place: str, error: BaseException) -> str:
        fix = errors.connecting_fix(error) or network_fix(error, self._tls)
        if fix is None:
            fix = "look into the server's log, and check host, port, db, user and password in url"
            fix += f"; {self._tls.checklist}" if self._tls else ""
        return f"cannot connect to {place}: {errors.explain(error)}; {fix}"


def _has_announcements(connection: DriverConnection) -> bool:
    """Read everything that has arrived; return whether it contained an announcement.

    Several messages can arrive at once, and then the driver keeps some of them in its own buffer,
    where `_is_readable` does not see them. The answer to a PING shows that all before it was read.
    """
    connection.send_command("PING")
    found = False
    while (kind := connection.read_response()[0]) != b"pong":
        found |= kind == b"message"
    return found


def _is_readable(connection: DriverConnection) -> bool:
    """Wait for up to a second until something has arrived, or the connection has ended."""
    if connection.socket is None:
        return True
    poll = select.poll()  # because select() refuses file descriptors above 1023
    poll.register(connection.socket, select.POLLIN)
    return bool(poll.poll(1000))
