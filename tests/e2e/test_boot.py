"""What keeps a master from starting, and what it waits for."""

import re
from datetime import datetime

import pytest

from support.processes import ignoring_children
from support.proxy import Proxy
from support.run_log import completed
from support.waiting import wait_until


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ValueError('no')", "importing 'jobs' failed: ValueError: no"),
        ("import sys; sys.exit(0)", "importing 'jobs' failed: SystemExit: 0"),
        ("pass", "the module 'jobs' has no 'Dispatch'"),
        (
            "import threading; threading.Timer(600, print).start(); from recorder import Dispatch",
            "this process has 2 threads and must not fork",
        ),
    ],
)
def test_handlers_that_cannot_be_loaded_are_exit_status_65(service, code, says):
    service.configure(dispatch="jobs:Dispatch", processors=3)
    service.write("jobs.py", code)

    master = service.start(generation=0)

    assert master.wait() == 65
    assert says in master.text
    # The first worker is enough: trying again would not help.
    assert master.text.count(f"ERROR   worker 0 {says}") == 1
    assert master.descendants == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"processors": 0}, "processors: must be a whole number"),
        ({"log": "/no/such/folder/log"}, "log: cannot be opened: "),
        ({"pid_file": "/no/such/folder/pid"}, "pid_file: cannot be written: "),
        ({"url": "mysql+nodriver://root@127.0.0.1/psched"}, "url: "),
        ({"database_timeout": 60}, "database_timeout: two timeouts of 60 s do not fit"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_exit_status_78(service, settings, says):
    service.configure(**settings)

    master = service.start(generation=0)

    assert master.wait() == 78
    assert says in master.text
    assert "Traceback" not in master.text


def test_a_second_master_on_one_pid_file_is_exit_status_75_and_harms_nobody(service):
    service.configure(pid_file=str(service.folder / "pid"))
    service.add("long", data={"until": "gate"})
    first = service.start()
    service.runs.wait("long")

    second = service.start(generation=0)

    assert second.wait() == 75
    assert (
        f"{service.folder}/pid is held by a running psched-master, pid {first.pid}" in second.text
    )
    assert (service.folder / "pid").read_text() == f"{first.pid}\n"
    service.open_gate("gate")
    service.wait_for_finish("long")
    assert first.stop() == 0
    assert not (service.folder / "pid").exists()


def test_a_pid_file_left_by_a_killed_master_is_no_hindrance(service):
    service.configure(pid_file=str(service.folder / "pid"))
    service.start().kill()
    assert (service.folder / "pid").exists()

    master = service.start()

    assert (service.folder / "pid").read_text() == f"{master.pid}\n"


def test_a_module_that_changes_what_signals_do_is_told_off_and_costs_nothing(service):
    service.configure(dispatch="jobs:Dispatch")
    service.write(
        "jobs.py",
        """
        import signal
        from recorder import Dispatch
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        """,
    )
    service.add("s1")
    master = service.start()

    master.wait_for_log("a module has replaced the handler of SIGCHLD")
    service.wait_for_finish("s1")
    assert master.stop() == 0


def test_a_master_whose_parent_ignored_the_death_of_children_waits_for_its_own(service):
    service.add("s1")

    master = service.start(*ignoring_children("psched.cli.daemon.master"), "-c", "psched.yml")

    service.wait_for_finish("s1")
    assert master.stop() == 0
    assert "Traceback" not in master.text


def test_a_command_whose_parent_ignored_the_death_of_children_knows_its_hook_failed(service):
    service.configure(monitor=True, hooks={"ops": {"command": "false"}})

    done = service.run(*ignoring_children("psched"), "-c", "psched.yml", "hooks", "test", "ops")

    assert "exited with status 1" in done.stdout + done.stderr
    assert done.returncode == 1


def test_workers_that_die_again_and_again_are_exit_status_70(service):
    service.configure(dispatch="jobs:Dispatch", processors=2)
    service.write("jobs.py", "import os; os.kill(os.getpid(), 9)")

    master = service.start(generation=0)

    assert master.wait() == 70
    assert master.text.count("was killed by SIGKILL") >= 5
    assert "every worker has died again and again: giving up" in master.text
    assert master.descendants == []


def test_a_worker_that_ends_before_it_is_ready_is_not_started_over_and_over(service):
    service.configure(dispatch="jobs:Dispatch", processors=2)
    service.write(
        "jobs.py",
        """
        import os
        from pathlib import Path
        from recorder import Dispatch

        ran = Path(__file__).with_name("ran")
        if ran.exists():
            os._exit(0)
        ran.touch()
        """,
    )

    master = service.start(generation=0)

    log = master.wait_for_log(r"worker 1 .* started", count=4)
    times = re.findall(r"^(\S+) .* master worker 1 .* (?:started|exited)", log, re.MULTILINE)
    begun, ended = (list(map(datetime.fromisoformat, times[first:7:2])) for first in (0, 1))
    pauses = [(next_ - end).total_seconds() for end, next_ in zip(ended, begun[1:], strict=True)]
    # The first is followed at once; then come a second and two, each with a fifth more or less.
    assert pauses[1] > 0.79
    assert pauses[2] > 1.59
    assert master.stop() == 0


@pytest.mark.extended
def test_a_master_without_standard_streams_works_like_any_other(service):
    service.configure(dispatch="jobs:Dispatch", log=str(service.folder / "log"))
    service.write(
        "jobs.py",
        """
        from recorder import Recorder, Dispatch as Before

        class Prints(Recorder):
            def run(self):
                print("to whom?", flush=True)
                super().run()

        class Dispatch(Before):
            routes = {**Before.routes, "prints": Prints}
        """,
    )
    service.add("s1", "prints")
    service.add("s2", "exec", data={"command": "cat; echo to whom?", "shell": True})
    command = " ".join([*service.master_command, "-c", "psched.yml"])

    master = service.start("/bin/sh", "-c", f"exec {command} <&- >&- 2>&-", log="log")

    for key in "s1", "s2":
        service.wait_for_finish(key)
    assert master.stop() == 0
    assert "ERROR" not in master.text
    assert "to whom?" not in master.text


def test_a_database_that_is_away_is_waited_for_and_reported_once(make_service, start_mariadb):
    server = start_mariadb()
    name = server.create_database()
    with Proxy(server.port) as proxy:
        url = server.url(name).replace(f":{server.port}/", f":{proxy.port}/")
        service = make_service(url, processors=2)
        service.init()
        service.add("s1")
        server.stop()

        master = service.start()

        master.wait_for_log("cannot connect to mysql", count=2)
        tries = proxy.heard
        wait_until(lambda: proxy.heard > tries + 10, what="more tries of the workers")
        assert len(master.workers()) == 2
        # By each worker.
        assert master.text.count("cannot connect to mysql") == 2
        server.start()
        service.runs.wait("s1", completed(1))
        master.wait_for_log("the store answers again")
        assert master.stop() == 0


def test_a_missing_table_is_waited_for_and_the_mend_is_named(make_service, database):
    service = make_service(database.url)
    if database.kind == "sqlite":
        service.configure(table="another")
        service.init()  # the file is there, but the table is not
        service.configure(table="psched")

    master = service.start()

    master.wait_for_log("the table 'psched' does not exist; run `psched init`")
    assert service.psched("init").returncode == 0
    service.add("s1")
    service.runs.wait("s1", completed(1))
    assert master.text.count("does not exist") == 1
    assert master.stop() == 0


def test_a_master_that_waits_for_its_database_can_be_stopped(make_service):
    service = make_service("mysql://root@127.0.0.1:1/psched")

    master = service.start()
    master.wait_for_log("cannot connect to")

    assert master.stop() == 0
    assert master.descendants == []
