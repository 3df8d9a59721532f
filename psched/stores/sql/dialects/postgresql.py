"""PostgreSQL, through psycopg 3."""

import select
from collections.abc import Callable, Generator, Mapping
from math import ceil
from typing import Any

from sqlalchemy import Connection

from psched.base.compression import in_base64
from psched.config.urls import Tls
from psched.stores import deadline_socket
from psched.stores.deadline_socket import Budget
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo
from psched.stores.sql.errors import ErrorKind

_ERROR_KINDS: Mapping[str, ErrorKind] = {
    **dict.fromkeys(
        (
            "40001",  # serialization failure
            "40P01",  # deadlock
            "55P03",  # another session holds the lock for longer than lock_timeout
            "57014",  # statement_timeout exceeded, the statement is rolled back
        ),
        ErrorKind.TRANSIENT,
    ),
    **dict.fromkeys(
        (
            "53300",  # too many connections
            "57P03",  # the server is starting up or shutting down
        ),
        ErrorKind.UNAVAILABLE,
    ),
    **dict.fromkeys(
        (
            "53",  # out of memory, disk full
            "58",  # system errors, for example a file that cannot be written
        ),
        ErrorKind.NO_ROOM,
    ),
    "25006": ErrorKind.READ_ONLY,
    **dict.fromkeys(
        (
            "08",  # connection exceptions
            "25P03",  # the session was idle in a transaction for too long
            "25P04",  # PostgreSQL 17: a transaction has taken longer than transaction_timeout
            # The outcome is unknown, because the server can end a session that has already
            # committed and waits for a synchronous replica.
            "57P",  # shutdown, crash of another session, or this session was idle for too long
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
            "22",  # a value is out of range, too long or invalid in its character set
            "23",  # a constraint is violated
        ),
        ErrorKind.INVALID_VALUE,
    ),
    "23505": ErrorKind.DUPLICATE,
    "0A000": ErrorKind.UNSUPPORTED,  # the server does not support the statement
    "42601": ErrorKind.UNSUPPORTED,  # syntax error
}
"""The kind of each error, by its SQLSTATE or by the first characters of its SQLSTATE."""


def _classify(error: BaseException) -> ErrorKind:
    state = getattr(error, "sqlstate", None)
    if state is None:
        # The error is from libpq or psycopg. If it is a DataError, psycopg has refused a value and
        # sent nothing. Otherwise it is unknown whether the request was applied.
        return ErrorKind.INVALID_VALUE if type(error).__name__ == "DataError" else ErrorKind.UNKNOWN
    for length in (5, 3, 2):
        if state[:length] in _ERROR_KINDS:
            return _ERROR_KINDS[state[:length]]
    return ErrorKind.REFUSED


def _explain(error: BaseException) -> str:
    """Return the error's SQLSTATE and first line.

    The other lines are omitted, because they can show the contents of rows and statements.
    """
    diagnosis: Any = getattr(error, "diag", None)
    if diagnosis is None or diagnosis.message_primary is None:
        return " ".join(str(error).split())
    return f"({diagnosis.sqlstate}, {' '.join(diagnosis.message_primary.split())!r})"


_OTHER_FIX = (
    "correct what the server names: the user, password or database in url, or its own limit of"
    " connections"
)


def _connecting_fix(error: BaseException, _tls: Tls | None) -> str | None:
    """See `Dialect.connecting_fix`.

    libpq does not pass on the number of an error that the server raises on connecting. It tells
    only whether the server has asked for a password, and whether the server accepts connections.
    """
    attempt: Any = getattr(error, "pgconn", None)
    if attempt is None:
        return None
    if attempt.needs_password:
        return "put the password into url or password_file: the server asks for one"
    if attempt.used_password:
        return _OTHER_FIX
    if error.__cause__ is None and _is_closed(attempt):  # there is a cause if nobody has answered
        return "wait: the server is starting up or shutting down, and accepts no connections"
    return None


def _is_closed(attempt: Any) -> bool:  # noqa: ANN401  # psycopg's
    """Whether a server that has answered is starting up, in recovery or shutting down.

    libpq asks the server once more, because only this call looks at the number of the error.
    """
    from psycopg import conninfo, pq  # noqa: PLC0415  # an extra

    place = conninfo.make_conninfo(
        host=attempt.host.decode(), port=attempt.port.decode(), connect_timeout=_SHORTEST_TIMEOUT
    )
    return pq.PGconn.ping(place.encode()) == pq.Ping.REJECT


_SHORTEST_TIMEOUT = 2
"""The shortest timeout that libpq has, in seconds."""

_SSLMODES = {"full": "verify-full", "ca": "verify-ca", "none": "require"}

_PORT = 5432

_NO_FILE = "/dev/null/none"
"""The path of no file; without a path, libpq would use certificates in the user's home."""


def _connect_args(timeout: float, tls: Tls | None) -> Mapping[str, object]:
    return {
        **({} if tls is None else _tls_args(tls)),
        # libpq accepts only whole seconds. This timeout is so long that the budget always ends
        # first.
        "connect_timeout": max(_SHORTEST_TIMEOUT, ceil(2 * timeout)),
        "client_encoding": "utf8",
        "application_name": "psched",
        "autocommit": True,
        "prepare_threshold": None,  # see `_begin_session`
    }


def _tls_args(tls: Tls) -> Mapping[str, object]:
    return {
        "tls": True,
        "sslmode": _SSLMODES[tls.verify],
        "sslrootcert": str(tls.ca or _NO_FILE),
        "sslcert": str(tls.cert or _NO_FILE),
        "sslkey": str(tls.key or _NO_FILE),
        # GSSAPI is disabled, because libpq would try it before TLS, and GSSAPI checks no
        # certificates.
        "gssencmode": "disable",
    }


def _connect(arguments: Mapping[str, Any], budget: Budget) -> Any:  # noqa: ANN401  # PEP 249
    """Open a connection whose requests the budget limits.

    libpq itself waits for an answer without limit. TCP does not end this wait if the server's
    process was stopped, because the kernel of the server's host still acknowledges all packets.
    """
    import psycopg  # noqa: PLC0415  # an extra

    def bounded(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(steps)
            while True:
                # psycopg resumes this generator after its wait interval even if nothing has
                # arrived, so the budget is checked in time.
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

    try:
        how = {k: v for k, v in arguments.items() if k != "tls"}
        connection = Bounded.connect(**{"keepalives_idle": deadline_socket.KEEPALIVE, **how})
    except psycopg.OperationalError as error:
        raise error from _network_error(error.pgconn, arguments, budget)
    if "tls" in arguments and not connection.pgconn.ssl_in_use:
        connection.close()
        raise psycopg.OperationalError(
            "a Unix socket is never encrypted; name a host in the url, or remove the settings ssl_…"
        )
    return connection


def _network_error(
    attempt: Any,  # noqa: ANN401  # psycopg's
    arguments: Mapping[str, Any],
    budget: Budget,
) -> OSError | None:
    """Find out the number of the network's error, because libpq passes on only its text.

    Returns None if the server can be reached.
    """
    if attempt is None:
        host, port = str(arguments.get("host") or ""), int(arguments.get("port") or _PORT)
    elif attempt.needs_password or attempt.used_password:
        return None  # the server has answered
    else:
        host, port = attempt.host.decode(), int(attempt.port or _PORT)
    try:
        if host.startswith("/"):
            deadline_socket.connect_unix(f"{host}/.s.PGSQL.{port}", budget).close()
        elif host:
            deadline_socket.connect(host, port, budget).close()
    except OSError as failure:
        return failure
    except UnicodeError:
        return None  # the host's name is none
    return None


_READ_ONLY = "CAST(current_setting('transaction_read_only') AS BOOLEAN)"
"""SQL that is true on a replica, and in a database that somebody has made read-only."""

_SESSION = "; ".join(
    (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET standard_conforming_strings = on",
        "SET array_nulls = on",  # the driver writes NULL into arrays
        "SET exit_on_error = off",  # or a key that is taken would end the session
        "SET quote_all_identifiers = off",  # or SQLAlchemy would not recognize types
        # The server cancels a statement when psched no longer waits for its answer.
        "SET statement_timeout = {milliseconds}",
        # The wait is short, because a worker that waits for a lock cannot extend its other leases.
        "SET lock_timeout = '1s'",
        # With bitmap scans, if many rows have fallen due since the last ANALYZE, the planner would
        # collect and sort all of them for each claim, instead of reading only the first rows
        # through the index.
        "SET enable_bitmapscan = off",
        f"SELECT {_READ_ONLY}, pg_backend_pid()",
    )
)
"""The statements that set up a session, sent as one request.

They are not sent as connection options, because poolers refuse such options.
"""


_PREPARED_AFTER = 3
"""A statement that was sent so many times is prepared."""


def _begin_session(connection: Connection, milliseconds: int) -> ServerInfo:
    script = _SESSION.format(milliseconds=milliseconds)
    [[replica, pid]] = raw_execute.rows_of_script(connection, script)
    opened: Any = connection.connection.driver_connection
    if pid == opened.info.backend_pid:
        # The server plans a statement once that a worker sends all the time. A pooler tells another
        # number; it might run each statement in another session, which does not know the first one.
        opened.prepare_threshold = _PREPARED_AFTER
    return ServerInfo(replica=replica, version=opened.info.server_version)


_LOOKS_PER_PROBE = 30
"""A session that has heard nothing for so many seconds asks the server something, because a
connection can break unnoticed."""


def _listen(
    connection: Connection,
    channel: str,
    heard: Callable[[], object],
    is_over: Callable[[], bool],
    renew: Callable[[], object],
) -> None:
    """See `Dialect.listen`."""
    import psycopg  # noqa: PLC0415  # an extra

    opened: Any = connection.connection.driver_connection
    # What arrives together with the answer to a statement is told by psycopg.
    opened.add_notify_handler(lambda _told: heard())
    raw_execute.send(connection, f'LISTEN "{channel}"')
    heard()
    waiting = select.poll()
    waiting.register(opened.fileno(), select.POLLIN)
    quiet = 0
    while not is_over():
        quiet += 1
        if waiting.poll(1000):
            quiet = 0
            try:
                opened.pgconn.consume_input()
            except psycopg.OperationalError:
                quiet = _LOOKS_PER_PROBE  # a statement finds out what is the matter
            if opened.pgconn.notifies() is not None:
                while opened.pgconn.notifies() is not None:
                    pass
                heard()
        if quiet >= _LOOKS_PER_PROBE:
            quiet = 0
            renew()
            raw_execute.send(connection, "SELECT 1")


POSTGRESQL = Dialect(
    # statement_timestamp() advances between the statements of a transaction, but is constant within
    # a statement. With a clock that advances within a statement, the planner could not use an
    # index.
    # NUMERIC, because extra_float_digits could cut off the digits of a DOUBLE PRECISION.
    now="CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS NUMERIC)",
    now_floor="CAST(FLOOR(EXTRACT(EPOCH FROM statement_timestamp())) AS BIGINT)",
    now_milliseconds="CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000 AS BIGINT)",
    exact="({} || '')",
    integer="CAST({} AS BIGINT)",
    joined="({} || ({}))",
    payload="{}",
    packed=in_base64,
    text="{}",
    hex="encode(convert_to({}, 'UTF8'), 'hex')",
    after="({}, {}) > ({}, {})",
    # The order includes the time, though it is NULL in all these rows, because otherwise the
    # planner does not use the index of times and keys.
    newest_of_key=("{0} BETWEEN {1} AND {1}", "{0} DESC, id DESC"),
    within_index=("{0} BETWEEN {1} AND {1}", "{0} DESC, "),
    rest_order="next_run_time, id",
    # It does not see that a column with one value changes no order.
    lane_order="lane, next_run_time, id",
    place="id",
    read_only=_READ_ONLY,
    server="SELECT 'PostgreSQL ' || current_setting('server_version')",
    isolation="SELECT current_setting('transaction_isolation')",
    encryption="SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    reads_json=True,
    aborts=True,
    begin="BEGIN",
    ignore_duplicate="ON CONFLICT ({0}) DO NOTHING",
    catch_up=None,
    node_state=None,
    skips_locked=True,
    all_or_fail=(
        "WITH done AS ({} RETURNING 1) SELECT 1 / CAST(COUNT(*) = :wanted AS INTEGER) FROM done",
    ),
    prepares=True,
    host_clock=False,
    driver="psycopg",
    connect=_connect,
    connect_args=_connect_args,
    # Without this argument, SQLAlchemy would query on every new connection whether the type hstore
    # exists.
    engine_args={"use_native_hstore": False},
    begin_session=_begin_session,
    connecting_fix=_connecting_fix,
    other_fix=_OTHER_FIX,
    fix="",
    # With another encoding, a column can contain bytes that cannot be decoded, and every query
    # that returns such a row would fail.
    unsuitable=(
        "SELECT CONCAT('its encoding is ', encoding, '; create a database with the encoding UTF8')"
        " FROM (SELECT current_setting('server_encoding') AS encoding) AS this"
        " WHERE encoding <> 'UTF8'"
    ),
    prepare=lambda _url: None,
    locks={
        "table": "none: the table is new",
        "new index": "none: the table is new and empty",
        "column": "ACCESS EXCLUSIVE on the table, for a moment; the rows are not rewritten",
        "drop": "ACCESS EXCLUSIVE on the table, for a moment",
        "index": "SHARE on the table while the index is built: writes wait, so workers wait",
        "row": "a row of the table of versions",
        "rename": "ACCESS EXCLUSIVE on the table, for a moment",
        "rows": "the rows that are changed; all rows are read",
    },
    # No condition tells in all versions whether a text is JSON.
    move_labels=(
        "DO $$ DECLARE given record; parsed jsonb; BEGIN FOR given IN SELECT id, options FROM {0}"
        """ WHERE options LIKE '%"label"%' LOOP BEGIN parsed = given.options::jsonb;"""
        " IF jsonb_typeof(parsed -> 'label') = 'string'"
        " AND length(parsed ->> 'label') <= 255 THEN"
        " UPDATE {0} SET label = parsed ->> 'label',"
        " options = nullif((parsed - 'label')::text, '{{}}')"
        " WHERE id = given.id AND options = given.options; END IF;"
        " EXCEPTION WHEN data_exception THEN NULL; END; END LOOP; END $$"
    ),
    announce='NOTIFY "{}"',
    listen=_listen,
    # This wait for locks is long, because an ALTER TABLE waits for the statements of running
    # workers.
    init_session=("SET lock_timeout = '60s'",),
    classify=_classify,
    explain=_explain,
)
