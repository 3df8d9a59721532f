"""psched status: what the masters on this host answer."""

import contextlib
import json
import re
import signal
import socket
import stat

import pytest

from psched.master.runtime_folders import short_address
from support.processes import kill, title
from support.waiting import wait_until


def asked(service):
    """The answer of the only master."""
    done = service.psched("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_it_tells_what_each_worker_runs_and_agrees_with_the_titles(service):
    service.configure(processors=2)
    service.add("s1", data={"until": "gate"})
    master = service.start()
    master.wait_for_workers(2)
    [run] = service.runs.wait("s1")

    told = asked(service)

    assert (told["pid"], told["phase"], told["generation"]) == (master.pid, "serving", 1)
    assert told["url"] == f"sqlite:///{service.folder.parent}/psched.db"
    assert (told["table"], told["worker_deaths"], told["problem"]) == ("psched", 0, None)
    assert {worker["pid"] for worker in told["workers"]} == {*master.workers()}
    assert {worker["state"] for worker in told["workers"]} == {"ready"}
    [busy] = [worker for worker in told["workers"] if worker["tasks"]]
    [task] = busy["tasks"]
    assert task["pid"] == run.pid
    assert (task["occurrence"], task["type"]) == ("s1.1000000000", "recorder")
    assert (task["attempt"], task["state"]) == (1, "running")
    assert 0 < task["running_for"] < told["uptime"]
    assert 200 < task["lease_left"] <= 300
    assert title(task["pid"]) == "psched runner: recorder s1.1000000000 attempt 1"
    wait_until(
        lambda: title(busy["pid"]) == f"psched worker {busy['number']} (gen 1): 1 tasks",
        what="the worker's title",
    )
    wait_until(
        lambda: (
            title(master.pid)
            == "psched master: generation 1, 2 workers, 1 tasks, 1 of 2 slots free"
        ),
        what="the master's title",
    )

    shown = service.psched("status").stdout
    assert re.search(rf"^psched-master {master.pid} serving, generation 1, up ", shown)
    assert re.search(r"s1\.1000000000 recorder attempt 1 pid \d+ running for .*, lease ends", shown)

    service.open_gate("gate")
    service.wait_for_finish("s1")
    assert master.stop() == 0
    assert not [*(service.folder / "run").iterdir()]


def test_it_tells_of_deaths_errors_and_failed_restarts(service):
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", "from recorder import Dispatch")
    service.add("s1", data={"fail": 1})
    master = service.start()
    service.wait_for_finish("s1")
    [worker] = master.workers()
    kill(worker)
    master.wait_for_log(r"worker 0 \(gen 1\) started", count=2)
    master.wait_for_workers(1)
    service.write("jobs.py", "broken(")
    master.send(signal.SIGHUP)
    master.wait_for_log("could not be started")

    told = asked(service)

    assert told["worker_deaths"] == 1
    problem = (
        "its first worker exited with status 65: its handlers cannot be loaded: importing 'jobs'"
        " failed: SyntaxError: '(' was never closed (jobs.py, line 1)"
    )
    assert told["problem"] == problem
    assert any("was killed by SIGKILL" in line for line in told["errors"])
    assert f"last restart failed: {problem}\n" in service.psched("status").stdout
    assert master.stop() == 0


def test_a_database_that_is_away_is_told(service):
    master = service.start()
    with service.sql() as database:
        database.execute("alter table psched rename to away")
    master.wait_for_log("psched init")

    wait_until(lambda: asked(service)["workers"][0]["store_away"], what="the news")

    assert "psched init" in service.psched("status").stdout
    assert master.stop() == 0


@pytest.mark.extended
def test_a_task_whose_end_cannot_be_recorded_is_not_shown_as_running(service):
    service.add("s1", data={"until": "gate"})
    master = service.start()
    service.runs.wait("s1")
    with service.sql() as database:
        database.execute("alter table psched rename to away")

    service.open_gate("gate")
    wait_until(
        lambda: [task["state"] for task in asked(service)["workers"][0]["tasks"]] == ["ended"],
        what="the end of the run",
    )

    shown = service.psched("status").stdout
    assert re.search(r" pid \d+ ended, not recorded yet, started .* ago, lease ends in ", shown)
    with service.sql() as database:
        database.execute("alter table away rename to psched")
    service.wait_for_finish("s1")
    assert master.stop() == 0


@pytest.mark.extended
def test_the_time_of_a_lease_that_has_ended_is_not_negative(service):
    service.configure(alive_time=6)
    service.add("s1", data={"until": "gate"})
    master = service.start()
    service.runs.wait("s1")
    with service.sql() as database:
        database.execute("alter table psched rename to away")

    wait_until(
        lambda: asked(service)["workers"][0]["tasks"][0]["lease_left"] < 0,
        what="the end of the lease",
    )

    shown = service.psched("status").stdout
    assert re.search(r" pid \d+ ended, not recorded yet, .* ago, lease ended .* ago", shown)
    assert "-" not in shown.partition("lease ended")[2].partition("\n")[0]
    assert master.stop() == 0


@pytest.mark.extended
def test_records_of_the_run_history_that_are_lost_are_told(service):
    master = service.start()
    assert "lost_records" not in asked(service)["workers"][0]
    assert "run history" not in service.psched("status").stdout
    with service.sql() as database:
        database.execute("drop table psched_runs")
    for key in "s1", "s2":
        service.add(key)
        service.wait_for_finish(key)

    assert asked(service)["workers"][0]["lost_records"] == 2
    said = service.psched("status").stdout
    assert "    2 records of the run history could not be written\n" in said
    assert master.stop() == 0


def test_a_worker_that_hangs_does_not_keep_the_master_from_telling(service):
    master = service.start()
    [worker] = master.workers()
    asked(service)

    kill(worker, signal.SIGSTOP)
    told = asked(service)
    kill(worker, signal.SIGCONT)

    assert told["workers"][0]["silent_for"] >= 1
    assert master.stop() == 0


@pytest.mark.extended
def test_of_several_masters_those_are_asked_that_serve_the_configured_table(service):
    one = service.start()
    other = service.start()
    service.psched("init")

    told = [json.loads(line) for line in service.psched("status", "--json").stdout.splitlines()]
    assert {each["pid"] for each in told} == {one.pid, other.pid}

    service.configure(table="elsewhere")
    done = service.psched("status")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no psched-master that serves table else")
    assert str(service.folder / "run") in done.stderr


def test_only_the_masters_own_user_may_ask(service):
    master = service.start()
    [door] = (service.folder / "run").glob("master.*.sock")

    assert stat.S_IMODE(door.stat().st_mode) == 0o600
    assert master.stop() == 0


def test_what_a_killed_master_leaves_is_passed_over_and_swept_away_by_the_next(service):
    first = service.start()
    first.kill()
    assert len([*(service.folder / "run").glob("master.*.sock")]) == 1
    assert service.psched("status").returncode == 1

    second = service.start()

    assert [path.name for path in (service.folder / "run").glob("master.*.sock")] == [
        f"master.{second.pid}.sock"
    ]
    assert asked(service)["pid"] == second.pid


@pytest.mark.extended
def test_those_who_connect_and_read_nothing_cost_nothing(service):
    master = service.start()
    [door] = (service.folder / "run").glob("master.*.sock")
    with contextlib.ExitStack() as idle:
        for _ in range(50):
            each = idle.enter_context(socket.socket(socket.AF_UNIX))
            with short_address(door) as address:
                each.connect(address)
            # The master may have closed the connection, because it has too many.
            with contextlib.suppress(BrokenPipeError):
                each.send(b"x" * 1000)

        service.add("s1")
        service.wait_for_finish("s1")

    wait_until(lambda: service.psched("status").returncode == 0, what="an answer")
    assert master.stop() == 0


@pytest.mark.extended
def test_a_folder_that_cannot_be_used_is_said_and_costs_nothing(service):
    (service.folder / "run").write_text("a file")
    master = service.start()

    master.wait_for_log("psched status will not find this master: .*run: ")
    assert master.stop() == 0


@pytest.mark.parametrize("setting", ["worker_max_tasks", "worker_max_age"])
def test_a_worker_that_has_worked_long_enough_is_replaced_and_finishes_what_it_runs(
    service, setting
):
    service.configure(concurrency=2, **{setting: 1})
    service.add("s2", data={"until": "gate"})
    master = service.start()
    [first] = master.workers()
    [run] = service.runs.wait("s2")
    service.add("s1")

    master.wait_for_log(r"worker 0 \(gen 1\) has .*: another takes its place")
    master.wait_for_log(r"worker 0 \(gen 1\) started", count=2)
    wait_until(lambda: "leaving" in title(first), what="the first worker to leave")
    service.open_gate("gate")
    service.wait_for_finish("s2")

    assert len(service.runs.runs("s2")) == 1
    assert run.worker == first
    wait_until(lambda: first not in master.workers(), what="the end of the first worker")
    assert master.stop() == 0


@pytest.mark.extended
def test_no_more_than_two_workers_are_in_one_place_however_often_they_are_replaced(service):
    service.configure(worker_max_age=1)
    for number in range(4):
        service.add(f"s{number}", data={"until": "gate"})
    master = service.start()
    service.runs.wait("s0")
    # The second worker is old enough, too, and has said so before it answers for the second time.
    service.runs.wait("s1", lambda runs: runs[0].last_sign > runs[0].started + 2)
    service.wait_until_asleep()
    service.wait_until_asleep()
    assert len(master.workers()) == 2
    assert master.text.count("another takes its place") == 1
    assert len(service.runs.runs()) == 2

    service.open_gate("gate")
    for number in range(4):
        service.wait_for_finish(f"s{number}")
    assert master.stop() == 0


def test_a_task_whose_process_does_not_begin_is_killed_and_tried_again(service):
    service.configure(start_timeout=10, dispatch="jobs:Dispatch")
    service.write(
        "jobs.py",
        """
        import os, signal
        from pathlib import Path
        from recorder import Dispatch

        HANGS = Path(__file__).with_name("hangs")
        forks = []

        def hang():
            if len(forks) == 1:
                return  # a fork server tries once whether it can fork
            try:
                HANGS.rmdir()
            except FileNotFoundError:
                return
            signal.pause()

        os.register_at_fork(before=lambda: forks.append(None), after_in_child=hang)
        """,
    )
    (service.folder / "hangs").mkdir()
    service.add("s1")

    master = service.start()

    master.wait_for_log(r"\[s1\.1000000000\] killing it: its process does not begin")
    service.wait_for_finish("s1")
    assert [run.attempt for run in service.runs.runs("s1")] == [2]
    assert master.stop() == 0
