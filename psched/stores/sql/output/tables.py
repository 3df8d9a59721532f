"""SQLAlchemy's definition of the table of output; only `init` needs it."""

from sqlalchemy import Column, Index, LargeBinary, MetaData, Table, text
from sqlalchemy.dialects import mysql

from psched.stores.sql.history.tables import OPTIONS, number
from psched.stores.sql.tables import KEY_LENGTH, OWNER_LENGTH, key_text, seconds


def output_table(name: str) -> Table:
    """Define the table of output; ``name`` is the setting ``table``."""
    name = f"{name}_output"
    return Table(
        name,
        MetaData(),
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
        **OPTIONS,
    )
