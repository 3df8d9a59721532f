"""``psched migrate``, as a person uses it."""

import contextlib
import json
import signal

import pytest

from support.old_tables import OldTable, schedule, task
from support.programs import with_work
from support.run_log import exactly_once
from support.waiting import wait_until

LATER = 2_000_000_000


@pytest.fixture
def make_old():
    with contextlib.ExitStack() as opened:

        def make_old(service, name="schedules", url=None, **how):
            old = OldTable(url or f"sqlite:///{service.folder.parent}/psched.db", name)
            opened.callback(old.close)
            old.create(**how)
            return old

        yield make_old


def test_it_says_what_it_has_moved_and_has_nothing_to_do_again(service, make_old):
    old = make_old(service)
    old.insert(schedule("a", at=LATER), schedule("b", at=LATER))
    first, again = service.psched("migrate", "schedules"), service.psched("migrate", "schedules")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("perfectsched: table 'schedules' on sqlite:")
    assert "moved: 2\nrunning, left for the next time: 0\nrefused" in first.stdout
    assert again.returncode == 0
    assert "moved: 0\n" in again.stdout
    assert service.row("a").next_time == LATER


def test_what_it_cannot_move_is_named_and_its_exit_status_is_1(service, make_old):
    old = make_old(service)
    old.insert(schedule("good", at=LATER), schedule("bad\x1b", at=LATER))
    old.insert(schedule("worse", at=LATER, cron="nonsense"))
    before = old.rows

    dry = service.invoke("migrate", "schedules", "--dry-run")
    assert dry.exit_code == 1
    assert "would move: 1\n" in dry.stdout
    assert old.rows == before

    done = service.invoke("migrate", "schedules")
    assert done.exit_code == 1
    assert "moved: 1\n" in done.stdout
    assert "\n    bad\\x1b: id: " in done.stdout
    assert "\n    worse: cron: " in done.stdout
    assert done.stderr.endswith(
        "Error: 2 rows remain; correct those that are refused, and run it again\n"
    )
    assert old.keys == ["bad\x1b", "worse"]


def test_what_may_be_running_is_moved_another_time_and_needs_no_correction(service, make_old):
    old = make_old(service)
    [[now]] = [row.values() for row in old("SELECT CAST(strftime('%s') AS INTEGER)")]
    old.insert(schedule("busy", at=now + 200, next_time=now - 60))
    done = service.invoke("migrate", "schedules")
    assert done.exit_code == 1
    assert "running, left for the next time: 1\nrefused, left where they are: 0\n" in done.stdout
    assert done.stderr.endswith("Error: 1 rows remain; run it again\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["schedules"], "there is no table 'schedules'"),
        (["psched"], "is psched's own"),
        (["psched_info", "--kind", "perfectqueue"], "does not have the columns of perfectqueue's"),
        (["schedules", "--url", "nonsense"], "url: must be"),
    ],
)
def test_a_mistake_is_told_in_one_line(service, arguments, told):
    refused = service.invoke("migrate", *arguments)
    assert refused.exit_code == 1
    assert told in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_it_needs_a_table_to_move_into(make_service, make_old, tmp_path):
    service = make_service(f"sqlite:///{tmp_path}/psched.db")
    make_old(service)
    refused = service.invoke("migrate", "schedules")
    assert refused.exit_code == 1
    assert "run `psched init`" in refused.stderr


def test_the_environment_names_another_database(service, make_old, tmp_path):
    url = f"sqlite:///{tmp_path}/queue.db"
    old = make_old(service, "tasks", url)
    old.insert(task("k", at=LATER, resource="user", max_running=3))
    service.env["PSCHED_MIGRATE_URL"] = url
    done = service.psched("migrate", "tasks")
    assert (done.returncode, done.stderr) == (0, "")
    assert "perfectqueue: table 'tasks'" in done.stdout
    assert "not enforced" in done.stdout
    assert json.loads(service.row("k").row.options) == {"resource": "user", "max_running": 3}


SAVE = """\
    #!/bin/sh
    cat >"$NOTES/in.$1"
"""

PAYLOADS = {
    "text": b"hello world",
    "list": b"[1,2,3]",
    "quoted": b'"x"',
    "bytes": b"\x00\xff\x01",
    "object": b'{"any":"data"}',
    "typed": b'{"type": "mail", "n": 1.10}',
    "empty": b"",
    "none": b"\xef\xbb\xbf{}\r\n",
}


def test_a_program_gets_what_perfectqueue_would_have_given_it(service, make_old):
    with_work(service).write("save.sh", SAVE).chmod(0o755)
    old = make_old(service, "tasks", newer=False)
    # Older than expire: PerfectQueue 0.7 would run it, too.
    at = 1_500_000_000
    old.insert(*(task(key, at=at, data=data, created_at=at) for key, data in PAYLOADS.items()))

    dry = service.invoke("migrate", "tasks", "--dry-run")
    assert dry.exit_code == 0
    note = f"\nnote: {len(PAYLOADS)} tasks are overdue by more than the setting expire: they are"
    assert note in dry.stdout
    done = service.invoke("migrate", "tasks")
    assert f"moved: {len(PAYLOADS)}\n" in done.stdout
    assert note in done.stdout
    master = service.start(*service.psched_command, "run", "--exec", "./save.sh")

    for key, data in PAYLOADS.items():
        service.wait_for_finish(key)
        assert (service.folder / f"in.{key}").read_bytes() == data
    assert master.stop() == 0


@pytest.mark.extended
def test_killed_in_the_middle_and_run_again_every_task_runs_once(each_service, database):
    """While a master runs, which runs every task that has been moved, however old it is."""
    each_service.configure(expire=0)
    old = OldTable(database.url, "tasks")
    with contextlib.closing(old):
        old.create()
        payload = b'{"type":"recorder"}'
        due = [task(f"due{n:04}", at=1_500_000_000, data=payload) for n in range(0, 1200, 200)]
        old.insert(*due, *(task(f"due{n:04}x", at=LATER) for n in range(1200)))
        master = each_service.start()
        move = each_service.start(*each_service.psched_command, "migrate", "tasks", generation=0)
        left = "SELECT COUNT(*) AS number FROM tasks"
        wait_until(lambda: old(left)[0]["number"] < 1200, what="the first rows to move")
        move.send(signal.SIGKILL)
        assert move.wait() == -signal.SIGKILL
        assert old(left)[0]["number"] > 0

        done = each_service.psched("migrate", "tasks")
        assert done.returncode == 0, done.stderr
        assert old.keys == []
    for row in due:
        each_service.wait_for_finish(row["id"])
    assert master.stop() == 0
    exactly_once(each_service.runs.runs(), [(row["id"], row["timeout"]) for row in due])
    with each_service.schedules() as schedules:
        assert sum(1 for each in schedules.list()) == 1206
