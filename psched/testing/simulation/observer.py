"""Watches each change of a row in the store, and knows what must never be."""

from collections.abc import Callable, Mapping
from math import floor
from typing import Any

from psched.core.history.records import AuditRecord, nonce_of
from psched.core.model import WAITING, Row
from psched.core.operations.extra_runs import needed_schedule
from psched.core.operations.pauses import active_rules
from psched.reports.findings import Kind, Violation
from psched.testing.simulation.world import Process
from psched.testing.witnesses import PEOPLE, Witness

_ENDS_LEASES = frozenset({"settle", "extend", "update_data"})
"""The requests of the holder of a lease."""

_GRANTS = frozenset({"claim", "extend", "hold"})
"""The requests that write the end of a lease or a hold."""

_PRECISION = 0.001
"""By how many seconds the time that a store tells can differ from the one that it uses."""


def _part_for(name: str, arguments: tuple[Any, ...], key: str) -> str:
    """The request that has changed a row, if one request may do what two others do."""
    if name != "settle_and_claim":
        return name
    return "settle" if any(end.key == key for end in arguments[0]) else "claim"


class Observer:
    """Compares the rows before and after each request."""

    def __init__(
        self,
        store: Any,  # noqa: ANN401  # a store that pauses types
        rows: Callable[[], Mapping[str, Row]],
        witnesses: Mapping[tuple[str, str], Witness],
        alive_time: int,  # the length of a lease in seconds, unless its row has its own
    ) -> None:
        self.violations: list[Violation] = []  # what must never be, and was
        self.changes = 0  # how many changes of rows were checked
        self.highest = 0.0  # the latest time of the store's clock so far, in Unix seconds
        # Each change by which people began a new series of occurrences, with the world's time. The
        # audit trail lacks those whose answer, or whose record, was lost.
        self.series: list[AuditRecord] = []
        # The process and the key of each that is not in the audit trail.
        self.untold: set[tuple[Process, str]] = set()
        self._store = store
        self._rows = rows
        self._witnesses = witnesses
        self._alive_time = alive_time
        self._known: Mapping[str, Row] | None = None

    def forget(self) -> None:
        """Note that the rows are not what this object has seen last."""
        self._known = None

    def request(
        self, process: Process, name: str, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:  # noqa: ANN401  # what the store returns
        """Have a request applied, and check what it has changed."""
        before = self._rows() if self._known is None else self._known
        now = self._store.now()
        self.highest = max(self.highest, now)
        answer = call()
        after = self._known = self._rows()
        for key in before.keys() | after.keys():
            was, is_ = before.get(key), after.get(key)
            if was is not is_ and was != is_:
                self.changes += 1
                self._check(_part_for(name, arguments, key), arguments, was, is_, now)
                if process.host.name == PEOPLE and _begins_series(name, was, is_):
                    self._note_series(process, key, name)
                if name == "extend" and is_ is not None and (alive := self._alive(is_)) is not None:
                    alive.lease_end = (is_.next_run_time or 0) + process.host.world.now - now
        if name == "audit":
            self.untold -= {(process, each.key) for each in arguments[0]}
        return answer

    def _note_series(self, process: Process, key: str, name: str) -> None:
        time = floor(process.host.world.now * 1000)
        self.series.append(
            AuditRecord(key=key, action=name, user="", host=PEOPLE, program="", time=time)
        )
        self.untold.add((process, key))

    def _check(
        self, name: str, arguments: tuple[Any, ...], was: Row | None, is_: Row | None, now: float
    ) -> None:
        if is_ is not None and was is not None and is_.fence < was.fence:
            self._found(Kind.FENCE, was, f"{name} lowers the fence to {is_.fence}")
        if was is None:
            return
        if name in {"release", "recover", "delete", "purge"} and was.held_by is not None:
            self._check_end_of_hold(name, was, is_)
        if name in _GRANTS and is_ is not None:
            self._check_grant(name, was, is_, now)
        if name in _ENDS_LEASES:
            self._check_holder(name, arguments, was)
        elif name == "recover" and (alive := self._alive(was)) is not None:
            text = f"its lease was released while {alive.owner}#{alive.fence} ran"
            self._found(Kind.OVERLAP, was, text)
        if name == "settle" and (alive := self._alive(was)) is not None:
            self._found(Kind.OVERLAP, was, "its lease was ended while its task ran")

    def _check_grant(self, name: str, was: Row, is_: Row, now: float) -> None:
        end = is_.held_until if name == "hold" else is_.next_run_time
        if (end or 0) <= floor(now - _PRECISION) + (was.alive_time or self._alive_time):
            self._found(Kind.OVERLAP, was, f"{name} grants a lease that is too short")
        if name == "claim":
            self._check_claim(was, is_, floor(now + _PRECISION))
        elif name == "hold" and was.held_by != is_.held_by:
            self._check_hold(was, floor(now + _PRECISION))

    def _check_claim(self, was: Row, is_: Row, now: int) -> None:
        if is_.fence <= was.fence or is_.owner == was.owner:
            self._found(Kind.FENCE, was, "claim gives the lease no new token")
        if was.next_run_time is None or was.next_run_time > now:
            self._found(Kind.EARLY, was, f"was claimed at {now}")
        if was.is_held(now):
            self._found(Kind.OVERLAP, was, "was claimed while it was held for an extra run")
        if active_rules(self._store.pauses.pause_rules(), was.type, now):
            self._found(Kind.PAUSED, was, "was claimed while its type was paused")

    def _check_hold(self, was: Row, now: int) -> None:
        if was.owner is not None:
            self._found(Kind.OVERLAP, was, "was held for an extra run while it was leased")
        if was.is_held(now):
            self._found(Kind.OVERLAP, was, "was held for two extra runs")

    def _check_end_of_hold(self, name: str, was: Row, is_: Row | None) -> None:
        """Check that a hold ends only when its extra run has ended."""
        if is_ is not None and is_.held_by == was.held_by:
            return
        for (key, owner), task in self._witnesses.items():
            row = (self._known or {}).get(key)
            if (
                task.ended is not None
                or row is None
                or (needed_schedule(row) or ("",))[0] != was.key
            ):
                continue
            if nonce_of(owner) == nonce_of(was.held_by or ""):
                self._found(Kind.OVERLAP, was, f"{name} ended its hold while {key} ran")

    def _check_holder(self, name: str, arguments: tuple[Any, ...], was: Row) -> None:
        if name == "update_data":
            tokens = [arguments[1]]
        elif name == "extend":
            tokens = [arguments[0].get(was.key)]
        else:
            tokens = [each.token for each in arguments[0] if each.key == was.key]
        if was.owner is None or was.token not in tokens:
            self._found(Kind.STALE, was, f"{name} of a lease that was over has changed the row")

    def _alive(self, row: Row) -> Witness | None:
        """The task of the row's lease, if a process of it lives."""
        found = self._witnesses.get((row.key, row.owner or ""))
        return found if found is not None and found.ended is None else None

    def _found(self, kind: Kind, row: Row, text: str) -> None:
        self.violations.append(
            Violation(
                kind=kind,
                key=row.key,
                instant=row.next_time or 0,
                text=text,
                lease=str(row.token) if row.status == WAITING else None,
            )
        )


def _begins_series(name: str, was: Row | None, is_: Row | None) -> bool:
    """Whether a request lets occurrences run again, leaves some out unrecorded or renews fences."""
    if was is None or is_ is None:
        return True
    return name == "replace" and (was.cron, was.next_time) != (is_.cron, is_.next_time)
