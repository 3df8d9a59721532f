"""Creates and upgrades the table of schedules, and checks the version of its schema.

Clients are allowed to write the table by plain SQL, and need to set only the column `id`. Every
other column has a default or can be NULL. Therefore a row that is inserted with only an `id` is
run, and an upgrade only has to add the missing columns and indexes. A second table,
``<table>_info``, stores the version of the schema, which is checked on every new connection.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from psched.base.errors import MissingTableError, SchemaError, StoreError
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.errors import ErrorKind
from psched.stores.upgrading import refuse_older

if TYPE_CHECKING:
    from psched.stores.sql.tables import Change

VERSION = 3
"""The version of the schema; psched refuses a table with a larger version.

It must be increased with every change that another version of psched cannot ignore. An index, or a
column that the database computes, is no such change: without it, listings are only slower.
"""

HISTORY_VERSION = 1
"""The version of the tables and columns of the run history, which are no part of the schema.

A table without them is used without a run history. If the version is larger than this, another
version of psched writes records that this one does not know, so this one writes none.
"""

OUTPUT_VERSION = 1
"""The same of the table of what attempts have printed."""

ALERTS_VERSION = 1
"""The same of the table of alerts."""

_STOPPED_FOR = 2
"""The version whose workers must have stopped before the upgrade."""

_UNFINISHED = -1
"""Stands for the version of a table whose version is not stored: `Schema.init` did not finish."""


class Problems(NamedTuple):
    """Why something is not kept; None if it is.

    Attributes:
        history: why there is no run history.
        output: why there is no output of attempts.
        alerts: why there are no alerts.
    """

    history: str | None
    output: str | None
    alerts: str | None


@lru_cache
def _select_version(table: str) -> TextClause:
    return text(f"SELECT name, value FROM {table}")  # noqa: S608  # quoted


class Schema:
    """Checks, creates and upgrades the table of schedules, and stores the version of its schema."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self._name = name
        self._dialect = dialect

    def check(self, connection: Connection) -> Problems:
        """Check, with one short read, that this version of psched can use the table."""
        name = self._name
        versions = self._versions(connection)
        found = self._schema_version(versions)
        if found is None:
            raise MissingTableError(f"the table {name!r} does not exist; run `psched init`")
        if found == _UNFINISHED:
            raise SchemaError(
                f"the table {name!r} is not complete: `psched init` did not finish;"
                " run it again, and fix what it names"
            )
        if found < VERSION:
            raise SchemaError(
                f"the table {name!r} has schema version {found}, this psched works on {VERSION};"
                " run `psched init`, which upgrades it in place"
            )
        self._refuse_newer(found)
        history = f"the tables of the run history ({name}_runs, {name}_workers, {name}_audit) are"
        return Problems(
            self._problem(versions, "history_version", HISTORY_VERSION, "the run history", history),
            self._problem(
                versions, "output_version", OUTPUT_VERSION, "output", f"the table {name}_output is"
            ),
            self._problem(
                versions,
                "alerts_version",
                ALERTS_VERSION,
                "the table of alerts",
                f"the table {name}_alerts is",
            ),
        )

    def _problem(
        self, versions: Mapping[str, str] | None, name: str, known: int, what: str, tables: str
    ) -> str | None:
        """Why what is in tables beside that of the schedules is not kept; None if it is."""
        found = self._version(versions or {}, name)
        if found is None:
            return f"{tables} missing or not complete; run `psched init`"
        if found > known:
            return (
                f"{what} has version {found}, this psched knows {known};"
                " upgrade psched on this host"
            )
        return None

    def init(self, connection: Connection, *, force: bool = False) -> Sequence[str]:
        """Create the tables, or upgrade them. Calling this method again does no harm.

        With ``force``, they are upgraded although workers run that cannot use them afterwards.
        Returns one line of text for each change.
        """
        if not force:
            self._refuse_while_workers_run(connection)
        for statement in self._dialect.init_session:
            connection.execute(text(statement))
        done = []
        for change in self._changes(connection):
            try:
                change.apply(connection)
            except DBAPIError as error:
                cause = error.orig or error
                kind = self._dialect.classify(cause)
                if kind is ErrorKind.DUPLICATE and change.kind == "row":
                    continue  # another process has stored the version at the same time
                if kind is ErrorKind.REFUSED:
                    raise StoreError(
                        f"cannot execute {change.sql(connection)[:60]!r}…:"
                        f" {self._dialect.explain(cause)}; run `psched init` as a user who may"
                        f" create tables and indexes and alter {self._name}"
                    ) from None
                raise
            if change.line:
                done.append(change.line)
        return done

    def plan(self, connection: Connection) -> Sequence[tuple[str, str]]:
        """Return the statements that `init` would execute, each with the lock that it takes."""
        return [
            (change.sql(connection), self._dialect.locks[change.kind])
            for change in self._changes(connection)
        ]

    def _changes(self, connection: Connection) -> "Iterator[Change]":
        """Yield what creates the tables, or adds what they lack, and stores the versions."""
        if (query := self._dialect.unsuitable) is not None:
            for problem in connection.execute(text(query)).scalars():
                raise StoreError(f"the database cannot be used: {problem}")
        versions = self._versions(connection)
        found = self._schema_version(versions)
        self._refuse_newer(found or 0)
        # Imported here, so that workers do not load the module `tables`, which takes memory.
        from psched.stores.sql import upgrade  # noqa: PLC0415
        from psched.stores.sql.tables import (  # noqa: PLC0415
            Change,
            info_table,
            missing,
            schedules_table,
        )
        from psched.stores.sql.tables_beside import (  # noqa: PLC0415
            alerts_table,
            history_tables,
            output_table,
        )

        schedules = schedules_table(self._name)
        before = upgrade.renamed(connection, schedules, self._dialect)
        before += upgrade.without_computed_label(connection, schedules)
        yield from before
        yield from missing(connection, schedules, before)
        if found is not None and found < VERSION:
            yield from upgrade.decoded(connection, schedules, self._dialect)
        info = info_table(self._name)
        beside = (
            *history_tables(self._name),
            output_table(self._name),
            alerts_table(self._name),
        )
        for table in (*beside, info):
            yield from missing(connection, table)
        for name, version in (
            ("schema_version", VERSION),
            ("history_version", HISTORY_VERSION),
            ("output_version", OUTPUT_VERSION),
            ("alerts_version", ALERTS_VERSION),
        ):
            # A larger version was stored by a newer psched, which has made tables that this one has
            # left alone.
            known = (versions or {}).get(name, "")
            if known.isdigit() and int(known) >= version:
                continue
            # The version is deleted and inserted again instead of updated, so that exactly one row
            # exists after two simultaneous calls of `init`.
            yield Change("row", info, None, info.delete().where(info.c.name == name), "")
            insert = info.insert().values(name=name, value=str(version))
            yield Change("row", info, None, insert, "")

    def _refuse_while_workers_run(self, connection: Connection) -> None:
        """Refuse to upgrade while workers of version 2 are registered; see `upgrade`."""
        if self._schema_version(self._versions(connection)) != _STOPPED_FOR:
            return
        from psched.stores.sql import upgrade  # noqa: PLC0415  # as in `_changes`
        from psched.stores.sql.tables import schedules_table  # noqa: PLC0415

        workers = upgrade.older_workers(connection, schedules_table(self._name), self._dialect)
        refuse_older(self._name, workers)

    def _versions(self, connection: Connection) -> Mapping[str, str] | None:
        """The versions of the schema and its parts, by name; None if the table does not exist."""
        table = connection.dialect.identifier_preparer.quote(f"{self._name}_info")
        try:
            found = raw_execute.rows(connection, _select_version(table), {})
        except DBAPIError as error:
            if self._dialect.classify(error.orig or error) is ErrorKind.SCHEMA:
                return None
            raise
        return dict(map(tuple, found))

    def _schema_version(self, versions: Mapping[str, str] | None) -> int | None:
        if versions is None:
            return None
        found = self._version(versions, "schema_version")
        return _UNFINISHED if found is None else found

    def _version(self, versions: Mapping[str, str], name: str) -> int | None:
        try:
            return None if name not in versions else int(versions[name])
        except ValueError:
            raise SchemaError(
                f"the table {self._name!r} has the {name.replace('_', ' ')} {versions[name]!r},"
                f" which is none; correct it in {self._name}_info"
            ) from None

    def _refuse_newer(self, found: int) -> None:
        if found > VERSION:
            raise SchemaError(
                f"the table {self._name!r} has schema version {found}, this psched knows"
                f" {VERSION}; upgrade psched on this host"
            )
