"""What work costs beside its time: processor time, cores that were idle, requests to the server."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from support.processes import descendants

TICK = os.sysconf("SC_CLK_TCK")

PAUSE = 0.02
"""Seconds between two looks at the cores."""

QUIET = 0.4
"""Processes that take no more than a tenth of this many seconds in such a span are idle."""

LATE_STATISTICS = 2.5
"""Seconds after which an idle worker's transactions are counted by PostgreSQL.

A connection reports its transactions at most once a second, at the end of one of them, and an idle
worker queries the database once a second.
"""

_STATEMENTS = ("select", "insert", "insert_select", "update", "update_multi", "delete", "replace")
"""Kinds of statements that read or write; what begins or ends a transaction does neither."""


def _of_others(*variables: str) -> str:
    """A query for the sum of some of MariaDB's counters, without what this connection counts."""
    names = ", ".join(f"'{name}'" for name in variables)
    ours, all_ = (
        f"(SELECT SUM(variable_value) FROM information_schema.{scope}_status"  # noqa: S608
        f" WHERE variable_name IN ({names}))"
        for scope in ("session", "global")
    )
    return f"SELECT {all_} - {ours}"


_TRANSACTIONS = """
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()
"""

_COUNTED = {
    "mysql": {
        "statements": _of_others(*(f"COM_{kind.upper()}" for kind in _STATEMENTS)),
        "requests": _of_others("QUESTIONS"),
    },
    "postgresql": {"transactions": _TRANSACTIONS},
}
"""What each server counts by itself, and how it is asked."""


class Spent(NamedTuple):
    """What processes have used so far.

    Attributes:
        cpu: seconds of processor time, to some 10 ms.
        faults: page faults: pages that they have touched for the first time, or copied.
    """

    cpu: float
    faults: int


class Meter:
    """Measures while it is entered.

    Args:
        own: what the measured processes have used so far.
        server: the seconds of processor time of the database server; None: unknown.

    Attributes:
        own: what the processes have used meanwhile.
        server: the same of the server; None: unknown.
    """

    def __init__(
        self,
        own: Callable[[], Spent] = lambda: Spent(0.0, 0),
        server: Callable[[], float] | None = None,
    ) -> None:
        self._ask_own, self._ask_server = own, server
        self.own = Spent(0.0, 0)
        self.server: float | None = None
        self._looks: list[tuple[float, int, int]] = []
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._before = self._read()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        own, server = self._read()
        before = self._before[0]
        self.own = Spent(own.cpu - before.cpu, own.faults - before.faults)
        if server is not None and self._before[1] is not None:
            self.server = server - self._before[1]

    def costs(self, tasks: int, begin: float, end: float) -> dict[str, float]:
        """The cost of each task, and the share of the cores that was idle.

        Args:
            tasks: the number of tasks.
            begin: when the first began.
            end: when the last began.
        """
        found = {
            "own_cpu_ms": 1000 * self.own.cpu / tasks,
            "page_faults": self.own.faults / tasks,
            "idle_share": self._idle(begin, end),
        }
        if self.server is not None:
            found["cpu_ms"] = 1000 * (self.own.cpu + self.server) / tasks
        return found

    def _read(self) -> tuple[Spent, float | None]:
        return self._ask_own(), None if self._ask_server is None else self._ask_server()

    def _watch(self) -> None:
        self._looks.append((time.time(), *_cores()))
        while not self._over.wait(PAUSE):
            self._looks.append((time.time(), *_cores()))

    def _idle(self, begin: float, end: float) -> float:
        """The share of the cores that nobody used between the looks that are nearest to these."""
        first, last = (min(self._looks, key=lambda look: abs(look[0] - at)) for at in (begin, end))
        _, idle, all_ = (late - early for early, late in zip(first, last, strict=True))
        return idle / all_ if all_ else 0.0


def _cores() -> tuple[int, int]:
    """Ticks of our cores so far: idle, also while they waited for a disk, and in all."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    idle = all_ = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name in ours:
            ticks = [*map(int, rest.split()[:8])]
            idle += ticks[3] + ticks[4]
            all_ += sum(ticks)
    return idle, all_


def _spent_by(pid: int) -> Spent:
    """What a process and its children that have ended have used."""
    fields = [*map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:15])]
    return Spent(sum(fields[10:14]) / TICK, sum(fields[6:10]))


def spent_by_tree(*pids: int) -> Spent:
    """What processes and all their descendants have used."""
    found = [Spent(0.0, 0)]
    for pid in pids:
        for each in (pid, *descendants(pid)):
            # What has ended meanwhile is counted with its parent.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.append(_spent_by(each))
    return Spent(sum(each.cpu for each in found), sum(each.faults for each in found))


def cpu_of_tree(*pids: int) -> float:
    """The seconds that processes and all their descendants have worked, to some 10 ms."""
    return spent_by_tree(*pids).cpu


def wait_for_idleness(own: Callable[[], float], longest: float = 30.0) -> None:
    """Wait until processes have almost nothing more to do.

    Args:
        own: the seconds of processor time that they have taken so far.
        longest: seconds after which it fails.

    Raises:
        AssertionError: they go on working.
    """
    end = time.monotonic() + longest
    before = own()
    while time.monotonic() < end:
        time.sleep(QUIET)
        now = own()
        if now - before <= QUIET / 10:
            return
        before = now
    raise AssertionError(f"still at work after {longest} s")


@contextlib.contextmanager
def counting(backend: str, ask: Any) -> Iterator[dict[str, int]]:  # noqa: ANN401
    """Count what others send to a server within the block; afterwards the result has the count.

    On MariaDB these are statements that read or write, and requests: all statements, also BEGIN and
    COMMIT. PostgreSQL counts nothing by itself but transactions.

    Args:
        backend: the name of the server's dialect.
        ask: runs a statement on one connection; on MariaDB, that connection's are not counted.
    """
    found: dict[str, int] = {}
    asked = _COUNTED.get(backend, {})
    before = {name: _number(ask, statement) for name, statement in asked.items()}
    yield found
    if backend == "postgresql":
        time.sleep(LATE_STATISTICS)
    found |= {name: _number(ask, statement) - before[name] for name, statement in asked.items()}


def _number(ask: Any, statement: str) -> int:  # noqa: ANN401
    [[number]] = ask(statement)
    return int(number)
