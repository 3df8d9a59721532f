"""The table as an interface: tasks pushed and cancelled with each database's own client."""

import functools
import re
import signal

import pytest

from support.clients import documented_sql
from support.processes import kill
from support.programs import lines, run_work, with_work
from support.waiting import wait_until

pytestmark = pytest.mark.extended

INSERT, CANCEL, DELETE = documented_sql()


@pytest.fixture
def queue(each_service):
    """A service with a program for its tasks."""
    return with_work(each_service)


@pytest.fixture
def send(send_sql, database):
    """A function that sends SQL to the database with its own client; what that prints."""
    return functools.partial(send_sql, database.url)


def test_a_row_that_any_client_inserts_is_a_task_and_its_end_stands_in_the_row(queue, send):
    send(INSERT)
    master = run_work(queue)

    done = queue.wait_for_finish("mail-7")

    assert lines(queue, "ran") == ['mail-7 {"to": "ann"}']
    assert (done.type, done.cron, done.attempt) == ("mail", None, 0)
    assert send("SELECT status FROM psched WHERE id = 'mail-7';") == "finished"
    # The key is taken, as it is for a program's push.
    assert queue.invoke("push", "mail-7", "{}").stderr == "Error: the key 'mail-7' is taken\n"
    assert master.stop() == 0


def test_a_row_that_any_client_deletes_is_never_run_or_runs_no_longer(queue, send):
    (queue.folder / "hold").touch()
    master = run_work(queue, "--timeout", 6, "--heartbeat-interval", 1)
    send("INSERT INTO psched (id) VALUES ('running');")
    wait_until(lambda: lines(queue, "ran"), what="the task's start")
    send(INSERT)  # there is one worker, and it is busy

    send(DELETE)
    send("DELETE FROM psched WHERE id = 'running';")

    master.wait_for_log(r"\[running\.\d+\] preempted: what it did counts for nothing")
    assert len(re.findall("its lease is lost", master.text)) == 1
    (queue.folder / "hold").unlink()
    send("INSERT INTO psched (id) VALUES ('next');")
    queue.wait_for_finish("next")
    assert lines(queue, "ran") == ["running {}", "next {}"]
    assert lines(queue, "done") == ["next"]
    assert send("SELECT count(*) FROM psched;") == "1"
    assert master.stop() == 0


def test_a_row_that_has_ended_for_any_client_is_never_run_and_comes_to_rest(queue, send):
    words = ("cancelled", "finished", "failed", "expired", "paused", "migrating", "quarantined")
    for word in (*words, "running", "nonsense"):
        send(f"INSERT INTO psched (id, status) VALUES ('{word}', '{word}');")  # noqa: S608
    send(INSERT)
    send(CANCEL)
    master = run_work(queue)

    rests = {word: word for word in words} | {"running": "quarantined", "nonsense": "quarantined"}
    for key, status in {**rests, "mail-7": "cancelled"}.items():
        row = queue.wait_for_row(key, lambda seen: seen.next_run_time is None).row
        assert (row.status, row.owner, row.attempt) == (status, None, 0)
        is_purged = status in {"cancelled", "finished", "expired"}
        assert (row.retain_until is not None) is is_purged
    assert queue.row("nonsense").reason.startswith("status: 'nonsense' is unknown; there are ")
    assert "paused" in queue.invoke("list", "--legacy", "--status", "paused").stdout
    assert queue.invoke("requeue", "paused").stdout == "paused: requeued\n"
    queue.wait_for_finish("paused")
    assert lines(queue, "ran") == ["paused {}"]
    assert master.stop() == 0


def test_a_running_task_that_any_client_cancels_is_stopped_under_its_lease(queue, send):
    (queue.folder / "hold").touch()
    master = run_work(queue)
    for key in "gone", "held":
        send(f"INSERT INTO psched (id) VALUES ('{key}');")  # noqa: S608
        wait_until(lambda key=key: f"{key} {{}}" in lines(queue, "ran"), what="the task's start")
        status = "cancelled" if key == "gone" else "paused"
        send(f"UPDATE psched SET status = '{status}' WHERE id = '{key}';")  # noqa: S608

        if key == "gone":
            queue.wait_for_row(key, lambda seen: seen.next_run_time is None)
    (queue.folder / "fail").touch()
    (queue.folder / "hold").unlink()
    queue.wait_for_row("held", lambda seen: seen.next_run_time is None)

    gone, held = queue.row("gone").row, queue.row("held").row
    assert (gone.status, gone.owner) == ("cancelled", None)
    assert gone.retain_until is not None
    # That one was not stopped: it has failed, and is not tried again.
    assert (held.status, held.retain_until, held.attempt) == ("paused", None, 1)
    assert held.reason.endswith("work.sh exited with status 3")
    assert lines(queue, "done") == []
    assert master.stop() == 0


PRODUCE = """\
    #!/bin/sh
    # One client for each task: produce.sh NAME NUMBER CLIENT...
    name=$1 number=$2
    shift 2
    while [ "$number" -gt 0 ]; do
        number=$((number - 1))
        echo "INSERT INTO psched (id, type, data) VALUES" \\
            "('$name$number', 'shell', '{\\"number\\": $number}');" | "$@" || exit
    done
"""


@pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("mariadb", "postgresql")],
    indirect=True,
)
def test_two_hosts_run_what_a_shell_script_inserts_though_one_is_killed(queue, send, sql_client):
    queue.write("produce.sh", PRODUCE).chmod(0o755)

    def produce(name, number):
        made = queue.run("./produce.sh", name, number, *sql_client)
        assert made.returncode == 0, made.stderr

    options = ["--timeout", 6, "--heartbeat-interval", 4.5, "--workers", 2]
    first, second = (run_work(queue, *options, generation=0) for _ in range(2))
    for master in first, second:
        master.wait_for_generation(1)
    produce("calm", 20)
    wait_until(lambda: len(lines(queue, "done")) == 20, what="the tasks of the calm")
    calm = [f'calm{number} {{"number": {number}}}' for number in range(20)]
    assert sorted(lines(queue, "ran")) == sorted(calm)

    (queue.folder / "hold").touch()
    produce("storm", 4)
    wait_until(lambda: len(lines(queue, "ran")) == 20 + 4, what="a task on each worker")
    produce("never", 3)
    produce("late", 4)
    send("DELETE FROM psched WHERE id = 'never0' OR id = 'never1';")
    assert queue.invoke("cancel", "never2").output == "never2: cancelled\n"
    # A host: a master with all its workers, so that nobody is left to release anything.
    lost = [first.pid, *first.workers()]
    for number in signal.SIGSTOP, signal.SIGKILL:
        for pid in lost:
            kill(pid, number)
    (queue.folder / "hold").unlink()

    every = {f"storm{number}" for number in range(4)} | {f"late{number}" for number in range(4)}
    wait_until(lambda: every <= {*lines(queue, "done")}, what="the tasks of the storm")
    unfinished = "SELECT count(*) FROM psched WHERE status <> 'finished' AND id <> 'never2';"
    wait_until(lambda: send(unfinished) == "0", what="the end of all tasks")
    assert send("SELECT count(*) FROM psched WHERE status = 'finished';") == "28"
    assert not [line for line in lines(queue, "ran") if line.startswith("never")]
    assert second.stop() == 0
