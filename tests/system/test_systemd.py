"""The shipped unit under a real systemd: start, reload, rotation, deaths and stops."""

import gzip
import re
import signal

import pytest

from psched.base.clock import SystemClock
from support.run_log import completed
from support.waiting import has_ended, wait_for_text, wait_until

CLOCK = SystemClock()

ROTATE = "logrotate", "-f", "-s", "/var/lib/logrotate", "/etc/logrotate.d/psched"

SLOW = """
    import time
    from pathlib import Path
    from recorder import Dispatch

    while not Path("gate").exists():
        time.sleep(0.01)
"""
"""Handlers that take their time to load: it is for the test to say how long."""

TALKER = """
    import logging, os, time
    from pathlib import Path
    from recorder import Recorder, Dispatch as Before

    class Talker(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            number = 0
            while not Path(self.task.data["until"]).exists():
                number += 1
                logging.info("%s says %d, %s", self.task.key, number, "." * 200)
                time.sleep(0.002)
            self.note("end", how="returned", said=number)

    class Dispatch(Before):
        routes = {**Before.routes, "talker": Talker}
"""

WORK = """
    import multiprocessing, os, socket, subprocess, tempfile
    from pathlib import Path
    from psched.application import Dispatch as Before

    def refused(deed):
        try:
            deed()
        except OSError as error:
            return error.strerror

    def works(task):
        for folder in "STATE_DIRECTORY", "LOGS_DIRECTORY", "RUNTIME_DIRECTORY":
            Path(os.environ[folder], "written").write_text("by a handler")
        with tempfile.TemporaryFile() as file:
            file.write(b"something")
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()
        socket.getaddrinfo("localhost", 80)
        with multiprocessing.Pool(2) as pool:
            squares = pool.map(abs, [-1, -2])
        piped = subprocess.run(
            "echo piped | tr a-z A-Z", shell=True, capture_output=True, text=True
        )
        task.update_data({
            "squares": squares,
            "piped": piped.stdout.strip(),
            "user": os.getuid() == os.stat(".").st_uid != 0,
            "refused": [
                refused(lambda: Path("/usr/written").touch()),
                refused(lambda: Path("/etc/psched/written").touch()),
                refused(lambda: os.listdir("/root")),
                refused(lambda: os.setuid(0)),
                refused(lambda: os.chroot("/")),
            ],
        })

    class Dispatch(Before):
        routes = {"works": works}
"""


def test_a_start_returns_when_the_service_is_ready_and_not_before(unit):
    unit.service.write("slow.py", SLOW)
    unit.configure(dispatch="slow:Dispatch", processors=2)

    unit.start("--no-block")
    wait_for_text(unit.log, "worker 0 (gen 1) started")
    # The master answers after it has told systemd how far it is.
    assert "generation 0" in unit.machine.run("/opt/psched/bin/psched", "status", status=None)
    assert unit.show("ActiveState") == "activating"
    unit.service.open_gate("gate")
    unit.start()

    assert unit.show("ActiveState") == "active"
    assert "generation 1 serves, 2 workers" in unit.log.read_text()
    unit.service.add("one")
    unit.service.wait_for_finish("one")
    unit.machine.systemctl("enable", "psched")
    assert unit.machine.systemctl("is-enabled", "psched") == "enabled\n"
    unit.machine.systemctl("stop", "psched")


@pytest.mark.extended
def test_a_service_whose_store_is_away_is_waited_for_longer_than_a_start_may_take(unit):
    limit = 12  # far more than a busy machine needs until the master can ask for patience
    unit.drop_in("hurry", f"[Service]\nTimeoutStartSec={limit}\n")
    unit.configure(table="later")

    unit.start("--no-block")
    wait_for_text(unit.log, "generation 1 serves")
    late = int(unit.show("InactiveExitTimestampMonotonic")) / 1_000_000 + limit
    wait_until(lambda: CLOCK.monotonic() > late + 1, what="the end of the time for a start")
    assert unit.show("ActiveState") == "activating"
    assert "starting" in unit.show("StatusText")
    unit.service.init()

    unit.wait_for(ActiveState="active", NRestarts="0")
    unit.wait_for(StatusText="generation 1, 1 workers, 0 tasks, 1 of 1 slots free")


def test_each_task_has_a_control_group_below_the_units(unit):
    unit.configure(concurrency=2, cgroup="on")
    for key in "one", "two":
        unit.service.add(key, data={"until": key, "processes": ["child", "daemon"]})
    unit.start()
    groups = {}
    for key in "one", "two":
        wait_for_three_processes(unit, key)
        pids = {note["pid"] for note in unit.service.runs.runs(key)[0].notes}
        [groups[key]] = {unit.group_of(pid) for pid in pids}

    [worker] = {unit.group_of(run.worker) for run in unit.service.runs.runs()}
    assert len({*groups.values(), worker, unit.group}) == 4
    for group in groups.values():
        assert group.is_relative_to(unit.group)
    procs = groups["one"] / "cgroup.procs"
    before = {*procs.read_text().split()}
    assert len(before) == 3
    unit.service.open_gate("one")
    unit.service.wait_for_finish("one")
    # It may be the next runner's by now.
    wait_until(
        lambda: before.isdisjoint(procs.read_text().split()),
        what="the end of all in its control group",
    )
    assert groups["two"].exists()
    unit.service.open_gate("two")
    unit.machine.systemctl("stop", "psched")
    assert not unit.group.exists()


@pytest.mark.extended
def test_handlers_can_do_ordinary_work_and_not_what_the_unit_forbids(unit):
    unit.service.write("work.py", WORK)
    unit.configure(dispatch="work:Dispatch")
    unit.start()

    unit.service.add("one", "works")
    unit.service.wait_for_finish("one")

    read_only = "Read-only file system"
    assert unit.service.row("one").data == {
        "squares": [1, 2],
        "piped": "PIPED",
        "user": True,
        "refused": [read_only, read_only, "Permission denied", *["Operation not permitted"] * 2],
    }
    assert (unit.logs / "written").read_text() == "by a handler"
    # Nobody else can read what is there, nor the settings.
    for folder in unit.logs, unit.service.folder, unit.machine.root / "etc/psched":
        assert folder.stat().st_mode & 0o7777 == 0o750


@pytest.mark.extended
def test_a_secret_that_systemd_hands_over_can_stand_for_a_setting(unit):
    secret = unit.machine.root / "etc/psched/secret"
    secret.write_text("elsewhere\n")
    secret.chmod(0o600)
    unit.configure(table="elsewhere")
    unit.service.init()
    unit.service.add("one")
    unit.configure(table="${CREDENTIALS_DIRECTORY}/secret")
    unit.drop_in("secret", "[Service]\nLoadCredential=secret:/etc/psched/secret\n")

    unit.start()
    unit.service.runs.wait("one", completed(1))


def test_a_reload_brings_new_handlers_while_a_long_task_goes_on(unit):
    unit.service.write("jobs.py", "from recorder import Dispatch")
    unit.configure(dispatch="jobs:Dispatch")
    unit.service.add("long", data={"until": "gate"})
    unit.start()
    main = unit.show("MainPID")
    unit.service.runs.wait("long")

    unit.service.write(
        "jobs.py",
        """
        from pathlib import Path
        from recorder import Dispatch as Before

        def new(task):
            Path("new").touch()

        class Dispatch(Before):
            routes = {**Before.routes, "new": new}
        """,
    )
    unit.machine.systemctl("reload", "psched")
    unit.service.add("next", "new")
    unit.service.wait_for_finish("next")

    assert (unit.service.folder / "new").exists()
    unit.wait_for(ActiveState="active", SubState="running", MainPID=main, NRestarts="0")
    [run] = unit.service.runs.runs("long")
    assert run.end is None
    unit.service.open_gate("gate")
    unit.service.wait_for_finish("long")
    assert [run.end for run in unit.service.runs.runs("long")] == ["returned"]


@pytest.mark.extended
def test_a_reload_of_what_cannot_be_loaded_leaves_the_service_as_it_was(unit):
    unit.service.write("jobs.py", "from recorder import Dispatch")
    unit.configure(dispatch="jobs:Dispatch")
    unit.start()

    unit.service.write("jobs.py", "broken(")
    unit.machine.systemctl("reload", "psched")
    wait_for_text(unit.log, "generation 1 goes on")

    unit.wait_for(ActiveState="active", SubState="running", NRestarts="0")
    assert "restart failed" in unit.show("StatusText")
    unit.service.add("one")
    unit.service.wait_for_finish("one")


@pytest.mark.extended
def test_rotation_by_logrotate_loses_no_line(unit):
    unit.service.write("jobs.py", TALKER)
    unit.configure(dispatch="jobs:Dispatch", processors=2)
    for key in "one", "two":
        unit.service.add(key, "talker", data={"until": "gate"})
    unit.start()
    for key in "one", "two":
        wait_for_text(unit.log, f"{key} says 1,")

    for _ in range(3):
        old = unit.log.stat().st_ino
        unit.machine.run(*ROTATE)
        assert unit.log.stat().st_ino != old
        for key in "one", "two":
            wait_for_text(unit.log, f"{key} says ")
    unit.service.open_gate("gate")
    for key in "one", "two":
        unit.service.wait_for_finish(key)
    unit.machine.systemctl("stop", "psched")

    names = ["psched.log.3.gz", "psched.log.2.gz", "psched.log.1", "psched.log"]
    contents = [(unit.logs / name).read_bytes() for name in names]
    assert len([*unit.logs.iterdir()]) == len(names)
    texts = [gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text for text in contents]
    lines = b"".join(texts).decode().splitlines()
    for key in "one", "two":
        [run] = unit.service.runs.runs(key)
        said = re.findall(rf"{key} says (\d+), \.{{200}}$", "\n".join(lines), re.MULTILINE)
        assert [*map(int, said)] == [*range(1, run.notes[-1]["said"] + 1)]
    # What is not written by tasks follows, too.
    assert "master stopped" in unit.log.read_text()
    assert unit.log.stat().st_mode & 0o777 == 0o640
    # A service that is stopped is no error.
    unit.machine.run(*ROTATE)
    assert unit.log.read_bytes() == b""


def test_a_killed_master_is_restarted_nothing_of_its_tree_is_left_and_its_tasks_run_again(unit):
    unit.configure(concurrency=2, alive_time=300)
    unit.service.add("long", data={"until": "gate", "processes": ["child", "daemon"]})
    unit.start()
    wait_for_three_processes(unit)
    before = unit.processes

    unit.kill(signal.SIGKILL)

    unit.wait_for(NRestarts="1", ActiveState="active")
    assert [pid for pid in before if not has_ended(pid)] == []
    # Its lease has minutes to run: the next master had it released.
    unit.service.runs.wait("long", lambda runs: len(runs) == 2)
    unit.service.open_gate("gate")
    unit.service.wait_for_finish("long")


LEFT = r"""
mkfifo $RUNTIME_DIRECTORY/nonces.1.1 &&
printf '\377\376' > $RUNTIME_DIRECTORY/nonces.2.2 &&
ln -s /etc/passwd $RUNTIME_DIRECTORY/nonces.3.3 &&
mkdir -p $RUNTIME_DIRECTORY/nonces.4.4/in $RUNTIME_DIRECTORY/master.1.sock/in &&
rm $LOGS_DIRECTORY/psched.log && mkfifo $LOGS_DIRECTORY/psched.log
"""


@pytest.mark.extended
def test_what_a_task_leaves_in_the_units_folders_keeps_no_master_from_starting(unit):
    unit.configure(concurrency=2, alive_time=300, log="/var/log/psched/psched.log")
    unit.start()
    unit.service.add("leaves", "exec", data={"command": LEFT, "shell": True})
    unit.service.wait_for_finish("leaves")
    unit.service.add("long", data={"until": "gate"})
    unit.service.runs.wait("long")

    unit.kill(signal.SIGKILL)

    unit.wait_for(NRestarts="1", ActiveState="active")
    # What the dead master has left itself is understood all the same.
    unit.service.runs.wait("long", lambda runs: len(runs) == 2)
    unit.service.open_gate("gate")
    unit.service.wait_for_finish("long")
    assert unit.log.is_file()


@pytest.mark.extended
def test_no_task_reads_what_is_secret_in_psched_itself(unit):
    unit.configure()
    unit.start()
    peeps = "cat /proc/$PPID/environ && exit 1; ls /proc/$PPID/fd && exit 1; cat /proc/$$/environ"
    unit.service.add("peeps", "exec", data={"command": peeps, "shell": True})
    unit.service.wait_for_finish("peeps")


@pytest.mark.extended
def test_a_master_that_hangs_is_ended_by_the_watchdog_and_restarted(unit):
    limit = 6
    unit.drop_in("watchdog", f"[Service]\nWatchdogSec={limit}\n")
    unit.configure(concurrency=2)
    unit.service.add("long", data={"until": "gate", "processes": ["child", "daemon"]})
    unit.start()
    wait_for_three_processes(unit)
    # A service that is well is left alone, because it is heard of again and again.
    begun = int(unit.show("ActiveEnterTimestampMonotonic"))
    wait_until(
        lambda: int(unit.show("WatchdogTimestampMonotonic")) > begun + limit * 1_000_000,
        what="a sign of life that follows others",
    )
    assert unit.show("NRestarts") == "0"
    before = unit.processes

    unit.kill(signal.SIGSTOP)

    unit.wait_for(NRestarts="1", ActiveState="active")
    assert "ended: watchdog" in unit.output.read_text()
    assert [pid for pid in before if not has_ended(pid)] == []
    unit.service.add("next")
    unit.service.wait_for_finish("next")


def test_a_stop_lets_running_tasks_finish(unit):
    unit.service.add("long", data={"until": "gate"})
    unit.start()
    unit.service.runs.wait("long")

    unit.machine.systemctl("stop", "--no-block", "psched")
    unit.service.add("next")
    unit.wait_for(ActiveState="deactivating")
    wait_for_text(unit.log, "stopping: running tasks may finish")
    wait_for_sign_of_life(unit)
    assert unit.show("ActiveState") == "deactivating"
    unit.service.open_gate("gate")
    unit.machine.systemctl("stop", "psched")

    assert [unit.show(name) for name in ("Result", "ExecMainStatus")] == ["success", "0"]
    assert unit.processes == {}
    assert unit.service.row("long").status == "finished"
    assert [run.end for run in unit.service.runs.runs("long")] == ["returned"]
    assert unit.service.runs.runs("next") == []


@pytest.mark.extended
def test_a_stop_that_takes_too_long_for_its_task_kills_and_releases_it(unit):
    unit.configure(graceful_timeout=1, graceful_kill_limit=1)
    data = {"until": "gate", "stubborn": True, "processes": ["child", "daemon"]}
    unit.service.add("long", data=data)
    unit.start()
    wait_for_three_processes(unit)

    unit.machine.systemctl("stop", "psched")

    assert [unit.show(name) for name in ("Result", "ExecMainStatus")] == ["success", "0"]
    assert unit.processes == {}
    row = unit.service.row("long")
    assert (row.status, row.row.owner) == ("waiting", None)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        pytest.param({"dispatch": "broken:Dispatch"}, "65", id="handlers"),
        pytest.param({"processors": 0}, "78", id="configuration"),
    ],
)
@pytest.mark.extended
def test_what_a_restart_cannot_mend_is_not_restarted(unit, settings, status):
    unit.service.write("broken.py", "broken(")
    unit.configure(**settings)

    unit.machine.systemctl("start", "psched", status=1)

    # One that systemd will restart is "activating" until then.
    names = "ActiveState", "ExecMainStatus", "NRestarts"
    assert [unit.show(name) for name in names] == ["failed", status, "0"]


@pytest.mark.extended
def test_no_signal_to_all_processes_but_a_stop_costs_a_task(unit):
    unit.service.add("long", data={"until": "gate"})
    unit.start()
    unit.service.runs.wait("long")

    for number in (
        signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGPIPE,
        signal.SIGURG, signal.SIGCHLD, signal.SIGCONT,
    ):  # fmt: skip
        unit.kill(number, "all")
    for generation, number in (2, signal.SIGHUP), (3, signal.SIGUSR1):
        unit.kill(number, "all")
        wait_for_text(unit.log, f"generation {generation} serves")

    wait_for_sign_of_life(unit)
    assert not unit.service.runs.runs("long")[0].end
    unit.service.open_gate("gate")
    unit.service.wait_for_finish("long")
    assert [run.end for run in unit.service.runs.runs("long")] == ["returned"]
    assert unit.show("NRestarts") == "0"
    unit.machine.systemctl("stop", "psched")
    assert unit.show("Result") == "success"


def wait_for_sign_of_life(unit, key="long"):
    """Wait until a task shows that it has outlived what has happened so far."""
    now = CLOCK.boottime()
    unit.service.runs.wait(key, lambda runs: runs[-1].last_sign > now)


def wait_for_three_processes(unit, key="long"):
    """Wait until a task and both its processes run."""

    def seen():
        return {note["pid"] for run in unit.service.runs.runs(key) for note in run.notes}

    wait_until(lambda: len(seen()) == 3, what="a task with two processes")
