"""How do I …?, and upgrades: the commands of each recipe run one after the other, as printed.

A recipe may say what its reader sees. Programs that change the host are replaced.
"""

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.code_blocks import ROOT, blocks_of
from support.service import services
from support.tables import fill_sqlite
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.extended

PAGES = ROOT / "docs/index.md", ROOT / "docs/daemon.md"
RECIPES = {
    name: [*blocks_of(page, text)]
    for page in PAGES
    for name, text in re.findall(
        r"^## (.*)\n((?:(?!^## ).*\n)*)", page.read_text(), flags=re.MULTILINE
    )
}

ELSEWHERE = "tests/e2e/test_quickstart.py runs it"

NOT_RUN = {
    **dict.fromkeys(
        ("Install", "Under systemd", "Upgrade psched"), "it installs files on this host"
    ),
    **dict.fromkeys(("SQLite", "MySQL and MariaDB", "PostgreSQL", "Redis"), ELSEWHERE),
    "What happens next": "the recipes run the same commands",
}
"""Recipes that are only parsed here, and why: see tests/unit/test_code_blocks.py."""

SEEN = {
    "Run it now": (r"^backup!\w+: finished$", r"^the backup is done$"),
    "Pause it, and go on": (
        r"^backup: paused$",
        r"^backup: resumed$",
        r"^type mail: resumed$",
    ),
    "Stop a run that hangs": (r"backup",),
    "Find out why it did not run": (r"02:30", r"ticket 42"),
    "Be told when it fails": (r"^ops: delivered",),
    "Move a crontab": (r"1 to add", r"nightly"),
    "Deploy new handlers": (r"^database: ",),
    "Scale out": (r"slots|runs",),
    "Backup": (r"unchanged|nothing to do",),
}
"""What a recipe must show: patterns, of which each is found in a line."""

PROGRAMS = {
    "systemctl": 'test "$1 $2" = "reload psched" && kill -HUP "$MASTER"',
    "crontab": "echo '0 3 * * * /bin/echo nightly'",
    "sendmail": "cat >> mails",
}
"""What stands in place of programs of the host."""


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A function that runs commands as somebody who reads the page, with a service that runs."""
    folder = tmp_path_factory.mktemp("howto")
    fill_sqlite(folder / "psched.db")
    with services(folder, monitor=True) as make:
        service = make(f"sqlite:///{folder}/psched.db", dispatch=None, retry_wait=600, monitor=True)
        for name, text in PROGRAMS.items():
            service.write(f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)
        with service.schedules() as schedules, schedules.audited("ticket 42"):
            command = {
                "command": [
                    "sh",
                    "-c",
                    "echo the backup is done; while test -e hangs; do sleep 0.1; done",
                ]
            }
            schedules.add("backup", "exec", cron="30 2 * * *", catchup="latest", data=command)
        service.env["MASTER"] = str(service.start().pid)
        service.env["PSCHED_CONFIG"] = str(service.config)
        places = service.folder / "bin", Path(sys.executable).parent, os.environ["PATH"]
        service.env["PATH"] = ":".join(map(str, places))

        def run(commands):
            done = subprocess.run(
                ["bash", "-c", commands],
                cwd=service.folder,
                env=service.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=HANG_TIMEOUT,
                check=False,
            )
            return done.stdout + done.stderr

        run.service = service
        yield run


def prepare(name, service):
    """Make true what a recipe supposes."""
    if name == "Stop a run that hangs":
        (service.folder / "hangs").touch()
        service.psched("edit", "backup", "--start", "2026-01-01", "--at", "2026-01-01T02:30")
        service.wait_for_row("backup", lambda seen: seen.status == "running")
    if name == "Find out why it did not run":
        # Without a run, `psched history` is an error.
        (service.folder / "hangs").unlink(missing_ok=True)
        service.psched("trigger", "backup", "--wait")
    settings = [each.text for each in RECIPES[name] if each.language == "yaml"]
    for text in settings:
        program = f"sendmail: {service.folder}/bin/sendmail, mail"
        with service.config.open("a") as file:
            file.write(text.replace("mail:", f"{program}:"))


def test_each_recipe_with_commands_is_run():
    having = {name for name, blocks in RECIPES.items() if any(b.language == "sh" for b in blocks)}
    assert having == {*SEEN, *NOT_RUN}


@pytest.mark.parametrize("name", SEEN)
def test_a_recipe_works_as_printed_and_shows_what_it_says(name, reader):
    prepare(name, reader.service)
    me = pwd.getpwuid(os.geteuid()).pw_name
    commands = "".join(each.text for each in RECIPES[name] if each.language == "sh")
    commands = commands.replace("--user ann", f"--user {me}")  # only she can import her lines
    # The status of each command is shown, because a reader's shell goes on after each.
    line = re.compile(r"^(psched .*|.* \| psched .*)$", re.MULTILINE)
    script = line.sub(r'\1\necho "status $?"', commands)
    shown = reader(script)
    # 1: psched why, about what did not run; 3: a plan has something to do.
    allowed = {"0", "1" if "psched why" in commands else "0", "3"}
    wrong = {*re.findall(r"^status (\d+)$", shown, re.MULTILINE)} - allowed
    assert not wrong, shown
    for pattern in SEEN[name]:
        assert re.search(pattern, shown, re.MULTILINE), shown
    assert not re.search(r"^(Error|Traceback|Usage)\b", shown, re.MULTILINE), shown
    if name == "Deploy new handlers":
        [master] = reader.service._masters
        master.wait_for_generation(2)
    if name == "Stop a run that hangs":
        (reader.service.folder / "hangs").unlink()
        wait_until(
            lambda: reader.service.row("backup").status == "waiting", what="that backup waits"
        )
