"""What the records of the workers tell about their hosts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psched.core.history.records import GONE_AFTER, WorkerRecord

SHOWN_FOR = 7 * 86_400
"""A host that is gone is shown for so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the records of its workers tell about a host; of several, the newest one.

    Attributes:
        seen: when a worker last wrote its record, in Unix seconds.
        workers: how many are alive.
        slots: how many tasks these can run at the same time.
        busy: how many they ran when they wrote their records.
        labels: its labels, see the setting ``host_labels``.
        clock: by how many seconds its clock is ahead of the store's; None if it is not known.
    """

    name: str
    seen: int
    workers: int
    slots: int
    busy: int
    labels: Sequence[str]
    version: str | None
    python: str | None
    zone_data: str | None
    clock: float | None


def hosts_seen(workers: Sequence[WorkerRecord], now: int) -> Iterator[Host]:
    """The hosts of some workers, by their names."""
    by_host: dict[str, list[WorkerRecord]] = {}
    for worker in sorted(workers, key=lambda each: each.seen):
        by_host.setdefault(worker.host, []).append(worker)
    for name, found in sorted(by_host.items()):
        newest = found[-1]
        alive = [each for each in found if each.ended is None and each.seen >= now - GONE_AFTER]
        offset = newest.clock_offset
        yield Host(
            name=name,
            seen=newest.seen,
            workers=len(alive),
            slots=sum(each.slots for each in alive),
            busy=sum(each.busy for each in alive),
            labels=newest.host_names[1:],
            version=newest.version,
            python=newest.python,
            zone_data=newest.zone_data,
            clock=None if offset is None else offset / 1000,
        )
