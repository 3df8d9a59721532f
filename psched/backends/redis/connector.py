"""One connection to a Redis server, opened when needed, dropped when broken.

Nothing is sent twice but by who asked for it: the driver's own tries are switched off, and none of
its pools is used. No request takes longer than its budget, whatever the server does.

Behind Sentinels, each connection begins with the question who the primary is; one Sentinel is asked
at each request that needs a connection, and the next after it has failed. They are asked again now
and then: who has been cut off from them does not hear that it is the primary no more. The server
must say that it is one, and nothing is written on a replica: its scripts refuse to.
"""

import ssl
from collections import deque
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, RedisError

from psched.backends import encryption
from psched.backends.bounded import Budget
from psched.backends.redis import faults, scripts
from psched.backends.redis.encoding import Argument
from psched.backends.redis.line import Line
from psched.backends.redis.lua import Script
from psched.clock import Clock
from psched.config.redis_urls import Address
from psched.config.tls import Tls
from psched.errors import MissingTableError, SchemaError, StoreError, StoreUnavailableError

VERSION = 1
"""Raised with every change of the layout; a newer one is refused."""

OLDEST = 7
"""The first version of Redis that knows flags of scripts."""


ASKED_AGAIN = 10.0
"""Seconds after which a Sentinel is asked whether the primary is another by now."""


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
        checks: whether a server without our data is refused.

    Attributes:
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
        checks: bool = True,
    ) -> None:
        self._address = address
        self._prefix = f"{{{table}}}:"
        self._table = table
        self._budget = Budget(clock, timeout)
        self._clock = clock
        self._asked = 0.0
        self._tls = tls
        self._checks = checks
        self._hosts = deque(address.hosts or [("", 0)])
        self._connection: Line | None = None
        self._may_write = False
        self.shown = ""
        self.server = Server("", "", "")

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
        self._budget.begin()
        if writing and self._checks and not self._may_write:
            self._try(line)
        return self._evaluate(line, script, *arguments, writing=writing)

    def try_rights(self) -> None:
        """Try whether we may read and write; nothing is changed.

        Raises:
            StoreError: we may not; the text says what.
        """
        line = self._connected()
        self._budget.begin()
        self._try(line)

    def ask(self, *command: Argument) -> Any:  # noqa: ANN401
        """Send a command that changes nothing.

        Raises:
            StoreError: as `run` does.
        """
        line = self._connected()
        self._budget.begin()
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

    def _try(self, line: Line) -> None:
        """Before the first write: a script that is stopped half-way is not undone."""
        refused = self._evaluate(line, scripts.TRY, writing=False)
        if refused:
            commands = ", ".join(dict.fromkeys(command.decode() for command in refused))
            raise StoreError(f"cannot {commands} keys that begin with {self._prefix}")
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
        if self._connection is not None and not self._connection.is_connected:
            # What is raised in the midst of a request makes the driver close it; it would then
            # connect by itself, to a server that nobody has looked at.
            self.disconnect()
        self._budget.begin()
        if self._connection is not None and self._address.service is not None:
            self._ask_again(self._connection)
        if self._connection is None:
            try:
                self._connection = self._opened()
            except StoreError:
                self._hosts.rotate(-1)
                raise
        return self._connection

    def _ask_again(self, line: Line) -> None:
        """Leave a server that is the primary no more, and does not know it."""
        if self._clock.monotonic() - self._asked < ASKED_AGAIN:
            return
        try:
            if self._primary(*self._hosts[0]) != (line.host, line.port):
                self.disconnect()
        except StoreError:
            self._asked = self._clock.monotonic()
            self._hosts.rotate(-1)  # the next one will know

    def _opened(self) -> Line:
        host, port = self._hosts[0]
        if self._address.service is not None:
            host, port = self._primary(host, port)
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

    def _primary(self, host: str, port: int) -> tuple[str, int]:
        """Where the primary is, as one of the Sentinels says."""
        address = self._address
        login = {"username": address.sentinel_user, "password": address.sentinel_password}
        sentinel = self._dial(host, port, **login)
        try:
            found = sentinel.ask("SENTINEL", "get-master-addr-by-name", address.service or "")
        except RedisError as error:
            raise StoreUnavailableError(self._unreachable(f"{host}:{port}", error)) from None
        finally:
            sentinel.disconnect()
        if found is None:
            raise StoreUnavailableError(
                f"the Sentinel {host}:{port} knows no server by the name {address.service!r}"
            )
        self._asked = self._clock.monotonic()
        return found[0].decode(), int(found[1])

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
        wanted = f" {self._tls.wanted}" if self._tls else ""
        return (
            f"cannot connect to {place}: {faults.explain(error)}; is the server running, and are"
            f" host, port, user and password right?{wanted}"
        )
