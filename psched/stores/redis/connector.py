"""One connection to a Redis server, opened when needed, closed when broken.

Only the caller repeats a request: the driver's retries are switched off, and its connection pools
are not used. No request takes longer than its budget, whatever the server does.

If the url names Sentinels, each new connection begins by asking them which server is the primary.
Before each request, and before the answer to a write is trusted, psched checks for messages of the
Sentinels about failovers: see `psched.stores.redis.sentinels`. A new connection is also closed if
the server reports that it is a replica. Besides, a replica refuses all scripts that write.
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
from psched.stores.redis import errors, scripts
from psched.stores.redis.connection import DriverConnection
from psched.stores.redis.encoding import Argument
from psched.stores.redis.scripts import Script
from psched.stores.redis.sentinels import Sentinels

_log = logging.getLogger("psched.store")

VERSION = 1
"""The version of the data's layout, which grows with every change; other versions are refused."""

OLDEST = 7
"""The first version of Redis that supports flags of scripts."""

_REPLICATION_LAG = 1
"""The interval, in seconds, in which replicas report to their primary which writes they have."""

_SHARE_OF_WAIT = 0.8
"""The share of a request's remaining time that the server may wait for its replicas."""


class Server(NamedTuple):
    """The properties that a server reports in its answer to ``HELLO``."""

    version: str
    mode: str
    role: str


class Connector:
    """Sends requests and classifies their failures.

    Args:
        address: the server, or its Sentinels.
        table: the name with which all keys begin.
        timeout: seconds that an answer of the server may take.
        clock: measures the timeout.
        tls: how connections are encrypted; None: the address decides.
        replicas: the attribute ``replicas``.
        checks: whether to refuse a server without psched's data.

    Attributes:
        replicas: how many replicas must have a write before the write counts as done; 0: none.
        shown: the address of the last server, for messages; empty: there was no connection yet.
        server: the properties of the last server; empty texts: there was no connection yet.
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
        self._connection: DriverConnection | None = None
        self._may_write = False
        self.shown = ""
        self.server = Server("", "", "")

    @property
    def sentinels(self) -> str:
        """A line about the Sentinels for `psched check`."""
        return "none" if self._sentinels is None else str(self._sentinels)

    @property
    def encryption(self) -> str | None:
        """The TLS version of the connection; None: it is not encrypted, or not open."""
        opened = None if self._connection is None else self._connection.socket
        return opened.version() if isinstance(opened, ssl.SSLSocket) else None

    def run(self, script: Script, *arguments: Argument, writing: bool = True) -> Any:  # noqa: ANN401
        """Run a script.

        Args:
            script: the script to run.
            arguments: the script's ARGV.
            writing: whether the script may change something.

        Raises:
            StoreUnavailableError: nothing was applied; a later try may succeed.
            UnknownOutcomeError: the script's writes may have been applied.
            SchemaError: the server has no data of psched, or a layout of another version.
            StoreError: the server refuses the request.
        """
        connection = self._connected()
        if writing and self._checks and not self._may_write:
            self._try(connection)
        answer = self._evaluate(connection, script, *arguments, writing=writing)
        if writing:
            self._confirm(connection)
        return answer

    def try_rights(self) -> None:
        """Check that the user may read and write; this changes nothing.

        Raises:
            StoreError: the server refuses some command; the text names it.
        """
        connection = self._connected()
        self._try(connection)

    def ask(self, *command: Argument) -> Any:  # noqa: ANN401
        """Send a command that changes nothing.

        Raises:
            StoreError: one of the errors of `run`.
        """
        connection = self._connected()
        try:
            return connection.ask(*command)
        except RedisError as error:
            raise self._failure(error, writing=False) from None

    def disconnect(self) -> None:
        """Close the connection. The next request opens a new one."""
        self._may_write = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
        if self._sentinels is not None:
            self._sentinels.close()

    def _confirm(self, connection: DriverConnection) -> None:
        """Check that a failover does not lose a write that the server has acknowledged.

        Raises:
            UnknownOutcomeError: the write may be lost.
        """
        if self._sentinels is not None and self._sentinels.heard:
            raise UnknownOutcomeError(
                f"the Sentinels announce a failover: what {self.shown} has just acknowledged may"
                " be lost with it"
            )
        if not self.replicas:
            return
        try:
            # The server waits for only a share of the time, so that its answer can still arrive.
            wait = max(1, int(self._budget.left * _SHARE_OF_WAIT * 1000))
            # WAIT returns the number of replicas that have all writes of this connection.
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
        """Check rights before the first write.

        If the server refused a command in the middle of a script, the commands before it would not
        be undone.
        """
        refused = self._evaluate(connection, scripts.TRY_COMMANDS, writing=False)
        if refused:
            commands = ", ".join(dict.fromkeys(command.decode() for command in refused))
            raise StoreError(f"cannot {commands} keys that begin with {self._prefix}")
        if self.replicas:
            try:
                connection.ask("WAIT", 0, 1)
            except RedisError as error:
                raise self._failure(error, writing=False) from None
        self._may_write = True

    def _evaluate(
        self, connection: DriverConnection, script: Script, *arguments: Argument, writing: bool
    ) -> Any:  # noqa: ANN401
        request = (1, self._prefix, *arguments)
        try:
            try:
                return connection.ask("EVALSHA", script.digest, *request)
            except NoScriptError:
                # The server does not know the script, for example because the server was restarted.
                # ``EVAL`` sends the source, which the server then keeps.
                return connection.ask("EVAL", script.text, *request)
        except RedisError as error:
            raise self._failure(error, writing=writing) from None

    def _failure(self, error: RedisError, *, writing: bool) -> StoreError:
        if errors.breaks(error):
            self.disconnect()
            self._hosts.rotate(-1)
        return errors.exception_of(error, writing=writing)

    def _connected(self) -> DriverConnection:
        """Begin a request; return the connection, which is opened first if necessary.

        If the server is too slow, the connection is kept, so that the next request can use it.
        """
        if self._connection is not None and not self._connection.is_connected:
            # After an exception in the middle of a request, the driver has closed the connection.
            # The connection is dropped, because the driver would reconnect to it by itself, and the
            # server would not be checked.
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
        """Begin a step of a request; see `Budget.step`."""
        try:
            self._budget.step(answers=answers)
        except TimeoutError as error:
            raise StoreSlowError(f"the database answers too slowly: {error}") from None

    def _primary(self, sentinels: Sentinels) -> tuple[str, int]:
        """Return the primary's address; close a connection to another server."""
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
            _log.warning(
                "the Sentinels name another primary, %s: what %s acknowledged from %s to %s may be"
                " lost",
                shown, self.shown, iso(int(sure) - _REPLICATION_LAG), iso(ceil(sentinels.sure)),
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
        """The context for encryption; None: the connection is not encrypted.

        The certificates are read again for each connection, because they may have been renewed.
        """
        if self._tls is not None:
            return encryption.ssl_context(self._tls)
        return ssl.create_default_context() if self._address.encrypted else None

    def _greet(self, connection: DriverConnection) -> None:
        """Refuse a server that psched cannot use."""
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
            self.check(connection.ask("HGET", f"{self._prefix}info", "version"))

    def check(self, found: bytes | None) -> None:
        """Check that this version of psched knows the layout of the data.

        Args:
            found: the version of the layout as stored; None: there are no data.

        Raises:
            SchemaError: the data have another layout, or there are none; the text names the fix.
        """
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
        wanted = f" {self._tls.checklist}" if self._tls else ""
        return (
            f"cannot connect to {place}: {errors.explain(error)}; is the server running, and are"
            f" host, port, user and password right?{wanted}"
        )
