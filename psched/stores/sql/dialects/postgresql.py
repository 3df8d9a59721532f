"""PostgreSQL, through psycopg 3."""

from collections.abc import Generator, Mapping
from math import ceil
from typing import Any

from sqlalchemy import Connection

from psched.base.compression import in_base64
from psched.config.tls import Tls
from psched.stores.deadline_socket import Budget
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects.dialect import Dialect, Fault, Standing

_FAULTS: Mapping[str, Fault] = {
    **dict.fromkeys(
        (
            "40001",  # serialization failure
            "40P01",  # deadlock
            "55P03",  # somebody else's lock
            "57014",  # statement_timeout: it is undone
        ),
        Fault.NOT_APPLIED,
    ),
    **dict.fromkeys(
        (
            "53",  # too many connections, out of memory, disk full
            "57P03",  # starting up or shutting down
            "58",  # the system's: a file that cannot be written, say
        ),
        Fault.UNAVAILABLE,
    ),
    "25006": Fault.READ_ONLY,
    **dict.fromkeys(
        (
            "08",  # connection exceptions
            "25P03",  # idle in a transaction for too long
            # A session that is ended while it waits for a synchronous replica has committed.
            "57P",  # shutdown, crash of another session, idle for too long
        ),
        Fault.UNKNOWN,
    ),
    **dict.fromkeys(
        (
            "42703",  # no such column
            "42P01",  # no such table
        ),
        Fault.SCHEMA,
    ),
    **dict.fromkeys(
        (
            "22",  # out of range, too long, not of the character set
            "23",  # constraints
        ),
        Fault.UNFIT,
    ),
    "23505": Fault.DUPLICATE,
    "0A000": Fault.UNABLE,  # not supported
    "42601": Fault.UNABLE,  # syntax
}
"""By SQLSTATE, or by what it begins with."""


def _classify(error: BaseException) -> Fault:
    state = getattr(error, "sqlstate", None)
    if state is None:
        # Of libpq or psycopg: the connection is in no known state. But what psycopg finds
        # wrong with a value it has not sent.
        return Fault.UNFIT if type(error).__name__ == "DataError" else Fault.UNKNOWN
    for length in (5, 3, 2):
        if state[:length] in _FAULTS:
            return _FAULTS[state[:length]]
    return Fault.REFUSED


def _explain(error: BaseException) -> str:
    """Its number and first line: the others show rows, and statements."""
    diagnosis: Any = getattr(error, "diag", None)
    if diagnosis is None or diagnosis.message_primary is None:
        return " ".join(str(error).split())
    return f"({diagnosis.sqlstate}, {' '.join(diagnosis.message_primary.split())!r})"


_SSLMODES = {"full": "verify-full", "ca": "verify-ca", "none": "require"}

_NO_FILE = "/dev/null/none"
"""Cannot be there. For a file that it is not told, libpq looks in the user's home."""


def _connect_args(timeout: float, tls: Tls | None) -> Mapping[str, object]:
    return {
        **({} if tls is None else _tls_args(tls)),
        # Whole seconds, at least two; the budget knows better.
        "connect_timeout": max(2, ceil(2 * timeout)),
        "client_encoding": "utf8",
        "application_name": "psched",
        "autocommit": True,
        # A pooler between us and the server may give each statement another session.
        "prepare_threshold": None,
    }


def _tls_args(tls: Tls) -> Mapping[str, object]:
    return {
        "tls": True,
        "sslmode": _SSLMODES[tls.verify],
        "sslrootcert": str(tls.ca or _NO_FILE),
        "sslcert": str(tls.cert or _NO_FILE),
        "sslkey": str(tls.key or _NO_FILE),
        # Another way to encrypt, which would be taken first, and knows no certificates.
        "gssencmode": "disable",
    }


def _connect(arguments: Mapping[str, Any], budget: Budget) -> Any:  # noqa: ANN401  # PEP 249
    """Open a connection that keeps to a budget.

    libpq has no limit for an answer: a server that has been stopped acknowledges what it is sent,
    and never answers. With ``tls``, the connection is encrypted: libpq sees to that, but not on a
    Unix socket.
    """
    import psycopg  # noqa: PLC0415  # an extra

    def bounded(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(steps)
            while True:
                # psycopg comes back after its interval at the latest.
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
        # The server does not go on with what nobody waits for any more.
        "SET statement_timeout = {milliseconds}",
        # Somebody who waits for a lock holds up everything else that we hold.
        "SET lock_timeout = '1s'",
        # With statistics from before a crowd of rows fell due, it would collect and sort them all
        # for each claim, instead of reading the first ones through the index.
        "SET enable_bitmapscan = off",
        f"SELECT {_READ_ONLY}",
    )
)
"""One request. These could be options of the connection, but poolers refuse such."""


def _begin_session(connection: Connection, milliseconds: int) -> Standing:
    [[replica]] = raw_execute.only_rows(connection, _SESSION.format(milliseconds=milliseconds))
    opened: Any = connection.connection.driver_connection
    return Standing(replica=replica, version=opened.info.server_version)


POSTGRESQL = Dialect(
    # Of all its clocks the one that neither stands still in a transaction nor moves in a
    # statement, which would forbid the use of an index.
    now="CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)",
    now_floor="CAST(FLOOR(EXTRACT(EPOCH FROM statement_timestamp())) AS BIGINT)",
    exact="{}",
    integer="CAST({} AS BIGINT)",
    payload="{}",
    packed=in_base64,
    text="{}",
    hex="encode(convert_to({}, 'UTF8'), 'hex')",
    after="({}, {}) > ({}, {})",
    # It does not see that they all have the same time, none.
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
    strategies=("skip_locked", "update_first", "cas"),
    host_clock=False,
    driver="psycopg",
    connect=_connect,
    connect_args=_connect_args,
    # It would look for the type at every start.
    engine_args={"use_native_hstore": False},
    begin_session=_begin_session,
    unreachable=(
        "is the server running, has it a connection left,"
        " and are host, port, user and password right?"
    ),
    mend="",
    # Another would keep what is no text, and then no row could be read for it.
    unsuitable=(
        "SELECT CONCAT('its encoding is ', encoding, '; create a database with the encoding UTF8')"
        " FROM (SELECT current_setting('server_encoding') AS encoding) AS this"
        " WHERE encoding <> 'UTF8'"
    ),
    prepare=lambda _url: None,
    # An ALTER TABLE waits for the statements of running workers.
    init_session=("SET lock_timeout = '60s'",),
    classify=_classify,
    explain=_explain,
)
