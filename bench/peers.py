"""Empty tasks per second and their cost: psched, other task queues and the machine's own, by turns.

The peers are installed from ``peers.txt`` into a virtual environment of their own.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import harness
from fleet import AHEAD, BEFORE, PATIENCE, once
from harness import BENCH, FLAGS, Sample
from meter import Meter, Spent, cpu_of_tree, spent_by_tree, wait_for_idleness
from support.owned_process import OwnedProcess
from support.processes import descendants, kill
from support.servers import MariaDB, PostgreSQL, Redis
from support.waiting import wait_until
from tasks import fleets

WORKERS = 4
"""Processes that run tasks, of each peer."""

WARM = 4 * WORKERS
"""Tasks that a peer runs before it is measured, so that all its processes have started."""

ADDED = 100
"""Tasks that APScheduler adds in a second, at least."""

LAYOUTS = ("shipped", "4x1")
"""The layouts in which psched is measured; with ``--short``, only the first one is."""

SETTINGS = {
    "acknowledged": "late: the row is leased, fenced and settled",
    "durable": "yes: every lease and every end is a commit",
}
"""What psched does with a task, in the words of `Peer.settings`."""


@dataclass(frozen=True)
class Peer:
    """Another task queue.

    Attributes:
        server: the kind of its server.
        command: how its workers are started, in the peers' environment.
        settings: what matters for a comparison: when a task is ``acknowledged``, so that it can
            be lost or run again; whether its queue is ``durable``; what a ``process`` runs.
        commands: how often it is started.
        share: the number of its tasks, as a multiple of ``--tasks``: the faster, the more.
        scheduled: tasks are added by the workers' process itself, and fall due later. Otherwise
            the workers are stopped while tasks are enqueued.
    """

    server: str
    command: tuple[str, ...]
    settings: Mapping[str, str]
    commands: int = 1
    share: float = 1
    scheduled: bool = field(default=False, kw_only=True)


def _celery(acknowledged: str) -> Peer:
    return Peer(
        "redis",
        ("celery", "-A", "peer_apps", "worker", "-c", str(WORKERS), "-P", "prefork", "-l", "ERROR"),
        {
            "acknowledged": acknowledged,
            "durable": "no: fsync each second; no result backend",
            "process": "reused (prefork)",
        },
        share=2,
    )


PEERS = {
    "rq": Peer(
        "redis",
        ("rq", "worker", "--quiet"),
        {
            "acknowledged": "at the start; the job of a killed worker fails, unless it has a Retry",
            "durable": "no: fsync each second",
            "process": "a fork for each task",
        },
        WORKERS,
        0.5,
    ),
    "celery": _celery("early (acks_late is off): a task of a killed worker is lost"),
    "celery_late": _celery("late (acks_late is on)"),
    "dramatiq": Peer(
        "redis",
        ("dramatiq", "peer_apps", "--processes", str(WORKERS), "--threads", "1"),
        {
            "acknowledged": "late; a task of a killed worker is found by its missing heartbeat",
            "durable": "no: fsync each second",
            "process": "reused: a thread of the worker",
        },
        share=2,
    ),
    "huey": Peer(
        "redis",
        ("huey_consumer", "peer_apps.app", "-w", str(WORKERS), "-k", "process", "--quiet"),
        {
            "acknowledged": "never: a task leaves the queue before it is run",
            "durable": "no: fsync each second",
            "process": "reused",
        },
        share=4,
    ),
    "pgqueuer": Peer(
        "postgresql",
        ("python", "-c", "import peer_apps; peer_apps.serve_pgqueuer()"),
        {
            "acknowledged": "late; a task of a killed worker is found by its missing heartbeat",
            "durable": "yes: a commit for the start, one for the end, of several tasks together",
            "process": "reused: the event loop of the worker, in which nothing can be killed",
        },
        WORKERS,
        share=4,
    ),
    "procrastinate": Peer(
        "postgresql",
        ("procrastinate", "--app", "peer_apps.app", "worker", "--concurrency", "1"),
        {
            "acknowledged": "late; to retry the jobs of a killed worker is left to the user",
            "durable": "yes: a commit for the start, one for the end",
            "process": "reused: a thread of the worker",
        },
        WORKERS,
    ),
    "apscheduler": Peer(
        "mariadb",
        ("python", "-c", "import peer_apps; peer_apps.serve_apscheduler()"),
        {
            "acknowledged": "early: a job is deleted when it is handed to the pool",
            "durable": "yes: a commit that deletes the job",
            "process": "reused (ProcessPoolExecutor); misfire_grace_time=None; one scheduler",
        },
        scheduled=True,
    ),
}


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__)
    parser.set_defaults(databases=["mariadb"])
    parser.add_argument("--tasks", type=int, help="default: 1000; with --short, 40")
    parser.add_argument(
        "--peers", nargs="*", choices=[*PEERS], help="default: all; with --short, none"
    )
    parser.add_argument("--venv", type=Path, help="made if it is not there; default: for this run")
    parser.add_argument(
        "--floor-processes", type=int, default=4, help="of a yardstick; default: %(default)s"
    )
    given = harness.parsed(parser)
    given.tasks = harness.choose(given, 1000, 40, given.tasks)
    given.peers = harness.choose(given, [*PEERS], [], given.peers)
    harness.report("peers", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures, with psched on one database."""
    contestants = harness.task_floors(url, given.tasks, folder, given.floor_processes)
    settings: dict[str, dict[str, str]] = {}
    with ExitStack() as stack:
        layouts = LAYOUTS[: 1 if given.short else None]
        for layout, fleet, drain in fleets(stack, layouts, given.tasks, url, folder):
            name, chosen = f"psched_{layout}", fleet.settings
            contestants[name] = drain
            most = chosen.max_tasks_per_child
            slots = f"{chosen.processors} workers, {chosen.concurrency} slots each"
            process = "a fork for each task" if most == 1 else f"reused {most} times"
            settings[name] = SETTINGS | {"process": f"{process}; {slots}"}
        peers = {name: PEERS[name] for name in given.peers}
        python = installed(given.venv or folder / "venv") if peers else None
        servers = stack.enter_context(started(folder, {peer.server for peer in peers.values()}))
        for name, peer in peers.items():
            count = max(1, int(peer.share * given.tasks))
            contestants[name] = partial(run, name, servers[peer.server], python, folder, count)
            settings[name] = dict(peer.settings) | {"command": " ".join(peer.command)}
        samples = harness.rounds(given.rounds, contestants)
        stated = {
            "durability": harness.durability(kind, url),
            "servers": {name: setting(name, server) for name, server in servers.items()},
            "packages": packages(python) if python else {},
        }
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    for name in samples:
        found[name] |= harness.of_floors(samples, name)
    for name, chosen_ in settings.items():
        found[name]["settings"] = chosen_
    for name in peers:
        found[name]["version"] = stated["packages"][name.partition("_")[0]]
    return found | stated


# --- the peers -----------------------------------------------------------------------


def installed(folder: Path) -> Path:
    """The Python of an environment that has the peers."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    # Its output is not ours, which is JSON.
    subprocess.run([*pip, "--requirement", BENCH / "peers.txt"], check=True, stdout=sys.stderr)
    return python


def packages(python: Path) -> dict[str, str]:
    """The versions of what is installed, by its name in small letters."""
    frozen = [python, "-m", "pip", "freeze", "--disable-pip-version-check"]
    lines = subprocess.run(frozen, capture_output=True, text=True, check=True).stdout.split()
    return dict(line.lower().split("==", 1) for line in lines if "==" in line)


@contextmanager
def started(folder: Path, kinds: set[str]) -> Iterator[dict[str, Any]]:
    """The servers of these kinds: each commit is synced, but Redis's file once a second."""
    make: dict[str, Callable[[], Any]] = {
        "mariadb": lambda: MariaDB(folder, *FLAGS[MariaDB]),
        "postgresql": lambda: PostgreSQL(folder, *FLAGS[PostgreSQL]),
        "redis": lambda: Redis(folder, "--appendfsync", "everysec"),
    }
    with ExitStack() as stack:
        yield {kind: stack.enter_context(make[kind]()) for kind in sorted(kinds)}


def setting(kind: str, server: Any) -> dict[str, str]:  # noqa: ANN401
    """How durable a server is."""
    if kind != "redis":
        return harness.durability(kind, server.url(server.create_database()))
    return {name: _text(server, name) for name in ("appendonly", "appendfsync")}


def _text(server: Any, name: str) -> str:  # noqa: ANN401
    """A setting of a Redis server."""
    found = server.query("CONFIG", "GET", name)
    [value] = found.values() if isinstance(found, dict) else found[1:]
    return value.decode() if isinstance(value, bytes) else str(value)


class Crew:
    """A peer's workers, with a queue and a folder of their own; a context manager.

    Args:
        name: the peer's.
        server: the peer's.
        python: the Python of the peers' environment.
        folder: below which it makes its own.
    """

    def __init__(self, name: str, server: Any, python: Path, folder: Path) -> None:  # noqa: ANN401
        self.peer = PEERS[name]
        self._name = name
        self._home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
        self._notes = self._home / "notes"
        self._notes.touch()
        self._python = python
        self._processes: list[OwnedProcess] = []
        shutil.copy(BENCH / "peer_apps.py", self._home)
        url = server.url(server.create_database()).replace("postgresql+psycopg:", "postgresql:")
        self._env = {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self._home),
            "HOME": str(self._home),
            "LANG": "C.UTF-8",
            "PEER": name,
            "URL": url,
            "RQ_REDIS_URL": url,
            "NOTES": str(self._notes),
            "WARM": str(WARM),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._home)

    def start(self) -> None:
        """Start the workers, and wait until they have run `WARM` tasks and are idle."""
        self._call("prepare()")
        command = [str(self._python.with_name(self.peer.command[0])), *self.peer.command[1:]]
        for _ in range(self.peer.commands):
            self._processes.append(
                OwnedProcess(command, output=self._home / "output", cwd=self._home, env=self._env)
            )
        self.enqueue(0, WARM)
        self.wait_for(WARM)

    def stop(self) -> None:
        """Kill all that is left of the workers."""
        for process in self._processes:
            process.close()
        self._processes = []

    def enqueue(self, first: int, count: int, at: float = 0) -> None:
        """Enqueue tasks; only a peer whose tasks are ``scheduled`` minds the time."""
        self._call(f"enqueue({first}, {count}, {at})")

    def starts(self) -> list[tuple[float, int]]:
        """When tasks were started, and their numbers."""
        lines = (line.split() for line in self._notes.read_text().splitlines())
        return [(float(at), int(number)) for at, number in lines]

    def wait_for(self, count: int) -> None:
        """Wait until so many tasks were started, and the workers are idle."""

        def done() -> bool:
            ended = [each for each in self._processes if each.status is not None]
            assert not ended, (self._home / "output").read_text()
            return self._notes.read_bytes().count(b"\n") >= count

        wait_until(done, timeout=PATIENCE, what=f"{count} tasks of {self._name}")
        wait_for_idleness(lambda: self.spent().cpu)

    def spent(self) -> Spent:
        """What all of its processes have used so far."""
        return spent_by_tree(*(process.pid for process in self._processes))

    def suspend(self) -> list[int]:
        """Stop all processes where they are; their pids."""
        pids = [each for one in self._processes for each in (one.pid, *descendants(one.pid))]
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        return pids

    def _call(self, what: str) -> None:
        command = [self._python, "-c", f"import peer_apps; peer_apps.{what}"]
        subprocess.run(command, cwd=self._home, env=self._env, check=True)


def run(name: str, server: Any, python: Path, folder: Path, count: int) -> Sample:  # noqa: ANN401
    """Have a peer run so many tasks; its rate and cost.

    Raises:
        AssertionError: a task was not run exactly once.
    """
    with Crew(name, server, python, folder) as crew:
        crew.start()
        suspended: list[int] = []
        if crew.peer.scheduled:
            at = time.time() + AHEAD + count / ADDED
            crew.enqueue(WARM, count, at)
            assert time.time() < at, f"{name} has added its tasks too slowly"
            time.sleep(max(0.0, at - BEFORE - time.time()))
        else:
            suspended = crew.suspend()
            crew.enqueue(WARM, count)
        with Meter(crew.spent, partial(cpu_of_tree, server.pid)) as meter:
            for pid in reversed(suspended):  # parents last
                kill(pid, signal.SIGCONT)
            crew.wait_for(WARM + count)
        crew.stop()
        starts = crew.starts()
    once((str(number) for _, number in starts), map(str, range(WARM + count)))
    times = sorted(at for at, number in starts if number >= WARM)
    return {
        "per_second": (count - 1) / (times[-1] - times[0]),
        **meter.costs(count, times[0], times[-1]),
        "tasks": count,
    }


if __name__ == "__main__":
    main()
