"""The weekend that the pages about the run history describe.

The masters are real. The clock of their host is set from one event to the next. A backup fails
twice on Friday, is late on Saturday, is skipped on Sunday, and needs two attempts on Monday. One
mail fails on Friday, one is sent on Monday, and two others wait. At the end it is Monday afternoon,
and no worker is alive.
"""

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from psched.base.clock import SystemClock
from support.faketime import HostClock
from support.service import Master, Service
from support.waiting import HANG_TIMEOUT, wait_until

ZONE = "Europe/Berlin"

SETTINGS = {
    "dispatch": "jobs:Jobs",
    "concurrency": 2,
    "poll_interval": 0.1,
    "retry_wait": 300,
    "max_attempts": 2,
    "retention_time": "30d",
    # The pages show no alerts. Whether one is raised depends on how long the monitor waits between
    # two looks, and on how soon the master is stopped after the clock was set.
    "monitor": False,
}

JOBS = """
    from psched.application import Dispatch

    def mail(task):
        if not task.data["to"]:
            raise ValueError("no recipient")

    class Jobs(Dispatch):
        routes = {"mail": mail}
"""

SCHEDULES = """
    label: null
    schedules:
      backup:
        type: exec
        cron: "30 2 * * *"
        timezone: Europe/Berlin
        catchup: skip
        catchup_grace: 1h
        data: {command: [pg_dump, -f, /backup/db, db]}
      probe:
        type: exec
        cron: "0 * * * *"
        catchup: latest
        history: none
        data: {command: ["true"]}
"""

_RUN = """
import json, sys
from click.testing import CliRunner
from psched.cli.commands import psched
for words in json.load(sys.stdin):
    done = CliRunner().invoke(psched, words, prog_name="psched")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    print(json.dumps([done.exit_code, done.output]))
"""
"""Runs many commands in one process, because a process takes longer to start than most commands."""


class Weekend:
    """The service, and its host's clock.

    Args:
        service: a new service on SQLite.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._clock = HostClock(service.folder / "clock")
        service.configure(**SETTINGS)
        service.write("jobs.py", JOBS)
        service.write("schedules.yml", SCHEDULES)
        service.write("bin/pg_dump", '#!/bin/sh\n[ ! -e "$HOME/broken" ]\n').chmod(0o755)
        service.env |= {
            "PATH": f"{service.folder / 'bin'}:{service.env['PATH']}",
            "TZ": ZONE,
            "FAKETIME_NO_CACHE": "1",  # no process of psched has threads, see `HostClock`
        }

    def happen(self) -> None:
        """Let everything happen; it is Monday, 14:05, then."""
        self._set("2026-11-02 10:11:03")
        command = '{"command": ["pg_dump", "-f", "/backup/db", "db"]}'
        self._service.env["SUDO_USER"] = "bob"
        self._change(
            "psched init --quiet",
            f"psched add backup exec '0 2 * * *' '{command}' -t {ZONE} --catchup skip",
        )
        del self._service.env["SUDO_USER"]
        self._set("2026-11-19 15:06:03")
        self._change(
            "psched apply schedules.yml -m 'ticket 42'",
            "psched add mail-daily mail '0 9 * * *' '{\"to\": \"ann\"}' -s 2026-11-23T00:00",
            "psched push mail-3 mail '{\"to\": null}' --at 2026-11-20T02:20+01:00",
            'psched push mail-7 mail \'{"to": "bob"}\' --at 2026-11-23T14:04+01:00',
            'psched push mail-8 mail \'{"to": "eve"}\' --at 2030-01-31T09:00+01:00',
        )

        self._break_backup()
        self._set("2026-11-20 02:20:00")
        master = self._start()
        self._wait_for_records("mail-3", 1)
        self._set("2026-11-20 02:25:30")
        self._wait_for_records("mail-3", 2)
        self._set("2026-11-20 02:29:59")
        self._wait_for_records("backup", 1)
        self._set("2026-11-20 02:35:30")
        self._wait_for_records("backup", 2)
        self._mend_backup()
        self._set("2026-11-21 02:24:03")
        assert master.stop() == 0

        self._set("2026-11-21 02:46:03")
        master = self._start()
        self._wait_for_records("backup", 3)
        self._set("2026-11-22 02:12:03")
        assert master.stop() == 0

        self._set("2026-11-22 14:02:03")
        master = self._start()
        self._wait_for_records("backup", 4)
        self._break_backup()
        self._set("2026-11-23 02:29:59")
        self._wait_for_records("backup", 5)
        self._mend_backup()
        self._set("2026-11-23 02:35:30")
        self._wait_for_records("backup", 6)
        self._set("2026-11-23 10:00:00")
        self._wait_for_records("mail-daily", 1)
        self._set("2026-11-23 13:58:03")
        assert master.stop() == 0
        self._set("2026-11-23 14:05:03")

    def forget_sunday(self) -> None:
        """Delete the record that the backup was skipped on Sunday."""
        with self._service.sql() as database:
            found = database.execute("DELETE FROM psched_runs WHERE fate = 'skipped_catchup'")
            assert found.rowcount == 1

    def operate(self, *commands: str) -> Sequence[str]:
        """Run commands on Monday, while a worker is alive.

        ``report`` has run at two of the times that it should have run at since Friday.
        """
        self._change(
            f"psched add report exec '0 * * * *' '{{\"command\": [\"true\"]}}' -t {ZONE}",
            "psched backfill report --from 2026-11-20T00:00 --to 2026-11-20T01:00",
        )
        master = self._start()
        self._wait_for_records("report!20261119T230000Z", 1)
        self._wait_for_records("report!20261120T000000Z", 1)
        outputs = self.run(*commands)
        assert master.stop() == 0
        return outputs

    def run(self, *commands: str) -> Sequence[str]:
        """Run command lines on the host, and return what they print."""
        return [output for _, output in self._run(commands)]

    def _change(self, *commands: str) -> None:
        for status, output in self._run(commands):
            assert status == 0, output

    def _run(self, commands: Sequence[str]) -> Sequence[tuple[int, str]]:
        """Run command lines, and return the exit status and the output of each."""
        words = [shlex.split(command) for command in commands]
        assert {each[0] for each in words} == {"psched"}
        done = subprocess.run(
            self._clock.command(sys.executable, "-c", _RUN),
            input=json.dumps([["-c", "psched.yml", *each[1:]] for each in words]),
            cwd=self._service.folder,
            env=self._service.env,
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]

    def _start(self) -> Master:
        service = self._service
        command = [*service.master_command, "-c", service.config.name]
        return service.start(*self._clock.command(*command))

    def _set(self, local: str) -> None:
        wanted = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(ZONE))
        self._clock.set(math.ceil(wanted.timestamp() - SystemClock().wall()))

    def _break_backup(self) -> None:
        (self._service.folder / "broken").touch()

    def _mend_backup(self) -> None:
        (self._service.folder / "broken").unlink()

    def _wait_for_records(self, key: str, number: int) -> None:
        wait_until(lambda: self._count(key) >= number, what=f"{number} records of {key}")

    def _count(self, key: str) -> int:
        with self._service.sql() as database:
            query = "SELECT COUNT(*) FROM psched_runs WHERE key = ?"
            return database.execute(query, [key]).fetchone()[0]
