"""The steps at the head of the unit, as root follows them, and the status of a failed start."""

import re
import shutil

import pytest

from psched.master.generation_spec import BAD_HANDLERS
from support.systemd import FILES
from support.waiting import wait_until

pytestmark = pytest.mark.extended

PSCHED = "/opt/psched/bin/psched"

SHIPPED = FILES.parent / "etc"


def steps():
    """The commands at the head of the unit."""
    head = (FILES / "psched.service").read_text().partition("# Install as root")[2]
    paragraph = head.partition("\n#\n")[0]
    return "\n".join(re.findall(r"^#   (.*)$", paragraph, re.MULTILINE))


@pytest.fixture
def clone(machine):
    """A clone of psched in the machine, which has no folders for what is installed."""
    clone = machine.root / "opt/clone"
    shutil.copytree(FILES, clone / "systemd")
    shutil.copytree(SHIPPED, clone / "etc")
    for name in "sysusers.d", "tmpfiles.d", "logrotate.d":
        shutil.rmtree(machine.root / "etc" / name)
    yield "/opt/clone"
    machine.systemctl("disable", "--now", "psched")
    machine.systemctl("reset-failed", "psched", status=None)
    shutil.rmtree(clone)
    shutil.rmtree(machine.root / "var/lib/psched")


def test_the_service_comes_up_and_shares_its_database_with_root(machine, clone):
    machine.run("sh", "-ec", f"cd {clone}\n{steps()}")

    assert machine.systemctl("is-active", "psched").strip() == "active"
    database = machine.root / "var/lib/psched/psched.db"
    owner = database.stat().st_uid
    assert owner != 0
    machine.run(PSCHED, "push", "hello", "exec", '{"command": ["touch", "greeting"]}')
    wait_until((machine.root / "var/lib/psched/greeting").exists, what="the run of the task")
    assert "hello" in machine.run(PSCHED, "list")
    assert {path.stat().st_uid for path in database.parent.glob("psched.db*")} == {owner}

    # A shell whose configuration names no database would use a file of root's own.
    (machine.root / "etc/psched/none.yml").write_text("log_level: info\n")
    asked = [
        "env",
        "HOME=/opt",
        PSCHED,
        "-c",
        "/etc/psched/none.yml",
        "add",
        "s1",
        "exec",
        "@daily",
    ]
    refused = machine.run(*asked, status=1)
    assert "would use sqlite:////opt/.local/state/psched/psched.db, but psched-master " in refused
    assert " serves sqlite:////var/lib/psched/psched.db, as /etc/psched/psched.yml says" in refused
    machine.systemctl("stop", "psched")
    refused = machine.run(*asked, status=1)
    assert "the installed psched.service uses sqlite:////var/lib/psched/psched.db" in refused


def test_the_status_of_a_failed_start_keeps_the_reason(unit):
    unit.configure(dispatch="nowhere:Dispatch")
    unit.machine.systemctl("start", "psched", status=1)
    unit.wait_for(ActiveState="failed", ExecMainStatus=str(BAD_HANDLERS))
    reason = "there is no module 'nowhere' on the load path"
    assert unit.show("StatusText").startswith(
        "cannot start: its first worker exited with status 65"
    )
    assert reason in unit.show("StatusText")
    assert reason in unit.machine.systemctl("status", "psched", status=3)


def test_a_missing_table_is_named_in_the_status(unit):
    unit.configure(table="another")
    unit.start("--no-block")
    reason = "the table 'another' does not exist; run `psched init`"
    wait_until(lambda: reason in unit.show("StatusText"), what="the reason")
    assert unit.show("ActiveState") == "activating"
