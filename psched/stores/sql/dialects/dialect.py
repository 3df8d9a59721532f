"""What a database's ways are made of: the fragments, numbers and habits that differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from psched.base.compression import ColumnForm
from psched.config.tls import Tls
from psched.stores.deadline_socket import Budget


class Fault(Enum):
    """What an error says about the request that met it."""

    NOT_APPLIED = "not applied"
    """Refused or rolled back for a reason that passes (a lock, a deadlock): ask again."""

    UNAVAILABLE = "unavailable"
    """Not applied, and the connection is no use: drop it, ask again later."""

    READ_ONLY = "read-only"
    """Not applied: the server has been demoted. Drop the connection, look for the primary."""

    UNKNOWN = "unknown"
    """The connection broke while the request was under way: it may have been applied."""

    SCHEMA = "schema"
    """The table, or a column of it, is not there."""

    DUPLICATE = "duplicate"
    """Not applied: a row with this key exists."""

    UNFIT = "unfit"
    """Not applied, and will not be: a value of this row does not fit, or breaks a constraint."""

    MISCONFIGURED = "misconfigured"
    """Not applied, and will not be while the server is configured as it is."""

    UNABLE = "unable"
    """Not applied: the server knows no such statement."""

    REFUSED = "refused"
    """Not applied, and will not be: rights, database name, whatever else."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a new connection has found its server to be.

    Attributes:
        replica: it is one, or has been made read-only.
        in_cluster: it is a node of a Galera cluster.
        version: the server's, as the driver knows it without asking; None: it does not.
    """

    replica: bool = False
    in_cluster: bool = False
    version: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database's ways.

    Attributes:
        now: the store's clock as Unix seconds with a fraction; read once per statement, so
            never earlier than the moment the request was sent.
        now_floor: the same, whole seconds.
        exact: a column, to be compared byte by byte: 'A' is not 'a'.
        integer: makes sure that a bound value, NULL too, is taken for a whole number.
        payload: reads a column that holds bytes or text, as either; its name is put in.
        packed: makes of compressed bytes what such a column can hold.
        text: makes text again of what ``payload`` has made of text.
        hex: the bytes of a text column as hexadecimal digits.
        after: whether two columns are after two values, in the form in which its planner goes on
            in the index of both where it had been.
        rest_order: the order by key of rows without a time, in the words in which its planner
            finds that the index of times and keys has it.
        place: the column that leads the fastest to a row that has just been read; another row may
            be there since.
        read_only: whether this server is a replica, or has been demoted to one. Where a server
            lets some users write in spite of that, they would write into nowhere.
        server: a query for its product and version, for people.
        isolation: a query whose last column is the session's isolation level.
        encryption: a query whose last column tells how the session is encrypted; empty: not at
            all.
        aborts: an error ends the transaction that it meets.
        begin: begins a transaction that will write.
        catch_up: what is sent before a read, and after it, so that a node of a Galera cluster
            waits with it for what others have committed; none: there are no such clusters.
        node_state: a query for the names and values of such a node's state.
        strategies: ways to claim, the best first; the first that the server can do is taken.
        host_clock: its clock is the host's, which may step by hours under running tasks.
        driver: SQLAlchemy's name for the driver whose connections `connect` can open.
        connect: opens a driver's connection with the arguments for it, so that no request on it
            takes longer than the budget; None: the usual way.
        connect_args: arguments for a timeout in seconds, and for encryption if it is demanded:
            of the driver, or of ``connect``.
        engine_args: arguments for SQLAlchemy's engine.
        begin_session: makes a new connection's session ours, whatever the server's settings are,
            in as few answers as the server allows; tells what the server is. Its second argument
            is the timeout in milliseconds.
        is_astray: whether the database of a connection is no longer the one that its url names;
            None: the server would have ended the connection.
        unreachable: what to look at when it cannot be connected to, for people.
        mend: what to do about a server that is `Fault.MISCONFIGURED`, for people.
        unsuitable: a query for what forbids to use this database at all, for people; no rows
            if nothing does.
        prepare: makes what must be there before `init` can connect.
        init_session: statements `init` needs on top of the session's.
        classify: what a driver's exception says about its request.
        explain: the same for people, in a line, without what rows contain.
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
    strategies: tuple[str, ...]
    host_clock: bool
    driver: str
    connect: Callable[[Mapping[str, Any], Budget], Any]
    connect_args: Callable[[float, Tls | None], Mapping[str, object]]
    engine_args: Mapping[str, object]
    begin_session: Callable[[Connection, int], Standing]
    is_astray: Callable[[Connection], bool] | None = None
    unreachable: str
    mend: str
    unsuitable: str | None
    prepare: Callable[[URL], None]
    init_session: tuple[str, ...]
    classify: Callable[[BaseException], Fault]
    explain: Callable[[BaseException], str]
