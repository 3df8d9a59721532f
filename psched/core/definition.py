"""The definition of a schedule, parsed from a row, with all settings that apply to the schedule.

An invalid column is refused with an error that names the column; psched never guesses a value.
`psched.core.columns` contains the checks of single columns.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from psched.base import payload
from psched.base.errors import ConfigError, InvalidError
from psched.base.exec_data import EXEC_TYPE
from psched.base.stable_hash import stable_hash
from psched.base.texts import brief, visible
from psched.config import OVERRIDES, Config
from psched.config.monitoring import NO_EXPECTATIONS, NO_PING, Expectations, read_expectations
from psched.core.columns import (
    LONGEST_CRON,
    check_length,
    check_name,
    check_number,
    parse_options,
    payload_form,
    payload_limit,
)
from psched.core.model import Occurrence, Row
from psched.triggers import trigger as triggers
from psched.triggers import zone as zones
from psched.triggers.cron import Cron
from psched.triggers.trigger import Trigger
from psched.triggers.zone import LATEST, find_zone

LONGEST_KEY = 1000
"""The largest number of characters in a key that was inserted by plain SQL.

psched checks this limit, because not every database limits the length of the column.
"""

LONGEST_DELAY = 366 * 86_400
"""The longest ``delay`` in seconds."""

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}\$?")
"""The names of users, as useradd(8) and directories of users make them."""

_WITHOUT_CHANGES = frozenset({"UTC", "Etc/UTC"})
"""Zones whose local times no new zone data change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The definition of a schedule. A *one-shot* is a schedule that runs only once.

    Attributes:
        key: the schedule's unique name.
        type: the type of the schedule's tasks, which selects their handler.
        cron: the trigger's text; None for a one-shot.
        timezone: the zone in which ``cron`` is interpreted.
        trigger: the parsed trigger; None for a one-shot.
        delay: the seconds from an occurrence's scheduled time to its earliest run.
        settings: the installation's settings, overridden by the settings of the schedule's type,
            and then by the schedule's own.
        run_as: the Unix user as whom its program runs; None for the service's.
        payload: how ``data`` wraps the payload, see `psched.base.payload`; None if ``data``
            is the payload.
    """

    key: str
    type: str
    cron: str | None
    timezone: str
    trigger: Trigger | None
    delay: int
    settings: Config
    payload: str | None = None
    run_as: str | None = None

    def first_run(self, scheduled_time: int) -> int:
        """The earliest run of an occurrence in Unix seconds, after ``delay`` and jitter.

        The jitter is a part of the setting ``jitter`` that depends only on the occurrence, so that
        all hosts compute the same time.
        """
        earliest, jitter = scheduled_time + self.delay, self.settings.jitter
        if self.trigger is None or not jitter:
            return earliest
        return earliest + stable_hash(str(Occurrence(self.key, scheduled_time)), jitter + 1)

    def assignment(self, row: Row, scheduled_time: int) -> dict[str, Any]:
        """The values that `psched.application.task.Task` reads, except the payload, for JSON.

        The row is as the claim returned it.
        """
        return {
            "key": row.key,
            "type": self.type,
            payload.OPTION: self.payload,
            "scheduled_time": scheduled_time,
            "attempt": row.attempt,
            "cron": self.cron,
            "timezone": self.timezone,
            "delay": self.delay,
            "run_as": self.run_as,
            "owner": row.owner,
            "fence": row.fence,
            "data_limit": self.settings.data_limit,
            "on_return": self.settings.on_return,
            "result": self.settings.result,
        }

    @property
    def local_cron(self) -> Cron | None:
        """The trigger if it names local times, see `psched.core.local_times`."""
        trigger = self.trigger
        if isinstance(trigger, Cron) and trigger.timezone not in _WITHOUT_CHANGES:
            return trigger
        return None

    def local_time(self, instant: int | None) -> str | None:
        """What the column ``local_time`` contains; None if the schedule has no local times."""
        cron = self.local_cron
        if cron is None or instant is None or instant >= LATEST:
            return None
        return f"{cron.zone.at(instant).isoformat()} {zones.VERSION}"


def parse_row(row: Row, settings: Config) -> Definition:
    """Parse the definition in a row.

    A worker parses every row that it claims, and can do nothing else meanwhile. So this function
    must be fast for every row: the worst row takes less than 0.05 s of CPU time. For the payload,
    only its size is checked; the process that runs the task parses the payload with
    `psched.core.columns.parse_payload`. The length of every other column is checked before the
    column is parsed.
    """
    if visible(row.key) != row.key:
        # We do not use the stricter `check_name`, which checks new keys, because rows that were
        # inserted by SQL have already run with keys that it refuses.
        raise InvalidError("key", f"{brief(repr(row.key))} holds characters that cannot be seen")
    check_length("key", row.key, LONGEST_KEY, "characters")
    check_name("type", row.type)
    options = parse_options(row.options)
    own = _with_overrides(options, row.type, settings)
    if row.timezone in (None, "", settings.timezone):
        timezone = settings.timezone  # was checked when it was read
    else:
        timezone = find_zone(check_name("timezone", row.timezone)).name
    if row.data is not None:
        check_length("data", row.data, payload_limit(settings.data_limit))
    if isinstance(row.cron, str):
        check_length("cron", row.cron, LONGEST_CRON, "characters")
    return Definition(
        key=row.key,
        type=row.type,
        cron=row.cron,
        timezone=timezone,
        trigger=_trigger(row.cron, timezone, own),
        delay=check_number("delay", row.delay, LONGEST_DELAY),
        settings=own,
        payload=payload_form(options),
        run_as=_user(row),
    )


def _user(row: Row) -> str | None:
    """As whom a row runs, which only a program can do."""
    if row.run_as is None:
        return None
    if row.type != EXEC_TYPE:
        raise InvalidError(
            "run_as",
            f"needs the type exec, because only a program can run as another user, not"
            f" {brief(repr(row.type))}",
        )
    name = check_name("run_as", row.run_as)
    if not _USER.fullmatch(name):
        raise InvalidError(
            "run_as", f"must be the name of a Unix user, such as backup, not {brief(repr(name))}"
        )
    return name


def output_setting(row: Row, settings: Config) -> str:
    """The setting ``output`` that applies to a row, even if the row is invalid."""
    return settings_of(row, settings).output


def history_setting(row: Row, settings: Config) -> str:
    """The setting ``history`` that applies to a row, even if the row is invalid."""
    return settings_of(row, settings).history


def settings_of(row: Row, settings: Config) -> Config:
    """The settings that apply to a row; those of the installation if its options are invalid.

    Unlike `parse_row`, this does not parse the trigger, so it loads no code of the user.
    """
    try:
        return _with_overrides(parse_options(row.options), row.type, settings)
    except InvalidError:
        return settings


def ping_setting(row: Row, settings: Config) -> str | None:
    """The name of the ping that applies to a row, even if the row is invalid; None if none does."""
    name = settings_of(row, settings).ping
    return None if name == NO_PING else name


def _trigger(cron: str | None, timezone: str, settings: Config) -> Trigger | None:
    if cron is None:
        return None
    return triggers.parse(
        cron,
        timezone,
        dst_policy=settings.dst_policy,
        reading=settings.store_kind.cron_reading,
        load_path=settings.load_path,
        allowed=settings.triggers,
    )


def _with_overrides(options: Mapping[str, Any], of_type: str, settings: Config) -> Config:
    # An unknown option is ignored, because a newer psched may have written it.
    by_type = settings.types.get(of_type, {})
    own = {**by_type, **options}
    known = {name: _hashable(own[name]) for name in OVERRIDES if name in own}
    if not known:
        return settings
    try:
        if "expect" in known:
            known["expect"] = _expectations(options, by_type, settings)
        return _merged(tuple(known.items()), settings)
    except (ConfigError, TypeError) as error:
        raise InvalidError("options", str(error)) from None


def _expectations(
    options: Mapping[str, Any], by_type: Mapping[str, Any], settings: Config
) -> Expectations:
    """What is expected of a schedule: its own parts, then those of its type, then the rest."""
    own = read_expectations(options.get("expect"))
    of_type: Expectations = by_type.get("expect", NO_EXPECTATIONS)
    return own.over(of_type).over(settings.expect)


def _hashable(value: object) -> object:
    """A list as a tuple, so that it can be an argument of a function with a cache."""
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=1024)
def _merged(overrides: tuple[tuple[str, Any], ...], settings: Config) -> Config:
    return settings.with_settings(**dict(overrides))
