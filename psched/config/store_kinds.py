"""The kinds of store that the setting ``type`` names, and how they differ for the rest of psched.

A kind whose class no other package imports is named here by the class's import path alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """A kind of store.

    Attributes:
        class_path: import path ``module:Class`` of a store that no package of psched imports; it is
            made as a user's own store is. None: `psched.stores` has the class.
        cron_reading: how cron lines are read, ``crontab`` or ``perfectsched``; see
            `psched.triggers.cron.parse_cron`.
        new_trigger_starts_at_cursor: where a schedule continues if its trigger was changed while
            its task ran: at the occurrence that ran. False: at the time of the change.
        keeps_status: whether a row has a status, so that an ended or cancelled one can be kept.
        keeps_options: whether a row has settings of its own, its label among them.
    """

    class_path: str | None = None
    cron_reading: str = "crontab"
    new_trigger_starts_at_cursor: bool = False
    keeps_status: bool = True
    keeps_options: bool = True


STORE_KINDS: Mapping[str, StoreKind] = MappingProxyType(
    {
        "rdb": StoreKind(),
        "rdb_compat": StoreKind(
            class_path="psched.contrib.perfectsched.store.store:PerfectSchedStore",
            cron_reading="perfectsched",
            new_trigger_starts_at_cursor=True,
            keeps_status=False,
            keeps_options=False,
        ),
        "redis": StoreKind(),
    }
)
"""The kinds by the word that the setting ``type`` has for each."""

USERS_OWN = StoreKind()
"""The kind of every store whose class is the user's own: ``type`` is its import path."""
