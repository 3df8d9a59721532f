"""SQLAlchemy's definition of the table of alerts; only `init` needs it."""

from sqlalchemy import Column, Index, MetaData, Table, text

from psched.stores.sql.alerts.statements import IDENTITY, RULE_LENGTH
from psched.stores.sql.history.statements import HOST_LENGTH, LABEL_LENGTH, REASON_LENGTH
from psched.stores.sql.history.tables import OPTIONS, long_text, number
from psched.stores.sql.tables import (
    KEY_LENGTH,
    OWNER_LENGTH,
    TYPE_LENGTH,
    key_text,
    plain_text,
    seconds,
)


def alerts_table(name: str) -> Table:
    """Define the table of alerts; ``name`` is the setting ``table``."""
    name = f"{name}_alerts"
    return Table(
        name,
        MetaData(),
        number(),
        Column("key", key_text(KEY_LENGTH), nullable=False),
        Column("rule", key_text(RULE_LENGTH), nullable=False),
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
        Index(f"{name}_since", *IDENTITY, unique=True),
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
        **OPTIONS,
    )
