"""One installation of psched, as a user has it: a folder, a psched.yml, handlers, masters.

Commands and masters are started as from a shell, with `sys.executable -m`; what a master's
processes do is seen from outside: exit statuses, the log, /proc and the run log.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import psched
from psched.app import make_store, read_config
from psched.cli.commands import psched as psched_command
from support.commands import can_be_forked, run_forked
from support.owned_process import OwnedProcess
from support.processes import children, kill, title
from support.run_log import RunLog
from support.waiting import HANG_TIMEOUT, PATIENCE, wait_until

SUPPORT = Path(__file__).parent

SETTINGS: Mapping[str, Any] = {
    "processors": 1,
    "concurrency": 1,
    "poll_interval": 0.2,
    "retry_wait": 1,
    "cgroup": "off",
    "load_path": ".",
    "dispatch": "recorder:Dispatch",
}
"""The settings of a new service, besides its url: short times, so that no test waits long, and one
task at a time, because many tests run beside each other."""


open_services: "list[Service]" = []
"""The services that were made and not closed yet, the oldest first."""


class Master(OwnedProcess):
    """A running master, and all that came of it.

    Args:
        command: its command line.
        log: the path of its log.
        folder: the folder it was started in.
        env: its environment.
        options: how it is started, see `OwnedProcess`.
    """

    def __init__(
        self,
        command: list[str],
        *,
        log: Path,
        folder: Path,
        env: Mapping[str, str],
        **options: bool,
    ) -> None:
        super().__init__(command, output=log, cwd=folder, env=env, **options)
        self.log = log

    @property
    def text(self) -> str:
        """All that the master has logged and printed."""
        return self.log.read_text()

    def wait_for_log(self, pattern: str, *, count: int = 1, timeout: float = PATIENCE) -> str:
        """Wait until a pattern was logged so many times; return the whole log."""

        def found() -> bool:
            # The status is read before the log, which is complete if the master has ended by then.
            over = self.status is not None
            if len(re.findall(pattern, self.text)) >= count:
                return True
            assert not over, f"the master has ended with {self.status}"
            return False

        try:
            wait_until(found, timeout=timeout, what=f"{pattern!r} in the log")
        except AssertionError as error:
            error.add_note(f"{self.log} contains:\n{self.text}")
            raise
        return self.text

    def wait_for_generation(self, number: int) -> None:
        """Wait until this generation serves and all its workers are ready."""
        log = self.wait_for_log(rf"generation {number} serves, \d+ workers")
        wanted = int(re.findall(rf"generation {number} serves, (\d+) workers", log)[-1])
        self.wait_for_workers(wanted, generation=number)

    def wait_for_workers(self, number: int, *, generation: int | None = None) -> list[int]:
        """Wait until there are exactly so many workers, all of them ready; return their pids."""

        def ready() -> bool:
            titles = [title(pid) for pid in self.workers(generation)]
            return len(titles) == number and all(" tasks" in shown for shown in titles)

        wait_until(ready, what=f"{number} ready workers below master {self.pid}")
        return self.workers(generation)

    def workers(self, generation: int | None = None) -> list[int]:
        """The pids of the living workers, or of those of one generation."""
        shown = "" if generation is None else f"(gen {generation})"
        return [
            pid
            for pid in children(self.pid)
            if title(pid).startswith("psched worker") and shown in title(pid)
        ]

    def wait_for_monitor(self, other_than: int = 0) -> int:
        """Wait until a monitor is ready, another one than this; return its pid."""

        def ready() -> int | None:
            found = [pid for pid in children(self.pid) if title(pid).startswith("psched monitor")]
            return next((pid for pid in found if pid != other_than), None)

        found = wait_until(ready, what=f"a monitor below master {self.pid}")
        assert found is not None
        return found

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to every process of psched's, as ``systemctl kill`` does."""
        for pid in self.descendants:
            if title(pid).startswith("psched "):
                kill(pid, number)

    def wait_until_nothing_is_left(self) -> None:
        """Wait until the master and all its descendants have ended."""
        wait_until(lambda: not self.descendants, what=f"the end of all below {self.pid}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the master a signal and wait for its end; return the exit status."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """KILL the master, and wait until none of its descendants is left."""
        self.send(signal.SIGKILL)
        self.wait()
        self.wait_until_nothing_is_left()


def has_monitor(request: pytest.FixtureRequest) -> bool:
    """Whether the masters of a test keep a monitor, which costs as much as all else of them."""
    return request.node.get_closest_marker("monitor") is not None


@contextlib.contextmanager
def services(folder: Path, *, monitor: bool = False) -> Iterator[Callable[..., "Service"]]:
    """Yield a function that makes services below a folder, on a database; close them at the end."""
    with contextlib.ExitStack() as made:
        numbers = itertools.count()

        def make(url: str, **settings: object) -> Service:
            own = folder / f"service{next(numbers)}"
            own.mkdir()
            given = {"monitor": monitor, **settings}
            return made.enter_context(contextlib.closing(Service(own, url, **given)))

        yield make


class Service:
    """A folder with all that psched needs; masters are stopped when it is closed.

    Args:
        folder: an empty folder.
        url: the database's url.
        settings: for psched.yml, besides or instead of `SETTINGS`.

    Attributes:
        config: the path of psched.yml.
        runs: the run log.
        env: the environment of everything that is started here: nothing of the tests' own.
    """

    def __init__(self, folder: Path, url: str, **settings: object) -> None:
        self.folder = folder
        self.config = folder / "psched.yml"
        self.runs = RunLog(folder / "runs")
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RUNTIME_DIRECTORY": str(folder / "run"),
            "LANG": "C.UTF-8",
            # Compiled modules are not written, because tests rewrite a module faster than a time
            # stamp shows.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._settings: dict[str, object] = {**SETTINGS, "url": url}
        if not url.startswith(("sqlite", "memory")):
            self._settings["exec_type"] = True  # off by default, as others may write to a server
        self._masters: list[Master] = []
        for name in "recorder.py", "lasting_process.py":
            shutil.copy(SUPPORT / name, folder)
        self.configure(**settings)
        open_services.append(self)

    @property
    def url(self) -> str:
        """The database's url."""
        return str(self._settings["url"])

    # --- files -----------------------------------------------------------------------

    def configure(self, **settings: object) -> None:
        """Change settings in psched.yml; None removes a setting."""
        self._settings |= settings
        given = {name: value for name, value in self._settings.items() if value is not None}
        self.config.write_text(yaml.safe_dump(given))
        if "@" in self.url:  # it contains a password, and the master warns if all may read it
            self.config.chmod(0o600)

    def write(self, name: str, text: str) -> Path:
        """Write a file, such as a module with handlers; return its path."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(dedent(text))
        return path

    def open_gate(self, name: str) -> None:
        """Let the runs end that wait ``until`` this file exists."""
        (self.folder / name).touch()

    # --- schedules -------------------------------------------------------------------

    def schedules(self) -> psched.ScheduleCollection:
        """The schedules, as a program opens them."""
        return psched.open(self.config)

    def add(self, key: str, type: str = "recorder", **fields: Any) -> None:  # noqa: A002
        """Add a schedule, by default one that runs once, at once."""
        fields = {"next_time": 1_000_000_000, **fields}
        with self.schedules() as schedules:
            schedules.add(key, type, **fields)

    def insert(self, key: str, type: str, *, data: object, **options: Any) -> None:  # noqa: A002
        """Insert a schedule that runs once, at once, by SQL into SQLite; nothing is checked."""
        with self.sql() as database:
            database.execute(
                "insert into psched (id, type, data, options) values (?, ?, ?, ?)",
                (key, type, json.dumps(data), json.dumps(options)),
            )

    def row(self, key: str) -> psched.ScheduleMetadata:
        """A schedule as the store has it now."""
        with self.schedules() as schedules:
            return schedules[key].metadata()

    def wait_for_row(
        self,
        key: str,
        condition: Callable[[psched.ScheduleMetadata], object],
        *,
        timeout: float = PATIENCE,
    ) -> psched.ScheduleMetadata:
        """Wait until a schedule fulfils a condition; return the schedule."""
        with self.schedules() as schedules:

            def fulfilled() -> psched.ScheduleMetadata | None:
                seen = schedules[key].metadata()
                return seen if condition(seen) else None

            found = wait_until(fulfilled, timeout=timeout, what=f"what was expected of {key!r}")
        assert found is not None
        return found

    def wait_until_asleep(self) -> None:
        """Wait until the workers have searched for due rows after the end of their last task.

        A worker searches in the same step in which it records that end, and it answers ``psched
        status`` only before the next step.
        """
        assert self.psched("status").returncode == 0

    def wait_for_finish(self, key: str) -> psched.ScheduleMetadata:
        """Wait until a schedule that runs once has finished."""
        return self.wait_for_row(key, lambda seen: seen.status == "finished")

    @contextlib.contextmanager
    def sql(self) -> Iterator[sqlite3.Connection]:
        """A connection to the SQLite database, for statements of a client other than psched."""
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        with contextlib.closing(connection), connection:
            yield connection

    # --- programs --------------------------------------------------------------------

    @property
    def psched_command(self) -> list[str]:
        """The command ``psched``, with our psched.yml."""
        return [sys.executable, "-m", "psched", "-c", self.config.name]

    @property
    def master_command(self) -> list[str]:
        """The command ``psched-master``, without arguments."""
        return [sys.executable, "-m", "psched.cli.daemon.master"]

    def psched(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run the command ``psched`` in the folder, and wait for its end."""
        return self.run(*self.psched_command, *arguments)

    def invoke(self, *arguments: str) -> Result:
        """Run psched in this process, which is faster, for many cases of one kind."""
        command = ["-c", str(self.config), *arguments]
        return CliRunner().invoke(psched_command, command, prog_name="psched")

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run any program in the folder, and wait for its end; psched's own are forked."""
        words = [str(word) for word in command]
        if can_be_forked(words, self.env):
            return run_forked(words, cwd=self.folder, env=self.env)
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )

    def init(self) -> None:
        """Create the table."""
        make_store(read_config(self.config)).init()

    def start(
        self,
        *command: object,
        log: str | None = None,
        generation: int = 1,
        **options: bool,
    ) -> Master:
        """Start a master.

        Args:
            command: the command line; default: ``psched-master`` with our psched.yml.
            log: the file for its output; default: a new one.
            generation: wait until this generation serves; 0: do not wait.
            options: how it is started, see `OwnedProcess`.
        """
        words = command or (*self.master_command, "-c", self.config.name)
        master = Master(
            [str(word) for word in words],
            log=self.folder / (log or f"master{len(self._masters)}.log"),
            folder=self.folder,
            env=self.env,
            **options,
        )
        self._masters.append(master)
        if generation:
            master.wait_for_generation(generation)
        return master

    def close(self) -> None:
        """Kill every process that is left, and print the logs for a failed test."""
        if self in open_services:
            open_services.remove(self)
        with contextlib.ExitStack() as closing:
            for master in self._masters:
                closing.callback(master.close)
        for log in dict.fromkeys(master.log for master in self._masters):
            if log.is_file():
                sys.stdout.write(f"--- {log.name}\n{log.read_text()}\n")
