"""The type that describes a kind of database: SQL fragments, error numbers, how to connect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from psched.base.compression import ColumnForm
from psched.config.tls import Tls
from psched.stores.deadline_socket import Budget
from psched.stores.sql.errors import ErrorKind


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The properties of a server, as read on a new connection.

    Attributes:
        replica: the server is a replica, or has been made read-only.
        in_cluster: the server is a node of a Galera cluster.
        version: the server's version, if the driver knows it without a query; None: unknown.
    """

    replica: bool = False
    in_cluster: bool = False
    version: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The properties in which one kind of database differs from the others.

    In SQL fragments, ``{}`` stands for a column or a bound value.

    Attributes:
        now: SQL for the store's clock, in Unix seconds with a fraction. The database reads the
            clock once per statement, and not before the request was sent.
        now_floor: SQL for the store's clock, rounded down to whole seconds.
        exact: SQL that makes a column compare byte by byte, so that 'A' differs from 'a'.
        integer: SQL that makes the database treat a bound value, even NULL, as a whole number.
        payload: SQL that reads a column that contains bytes or text.
        packed: converts compressed bytes to a value that a payload column can store.
        text: SQL that converts a key that was read through ``payload`` back to text.
        hex: SQL for the bytes of a text column as hexadecimal digits.
        after: an SQL condition: the pair of two columns is greater than the pair of two values. Its
            form lets the planner continue in the index of both columns.
        rest_order: the order by key of rows without a time, in the form that lets the planner
            use the index of times and keys.
        place: the column by which the database finds a row again fastest. Another row may have this
            value by then, so the key must be compared.
        read_only: an SQL condition: this server is a replica, or has been demoted to one. Such
            servers let some users write, but these writes are lost.
        server: a query for the server's product and version, for `psched check`.
        isolation: a query whose last column is the session's isolation level.
        encryption: a query whose last column is the session's encryption; empty: the session is not
            encrypted.
        aborts: whether an error aborts its whole transaction.
        begin: the statement that begins a transaction that will write.
        catch_up: the statements to send before and after a read, so that a node of a Galera cluster
            first applies all earlier commits; None: the database has no such clusters.
        node_state: a query for the names and values of a Galera node's state; None: the database
            has no such clusters.
        skips_locked: whether `psched.stores.sql.claims` uses `SkipLocked` if the server supports
            it.
        host_clock: whether the database's clock is this host's, which a user may set by hours while
            tasks run.
        driver: SQLAlchemy's name of the driver whose connections ``connect`` can open.
        connect: opens a driver's connection with the given arguments, on which no request takes
            longer than the budget. If it returns None, SQLAlchemy opens the connection.
        connect_args: returns the arguments of the driver, or of ``connect``, for a timeout in
            seconds and for the settings of encryption (None: none).
        engine_args: arguments for SQLAlchemy's engine.
        begin_session: sets the session's options on a new connection, in as few requests as
            possible, and returns the server's properties. The second argument is the timeout in
            milliseconds.
        is_astray: whether the file of a connection is no longer the one at the url's path; None:
            the database is no file.
        unreachable: a hint for error messages: what to check when connecting fails.
        fix: a hint for error messages: how to correct a server that is `ErrorKind.MISCONFIGURED`.
        unsuitable: a query for the reason why this database cannot be used, as text; it returns no
            row if the database is suitable. None: every database is suitable.
        prepare: creates what must exist before `init` can connect.
        init_session: statements to execute on the connection of `init` before all others.
        classify: returns the kind of a driver's exception.
        explain: returns a driver's exception as one line of text, without the contents of rows.
    """

    now: str
    now_floor: str
    exact: str
    integer: str
    payload: str
    packed: ColumnForm
    text: str
    hex: str
    after: str
    rest_order: str
    place: str
    read_only: str
    server: str
    isolation: str
    encryption: str
    aborts: bool
    begin: str
    catch_up: tuple[str, str] | None
    node_state: str | None
    skips_locked: bool
    host_clock: bool
    driver: str
    connect: Callable[[Mapping[str, Any], Budget], Any]
    connect_args: Callable[[float, Tls | None], Mapping[str, object]]
    engine_args: Mapping[str, object]
    begin_session: Callable[[Connection, int], ServerInfo]
    is_astray: Callable[[Connection], bool] | None = None
    unreachable: str
    fix: str
    unsuitable: str | None
    prepare: Callable[[URL], None]
    init_session: tuple[str, ...]
    classify: Callable[[BaseException], ErrorKind]
    explain: Callable[[BaseException], str]
