"""The quickstart: the commands of each database's section are run as they are printed.

So is the SQL before them, on a fresh server: only the port of the url is another one.
"""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from support.code_blocks import ROOT, blocks_of, server_sql
from support.owned_process import OwnedProcess
from support.waiting import wait_for_text

pytestmark = pytest.mark.extended

PAGE = ROOT / "docs/index.md"
SECTIONS = {
    name: [each.text for each in blocks_of(PAGE, text) if each.language == "sh"]
    for name, text in re.findall(
        r"^## (.*)\n((?:(?!^## ).*\n)*)", PAGE.read_text(), flags=re.MULTILINE
    )
}
FOR_MARIADB, FOR_POSTGRESQL = server_sql("index.md")


def check_commands(name, tmp_path, *, port=None):
    """Run the commands of a section, with the port of a private server in the url if it has one."""
    [script] = SECTIONS[name]
    if port is not None:
        script, replaced = re.subn(r"^(url: .*:)\d+/", rf"\g<1>{port}/", script, flags=re.MULTILINE)
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


def test_the_commands_of_sqlite_run_as_printed(tmp_path):
    check_commands("SQLite", tmp_path)


@pytest.mark.mariadb
def test_the_commands_of_mysql_run_as_printed(start_mariadb, send_sql, tmp_path):
    server = start_mariadb()
    send_sql(server.url(), FOR_MARIADB)
    check_commands("MySQL and MariaDB", tmp_path, port=server.port)


@pytest.mark.postgresql
def test_the_commands_of_postgresql_run_as_printed(start_postgresql, send_sql, tmp_path):
    server = start_postgresql()
    send_sql(server.url(), FOR_POSTGRESQL)
    check_commands("PostgreSQL", tmp_path, port=server.port)


@pytest.mark.redis
def test_the_commands_of_redis_run_as_printed(start_redis, tmp_path):
    check_commands("Redis", tmp_path, port=start_redis().port)
