"""--daemon: a master in the background, without a service manager."""

import os
import signal
import sys
from pathlib import Path

import pytest

from support.processes import ignoring_children, kill, title
from support.run_log import completed
from support.waiting import wait_for_end, wait_for_text, wait_until


@pytest.fixture
def daemon(service):
    """A service that logs to a file, as a daemon must."""
    service.configure(log="log")
    return service


def start(service, *command):
    """Start a daemon as from a shell; the shell's process, and the daemon's pid."""
    words = command or (*service.master_command, "-c", "psched.yml")
    shell = service.start(*words, "--daemon", "pid", generation=0)
    assert shell.wait() == 0, shell.text
    assert shell.text == ""
    # The pid file can be read as soon as the command has returned to the shell.
    pid = int((service.folder / "pid").read_text())
    # The daemon has left the terminal, and, as it leads no session, can never get another.
    assert os.getsid(pid) not in (pid, shell.session)
    return shell, pid


def stop(service, pid):
    kill(pid, signal.SIGTERM)
    wait_for_end(pid)
    assert not (service.folder / "pid").exists()


def test_a_daemon_leaves_the_terminal_and_keeps_its_pid_in_the_file(daemon):
    service = daemon
    service.add("s1", data={"until": "gate"})

    shell, pid = start(service)

    wait_for_text(service.folder / "log", "generation 1 serves")
    assert title(pid).startswith("psched master")
    assert shell.pid != pid
    assert Path(f"/proc/{pid}/cwd").readlink() == service.folder
    for number, file in enumerate(["/dev/null", service.folder / "log", service.folder / "log"]):
        assert Path(f"/proc/{pid}/fd/{number}").readlink() == Path(file)
    service.open_gate("gate")
    service.runs.wait("s1", completed(1))
    stop(service, pid)
    assert shell.descendants == []
    assert "master stopped" in (service.folder / "log").read_text()


@pytest.mark.extended
def test_a_daemon_whose_parent_ignored_the_death_of_children_waits_for_its_own(daemon):
    daemon.add("s1")
    command = [*ignoring_children("psched.cli.daemon.master"), "-c", "psched.yml"]

    _, pid = start(daemon, *command)

    daemon.wait_for_finish("s1")
    stop(daemon, pid)


@pytest.mark.extended
def test_others_may_read_the_pid_but_neither_the_log_nor_the_database(service, tmp_path):
    # A new database, because the mode of an existing file does not change.
    database = tmp_path / "new.db"
    service.configure(log="log", url=f"sqlite:///{database}")
    before = os.umask(0o022)
    try:
        assert service.psched("init").returncode == 0
        _, pid = start(service)
        service.add("s1", "exec", data={"command": "umask > umask", "shell": True})
        service.wait_for_finish("s1")
    finally:
        os.umask(before)
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in [*tmp_path.glob("new.db*"), service.folder / "log", service.folder / "pid"]
    }
    stop(service, pid)
    assert modes == {
        **dict.fromkeys(["new.db", "new.db-wal", "new.db-shm", "log"], 0o640),
        "pid": 0o644,
    }
    # Tasks have the umask that the master was started with.
    assert int((service.folder / "umask").read_text(), 8) == 0o022


@pytest.mark.extended
def test_psched_run_can_be_a_daemon_too_and_is_restarted_and_reopens_its_log(daemon):
    service, log = daemon, daemon.folder / "log"
    service.write(
        "jobs.py",
        """
        from recorder import Dispatch as Before

        class Dispatch(Before):
            routes = {"prints": lambda task: print("printed by", task.key)}
        """,
    )
    command = [*service.psched_command, "run", "--processors", "2", "jobs:Dispatch"]
    _, pid = start(service, *command)
    wait_for_text(log, "generation 1 serves, 2 workers")

    log.rename(service.folder / "log.1")
    kill(pid, signal.SIGHUP)
    wait_for_text(log, "generation 2 serves, 2 workers")
    service.add("s1", "prints")

    wait_for_text(log, "printed by s1")
    assert (service.folder / "pid").read_text() == f"{pid}\n"
    stop(service, pid)


def test_a_second_daemon_is_refused_on_the_terminal_while_the_first_runs(daemon):
    service = daemon
    _, pid = start(service)

    second = service.start(
        *service.master_command, "-c", "psched.yml", "--daemon", "pid", generation=0
    )

    assert second.wait() == 75
    assert second.text == (
        f"Error: {service.folder}/pid is held by a running psched-master, pid {pid}\n"
    )
    assert (service.folder / "pid").read_text() == f"{pid}\n"
    stop(service, pid)


def test_what_a_killed_daemon_leaves_does_not_hinder_the_next_one(daemon):
    service = daemon
    shell, pid = start(service)
    wait_for_text(service.folder / "log", "generation 1 serves")
    service.add("s1", data={"until": "gate", "processes": ["daemon"]})
    service.runs.wait("s1")

    kill(pid)
    wait_until(lambda: not shell.descendants, what="the end of all that it had started")
    assert (service.folder / "pid").read_text() == f"{pid}\n"

    service.open_gate("gate")
    _, second = start(service)
    assert second != pid
    service.wait_for_finish("s1")
    stop(service, second)


@pytest.mark.parametrize(
    ("settings", "status", "says"),
    [
        ({"log": None}, 78, "log: must be set for a daemon, which has no standard error"),
        ({"log": "/no/such/folder/log"}, 78, "log: cannot be opened: "),
        ({"processors": 0}, 78, "processors: must be a whole number"),
    ],
)
def test_what_can_be_refused_is_refused_on_the_terminal(daemon, settings, status, says):
    daemon.configure(**settings)

    done = daemon.run(*daemon.master_command, "-c", "psched.yml", "--daemon", "pid")

    assert done.returncode == status
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (daemon.folder / "pid").exists()


def test_a_pid_file_that_cannot_be_written_is_refused_on_the_terminal(daemon):
    done = daemon.run(*daemon.master_command, "-c", "psched.yml", "--daemon", "no/such/pid")

    assert done.returncode == 78
    assert "pid_file: cannot be written: " in done.stderr


@pytest.mark.extended
def test_a_daemon_that_is_started_through_a_socket_leaves_as_well(daemon):
    service = daemon
    # As by ssh without a terminal: python-daemon would take the socket for inetd's, and not detach.
    ssh = "import os, socket, sys; pair = socket.socketpair(); os.dup2(pair[0].fileno(), 0)"
    service.write("ssh.py", f"{ssh}; os.execv(sys.argv[1], sys.argv[1:])")

    _, pid = start(service, sys.executable, "ssh.py", *service.master_command, "-c", "psched.yml")

    stop(service, pid)
