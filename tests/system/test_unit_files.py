"""What systemd's own tools and logrotate say of the shipped files."""

import itertools
import os
import re
import subprocess
import sys

import pytest

from psched.config import SETTINGS
from psched.master.generation_spec import FATAL
from psched.service.run import ALREADY_RUNNING
from support.servers import MissingServerError, find_binary
from support.systemd import FILES
from support.waiting import HANG_TIMEOUT

UNIT = (FILES / "psched.service").read_text()
USAGE = 2


def tool(name, package="systemd"):
    """A tool's path; where it is not installed, a skip for all to see, and in CI a failure."""
    try:
        return find_binary(name, package)
    except MissingServerError as missing:
        if os.environ.get("PSCHED_TEST_NO_SKIP") == "1":
            raise
        pytest.skip(str(missing))


def run(*command):
    """Run a tool; its output and errors, and its exit status."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_TIMEOUT,
    )
    return done.stdout + done.stderr, done.returncode


def setting(name):
    """What the unit says."""
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)[-1]


@pytest.fixture
def unit_file(tmp_path):
    """The unit, with a program that there is: systemd looks whether it can be executed."""
    path = tmp_path / "psched.service"
    path.write_text(
        re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", UNIT, flags=re.MULTILINE)
    )
    return path


def test_systemd_finds_nothing_amiss_in_the_unit(unit_file):
    assert run(tool("systemd-analyze"), "verify", unit_file) == ("", 0)


def test_the_unit_exposes_little(unit_file):
    command = [tool("systemd-analyze"), "security", "--offline=yes", "--no-pager"]
    output, status = run(*command, "--threshold=25", unit_file)
    assert status == 0, output


def test_the_unit_leaves_psched_the_time_that_its_settings_give():
    default = {name: SETTINGS[name].default for name in SETTINGS}
    assert int(setting("TimeoutStartSec")) > default["start_timeout"]
    graceful = default["graceful_timeout"] + default["graceful_kill_limit"]
    assert int(setting("TimeoutStopSec")) > graceful


def test_the_unit_restarts_nothing_that_a_restart_cannot_mend():
    statuses = [int(word) for word in setting("RestartPreventExitStatus").split()]
    assert statuses == sorted([USAGE, ALREADY_RUNNING, *FATAL])


def test_every_line_of_the_unit_that_restricts_handlers_stands_under_a_comment():
    restrictions = UNIT.partition("What handlers may not do")[2].partition("[Install]")[0]
    paragraph = restrictions.splitlines()[1:]
    for before, line in itertools.pairwise(paragraph):
        if "=" in line and not line.startswith("#"):
            assert before, f"{line} explains itself"


def test_the_user_and_the_folders_are_made_as_the_unit_wants_them(tmp_path):
    for name in "sysusers", "tmpfiles":
        (tmp_path / f"etc/{name}.d").mkdir(parents=True)
        source = FILES / f"psched.{name}.conf"
        (tmp_path / f"etc/{name}.d/psched.conf").write_text(source.read_text())

    output, status = run(tool("systemd-sysusers"), f"--root={tmp_path}", "psched.conf")
    assert status == 0, output
    user = (tmp_path / "etc/passwd").read_text().split(":")
    assert user[0] == setting("User") == setting("Group")
    assert user[5:] == ["/var/lib/psched", "/usr/sbin/nologin\n"]
    if os.geteuid() != 0:
        return  # only root can give folders away
    create = [tool("systemd-tmpfiles"), "--create", f"--root={tmp_path}", "psched.conf"]
    assert run(*create) == ("", 0)
    for folder, owner in ("etc/psched", 0), ("var/log/psched", int(user[2])):
        made = (tmp_path / folder).stat()
        assert (made.st_uid, made.st_gid) == (owner, int(user[3]))
        assert made.st_mode & 0o7777 == 0o750


def test_logrotate_understands_its_file(tmp_path):
    # The user psched is not known here.
    text = (FILES / "psched.logrotate").read_text()
    config = tmp_path / "psched"
    config.write_text(text.replace("psched psched\n", f"{user_name()} {group_name()}\n"))
    config.chmod(0o644)

    output, status = run(tool("logrotate", "logrotate"), "-d", "-s", tmp_path / "state", config)
    assert status == 0
    assert "error" not in output
    assert "copytruncate" not in re.sub("#.*", "", text)


def user_name():
    """Ours."""
    return run("id", "-un")[0].strip()


def group_name():
    """Ours."""
    return run("id", "-gn")[0].strip()
