"""A running psched, in a folder of its own, and what its tasks have noted."""

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml
from sqlalchemy.engine import make_url

import psched
from harness import BENCH, Measured, make_store, memory, tell
from meter import Meter, counting, spent_by_tree
from psched.app import read_config
from support.processes import children, runners, title
from support.service import SUPPORT, Master
from support.stores import Sql
from support.waiting import wait_until

PATIENCE = 600.0
"""Seconds that anything may take at most."""

AHEAD = 3
"""Seconds before tasks are due at which idle workers can see them coming: twice poll_interval."""

PUSHED = 2000
"""Tasks that are pushed in a second, at least."""

BEFORE = 0.05
"""Seconds before tasks are due at which the measurement begins."""


@dataclass(frozen=True, slots=True)
class Start:
    """A task that was started, as it noted itself."""

    key: str
    scheduled_time: int
    at: float


PROGRAM = 'read -r now _ </proc/uptime; echo "$PSCHED_KEY $PSCHED_SCHEDULED_TIME +$now" >>"$STARTS"'
"""What tasks of type exec run: a shell that notes its start, in hundredths of a second since the
machine was started, by itself alone."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Tasks that were all due, and were started.

    Attributes:
        starts: in their order.
        costs: of each task, see `Meter.costs`; all of psched's processes are its own. On MariaDB
            also ``statements_per_task`` and ``requests_per_task``, on PostgreSQL
            ``transactions_per_task``; see `counting`.
        rss: the size of a worker, in MiB.
    """

    starts: Sequence[Start]
    costs: Mapping[str, float]
    rss: float

    @property
    def per_second(self) -> float:
        """Tasks started per second, from the first to the last."""
        return (len(self.starts) - 1) / (self.starts[-1].at - self.starts[0].at)


class Fleet:
    """A master and its workers in a folder of their own; as a context manager it ends with it.

    All settings are as they come, but for those that are given, and that there is one worker, which
    runs one task at a time.

    Args:
        folder: below which it makes its own.
        url: the database's.
        table: made if it is not there.
        settings: for psched.yml; None: as it comes.
    """

    def __init__(
        self, folder: Path, url: str, *, table: str = "psched", **settings: object
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-", dir=folder))
        for path in BENCH / "handlers.py", SUPPORT / "recorder.py", SUPPORT / "lasting_process.py":
            shutil.copy(path, self.folder)
        self.config = self.folder / "psched.yml"
        given: dict[str, object] = {"load_path": ".", "dispatch": "handlers:Dispatch"}
        given |= {"url": url, "table": table}
        given |= {"processors": 1, "concurrency": 1, "log": "log", **settings}
        chosen = {name: value for name, value in given.items() if value is not None}
        self.config.write_text(yaml.safe_dump(chosen))
        self.settings = read_config(self.config)
        self._starts = self.folder / "starts"
        self._starts.touch()
        self.table = table
        self._backend = make_url(url).get_backend_name()
        self.sql: Any = None if self._backend == "redis" else Sql(url, table)
        self.gate = self.folder / "gate"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "RUNTIME_DIRECTORY": str(self.folder / "run"),
            "LANG": "C.UTF-8",
        }
        make_store(url, table=table, timeout=600).init()
        self._master: Master | None = None
        self._names = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._master is not None:
            self._master.close()
        if kind is not None and (self.folder / "log").exists():
            tell((self.folder / "log").read_text()[-5000:])
        shutil.rmtree(self.folder)

    @property
    def master(self) -> Master:
        """The running one."""
        assert self._master is not None
        return self._master

    @property
    def workers(self) -> list[int]:
        """Their pids."""
        return self.master.workers()

    @property
    def runners(self) -> list[int]:
        """The pids of all runners, idle or not."""
        return [runner for worker in self.workers for runner in runners(worker)]

    @property
    def servers(self) -> list[int]:
        """The pids of the workers' fork servers."""
        return self._children("psched fork server")

    @property
    def collectors(self) -> list[int]:
        """The pids of the processes that read what tasks print."""
        return self._children("psched collector")

    @property
    def monitor(self) -> list[int]:
        """The pid of the monitor; empty if there is none."""
        return [pid for pid in children(self.master.pid) if title(pid) == "psched monitor"]

    @property
    def lasting(self) -> list[int]:
        """The pids of workers, fork servers and collectors: of all that outlasts tasks."""
        return [*self.workers, *self.servers, *self.collectors]

    @property
    def processes(self) -> list[int]:
        """The pids of all processes but the master."""
        return [*self.lasting, *self.runners]

    def _children(self, title_: str) -> list[int]:
        below = [pid for worker in self.workers for pid in children(worker)]
        return [pid for pid in below if title(pid) == title_]

    def launch(self) -> float:
        """Start the master, and wait for nothing; when that was. Past starts are forgotten."""
        self._starts.write_text("")
        command = [Measured.python, "-m", "psched.cli.daemon.master", "-c", self.config.name]
        output = self.folder / "output"
        self._master = Master(command, log=output, folder=self.folder, env=self.env)
        return time.time()

    def start(self) -> None:
        """Start the master, and wait until all workers look for due rows."""
        self.launch()
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Wait until there are as many workers as there should be."""
        wait_until(
            lambda: self.master.status is not None or self._ready(), what="the workers to be ready"
        )
        assert self.master.status is None, (self.folder / "output").read_text()

    def _ready(self) -> bool:
        titles = [title(pid) for pid in self.workers]
        return len(titles) == self.settings.processors and all(
            " tasks" in shown for shown in titles
        )

    def stop(self) -> None:
        """Stop the master as an operator does."""
        assert self.master.stop() == 0

    def name(self, what: str) -> str:
        """What keys can begin with that no others do."""
        return f"{what}{next(self._names)}."

    def schedules(self) -> psched.ScheduleCollection:
        """The schedules, as a program opens them."""
        return psched.open(self.config)

    def push(self, keys: Iterable[str], type_: str = "noop", *, at: int | None = None) -> None:
        """Push tasks that run once, at a time or at once."""
        task: dict[str, Any] = {"type": type_, "run_at": at}
        if type_ == "exec":
            task["data"] = {"command": PROGRAM, "shell": True, "env": {"STARTS": str(self._starts)}}
        with self.schedules() as schedules:
            schedules.push_many({"key": key, **task} for key in keys)

    def starts(self) -> list[Start]:
        """What has been started, in that order."""
        lines = (line.split() for line in self._starts.read_text().splitlines())
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        found = [
            Start(key, int(scheduled), float(at.removeprefix("+")) + booted * (at[0] == "+"))
            for key, scheduled, at in lines
        ]
        return sorted(found, key=lambda start: start.at)

    def drain(self, count: int, *, type_: str = "noop", stop: bool = True) -> "Drain":
        """Push tasks that are all due in the same second, soon, and see each run once.

        So no worker begins before another one. The workers live only while this is measured: they
        would disturb other measurements.

        Args:
            count: so many.
            type_: their type.
            stop: stop the workers afterwards.
        """
        prefix = self.name("n")
        keys = [f"{prefix}{number}" for number in range(count)]
        self.start()
        due = int(time.time()) + AHEAD + count // PUSHED
        self.push(keys, type_, at=due)
        if (left := due - BEFORE - time.time()) < 0:
            tell(f"the push took {-left:.1f} s too long: its tasks cost more than is shown")
        time.sleep(max(0.0, left))
        session = self.sql.session() if self.sql else contextlib.nullcontext()
        with session as ask, counting(self._backend, ask) as counts:
            with Meter(partial(spent_by_tree, self.master.pid), Measured.server) as meter:
                starts = self.wait_for_ends(prefix, keys, ask=ask)
            rss = memory(self.workers[0])["rss"]
        costs = meter.costs(count, starts[0].at, starts[-1].at)
        costs |= {f"{what}_per_task": number / count for what, number in counts.items()}
        if stop:
            self.stop()
            # Nor was one run again meanwhile.
            once((start.key for start in self.starts()), keys)
        return Drain(starts=starts, costs=costs, rss=rss)

    def wait_for_starts(self, count: int) -> list[Start]:
        """Wait until so many tasks were started."""
        wait_until(
            lambda: self._starts.read_bytes().count(b"\n") >= count,
            timeout=PATIENCE,
            what=f"{count} tasks",
        )
        return self.starts()

    def wait_for_ends(
        self,
        prefix: str,
        keys: Sequence[str],
        before: Sequence[Start] = (),
        *,
        ask: Callable[..., Any] | None = None,
    ) -> list[Start]:
        """Wait until tasks have finished, and see that each was run once, and no other.

        Args:
            prefix: what all their keys begin with, and no others.
            keys: the tasks'.
            before: what had been started before.
            ask: runs statements; default: each on a new connection.
        """
        ask = ask or self.sql
        self.wait_for_starts(len(before) + len(keys))
        statement = "SELECT count(*) FROM {table} WHERE id LIKE :keys AND status = 'finished'"

        def ended() -> int:
            if ask is not None:
                return next(iter(ask(statement, keys=f"{prefix}%")))[0]
            with self.schedules() as schedules:
                return sum(1 for _ in schedules.list(prefix=prefix, status="finished"))

        wait_until(lambda: ended() >= len(keys), timeout=PATIENCE, what="their ends")
        starts = self.starts()
        once((start.key for start in starts), [*keys, *(start.key for start in before)])
        return starts


def once(ran: Iterable[str], wanted: Iterable[str]) -> None:
    """See that each was run once, and no other.

    Raises:
        AssertionError: one was missed, or run twice, or nobody has asked for it.
    """
    counts, expected = Counter(ran), Counter(wanted)
    if counts != expected:
        missed, others = expected - counts, counts - expected
        raise AssertionError(f"missed: {[*missed][:10]}, too often or strange: {[*others][:10]}")
