"""All in which databases differ: SQL fragments, error numbers, and how to connect."""

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
    """What a new connection has found its server to be.

    Attributes:
        replica: the server is a replica, or has been made read-only.
        in_cluster: the server is a node of a Galera cluster.
        version: its version, as the driver knows it without asking; None: the driver does not.
    """

    replica: bool = False
    in_cluster: bool = False
    version: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """All in which one database differs from the others.

    Attributes:
        now: the store's clock, as Unix seconds with a fraction; read once per statement, so
            never earlier than the moment the request was sent.
        now_floor: the same in whole seconds.
        exact: makes a column compare byte by byte: 'A' is not 'a'.
        integer: makes sure that the database takes a bound value, NULL too, for a whole number.
        payload: reads a column, whose name is put in, that holds bytes or text.
        packed: converts compressed bytes to a value that such a column can hold.
        text: converts text that was read through ``payload`` back to text.
        hex: the bytes of a text column as hexadecimal digits.
        after: whether two columns are after two values, in the form that lets the planner
            continue in the index of both columns.
        rest_order: the order by key of rows without a time, in the form that lets the planner
            use the index of times and keys.
        place: the column by which a row that was read before is found fastest; a different row may
            be at that place by now.
        read_only: whether this server is a replica, or has been demoted to one. Servers let some
            users write in spite of that; what those write is lost.
        server: a query for the server's product and version, for people.
        isolation: a query whose last column is the session's isolation level.
        encryption: a query whose last column tells how the session is encrypted; empty: it is
            not.
        aborts: whether an error aborts its whole transaction.
        begin: begins a transaction that will write.
        catch_up: what is sent before a read, and after it, so that a node of a Galera cluster
            first applies what others have committed; None: there are no such clusters.
        node_state: a query for the names and values of such a node's state.
        skips_locked: whether servers that support `SkipLocked` claim best by it; see
            `psched.stores.sql.claims`.
        host_clock: the database's clock is the host's, which somebody may set by hours while tasks
            run.
        driver: SQLAlchemy's name of the driver whose connections `connect` can open.
        connect: opens a driver's connection with these arguments, so that no request on it takes
            longer than the budget; if it returns None, SQLAlchemy opens the connection.
        connect_args: the arguments, for the driver or for ``connect``, for a timeout in seconds,
            and for encryption if the settings ask for it.
        engine_args: arguments for SQLAlchemy's engine.
        begin_session: sets what a new connection's session depends on, whatever the server's
            settings are, in as few requests as the server allows; returns what the server is. Its
            second argument is the timeout in milliseconds.
        is_astray: whether the database of a connection is no longer the one that its url names;
            None: the server would have ended the connection.
        unreachable: what to check when connecting fails, for people.
        fix: what to do about a server that is `ErrorKind.MISCONFIGURED`, for people.
        unsuitable: a query for the reason why this database cannot be used at all, for people; no
            row if there is none.
        prepare: creates what must exist before `init` can connect.
        init_session: statements for the session of `init`.
        classify: the kind of a driver's exception.
        explain: a driver's exception for people, in one line, without what rows contain.
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
