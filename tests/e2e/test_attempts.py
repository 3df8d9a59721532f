"""What the run history knows about an attempt: how its program ended, what it used, its error."""

import json
import signal

import pytest

from support.cgroups import limited_memory
from support.waiting import wait_until

JOBS = """
    import os, subprocess, time
    from psched.application import Dispatch as BaseDispatch

    def fails(task):
        try:
            {}["cause"]
        except KeyError as error:
            raise ValueError("no") from error

    def leaves(task):
        os._exit(3)

    def burns(task):
        while time.process_time() < 0.5:
            pass

    def hogs(task):
        held = []
        while True:
            held.append(bytearray(b"x") * 2**20)

    def swarms(task):
        # Each waits for somebody to read what it holds: more than a runner, less than a worker.
        program = ["dd", "if=/dev/zero", "bs=38M", "count=1"]
        programs = [subprocess.Popen(program, stdout=subprocess.PIPE) for _ in range(30)]
        _, status = os.wait()
        raise ChildProcessError(f"a child has ended: {status}")

    def waits(task):
        while not os.path.exists("gate"):
            time.sleep(0.1)

    def hangs(task):
        time.sleep(1000)

    class Dispatch(BaseDispatch):
        routes = {
            "fails": fails, "leaves": leaves, "burns": burns, "hogs": hogs, "hangs": hangs,
            "swarms": swarms, "waits": waits,
        }
"""


@pytest.fixture
def service(service):
    """A service with these handlers, whose tasks are tried once."""
    service.write("jobs.py", JOBS)
    service.configure(require=None, load_path=["."], dispatch="jobs:Dispatch", kill_interval=1)
    return service


def add_shell(service, key, command, **data):
    data = {"command": command, "shell": True, **data}
    service.add(key, "exec", data=data, max_attempts=1)


def attempt(service, key):
    """The record of a schedule's first attempt, as soon as there is one."""

    def records():
        with service.sql() as database:
            found = database.execute(
                "select * from psched_runs where key = ? and attempt = 1", (key,)
            )
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

    return wait_until(records, what=f"the record of {key}")[0]


def test_the_record_of_a_command_has_its_exit_status_or_its_signal(service):
    add_shell(service, "zero", "exit 0")
    add_shell(service, "seven", "exit 7")
    add_shell(service, "allowed", "exit 7", ok_exit=[7])
    add_shell(service, "signal", "kill -USR1 $$")
    service.start()
    expected = {
        "zero": ("finished", 0, None),
        "seven": ("failed", 7, None),
        "allowed": ("finished", 7, None),
        "signal": ("failed", None, signal.SIGUSR1),
    }
    for key, ended in expected.items():
        found = attempt(service, key)
        assert (found["outcome"], found["exit_status"], found["exit_signal"]) == ended, key
        assert found["peak_kb"] > 0
        assert found["cpu_ms"] is not None
        assert (found["out_of_memory"], found["error"], found["result"]) == (0, None, None)
    assert attempt(service, "seven")["reason"] == "/bin/sh exited with status 7"


def test_the_record_of_a_handler_has_its_error_or_the_exit_of_its_process(service):
    for key in "fails", "leaves", "burns":
        service.add(key, key, max_attempts=1)
    service.start()
    failed, left, burnt = (attempt(service, key) for key in ("fails", "leaves", "burns"))
    assert failed["reason"] == "ValueError: no"
    assert failed["error"].startswith("Traceback (most recent call last):\n")
    assert "KeyError: 'cause'" in failed["error"]
    assert failed["error"].endswith("\nValueError: no")
    assert (left["exit_status"], left["exit_signal"], left["error"]) == (3, None, None)
    assert left["outcome"] == "failed"
    assert (burnt["outcome"], burnt["exit_status"]) == ("finished", None)
    assert 450 <= burnt["cpu_ms"] < 1500
    assert burnt["peak_kb"] > 5000


@pytest.mark.extended
def test_the_record_of_a_task_that_was_stopped_at_its_time_limit_shows_where_it_was(service):
    service.configure(kill_timeout=1, graceful_kill_limit=1)
    service.add("hangs", "hangs", max_attempts=1)
    add_shell(service, "deaf", "trap '' TERM; while true; do sleep 1000; done")
    service.start()
    hung, deaf = attempt(service, "hangs"), attempt(service, "deaf")
    assert (hung["outcome"], hung["exit_signal"]) == ("timed_out", None)
    assert "time.sleep(1000)" in hung["error"]
    assert (deaf["outcome"], deaf["exit_signal"]) == ("timed_out", signal.SIGKILL)
    assert not deaf["out_of_memory"]


def test_a_task_that_the_kernel_kills_for_its_memory_is_marked(service):
    with limited_memory("attempts", 300) as enter:
        service.add("hogs", "hogs", max_attempts=1)
        master = service.start(*enter, *service.master_command, "-c", service.config.name)
        found = attempt(service, "hogs")
        assert (found["outcome"], found["exit_signal"]) == ("failed", signal.SIGKILL)
        assert found["out_of_memory"] == 1
        assert found["reason"] == "its process was killed by SIGKILL"
        master.wait_for_log("killed by SIGKILL; memory has probably run out")
        master.stop()


@pytest.mark.extended
def test_a_task_whose_processes_take_all_memory_costs_nobody_else_an_attempt(service):
    def processes():
        status = json.loads(service.psched("status", "--json").stdout)
        return status["pid"], sorted(each["pid"] for each in status["workers"])

    with limited_memory("attempts", 600) as enter:
        service.configure(processors=2, concurrency=4)
        for key in "one", "two", "three":
            service.add(key, "waits", max_attempts=1)
        add_shell(service, "program", "while ! test -e gate; do sleep 0.1; done")
        master = service.start(*enter, *service.master_command, "-c", service.config.name)
        wait_until(lambda: service.psched("list").stdout.count("running") == 4, what="the tasks")
        before = processes()
        service.add("swarms", "swarms", max_attempts=1)
        found = attempt(service, "swarms")
        assert found["outcome"] == "failed"
        assert processes() == before
        service.open_gate("gate")
        for key in "one", "two", "three", "program":
            assert attempt(service, key)["outcome"] == "finished"
        master.stop()
