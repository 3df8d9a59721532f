"""Programs that run as other users, under a real systemd: psched's unit, and its helper of root."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from support.processes import children, kill, title
from support.systemd import FILES
from support.waiting import wait_for_text, wait_until

USER, NUMBER, EXTRA = "jobs", 4242, 4343

WHO = """\
#!/bin/sh
cat >"$HOME/given"
{
    echo "user=$(id -u)" "group=$(id -g)" "groups=$(id -G)"
    echo "folder=$(pwd)" "umask=$(umask)"
    grep -E '^(Cap(Eff|Prm|Inh|Amb|Bnd)|NoNewPrivs)' /proc/self/status
    echo "descriptors=$(readlink /proc/$$/fd/* | tr '\\n' ' ')"
    grep ' keyring ' /proc/keys
    env
} >"$HOME/found"
echo "said by $(id -un)"
echo "reached standard output" >/dev/stdout && echo "reached standard error" >/dev/stderr
"""

BUSY = """\
#!/bin/sh
trap 'echo TERM >>"$HOME/signals"' TERM
setsid sh -c 'trap "" TERM; while :; do sleep 1; done' &
echo started >"$HOME/started"
while :; do sleep 0.1; done
"""

ENDS = """\
#!/bin/sh
case $1 in
    status) exit 3 ;;
    signal) kill -USR1 $$ ;;
esac
"""

LIST = f"""\
{USER} /opt/jobs/who
{USER} SIZE=big /opt/jobs/ends *
{USER} /opt/jobs/busy
{USER} /opt/jobs/loose
{USER} /var/lib/{USER}/own
"""


@pytest.fixture
def helped(unit):
    """The unit, with the helper, a user for jobs, that user's programs, and root's list."""
    etc, root = unit.machine.root / "etc", unit.machine.root
    units = [FILES / "psched-run-as.socket", FILES / "psched-run-as.service"]
    for file in units:
        shutil.copy(file, etc / "systemd/system")
    before = {name: (etc / name).read_text() for name in ("passwd", "group")}
    (etc / "passwd").write_text(
        f"{before['passwd']}{USER}:x:{NUMBER}:{NUMBER}::/var/lib/{USER}:/bin/sh\n"
    )
    (etc / "group").write_text(f"{before['group']}{USER}:x:{NUMBER}:\nextra:x:{EXTRA}:{USER}\n")
    programs, home = root / "opt/jobs", root / "var/lib" / USER
    for folder in programs, home:
        folder.mkdir()
    shutil.chown(home, NUMBER, NUMBER)
    for name, text in {"who": WHO, "busy": BUSY, "ends": ENDS, "loose": WHO}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o775 if name == "loose" else 0o755)
    allowed = etc / "psched/run_as"
    allowed.write_text(LIST)
    unit.machine.systemctl("daemon-reload")
    unit.machine.systemctl("start", "psched-run-as.socket")
    unit.home = home
    unit.configure(
        cgroup="on", concurrency=2, kill_interval=1, graceful_kill_limit=2, exec_type="off"
    )
    yield unit
    for name in "psched-run-as.socket", "psched-run-as.service":
        unit.machine.systemctl("stop", name, status=None)
    for pid in found_processes():
        kill(pid)
    allowed.unlink()
    for file in units:
        (etc / "systemd/system" / file.name).unlink()
    for folder in programs, home:
        shutil.rmtree(folder)
    for name, text in before.items():
        (etc / name).write_text(text)


def found_processes():
    """The processes of the user for jobs."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if f"\nUid:\t{NUMBER}\t" in text and "\nState:\tZ" not in text:
            found.append(int(status.parent.name))
    return found


def start(unit, key, *command, **options):
    unit.service.add(
        key, type="exec", data={"command": [f"/opt/jobs/{command[0]}", *command[1:]]},
        **{"run_as": USER, "max_attempts": 1, **options},
    )  # fmt: skip


def ended(unit, key):
    """The last attempt at a schedule, when it has ended."""

    def found():
        with unit.service.schedules() as schedules:
            return [run for run in schedules.runs(key=key) if run.outcome is not None]

    return wait_until(found, what=f"the end of {key}")[0]


def test_a_program_runs_as_its_user_and_has_nothing_of_the_service(helped):
    start(helped, "who", "who", timezone="UTC")
    helped.start()

    run = ended(helped, "who")

    assert run.outcome == "finished", run.reason
    text = (helped.home / "found").read_text()
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    lines = text.splitlines()
    assert lines[0] == f"user={NUMBER} group={NUMBER} groups={NUMBER} {EXTRA}"
    assert lines[1] == f"folder=/var/lib/{USER} umask=0022"
    for kind in "Eff", "Prm", "Inh", "Amb":
        assert f"Cap{kind}:\t{0:016x}" in lines
    assert "NoNewPrivs:\t1" in lines
    assert found["HOME"] == f"/var/lib/{USER}"
    assert (found["USER"], found["LOGNAME"], found["SHELL"]) == (USER, USER, "/bin/sh")
    assert found["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    assert found["PSCHED_KEY"] == "who"
    # A keyring of the helper's would be shared by the programs of all users.
    assert not [line for line in lines if " keyring " in line and " _ses" in line]
    names = {name for name in found if name.isupper() and not name.startswith("PSCHED_")}
    assert names <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    # The helper's socket, its files of the control group, and what psched has open are not there.
    others = [each for each in found["descriptors"].split() if not each.startswith("pipe:")]
    assert {*others} <= {"/memfd:input", "(deleted)", "/opt/jobs/who", f"/var/lib/{USER}/found"}
    assert json.loads((helped.home / "given").read_text()) == {"command": ["/opt/jobs/who"]}
    wait_for_text(helped.output, f"who: said by {USER}")
    wait_for_text(helped.output, "who: reached standard output")
    wait_for_text(helped.output, "who: reached standard error")


def test_what_root_does_not_allow_is_refused_with_one_line(helped):
    reasons = {
        "root": "root is root, as whom nothing is run",
        "stranger": "this host has no user 'stranger'",
        "nobody": "/etc/psched/run_as has no line for user nobody",
    }
    for user in reasons:
        start(helped, user, "who", run_as=user)
    start(helped, "other", "another")
    start(helped, "loose", "loose")
    helped.home.chmod(0o700)
    helped.service.add(
        "in-home", type="exec", data={"command": [f"/var/lib/{USER}/own"]}, run_as=USER,
        max_attempts=1,
    )  # fmt: skip
    reasons["in-home"] = f"/var/lib/{USER}/own: a folder above it is closed"
    start(helped, "very-long", "who", "\N{GRINNING FACE}" * 450)
    reasons["very-long"] = f"/etc/psched/run_as does not allow user {USER}: /opt/jobs/who '"
    reasons["other"] = f"/etc/psched/run_as does not allow user {USER}: /opt/jobs/another"
    reasons["loose"] = "others than its owner may write /opt/jobs/loose"
    helped.start()

    for key, reason in reasons.items():
        run = ended(helped, key)
        assert run.reason.startswith("run_as: ")
        assert reason in run.reason
    for key, reason in reasons.items():
        lines = [line for line in helped.log.read_text().splitlines() if reason in line]
        assert len([line for line in lines if f"{key}." in line]) >= 1
    assert not (helped.home / "found").exists()


def test_without_control_groups_nothing_is_started_and_the_reason_is_said(helped):
    helped.configure(cgroup="off", exec_type="off")
    start(helped, "who", "who")
    helped.start()

    run = ended(helped, "who")

    assert "its task has no control group of its own" in run.reason
    assert "cgroup: off" in run.reason
    assert not (helped.home / "found").exists()
    # Its group of users cannot move processes of the service.
    assert (helped.group / "cgroup.procs").stat().st_mode & 0o020 == 0


def test_check_asks_the_helper_what_rows_may_run(helped):
    command = "env", "-C", "/var/lib/psched", "STATE_DIRECTORY=/var/lib/psched"
    command = *command, "/opt/psched/bin/psched", "-c", "/etc/psched/psched.yml", "check"
    start(helped, "who", "who")
    assert f"run_as: {USER}: allowed" in helped.machine.run(*command)
    start(helped, "root", "who", run_as="root")

    refused = helped.machine.run(*command, status=1)
    helped.machine.systemctl("stop", "psched-run-as.socket")
    missing = helped.machine.run(*command, status=1)

    assert "Error: root: run_as is refused: root is root" in refused
    assert "who: run_as" not in refused
    assert f"run_as: rows run as {USER}, root, but the helper of root cannot be asked" in missing


def test_status_signal_and_use_of_a_program_are_those_of_its_run(helped):
    start(helped, "status", "ends", "status")
    start(helped, "signal", "ends", "signal")
    helped.start()

    run = ended(helped, "status")
    assert run.exit_status == 3
    assert run.peak_memory > 0
    assert ended(helped, "signal").exit_signal == signal.SIGUSR1


def test_a_time_limit_stops_a_program_and_all_that_it_has_started(helped):
    start(helped, "busy", "busy", kill_timeout=10)  # it has to say first that it has started
    helped.start()
    wait_until((helped.home / "started").exists, what="a start")
    assert len(found_processes()) >= 2

    run = ended(helped, "busy")

    assert run.outcome != "finished"
    assert (helped.home / "signals").read_text().startswith("TERM\n")
    wait_until(lambda: not found_processes(), what="the end of all processes")


@pytest.mark.parametrize("victim", ["worker", "master", "both", "stand-in", "helper"])
def test_kill_9_leaves_no_process_of_a_program(helped, victim):
    start(helped, "busy", "busy", max_attempts=2, retry_wait=3600)
    helped.start()
    wait_until((helped.home / "started").exists, what="a start")
    [server] = [pid for pid in helped.processes if title(pid) == "psched fork server"]
    [worker] = [pid for pid in helped.processes if server in children(pid)]
    [master] = [pid for pid in helped.processes if worker in children(pid)]
    before = {*found_processes()} & {*helped.processes}  # its short commands come and go
    assert len(before) >= 2

    match victim:
        case "helper":
            group = helped.machine.group("psched-run-as.service")
            victims = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
        case "stand-in":
            victims = [pid for pid in helped.processes
                       if "runner: exec" in title(pid) and not children(pid)]  # fmt: skip
        case _:
            victims = {"worker": [worker], "master": [master], "both": [master, worker]}[victim]
    assert victims
    for pid in victims:
        kill(pid)

    wait_until(lambda: before.isdisjoint(found_processes()), what="the end of all processes")


def test_a_helper_that_is_killed_again_and_again_is_there_for_the_next_program(helped):
    helped.start()
    group = helped.machine.group("psched-run-as.service")

    for number in range(8):
        start(helped, f"who-{number}", "who")
        assert ended(helped, f"who-{number}").outcome == "finished"
        for pid in (group / "cgroup.procs").read_text().split():
            kill(int(pid))
