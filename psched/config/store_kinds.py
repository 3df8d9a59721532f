"""The kinds of store that the setting ``type`` can select, and how they differ from each other.

The store class of ``rdb_compat`` is given by its import path, because no package of psched imports
that class.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """A kind of store.

    Attributes:
        class_path: the import path ``module:Class`` of the store class, which `psched.stores` then
            loads like a user's own store class. None if `psched.stores` imports the class itself,
            or if the setting ``type`` is the import path.
        cron_reading: how cron lines are interpreted, ``crontab`` or ``perfectsched``; see
            `psched.triggers.cron.parse_cron`.
        new_trigger_starts_at_cursor: where a new trigger starts if a schedule's trigger is changed
            while its task runs. True: after the scheduled time of the occurrence that runs. False:
            at the time at which the task ends.
        keeps_status: whether rows have a status. In a store without it, schedules cannot be
            cancelled, and ended rows are not kept.
        keeps_options: whether a row can store settings of its own, and a label.
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
"""The kinds of store by their names. Each name is a value of the setting ``type``."""

USERS_OWN = StoreKind()
"""The kind of every store class that a user has written. For such a class, the setting ``type`` is
its import path."""
