"""MySQL and MariaDB, through PyMySQL."""

import ssl
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from psched.config.urls import Tls
from psched.stores import deadline_socket, encryption
from psched.stores.deadline_socket import Budget
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo
from psched.stores.sql.errors import ErrorKind

_ERROR_KINDS: Mapping[int, ErrorKind] = {
    **dict.fromkeys(
        (
            1020,  # the row has changed since it was read (innodb_snapshot_isolation)
            1205,  # lock wait timeout, the statement is rolled back
            1213,  # deadlock, or on Galera a conflict with a write of another node
            1969,  # MariaDB: max_statement_time exceeded, the statement is rolled back
            3024,  # MySQL: max_execution_time exceeded, the statement is rolled back
        ),
        ErrorKind.TRANSIENT,
    ),
    **dict.fromkeys(
        (
            1021,  # disk full
            1041,  # out of memory
            1114,  # table is full
        ),
        ErrorKind.NO_ROOM,
    ),
    **dict.fromkeys(
        (
            1040,  # too many connections
            1047,  # Galera: the node is not part of the primary component
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
            1036,  # the table is read-only, or on MariaDB InnoDB is read-only
            1290,  # the server runs with --read-only
            1792,  # the transaction is read-only
            1836,  # the server is in read-only mode
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
            2055,  # lost connection; the text contains the system's error
            4031,  # MySQL: the connection was idle for longer than wait_timeout
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
            1153,  # the statement is larger than max_allowed_packet
            1264,  # a value is out of the column's range
            1265,  # a value would be truncated
            1292,  # an incorrect value would be truncated
            1300,  # a text is invalid in its character set
            1365,  # division by zero
            1366,  # an incorrect value for the column
            1367,  # an illegal value
            1406,  # a value is too long for the column
            1411,  # an incorrect value for the function
            1441,  # a time is out of range
            1690,  # a number has grown beyond the range of its type, 64 bits
            3819,  # MySQL: a CHECK constraint, which somebody has added, is violated
            4025,  # MariaDB: a CHECK constraint, which somebody has added, is violated
        ),
        ErrorKind.INVALID_VALUE,
    ),
    1062: ErrorKind.DUPLICATE,
    1064: ErrorKind.UNSUPPORTED,  # syntax error
    1176: ErrorKind.UNSUPPORTED,  # the table lacks the index that a statement names
    1235: ErrorKind.UNSUPPORTED,  # the server's version does not support the statement
    1665: ErrorKind.MISCONFIGURED,  # binlog_format = STATEMENT forbids READ COMMITTED
}


def _classify(error: BaseException) -> ErrorKind:
    number: Any = error.args[0] if error.args else None
    if number in _ERROR_KINDS:
        return _ERROR_KINDS[number]
    # After an error of PyMySQL's own, the state of the connection is unknown. After one of the
    # server's, the server has rolled the statement back.
    return ErrorKind.REFUSED if _is_servers(number) else ErrorKind.UNKNOWN


def _is_servers(number: object) -> bool:
    """Whether an error's number is one of the server's: PyMySQL's are 0, and from 2000 to 2999."""
    return isinstance(number, int) and number != 0 and not 2000 <= number < 3000  # noqa: PLR2004


_ACCOUNT = "correct user and password in url or password_file"

_CONNECTING_FIXES: Mapping[int, str] = {
    1040: "raise the server's max_connections, or lower processors",
    1044: "grant the user rights on this database, or correct its name in url",
    1045: _ACCOUNT,
    1049: "create the database on the server, or correct its name in url",
    1129: "run mariadb-admin flush-hosts on the server, which has blocked this host",
    1130: "create an account for this host on the server: CREATE USER name@host",
    1203: "raise the user's max_user_connections, or lower processors",
    1226: "raise the user's limits on the server, or lower processors",
    1698: _ACCOUNT,
    3159: "set ssl_ca: the server accepts only encrypted connections",
}
"""How to correct the cause of an error on connecting, by its number."""


def _connecting_fix(error: BaseException, tls: Tls | None) -> str | None:
    number: Any = error.args[0] if error.args else None
    fix = _CONNECTING_FIXES.get(number)
    if fix is None and _is_servers(number):
        return "correct what the server names, in its configuration or in that of the user"
    # An account can require a client's certificate; its absence has the number of a wrong password.
    return f"{fix}; {tls.checklist}" if tls is not None and fix == _ACCOUNT else fix


def _connect_args(timeout: float, tls: Tls | None) -> Mapping[str, object]:
    arguments: dict[str, object] = {
        # PyMySQL's connect_timeout does not cover the handshake, but its read_timeout does, so both
        # are set.
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "write_timeout": timeout,
        "charset": "utf8mb4",
        "autocommit": True,
    }
    return arguments if tls is None else {**arguments, "tls": tls}


def _connect(arguments: Mapping[str, Any], budget: Budget) -> Any:  # noqa: ANN401  # PEP 249
    """Open a connection whose requests the budget limits; encrypt it if ``tls`` is given.

    PyMySQL gets an SSL context instead of its own options for encryption, because with some of
    these options, PyMySQL ignores the certificate authority and does not compare host names. Each
    connection gets a new context, because the certificates can be replaced while psched runs.
    """
    # Imported here, because users of other databases need not install the driver.
    import pymysql  # noqa: PLC0415

    from psched.stores.sql.dialects.pymysql_connection import PyMySQLConnection  # noqa: PLC0415

    others = {name: value for name, value in arguments.items() if name != "tls"}
    # See `raw_execute.rows_after`.
    others["client_flag"] = others.get("client_flag", 0) | pymysql.constants.CLIENT.MULTI_STATEMENTS
    tls = arguments.get("tls")
    if tls is not None:
        try:
            others["ssl"] = encryption.ssl_context(tls)
        except (OSError, ValueError) as error:
            # 2026 is the error number that MySQL's drivers use for TLS errors.
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
        # PyMySQL before 1.2 continues without encryption if the server does not support it. So we
        # check, and refuse such a connection.
        connection.close()
        raise pymysql.OperationalError(2026, "the server does not support encrypted connections")
    return connection


_SESSION = (
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "time_zone = '+00:00'",
    "timestamp = DEFAULT",  # or the clock would stand still
    # The change from 0 to 1 ends a transaction that the server's init_connect has begun, in which
    # nobody would commit what psched writes.
    "autocommit = 0",
    "autocommit = 1",
    "completion_type = 0",
    "innodb_lock_wait_timeout = 1",
    "lock_wait_timeout = 1",
    "max_sort_length = 1024",  # the longest key has 1020 bytes
    "sql_auto_is_null = 0",
    "sql_big_selects = 1",  # max_join_size then has no effect
    "sql_safe_updates = 0",
    "sql_select_limit = 18446744073709551615",
    "unique_checks = 1",
)
"""The variables that change what psched's statements do; docs/databases.md describes them.

The server's configuration can set each of them, and so can its init_connect.
"""

_ISOLATION = "SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""The isolation level.

READ COMMITTED takes no gap locks, so two workers that claim neighbouring rows do not wait for each
other.
"""

_UNKNOWN_VARIABLE = 1193

_NOT_IN_ONE = frozenset({1064, _UNKNOWN_VARIABLE})
"""Numbers of errors after which many statements set the session's options instead of one.

A proxy or a fork of MySQL raises such an error if it does not support the single statement, or
lacks a variable in it.
"""


def _begin_session(connection: Connection, _milliseconds: int) -> ServerInfo:
    opened: Any = connection.connection.driver_connection
    version = getattr(opened, "server_version", None)
    names = "NAMES utf8mb4"
    if collation := getattr(opened, "collation", None):
        names += f" COLLATE {collation}"
    isolation = "transaction_isolation = 'READ-COMMITTED'"
    if "MariaDB" in str(version):
        # Without a majority, a node of a Galera cluster would otherwise answer with old rows.
        isolation = "tx_isolation = 'READ-COMMITTED', @@session.wsrep_dirty_reads = 0"
    ours = [names, *(f"@@session.{variable}" for variable in (*_SESSION, isolation))]
    try:
        raw_execute.rows_of_script(connection, f"SET {', '.join(ours)}")
    except DBAPIError as error:
        if _number(error) not in _NOT_IN_ONE:
            raise
        for each in (*ours[:-1], _ISOLATION):
            _set_if_known(connection, each)
    shown = raw_execute.rows_of_script(
        connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'wsrep_on')"
    )
    values = dict(map(tuple, shown))
    return ServerInfo(
        replica=values.get("read_only", "OFF") not in ("OFF", "0"),
        in_cluster=values.get("wsrep_on") == "ON",
        version=version,
    )


def _set_if_known(connection: Connection, option: str) -> None:
    """Set an option of the session, unless it is a variable that the server does not know."""
    try:
        raw_execute.rows_of_script(connection, f"SET {option}")
    except DBAPIError as error:
        if _number(error) != _UNKNOWN_VARIABLE:
            raise


def _number(error: DBAPIError) -> object:
    return error.orig.args[0] if error.orig and error.orig.args else None


MYSQL = Dialect(
    # UTC_TIMESTAMP() is used, because UNIX_TIMESTAMP() would be NULL after 2038 on MariaDB 10.11,
    # and NOW() would depend on the session's time zone.
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    now_floor="TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())",
    now_milliseconds="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000",
    exact="CAST({} AS BINARY)",
    integer="{}",
    joined="CONCAT({}, {})",
    payload="{}",
    packed=bytes,
    as_bytes=True,
    array="JSON_ARRAY({})",
    text="{}",
    hex="HEX({})",
    # This condition is neither a comparison of pairs nor split into two queries: for both, MySQL
    # would read all rows with the first value again.
    after="({0} > {2} OR ({0} = {2} AND {1} > {3}))",
    # The order does not contain next_run_time, which is NULL in all these rows, because with
    # next_run_time MariaDB 10.11 would sort the rows instead of reading them in index order.
    newest_of_key=("{0} = {1}", "id DESC"),
    # If it were an equality, MariaDB would read all rows with the value from the last one on.
    within_index=("{0} >= {1} AND {0} <= {1}", "{0} DESC, "),
    rest_order="id",
    # For lane IS NULL, MariaDB would read the index of lanes from the first row without a lane on,
    # so all rows without a time, and with this index forced, it begins at the first time.
    no_lane="COALESCE(lane, '*') = '*'",
    by_index=" FORCE INDEX ({})",
    place="id",
    # Depending on the server's version, the variable is a number or a word, so both are compared.
    # The session's variable need not be read, because writes in a read-only session fail.
    read_only="CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF')",
    server="SELECT CONCAT(IF(LOCATE('MariaDB', VERSION()) > 0, 'MariaDB ', 'MySQL '), VERSION())",
    # The name of the variable depends on the server's version, so both names are queried.
    isolation=(
        "SHOW SESSION VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')"
    ),
    encryption="SHOW SESSION STATUS LIKE 'Ssl_version'",
    aborts=False,
    begin="BEGIN",
    ignore_duplicate="ON DUPLICATE KEY UPDATE {1} = {1}",
    catch_up=("SET SESSION wsrep_sync_wait = 1", "SET SESSION wsrep_sync_wait = DEFAULT"),
    node_state=(
        "SHOW STATUS WHERE Variable_name IN ('wsrep_local_state', 'wsrep_local_state_comment')"
    ),
    # SKIP LOCKED would need the round trips of a transaction. In measurements under READ COMMITTED,
    # SKIP LOCKED was faster only when several workers claimed many rows at a time. It is useless
    # in a Galera cluster, because a node ignores the row locks of the other nodes.
    skips_locked=False,
    # A larger number does not exist. Divisions by zero do not fail in a query.
    all_or_fail=("{}", "SELECT 18446744073709551615 + (ROW_COUNT() <> :wanted)"),
    host_clock=False,
    driver="pymysql",
    connect=_connect,
    connect_args=_connect_args,
    engine_args={},
    begin_session=_begin_session,
    connecting_fix=_connecting_fix,
    other_fix="look into the server's log, and check host, port, user and password in url",
    fix="set the server's binlog_format to MIXED or ROW",
    unsuitable=None,
    prepare=lambda _url: None,
    locks={
        "table": "none: the table is new",
        "new index": "none: the table is new and empty",
        "column": (
            "the metadata lock of the table, for a moment; the rows are not rewritten (instant)"
        ),
        "drop": "the metadata lock of the table, for a moment; MySQL copies the table",
        "index": (
            "the metadata lock at the beginning and the end; the table can be read and written"
            " while the index is built (in place)"
        ),
        "row": "a row of the table of versions",
        "rename": "the metadata lock of the table, for a moment",
        "rows": "the rows that are changed; all rows are read",
    },
    rename_column="CHANGE {old} {spec}",  # MariaDB has RENAME COLUMN only since 10.5
    whole_division="DIV",
    # Assigned from left to right, so that ``options`` comes last.
    move_labels=(
        "UPDATE {0} SET label = JSON_UNQUOTE(JSON_EXTRACT(CONVERT(options USING utf8mb4),"
        " '$.label')), options = NULLIF(JSON_REMOVE(CONVERT(options USING utf8mb4), '$.label'),"
        " '{{}}') WHERE CASE WHEN JSON_VALID(CONVERT(options USING utf8mb4)) THEN"
        " JSON_TYPE(JSON_EXTRACT(CONVERT(options USING utf8mb4), '$.label')) = 'STRING' AND"
        " CHAR_LENGTH(JSON_UNQUOTE(JSON_EXTRACT(CONVERT(options USING utf8mb4), '$.label')))"
        " <= 255 END"
    ),
    # This wait for locks is long, because an ALTER TABLE waits for the statements of running
    # workers.
    init_session=("SET SESSION lock_wait_timeout = 60",),
    classify=_classify,
    explain=str,
)
