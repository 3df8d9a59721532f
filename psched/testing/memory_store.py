"""A store in memory that keeps a run history and pauses: the shortest one that does all of it.

It is the model of what a store does: the simulator runs psched on it, and tests compare psched's
other stores with it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as changed
from itertools import islice
from math import floor
from threading import RLock

from typing_extensions import override

from psched.config import Config
from psched.core.definition import history_setting
from psched.core.history.protocol import EVERY_RUN, AuditSelection, KeepsHistory, RunSelection
from psched.core.history.recording import record_of_death
from psched.core.history.records import AuditRecord, Outcome, RunRecord, WorkerRecord
from psched.core.model import Row, Settlement
from psched.core.operations.pauses import PauseRule, PausesTypes
from psched.core.store_protocol import Settled
from psched.stores.plain import PlainStore, Rows

Identity = tuple[str, int, str]
"""What identifies a record: its key, its scheduled time, and the owner of its lease."""


class MemoryStore(PlainStore, KeepsHistory, PausesTypes):
    """All rows, records and rules in the memory of one process.

    ``now`` is the store's clock. `roll_back` can undo what was written in the last ``keeps``
    seconds. Read what is ``stored``, but write it by the methods of a store.
    """

    lost_records = 0

    def __init__(self, now: Callable[[], float], settings: Config, *, keeps: float = 0.0) -> None:
        self.stored: dict[str, Row] = {}
        self.records: dict[Identity, RunRecord] = {}  # the oldest first
        self._now = now
        self._settings = settings
        self.host_names = settings.host_names
        self._keeps = keeps
        self._workers: dict[str, WorkerRecord] = {}
        self._audits: list[AuditRecord] = []
        self._rules: dict[str, PauseRule] = {}
        self._lock = RLock()
        self._depth = 0
        self._written: list[tuple[Identity, RunRecord | None]] = []
        self._states: deque[tuple[float, Callable[[], None]]] = deque()
        self._numbers = 0
        self.history = self.pauses = self.recorded_changes = self

    @override
    def now(self) -> float:
        return self._now()

    @override
    @contextmanager
    def all(self) -> Iterator[Rows]:
        with self._lock:
            if self._depth:
                yield self.stored
                return
            self._depth = 1
            undo = self._undo()
            try:
                yield self.stored
            except BaseException:
                undo()
                raise
            finally:
                self._depth = 0
        if self._keeps:
            self._states.append((self.now(), undo))
            while self._states[0][0] < self.now() - self._keeps:
                self._states.popleft()

    def _undo(self) -> Callable[[], None]:
        """Return a function that makes the store what it is now."""
        rows, rules, workers = dict(self.stored), dict(self._rules), dict(self._workers)
        audits = len(self._audits)
        written: list[tuple[Identity, RunRecord | None]] = []
        self._written = written

        def undo() -> None:
            self.stored.clear()
            self.stored.update(rows)
            self._rules, self._workers = rules, workers
            del self._audits[audits:]
            for identity, former in reversed(written):
                del self.records[identity]
                if former is not None:
                    self.records[identity] = former

        return undo

    def roll_back(self, seconds: float) -> None:
        """Lose what was written in the last seconds, as a failover to a standby does."""
        while self._states and self._states[-1][0] >= self.now() - seconds:
            _, undo = self._states.pop()
            undo()

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        return [("store", "in memory")]

    # --- records that belong to a lease ------------------------------------------------

    @override
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        with self.all() as found:
            before = {end.key: found.get(end.key) for end in settlements}
            results = super().settle(settlements)
            for end in settlements:
                if found.get(end.key) is not before[end.key]:
                    self.record(end.records)
            return results

    @override
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        with self.all() as found:
            before = dict(found)
            keys = super().recover(nonce, alive_time=alive_time, retry_wait=retry_wait)
            ended = floor(self.now() * 1000)
            for row in [before[key] for key in keys]:
                history = history_setting(row, self._settings)
                lost = record_of_death(row, ended, self._workers.get(nonce), history)
                self.record([] if lost is None else [lost])
            return keys

    def replace_and_record(self, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
        """See `psched.core.store_protocol.ReplacesAndRecords`."""
        with self.all():
            if not self.replace(seen, new):
                return False
            self.record(records)
            return True

    # --- the run history, see `psched.core.history.protocol.KeepsHistory` ----------------

    def problem(self) -> str | None:
        """None: the history is kept."""
        return None

    def record(self, records: Sequence[RunRecord]) -> None:
        """Write records; the first one of an identity stays, unless it tells of a lost attempt."""
        with self.all():
            for each in records:
                identity = each.key, each.scheduled_time, each.owner
                known = self.records.get(identity)
                if known is None or Outcome.LOST == known.outcome != each.outcome:
                    self._written.append((identity, self.records.pop(identity, None)))
                    self._numbers += 1
                    self.records[identity] = changed(each, id=self._numbers)

    def runs(self, selection: RunSelection = EVERY_RUN) -> Iterator[RunRecord]:
        """The records of a selection, the newest first."""
        newest = sorted(self.records.values(), key=lambda each: (each.ended, each.id), reverse=True)
        return islice(filter(selection.matches, newest), selection.limit)

    def trim(self, *, before: int, limit: int) -> int:
        """Delete old records, changes and workers."""
        old = [i for i, each in self.records.items() if each.ended < before][:limit]
        for identity in old:
            del self.records[identity]
        past = [each for each in self._audits if (each.time or 0) < before][:limit]
        self._audits = [each for each in self._audits if each not in past]
        for nonce, worker in [*self._workers.items()]:
            if worker.seen * 1000 < before:
                del self._workers[nonce]
        return len(old) + len(past)

    def trim_key(self, key: str, keep: int) -> int:
        """Delete the records of one key except the newest ones."""
        old = [*self.runs(RunSelection(key=key))][keep:]
        for each in old:
            del self.records[each.key, each.scheduled_time, each.owner]
        return len(old)

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        """The newest end of a run of each key."""
        found: dict[str, RunRecord] = {}
        for each in self.runs():
            if each.key in keys and each.is_end:
                found.setdefault(each.key, changed(each, error=None, result=None))
        return found

    def beat(self, worker: WorkerRecord) -> None:
        """Insert or replace the record of a worker."""
        now = floor(self.now())
        ended = now if worker.ended == 0 else worker.ended
        self._workers[worker.nonce] = changed(
            worker, started=worker.started or now, seen=now, ended=ended
        )

    def workers(self, since: int = 0) -> Sequence[WorkerRecord]:
        """The workers that were seen since a time."""
        return [each for each in self._workers.values() if each.seen >= since]

    def audit(self, changes: Sequence[AuditRecord]) -> None:
        """Write changes of schedules."""
        self._audits += [changed(each, time=floor(self.now() * 1000)) for each in changes]

    def audits(self, selection: AuditSelection) -> Iterator[AuditRecord]:
        """The changes of a selection, the newest first."""
        found = (
            each
            for each in reversed(self._audits)
            if selection.key in {None, each.key} and (each.time or 0) >= (selection.since or 0)
        )
        return islice(found, selection.limit)

    # --- pauses of types, see `psched.core.operations.pauses.PausesTypes` -----------------

    def pause_rules(self) -> Sequence[PauseRule]:
        """The stored rules."""
        return [*self._rules.values()]

    def change_pause_rules(self, *, drop: Sequence[str], store: Sequence[PauseRule]) -> None:
        """Delete rules, and store others."""
        with self.all():
            for id_ in drop:
                self._rules.pop(id_, None)
            self._rules |= {rule.id: rule for rule in store}
