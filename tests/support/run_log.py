"""What really ran, and when: the notes of the recorder, and assertions about them.

Every test that kills something judges by it. Times are those of the boot-time clock, which is the
same for all processes of a machine. A run's last sign of life is the last line that any of its
processes has written, a daemon that it has left behind included.
"""

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import PATIENCE, wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt at one occurrence.

    Attributes:
        key: the schedule's.
        scheduled_time: the occurrence's.
        attempt: as the handler saw it.
        fence: as the handler saw it: no two runs of a schedule have the same.
        pid: the runner's.
        worker: its worker's.
        started: when the run began.
        last_sign: when a process of the run was last known to live.
        end: how the handler was left, "returned" or what was raised; None: it was killed, or
            is still running.
        notes: all notes about the run.
    """

    key: str
    scheduled_time: int
    attempt: int
    fence: int
    pid: int
    worker: int
    started: float
    last_sign: float
    end: str | None
    notes: Sequence[dict[str, Any]]

    @property
    def occurrence(self) -> tuple[str, int]:
        """The occurrence of which this is a run."""
        return self.key, self.scheduled_time

    @property
    def completed(self) -> bool:
        """Whether the handler returned."""
        return self.end == "returned"


class RunLog:
    """The notes of all runs of one service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._notes: dict[tuple[str, str | None, int], list[dict[str, Any]]] = {}
        self._read = 0  # bytes
        path.touch()

    def runs(self, *keys: str) -> list[Run]:
        """All runs, or those of some schedules, in the order in which they started."""
        self._read_on()
        # A handler may note something before its run is said to start.
        begun = [
            notes
            for (key, *_), notes in self._notes.items()
            if (not keys or key in keys) and any(note["event"] == "start" for note in notes)
        ]
        return sorted(map(_run, begun), key=lambda run: run.started)

    def clear(self) -> None:
        """Forget all runs so far."""
        os.truncate(self.path, 0)
        self._read = 0
        self._notes.clear()

    def _read_on(self) -> None:
        """Read what was written since the last time: tests ask often, and the log grows."""
        with self.path.open("rb") as log:
            log.seek(self._read)
            # What has no line feed yet is being written.
            whole = log.read().rpartition(b"\n")[0].splitlines(keepends=True)
        for line in whole:
            note = json.loads(line)
            lease = note["key"], note.get("owner"), note["fence"]
            self._notes.setdefault(lease, []).append(note)
        self._read += sum(map(len, whole)) + bool(whole)

    def wait(
        self,
        key: str,
        condition: Callable[[list[Run]], object] = bool,
        *,
        timeout: float = PATIENCE,
        what: str = "a run",
    ) -> list[Run]:
        """Wait until there are runs of a schedule that fulfil a condition; by default, any."""

        def fulfilled() -> list[Run]:
            runs = self.runs(key)
            return runs if runs and condition(runs) else []

        try:
            return wait_until(fulfilled, timeout=timeout, what=f"{what} of {key!r}")
        except AssertionError as error:
            error.add_note("\n".join(["the run log:", *map(str, self.runs(key))]))
            raise


def completed(number: int) -> Callable[[list[Run]], bool]:
    """The condition that so many runs have completed."""
    return lambda runs: sum(run.completed for run in runs) >= number


def never_two_at_once(runs: Iterable[Run]) -> None:
    """Check that no process of a run lived any more when the schedule's next run started.

    Raises:
        AssertionError: two runs of one schedule overlap.
    """
    for earlier, later in _neighbours(runs):
        assert earlier.last_sign < later.started, f"two at once:\n{_told(earlier)}\n{_told(later)}"


def in_order(runs: Iterable[Run]) -> None:
    """Check that no schedule went back to an earlier occurrence.

    Raises:
        AssertionError: one did.
    """
    for earlier, later in _neighbours(runs):
        assert earlier.scheduled_time <= later.scheduled_time, (
            f"out of order:\n{_told(earlier)}\n{_told(later)}"
        )


def never_early(runs: Iterable[Run]) -> None:
    """Check that no run began before its scheduled time, by this machine's true clock.

    Raises:
        AssertionError: one did.
    """
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for run in runs:
        early = run.scheduled_time - booted - run.started
        assert early <= 0, f"{early:.3f} s early:\n{_told(run)}"


def exactly_once(runs: Iterable[Run], occurrences: Iterable[tuple[str, int]]) -> None:
    """Check that exactly these occurrences were run, each once and to its end.

    Raises:
        AssertionError: one was missed, cut short or run again, or there were others.
    """
    runs = [*runs]
    assert [run for run in runs if not run.completed] == []
    found, due = Counter(run.occurrence for run in runs), Counter(occurrences)
    assert found == due, f"missing: {due - found}; too many: {found - due}"


def _run(notes: Sequence[dict[str, Any]]) -> Run:
    start = next(note for note in notes if note["event"] == "start")
    ends = [note["how"] for note in notes if note["event"] == "end"]
    return Run(
        key=start["key"],
        scheduled_time=start["scheduled_time"],
        attempt=start["attempt"],
        fence=start["fence"],
        pid=start["pid"],
        worker=start["worker"],
        started=start["at"],
        last_sign=max(note["at"] for note in notes),
        end=ends[0] if ends else None,
        notes=[*notes],
    )


def _neighbours(runs: Iterable[Run]) -> Iterable[tuple[Run, Run]]:
    """Pairs of successive runs of the same schedule."""
    by_key = sorted(runs, key=lambda run: (run.key, run.started))
    return ((one, other) for one, other in itertools.pairwise(by_key) if one.key == other.key)


def _told(run: Run) -> str:
    return (
        f"{run.key}.{run.scheduled_time} attempt {run.attempt} fence {run.fence} pid {run.pid}"
        f" from {run.started:.3f} to {run.last_sign:.3f}, {run.end}"
    )
