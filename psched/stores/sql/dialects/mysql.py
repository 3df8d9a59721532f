"""MySQL and MariaDB, through PyMySQL."""

import ssl
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from psched.config.tls import Tls
from psched.stores import deadline_socket, encryption
from psched.stores.deadline_socket import Budget
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo
from psched.stores.sql.errors import ErrorKind

_ERROR_KINDS: Mapping[int, ErrorKind] = {
    **dict.fromkeys(
        (
            1020,  # record has changed since last read (innodb_snapshot_isolation)
            1205,  # lock wait timeout: the statement is rolled back
            1213,  # deadlock, or a lost certification on Galera
            1969,  # max_statement_time exceeded: the statement is rolled back
            3024,  # the same on MySQL
        ),
        ErrorKind.TRANSIENT,
    ),
    **dict.fromkeys(
        (
            1021,  # disk full
            1040,  # too many connections
            1041,  # out of memory
            1047,  # Galera: not part of the primary component
            1114,  # table is full
            1129,  # this host is blocked after too many failed handshakes
            1203,  # too many connections of this user
            1226,  # this user's quota is used up
            2002,  # cannot connect through the socket
            2003,  # cannot connect
        ),
        ErrorKind.UNAVAILABLE,
    ),
    **dict.fromkeys(
        (
            1036,  # table is read-only; MariaDB's error if InnoDB is read-only
            1290,  # running with --read-only
            1792,  # read-only transaction
            1836,  # read-only mode
            1874,  # InnoDB is read-only
        ),
        ErrorKind.READ_ONLY,
    ),
    **dict.fromkeys(
        (
            1053,  # server shutdown in progress
            1180,  # error during COMMIT
            1317,  # query interrupted
            1927,  # connection was killed
            2006,  # server has gone away
            2013,  # lost connection during the query
            2014,  # commands out of sync
            2027,  # malformed packet
            2055,  # lost connection, with the system's reason
            4031,  # idle for too long (wait_timeout on MySQL)
        ),
        ErrorKind.UNKNOWN,
    ),
    **dict.fromkeys(
        (
            1054,  # unknown column
            1146,  # no such table
        ),
        ErrorKind.SCHEMA,
    ),
    **dict.fromkeys(
        (
            1048,  # a column cannot be NULL
            1153,  # larger than max_allowed_packet
            1264,  # out of the column's range
            1265,  # truncated
            1292,  # an incorrect value, truncated
            1300,  # a text is not of its character set
            1365,  # division by zero
            1366,  # an incorrect value for the column
            1367,  # an illegal value
            1406,  # too long for the column
            1411,  # an incorrect value for the function
            1441,  # a time out of range
            1690,  # out of the range of its type: a number that has grown beyond 64 bits
            3819,  # a CHECK constraint that somebody has added
            4025,  # the same on MariaDB
        ),
        ErrorKind.INVALID_VALUE,
    ),
    1062: ErrorKind.DUPLICATE,
    1064: ErrorKind.UNSUPPORTED,  # syntax
    1235: ErrorKind.UNSUPPORTED,  # not supported by this version
    1665: ErrorKind.MISCONFIGURED,  # READ COMMITTED cannot be written to a log of statements
}


def _classify(error: BaseException) -> ErrorKind:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if code in _ERROR_KINDS:
        return _ERROR_KINDS[code]
    # The server's own numbers begin at 1000; it has then rolled the statement back. PyMySQL itself
    # raises 0 and numbers in the 2000s; the connection is then in an unknown state.
    return ErrorKind.UNKNOWN if code == 0 or 2000 <= code < 3000 else ErrorKind.REFUSED  # noqa: PLR2004


def _connect_args(timeout: float, tls: Tls | None) -> Mapping[str, object]:
    arguments: dict[str, object] = {
        # PyMySQL's connect_timeout does not cover the handshake, its read_timeout does.
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "write_timeout": timeout,
        "charset": "utf8mb4",
        "autocommit": True,
    }
    return arguments if tls is None else {**arguments, "tls": tls}


def _connect(arguments: Mapping[str, Any], budget: Budget) -> Any:  # noqa: ANN401  # PEP 249
    """Open a connection that keeps to a budget, and is encrypted if ``tls`` is given.

    An SSL context is passed, because with some of PyMySQL's own options for encryption, PyMySQL
    ignores the authority, and does not compare host names. The context is created again for each
    connection, because its files may be replaced while psched runs.
    """
    # Users of other databases need not install the driver.
    import pymysql  # noqa: PLC0415

    from psched.stores.sql.dialects.pymysql_connection import PyMySQLConnection  # noqa: PLC0415

    others = {name: value for name, value in arguments.items() if name != "tls"}
    tls = arguments.get("tls")
    if tls is not None:
        try:
            others["ssl"] = encryption.ssl_context(tls)
        except (OSError, ValueError) as error:
            # The error number that drivers use for TLS errors.
            raise pymysql.OperationalError(2026, str(error)) from error
    connection: Any = PyMySQLConnection(**others, defer_connect=True)
    if connection.unix_socket or connection.bind_address:
        connection.connect()
    else:
        if getattr(connection, "ctx", None) is not None:
            deadline_socket.limit(connection.ctx, budget)
        try:
            opened = deadline_socket.connect(connection.host, connection.port, budget)
        except OSError as error:
            text = f"Can't connect to MySQL server on {connection.host!r} ({error})"
            raise pymysql.OperationalError(2003, text) from error
        connection.connect(opened)
    if tls is not None and not isinstance(connection._sock, ssl.SSLSocket):  # noqa: SLF001
        # PyMySQL before 1.2 continues without encryption if the server offers none.
        connection.close()
        raise pymysql.OperationalError(2026, "the server does not support encrypted connections")
    return connection


_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""No gap locks: two workers that claim neighbouring rows do not wait for each other."""

_NOT_IN_ONE = frozenset({1064, 1193})
"""Errors after which the session's options are set by several statements instead of one.

A proxy or a fork of MySQL may not support the single statement, or may lack a variable in it.
"""


def _begin_session(connection: Connection, _milliseconds: int) -> ServerInfo:
    opened: Any = connection.connection.driver_connection
    version = getattr(opened, "server_version", None)
    names = "NAMES utf8mb4"
    if collation := getattr(opened, "collation", None):
        names += f" COLLATE {collation}"
    ours = (
        "@@session.sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',"
        " @@session.time_zone = '+00:00', @@session.innodb_lock_wait_timeout = 1,"
        " @@session.lock_wait_timeout = 1"
    )
    isolation = "tx_isolation" if "MariaDB" in str(version) else "transaction_isolation"
    try:
        raw_execute.rows_of_script(
            connection, f"SET {names}, {ours}, @@session.{isolation} = 'READ-COMMITTED'"
        )
    except DBAPIError as error:
        number = error.orig.args[0] if error.orig and error.orig.args else None
        if number not in _NOT_IN_ONE:
            raise
        for statement in (f"SET {names}", f"SET {ours}", _ISOLATION):
            raw_execute.rows_of_script(connection, statement)
    shown = raw_execute.rows_of_script(
        connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'wsrep_on')"
    )
    values = dict(map(tuple, shown))
    return ServerInfo(
        replica=values.get("read_only", "OFF") not in ("OFF", "0"),
        in_cluster=values.get("wsrep_on") == "ON",
        version=version,
    )


MYSQL = Dialect(
    # UNIX_TIMESTAMP() would be NULL after 2038 on MariaDB 10.11, and NOW() follows the session's
    # zone.
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    now_floor="TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())",
    exact="CAST({} AS BINARY)",
    integer="{}",
    payload="{}",
    packed=bytes,
    text="{}",
    hex="HEX({})",
    # Neither a comparison of pairs nor two queries, because MySQL would then read all rows with the
    # first value again.
    after="({0} > {2} OR ({0} = {2} AND {1} > {3}))",
    # The order has the key alone, because MariaDB 10.11 would sort if it contained next_run_time,
    # which is NULL in all these rows.
    rest_order="id",
    place="id",
    # The variable is a number or a word, depending on the version. A read-only session raises an
    # error of its own.
    read_only="CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')",
    server="SELECT CONCAT(IF(LOCATE('MariaDB', VERSION()) > 0, 'MariaDB ', 'MySQL '), VERSION())",
    # The variable's name depends on the version.
    isolation=(
        "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
    ),
    encryption="SHOW SESSION STATUS LIKE 'Ssl_version'",
    aborts=False,
    begin="BEGIN",
    catch_up=("SET SESSION wsrep_sync_wait = 1", "SET SESSION wsrep_sync_wait = DEFAULT"),
    node_state=(
        "SHOW STATUS WHERE Variable_name IN ('wsrep_local_state', 'wsrep_local_state_comment')"
    ),
    # SKIP LOCKED would cost the round trips of a transaction. In measurements under READ COMMITTED,
    # it was faster only when several workers claimed many rows at a time. In a Galera cluster, the
    # other nodes ignore a node's row locks.
    skips_locked=False,
    host_clock=False,
    driver="pymysql",
    connect=_connect,
    connect_args=_connect_args,
    engine_args={},
    begin_session=_begin_session,
    unreachable=(
        "is the server running, does it have a free connection,"
        " and are host, port, user and password right?"
    ),
    fix="set the server's binlog_format to MIXED or ROW",
    unsuitable=None,
    prepare=lambda _url: None,
    # The limit is long, because an ALTER TABLE waits for the statements of running workers.
    init_session=("SET SESSION lock_wait_timeout = 60",),
    classify=_classify,
    explain=str,
)
