"""SQLAlchemy's definitions of the tables beside the table of schedules; only `init` needs them."""

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from psched.stores.sql import alerts
from psched.stores.sql.history import HOST_LENGTH, LABEL_LENGTH, LEASE_COLUMNS, REASON_LENGTH
from psched.stores.sql.tables import (
    KEY_LENGTH,
    OPTIONS,
    OWNER_LENGTH,
    STATUS_LENGTH,
    TYPE_LENGTH,
    key_text,
    plain_text,
    seconds,
)

LABELS_LENGTH = 512
"""The most characters of the labels of a host."""

VERSION_LENGTH = 64
"""The most characters of a version: one built from a commit is long, as 1.2.0.dev3+g0b6c37d8."""


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(name, MetaData(), *parts, **OPTIONS)


def number() -> Column[int]:
    """The column of the numbers that the database gives to records."""
    # On SQLite only an INTEGER PRIMARY KEY gets its values from the database.
    kind = BigInteger().with_variant(Integer(), "sqlite")
    # On PostgreSQL, a user needs no right on the sequence of an identity column.
    return Column("id", kind, Identity(), primary_key=True)


def long_text() -> TypeEngine[str]:
    """A text of any length."""
    return Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def history_tables(name: str) -> list[Table]:
    """Define the tables of the run history; ``name`` is the setting ``table``."""
    return [_runs(f"{name}_runs"), _workers(f"{name}_workers"), _audit(f"{name}_audit")]


def _runs(name: str) -> Table:
    return _table(
        name,
        number(),
        Column("key", key_text(KEY_LENGTH), nullable=False),
        Column("type", plain_text(TYPE_LENGTH), nullable=False),
        Column("label", plain_text(LABEL_LENGTH)),
        Column("scheduled_time", seconds(), nullable=False),
        Column("until", seconds()),
        Column("count", seconds(), server_default=text("1")),
        Column("attempt", seconds(), nullable=False),
        Column("owner", key_text(OWNER_LENGTH), nullable=False),
        Column("fence", seconds(), nullable=False),
        Column("host", plain_text(HOST_LENGTH)),
        Column("pid", seconds()),
        Column("generation", seconds()),
        Column("due", seconds()),
        Column("started", seconds()),
        Column("ended", seconds(), nullable=False),
        Column("outcome", plain_text(STATUS_LENGTH)),
        Column("fate", plain_text(32)),
        Column("reason", plain_text(REASON_LENGTH)),
        Column("reason_code", plain_text(32)),
        Column("exit_status", seconds()),
        Column("exit_signal", seconds()),
        Column("cpu_ms", seconds()),
        Column("peak_kb", seconds()),
        Column("out_of_memory", seconds(), nullable=False, server_default=text("0")),
        Column("error", long_text()),
        Column("result", long_text()),
        # The owner is in this index, because the fences of a schedule restart when it is deleted
        # and added again. A request that is repeated finds its first record here.
        Index(f"{name}_lease", *LEASE_COLUMNS, unique=True),
        Index(f"{name}_key", "key", "id"),
    )


def _workers(name: str) -> Table:
    return _table(
        name,
        Column("nonce", key_text(OWNER_LENGTH), primary_key=True, nullable=False),
        Column("host", plain_text(HOST_LENGTH), nullable=False),
        Column("pid", seconds(), nullable=False),
        Column("number", seconds(), nullable=False),
        Column("generation", seconds(), nullable=False),
        Column("slots", seconds(), nullable=False),
        Column("busy", seconds(), nullable=False),
        Column("types", long_text()),
        Column("started", seconds(), nullable=False),
        Column("seen", seconds(), nullable=False),
        Column("ended", seconds()),
        Column("clock_offset", seconds()),
        Column("zone_data", plain_text(STATUS_LENGTH)),
        Column("labels", plain_text(LABELS_LENGTH)),
        Column("version", plain_text(VERSION_LENGTH)),
        Column("python", plain_text(VERSION_LENGTH)),
        Index(f"{name}_seen", "seen"),
    )


def _audit(name: str) -> Table:
    return _table(
        name,
        number(),
        Column("key", key_text(KEY_LENGTH), nullable=False),
        Column("action", plain_text(STATUS_LENGTH), nullable=False),
        Column("user", plain_text(HOST_LENGTH), nullable=False),
        Column("host", plain_text(HOST_LENGTH), nullable=False),
        Column("program", plain_text(HOST_LENGTH), nullable=False),
        Column("note", plain_text(REASON_LENGTH)),
        Column("before", long_text()),
        Column("after", long_text()),
        Column("time", seconds(), nullable=False),
        Index(f"{name}_key", "key", "id"),
    )


def output_table(name: str) -> Table:
    """Define the table of output; ``name`` is the setting ``table``."""
    name = f"{name}_output"
    return _table(
        name,
        number(),
        Column("key", key_text(KEY_LENGTH), nullable=False),
        Column("scheduled_time", seconds(), nullable=False),
        Column("owner", key_text(OWNER_LENGTH), nullable=False),
        Column("attempt", seconds(), nullable=False),
        Column("ended", seconds(), nullable=False),
        Column("dropped", seconds()),
        Column("is_live", seconds(), nullable=False, server_default=text("0")),
        Column("is_gzip", seconds(), nullable=False, server_default=text("0")),
        Column("size", seconds(), nullable=False, server_default=text("0")),
        # The sum of the sizes of this record and of all before it, also of those that have been
        # deleted. Only every two thousandth record or so has it, the others -1.
        Column("total", seconds(), nullable=False, server_default=text("-1")),
        # Until when somebody reads the output of the attempt while it runs.
        Column("asked", seconds(), nullable=False, server_default=text("0")),
        # NULL: the output was asked for, but its worker has not written it yet. The column is the
        # last one, because SQLite reads a row from its beginning.
        Column(
            "output",
            LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb"),
        ),
        Index(f"{name}_lease", "key", "scheduled_time", "owner", unique=True),
        Index(f"{name}_key", "key", "id"),
        Index(f"{name}_total", "total", "id", "size"),
    )


def alerts_table(name: str) -> Table:
    """Define the table of alerts; ``name`` is the setting ``table``."""
    name = f"{name}_alerts"
    return _table(
        name,
        number(),
        Column("key", key_text(KEY_LENGTH), nullable=False),
        Column("rule", key_text(alerts.RULE_LENGTH), nullable=False),
        Column("since", seconds(), nullable=False),
        Column("host", key_text(HOST_LENGTH), nullable=False),
        Column("type", plain_text(TYPE_LENGTH)),
        Column("label", plain_text(LABEL_LENGTH)),
        Column("scheduled_time", seconds()),
        Column("text", plain_text(REASON_LENGTH), nullable=False),
        Column("raised", seconds(), nullable=False),
        Column("closed", seconds()),
        Column("closed_text", plain_text(REASON_LENGTH)),
        Column("on_raise", long_text(), nullable=False),
        Column("on_close", long_text(), nullable=False),
        Column("deliveries", long_text(), nullable=False),
        Column("next_try", seconds()),
        Column("owner", key_text(OWNER_LENGTH)),
        Column("fence", seconds(), nullable=False, server_default=text("0")),
        # 0 while the alert is open, its id afterwards. So the index below allows one open alert of
        # a key, host and rule, and any number of closed ones.
        Column("closed_id", seconds(), nullable=False, server_default=text("0")),
        Index(f"{name}_since", *alerts.IDENTITY, unique=True),
        Index(f"{name}_open", "key", "closed_id", "host", "rule", unique=True),
        # Alerts are listed by the time at which they were raised: all of them, those of a key, the
        # open ones, and those of a key that are open. The id makes the order definite.
        Index(f"{name}_raised", "raised", "id"),
        Index(f"{name}_key", "key", "raised", "id"),
        Index(f"{name}_now", "closed_id", "raised", "id"),
        Index(f"{name}_key_now", "key", "closed_id", "raised", "id"),
        # This index finds the alerts whose deliveries are due, and those that can be deleted: they
        # have no next try.
        Index(f"{name}_due", "next_try", "closed"),
    )
