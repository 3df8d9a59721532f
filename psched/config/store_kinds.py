"""The kinds of store for the setting ``type``, and the differences that other packages must know.

The class of ``rdb_compat`` is given as an import path, because no package of psched imports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """A kind of store.

    Attributes:
        class_path: import path ``module:Class`` of a store class that no package of psched imports.
            It is loaded like a user's own store class. None: `psched.stores` imports the class.
        cron_reading: how cron lines are read, ``crontab`` or ``perfectsched``; see
            `psched.triggers.cron.parse_cron`.
        new_trigger_starts_at_cursor: whether a schedule whose trigger was changed while its task
            ran continues at the occurrence that ran. False: it continues at the time of the change.
        keeps_status: whether a row has a status. Ended and cancelled rows can be kept only with a
            status.
        keeps_options: whether a row can store its own settings, including its label.
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
"""The kinds of store by their names, which are values of the setting ``type``."""

USERS_OWN = StoreKind()
"""The kind of all users' own store classes. ``type`` is the import path of the class then."""
