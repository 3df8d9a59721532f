"""Finds out during which pauses of its type a row fell due that a worker has claimed."""

from collections.abc import Sequence
from math import inf

from psched.core.model import Row
from psched.core.operations.pauses import (
    PastPause,
    PauseRule,
    PausesTypes,
    active_rules,
    may_be_skipped,
    past_pauses,
)
from psched.core.store_protocol import Store

_VALID = 1.0
"""Rules are read again if they were read more than this many seconds before a claim."""


class PauseReader:
    """Reads the standing rules of pauses, when rows are claimed that may have been held by one.

    An idle worker reads no rules, because the claim itself leaves out rows of paused types.

    Args:
        store: where the rules are; if it has none, no row is ever skipped.
    """

    def __init__(self, store: Store) -> None:
        self._store: PausesTypes | None = store if isinstance(store, PausesTypes) else None
        self._rules: Sequence[PauseRule] = ()
        self._read_at = -inf

    def is_outdated(self, rows: Sequence[Row], now: float) -> bool:
        """Whether `read` must be called before `pauses` of these rows."""
        return any(self.is_unsure(row, now) for row in rows)

    def is_unsure(self, row: Row, now: float) -> bool:
        """Whether it is unknown if a row that was claimed fell due during a pause."""
        if self._store is None or not may_be_skipped(row, now):
            return False
        # A rule that seems to hold has ended since it was read: its row has been claimed.
        return not now - _VALID <= self._read_at <= now or bool(
            active_rules(self._rules, row.type, now)
        )

    def read(self, now: float) -> None:
        """Read the rules."""
        if self._store is not None:
            self._rules = self._store.pause_rules()
            self._read_at = now

    def pauses(self, row: Row, now: float) -> tuple[PastPause, ...]:
        """The pauses of a row's type that are over and can have held the row."""
        return past_pauses(self._rules, row.type, now) if may_be_skipped(row, now) else ()
