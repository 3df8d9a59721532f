"""Pauses types, or everything, by standing rules; see `psched.core.operations.pauses`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial

from psched.base.errors import AlreadyExistsError, NotSupportedError
from psched.base.retry import Send
from psched.client.auditor import Auditor
from psched.client.operations.waking import Waker
from psched.config import Config
from psched.core.catchup import iso
from psched.core.columns import check_name
from psched.core.history.why.asked_time import parse_next
from psched.core.model import Row
from psched.core.operations.pauses import KEPT, LONGEST_NOTE, PauseRule, PausesTypes, as_paused
from psched.core.operations.pausing import zone_of
from psched.core.shorthands import Until
from psched.core.store_protocol import Store
from psched.triggers.zone import find_zone

EVERYTHING = "*"
"""The key under which the audit trail contains a pause of everything. That of a type is ``type:``
and the type."""

_LONGEST_KEY = 255
"""The most characters of a key in the audit trail."""

_ID_LENGTH = 16


@dataclass(frozen=True, slots=True)
class TypePauser:
    """Stores and ends the rules of one store.

    Attributes:
        store: the store that contains the rules.
        settings: the installation's settings.
        auditor: knows who makes the changes, and why.
        waker: wakes a worker when rows may have become due.
        send: sends a request to the store, again and again while the store is unavailable.
        draw_nonce: returns a new random text at each call.
    """

    store: Store
    settings: Config
    auditor: Auditor
    waker: Waker
    send: Send
    draw_nonce: Callable[[], str]

    def pause(self, type_: str | None, until: Until | None) -> PauseRule:
        """Pause a type, or everything; see `ScheduleCollection.pause_type`."""
        store = self._pausing()
        if type_ is not None:
            check_name("type", type_)
        now = self.send(self.store.now)
        end = None
        if until is not None:
            end = parse_next("until", until, find_zone(self.settings.timezone), now)
        rules = self.send(store.pause_rules)
        former = [rule for rule in rules if rule.type == type_ and rule.holds(now)]
        note = self.auditor.note
        rule = PauseRule(
            id=_id_of(self.draw_nonce()),
            type=type_,
            # The pause lasts since the first time, if it is only prolonged or explained anew.
            since=min((rule.since for rule in former), default=int(now)),
            until=end,
            by=self.auditor.author.name,
            note=None if note is None else note[:LONGEST_NOTE],
        )
        drop = [each.id for each in (*former, *_forgotten(rules, now))]
        self.send(partial(store.change_pause_rules, drop=drop, store=[rule]))
        self.auditor.record_about(
            "pause", _key_of(type_), {"until": None if end is None else iso(end)}
        )
        return rule

    def resume(self, type_: str | None, *, backfill: bool) -> Sequence[PauseRule]:
        """End the pause of a type, or of everything; see `ScheduleCollection.resume_type`."""
        store = self._pausing()
        now = self.send(self.store.now)
        rules = self.send(store.pause_rules)
        held = [rule for rule in rules if rule.type == type_ and rule.holds(now)]
        if not held:
            raise AlreadyExistsError(_not_paused(type_, [r for r in rules if r.holds(now)]))
        # The workers skip what fell due before the end of a rule that is stored.
        ended = [
            changed(rule, until=int(now)) for rule in held if not backfill and rule.since < int(now)
        ]
        drop = [each.id for each in (*held, *_forgotten(rules, now))]
        self.send(partial(store.change_pause_rules, drop=drop, store=ended))
        self.waker.wake()
        self.auditor.record_about("resume", _key_of(type_), {"backfill": backfill})
        return held

    def active(self) -> Sequence[PauseRule]:
        """The rules that hold now; see `ScheduleCollection.pauses`."""
        store = self.store
        if not isinstance(store, PausesTypes):
            return ()
        rules = self.send(store.pause_rules)
        if not rules:
            return ()
        now = self.send(self.store.now)
        found = [rule for rule in rules if rule.holds(now)]
        found.sort(key=lambda rule: (rule.type is not None, rule.type or "", rule.since))
        return tuple(found)

    def shown(self) -> "ShownAsPaused":
        """Read the rules once, and return how people see rows meanwhile."""
        rules = self.active()
        return ShownAsPaused(rules, self.settings, self.send(self.store.now) if rules else 0)

    def _pausing(self) -> PausesTypes:
        store: object = self.store
        if not isinstance(store, PausesTypes):
            raise NotSupportedError(
                f"a store of type {self.settings.type} cannot pause types; pause each schedule"
            )
        return store


@dataclass(frozen=True, slots=True)
class ShownAsPaused:
    """Changes rows of paused types as people see them, see `as_paused`.

    Attributes:
        rules: the rules that hold now.
        settings: the installation's settings.
        now: the time of the store's clock.
    """

    rules: Sequence[PauseRule]
    settings: Config
    now: float

    def __call__(self, row: Row) -> Row:
        """The row as people see it."""
        if not self.rules:
            return row
        return as_paused(row, self.rules, zone_of(row, self.settings), self.now)


def _id_of(nonce: str) -> str:
    return "".join(each for each in nonce if each.isalnum())[-_ID_LENGTH:]


def _forgotten(rules: Sequence[PauseRule], now: float) -> list[PauseRule]:
    """The rules that have ended long ago, so that no row is left that they have held."""
    return [rule for rule in rules if rule.until is not None and rule.until < now - KEPT]


def _key_of(type_: str | None) -> str:
    return EVERYTHING if type_ is None else f"type:{type_}"[:_LONGEST_KEY]


def _not_paused(type_: str | None, others: Sequence[PauseRule]) -> str:
    what = "everything" if type_ is None else f"the type {type_!r}"
    text = f"{what} is not paused"
    if others:
        text += f"; paused are {', '.join(sorted({rule.what for rule in others}))}"
    return text + " (schedules that are paused one by one are resumed by their keys)"
