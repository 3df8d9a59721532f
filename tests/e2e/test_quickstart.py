"""The quickstart: the commands of each database's section are run as they are printed."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from support.code_blocks import ROOT, blocks_of
from support.owned_process import OwnedProcess
from support.waiting import wait_for_text

PAGE = ROOT / "docs/quickstart.md"
SECTIONS = {
    name: [each.text for each in blocks_of(PAGE, text) if each.language == "sh"]
    for name, text in re.findall(
        r"^## (.*)\n((?:(?!^## ).*\n)*)", PAGE.read_text(), flags=re.MULTILINE
    )
}
OF_DATABASE = {
    "sqlite": "SQLite",
    "mysql": "MySQL and MariaDB",
    "postgresql": "PostgreSQL",
    "redis": "Redis",
}


def check_commands(name, url, tmp_path):
    """Run the commands of a section, with the url of a private server."""
    [commands] = SECTIONS[name]
    script, replaced = re.subn(r"^url: .*$", f"url: {url}", commands, flags=re.MULTILINE)
    assert replaced == 1
    folder = tmp_path / "empty"
    folder.mkdir()
    output = tmp_path / "output"
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "RUNTIME_DIRECTORY": str(tmp_path),
    }
    terminal = OwnedProcess(["/bin/bash", "-ec", script], output=output, cwd=folder, env=env)
    try:
        wait_for_text(output, "hello: hello, world!")
        wait_for_text(output, "[first.")
        terminal.send_to_group(signal.SIGINT)
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_the_commands_of_each_database_run_as_printed(database, tmp_path):
    scheme = re.match(r"[a-z]+", database.url)[0].replace("mariadb", "mysql")
    check_commands(OF_DATABASE[scheme], database.url, tmp_path)


@pytest.mark.redis
def test_the_commands_of_redis_run_as_printed(redis_server, tmp_path):
    check_commands("Redis", redis_server.url(redis_server.create_database()), tmp_path)


def test_each_database_has_a_section():
    assert {*OF_DATABASE.values()} <= {*SECTIONS}
