"""PostgreSQL, through psycopg 3."""

from collections.abc import Generator, Mapping
from math import ceil
from typing import Any

from sqlalchemy import Connection

from psched.base.compression import in_base64
from psched.config.tls import Tls
from psched.stores.deadline_socket import Budget
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo
from psched.stores.sql.errors import ErrorKind

_ERROR_KINDS: Mapping[str, ErrorKind] = {
    **dict.fromkeys(
        (
            "40001",  # serialization failure
            "40P01",  # deadlock
            "55P03",  # another session's lock
            "57014",  # statement_timeout: the statement is rolled back
        ),
        ErrorKind.TRANSIENT,
    ),
    **dict.fromkeys(
        (
            "53",  # too many connections, out of memory, disk full
            "57P03",  # starting up or shutting down
            "58",  # system errors: for example a file that cannot be written
        ),
        ErrorKind.UNAVAILABLE,
    ),
    "25006": ErrorKind.READ_ONLY,
    **dict.fromkeys(
        (
            "08",  # connection exceptions
            "25P03",  # idle in a transaction for too long
            # The outcome is unknown, because a session that is ended while it waits for a
            # synchronous replica has already committed.
            "57P",  # shutdown, crash of another session, idle for too long
        ),
        ErrorKind.UNKNOWN,
    ),
    **dict.fromkeys(
        (
            "42703",  # no such column
            "42P01",  # no such table
        ),
        ErrorKind.SCHEMA,
    ),
    **dict.fromkeys(
        (
            "22",  # out of range, too long, not of the character set
            "23",  # constraints
        ),
        ErrorKind.INVALID_VALUE,
    ),
    "23505": ErrorKind.DUPLICATE,
    "0A000": ErrorKind.UNSUPPORTED,  # not supported
    "42601": ErrorKind.UNSUPPORTED,  # syntax
}
"""By SQLSTATE, or by the characters with which it begins."""


def _classify(error: BaseException) -> ErrorKind:
    state = getattr(error, "sqlstate", None)
    if state is None:
        # An error of libpq or psycopg: the state of the connection is unknown. But a value that
        # psycopg itself refuses was not sent.
        return ErrorKind.INVALID_VALUE if type(error).__name__ == "DataError" else ErrorKind.UNKNOWN
    for length in (5, 3, 2):
        if state[:length] in _ERROR_KINDS:
            return _ERROR_KINDS[state[:length]]
    return ErrorKind.REFUSED


def _explain(error: BaseException) -> str:
    """The error's number and first line; the other lines show rows and statements."""
    diagnosis: Any = getattr(error, "diag", None)
    if diagnosis is None or diagnosis.message_primary is None:
        return " ".join(str(error).split())
    return f"({diagnosis.sqlstate}, {' '.join(diagnosis.message_primary.split())!r})"


_SSLMODES = {"full": "verify-full", "ca": "verify-ca", "none": "require"}

_NO_FILE = "/dev/null/none"
"""A file that cannot exist; without a path, libpq would look for one in the user's home."""


def _connect_args(timeout: float, tls: Tls | None) -> Mapping[str, object]:
    return {
        **({} if tls is None else _tls_args(tls)),
        # libpq requires whole seconds, at least two. This is longer than the budget, which ends
        # connecting first.
        "connect_timeout": max(2, ceil(2 * timeout)),
        "client_encoding": "utf8",
        "application_name": "psched",
        "autocommit": True,
        # A pooler between psched and the server may give each statement another session.
        "prepare_threshold": None,
    }


def _tls_args(tls: Tls) -> Mapping[str, object]:
    return {
        "tls": True,
        "sslmode": _SSLMODES[tls.verify],
        "sslrootcert": str(tls.ca or _NO_FILE),
        "sslcert": str(tls.cert or _NO_FILE),
        "sslkey": str(tls.key or _NO_FILE),
        # GSSAPI is disabled, because libpq would try it first, and it checks no certificates.
        "gssencmode": "disable",
    }


def _connect(arguments: Mapping[str, Any], budget: Budget) -> Any:  # noqa: ANN401  # PEP 249
    """Open a connection that keeps to a budget.

    libpq does not limit the wait for an answer, and the kernel of a server that has been stopped
    acknowledges what is sent to it. With ``tls``, libpq encrypts the connection, except on a Unix
    socket.
    """
    import psycopg  # noqa: PLC0415  # an extra

    def bounded(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(steps)
            while True:
                # psycopg resumes this after its wait interval at the latest.
                arrived = yield wanted
                if arrived:
                    budget.answered()
                wanted = steps.send(arrived)
                _ = budget.left
        except StopIteration as end:
            return end.value
        except TimeoutError as error:
            raise psycopg.OperationalError(str(error)) from None

    class Bounded(psycopg.Connection[Any]):
        @classmethod
        def _connect_gen(cls, *args: Any, **more: Any) -> Any:  # noqa: ANN401  # psycopg's
            return bounded(super()._connect_gen(*args, **more))

        def wait(self, gen: Any, *args: Any, **more: Any) -> Any:  # noqa: ANN401  # psycopg's
            return super().wait(bounded(gen), *args, **more)

    connection = Bounded.connect(**{k: v for k, v in arguments.items() if k != "tls"})
    if "tls" in arguments and not connection.pgconn.ssl_in_use:
        connection.close()
        raise psycopg.OperationalError(
            "a Unix socket is never encrypted; name a host in the url, or remove the settings ssl_…"
        )
    return connection


_READ_ONLY = "CAST(current_setting('transaction_read_only') AS BOOLEAN)"
"""True on a replica, and where somebody has made the database read-only."""

_SESSION = "; ".join(
    (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET standard_conforming_strings = on",
        # The server cancels a statement after the time for which psched waits for the answer.
        "SET statement_timeout = {milliseconds}",
        # The wait is short, because a worker that waits for a lock cannot extend its other leases.
        "SET lock_timeout = '1s'",
        # When many rows have fallen due since the last ANALYZE, the planner would collect and sort
        # them all for each claim, instead of reading the first ones through the index.
        "SET enable_bitmapscan = off",
        f"SELECT {_READ_ONLY}",
    )
)
"""Statements that one request sends; poolers refuse these settings as connection options."""


def _begin_session(connection: Connection, milliseconds: int) -> ServerInfo:
    [[replica]] = raw_execute.rows_of_script(connection, _SESSION.format(milliseconds=milliseconds))
    opened: Any = connection.connection.driver_connection
    return ServerInfo(replica=replica, version=opened.info.server_version)


POSTGRESQL = Dialect(
    # The clock of PostgreSQL that moves between the statements of a transaction, but not within
    # one: with a clock that moves within a statement, the planner could not use an index.
    now="CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)",
    now_floor="CAST(FLOOR(EXTRACT(EPOCH FROM statement_timestamp())) AS BIGINT)",
    exact="{}",
    integer="CAST({} AS BIGINT)",
    payload="{}",
    packed=in_base64,
    text="{}",
    hex="encode(convert_to({}, 'UTF8'), 'hex')",
    after="({}, {}) > ({}, {})",
    # The order includes the time, though it is NULL in all these rows, because otherwise the
    # planner does not use the index of times and keys.
    rest_order="next_run_time, id",
    place="id",
    read_only=_READ_ONLY,
    server="SELECT 'PostgreSQL ' || current_setting('server_version')",
    isolation="SELECT current_setting('transaction_isolation')",
    encryption="SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    aborts=True,
    begin="BEGIN",
    catch_up=None,
    node_state=None,
    skips_locked=True,
    host_clock=False,
    driver="psycopg",
    connect=_connect,
    connect_args=_connect_args,
    # SQLAlchemy would look for the type on every new connection.
    engine_args={"use_native_hstore": False},
    begin_session=_begin_session,
    unreachable=(
        "is the server running, does it have a free connection,"
        " and are host, port, user and password right?"
    ),
    fix="",
    # With another encoding, a column may hold bytes that are not text, and no row could be read.
    unsuitable=(
        "SELECT CONCAT('its encoding is ', encoding, '; create a database with the encoding UTF8')"
        " FROM (SELECT current_setting('server_encoding') AS encoding) AS this"
        " WHERE encoding <> 'UTF8'"
    ),
    prepare=lambda _url: None,
    # The limit is long, because an ALTER TABLE waits for the statements of running workers.
    init_session=("SET lock_timeout = '60s'",),
    classify=_classify,
    explain=_explain,
)
