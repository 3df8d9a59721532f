"""The type that describes a kind of database: SQL fragments, error numbers, how to connect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from psched.base.compression import ColumnForm
from psched.config.urls import Tls
from psched.stores.deadline_socket import Budget
from psched.stores.sql.errors import ErrorKind

Listen = Callable[
    [Connection, str, Callable[[], object], Callable[[], bool], Callable[[], object]], None
]
"""A function that listens to a channel; see `Dialect.listen`."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The properties of a server, as read on a new connection.

    Attributes:
        replica: whether the server is a replica or read-only.
        in_cluster: whether the server is a node of a Galera cluster.
        version: the server's version; None if the driver does not know it without a query.
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
            clock once per statement, after the statement has arrived.
        now_floor: SQL for the store's clock, rounded down to whole seconds.
        now_milliseconds: SQL for the store's clock, in whole Unix milliseconds.
        exact: SQL that makes a column compare byte by byte, so that 'A' differs from 'a', and keeps
            the planner from using an index of the column.
        integer: SQL that makes the database treat a bound value, even NULL, as a whole number.
        joined: SQL that joins two values to a text; a number is written in digits.
        payload: SQL that reads a column whose values can be bytes or text.
        packed: converts compressed bytes to a value that a payload column can store.
        as_bytes: whether a payload column has bytes. The driver would send a payload that is a text
            in the character set of the connection.
        array: SQL that joins values to a JSON array, if the driver takes longer to read one column
            of a result than to parse such an array of thirty; else None.
        text: SQL that converts a key back to text after it was read through ``payload``.
        hex: SQL for the bytes of a text column as hexadecimal digits.
        after: an SQL condition that is true if a pair of columns is greater than a pair of values.
            It is written so that the planner uses the index of both columns.
        newest_of_key: an SQL condition for ``{0} = {1}``, and the columns of an ORDER BY that sorts
            these rows by id, the largest first. They are written so that the planner uses the index
            of both columns, not the primary key.
        within_index: an SQL condition for ``{0} = {1}``, and the beginning of an ORDER BY of more
            columns, the largest values first. They are written so that the planner uses an index of
            that column and these, and begins in its middle if a condition limits the next column.
        rest_order: the columns of an ORDER BY that sorts rows without a time by key. It is written
            so that the planner uses the index of times and keys.
        lane_order: the columns of an ORDER BY that sorts rows of one lane by time and key. It is
            written so that the planner uses the index of lanes, times and keys.
        no_lane: an SQL condition for rows of every host. It is written so that the planner uses the
            index of times, as long as no row has a lane.
        by_index: what follows the name of a table, so that the planner uses this index only; empty
            if it needs no such help.
        place: the column by which the database finds a row fastest. After a row was deleted,
            another row can get the same value, so statements must compare the key besides.
        read_only: an SQL condition that is true if the server is a replica. psched must not write
            to a replica: some users have the right to do so, but their writes are lost.
        server: a query for the server's product and version, for `psched check`.
        isolation: a query whose last column is the session's isolation level.
        encryption: a query whose last column is the session's encryption, an empty text if the
            session is not encrypted.
        reads_json: whether a statement can read a JSON array of objects as a table.
        aborts: whether an error in one statement aborts the whole transaction.
        begin: the statement that begins a transaction that will write.
        ignore_duplicate: the end of an INSERT that leaves out a row that exists already: ``{0}``
            stands for the columns of its unique index, ``{1}`` for any column.
        catch_up: the statements to send before and after a read, so that a node of a Galera cluster
            first applies all earlier commits; None if the database has no such clusters.
        node_state: a query for the names and values of a Galera node's state; None if the database
            has no such clusters.
        skips_locked: whether `psched.stores.sql.claims` uses `SkipLocked` if the server supports
            it.
        all_or_fail: statements that change rows by the statement ``{}``, and fail unless their
            number is ``:wanted``, for requests of many statements; empty if there are none.
        prepares: whether the driver prepares a statement that is sent again and again, which takes
            one more answer.
        host_clock: whether the store's clock is this host's clock. If so, psched must detect when a
            user sets the clock while tasks run.
        driver: SQLAlchemy's name of the driver whose connections ``connect`` can open.
        connect: opens a connection of the driver with the given arguments; the budget limits the
            time of its requests. If ``connect`` returns None, SQLAlchemy opens the connection.
        connect_args: returns the arguments of the driver, or of ``connect``, for a timeout in
            seconds and for the settings of encryption (None if there are no such settings).
        engine_args: arguments for SQLAlchemy's engine.
        begin_session: sets the session's options on a new connection, in as few requests as
            possible, and returns the server's properties. The second argument is the timeout in
            milliseconds.
        is_file: whether the database is a file, and not a server.
        is_astray: tells whether a connection has opened a file that is no longer at the url's path.
        connecting_fix: returns how to correct the cause of a driver's exception that was raised on
            connecting; None if its number does not tell. The second argument is the settings for
            encryption. Errors of the network and of encryption
            are left to `psched.stores.connection_advice`.
        other_fix: what to check if neither tells how to correct the cause.
        fix: a hint for error messages: how to correct a server that is `ErrorKind.MISCONFIGURED`.
        unsuitable: a query for the reason why this database cannot be used, as text; it returns no
            row if the database is suitable. None if every database is suitable.
        prepare: creates what must exist before `init` can connect, such as the file of SQLite.
        locks: the locks that the statements of `init` take, in words, by `tables.Change.kind`.
        rename_column: the part of ALTER TABLE that renames the column ``old`` to ``new``, whose
            definition is ``spec``.
        whole_division: the operator that divides whole numbers, and leaves out the rest.
        move_labels: the statement that moves the labels of the table ``{0}`` from ``options``,
            where version 2 of the schema had them, to their column.
        announce: the statement that tells all sessions that listen to the channel ``{}``; in a
            transaction, they are told when it commits. None if the database has no channels.
        listen: listens to a channel on a connection, until it is over; see
            `psched.core.operations.announcing.Announces.listen`. Its arguments are the connection,
            the channel, ``heard``, ``is_over``, and a function that allows the next statement a
            full timeout. None if the database has no channels.
        init_session: statements to execute on the connection of `init` before all others.
        classify: returns the `ErrorKind` of a driver's exception.
        explain: returns a driver's exception as one line of text, without the contents of rows.
    """

    now: str
    now_floor: str
    now_milliseconds: str
    exact: str
    integer: str
    joined: str
    payload: str
    packed: ColumnForm
    as_bytes: bool = False
    array: str | None = None
    text: str
    hex: str
    after: str
    newest_of_key: tuple[str, str]
    within_index: tuple[str, str]
    rest_order: str
    lane_order: str = "next_run_time, id"
    no_lane: str = "lane IS NULL"
    by_index: str = ""
    place: str
    read_only: str
    server: str
    isolation: str
    encryption: str
    reads_json: bool = False
    aborts: bool
    begin: str
    ignore_duplicate: str
    catch_up: tuple[str, str] | None
    node_state: str | None
    skips_locked: bool
    all_or_fail: tuple[str, ...] = ()
    prepares: bool = False
    host_clock: bool
    driver: str
    connect: Callable[[Mapping[str, Any], Budget], Any]
    connect_args: Callable[[float, Tls | None], Mapping[str, object]]
    engine_args: Mapping[str, object]
    begin_session: Callable[[Connection, int], ServerInfo]
    is_file: bool = False
    is_astray: Callable[[Connection], bool] = lambda _connection: False
    connecting_fix: Callable[[BaseException, Tls | None], str | None]
    other_fix: str
    fix: str
    unsuitable: str | None
    prepare: Callable[[URL], None]
    locks: Mapping[str, str]
    rename_column: str = "RENAME COLUMN {old} TO {new}"
    whole_division: str = "/"
    move_labels: str
    announce: str | None = None
    listen: Listen | None = None
    init_session: tuple[str, ...]
    classify: Callable[[BaseException], ErrorKind]
    explain: Callable[[BaseException], str]
