"""psched verify: what it says about real services, and about histories that somebody has spoilt."""

import contextlib
import json
import re
import sqlite3

import pytest

from support.processes import kill
from support.run_log import completed
from support.verifying import keeps_its_promises
from support.waiting import wait_until

AGO = 1_000_000_000


@pytest.fixture
def ticking(service):
    """A service that has run a schedule every second and a task, and was stopped."""
    service.add("tick", cron="@every 1", next_time=None)
    service.add("task")
    master = service.start()
    service.wait_for_finish("task")
    # What falls due while the service starts is run at once: some runs must be apart from those.
    service.runs.wait(
        "tick", lambda runs: completed(7)(runs) and runs[-1].last_sign > runs[2].started + 2
    )
    assert master.stop() == 0
    with service.sql() as database:
        # It was not added just now, so that nothing is explained by its addition.
        database.execute("UPDATE psched SET created_at = created_at - 1000")
        # The history is older still: a worker has been there.
        database.execute(
            "INSERT INTO psched_workers (nonce, host, pid, number, generation, slots, busy,"
            " started, seen) SELECT 'former', 'h', 1, 0, 1, 1, 0, created_at - 1000, created_at"
            " FROM psched WHERE id = 'tick'"
        )
    return service


AGAIN = """
    INSERT INTO psched_runs (key, type, scheduled_time, until, count, attempt, owner, fence,
        started, ended, outcome, fate)
    SELECT key, type, scheduled_time, until, count, attempt, 'rival.1', fence + 100,
        started + 100000, ended + 100000, outcome, fate
    FROM psched_runs WHERE id = {third}
"""

PLANTS = {
    "a fate is gone": ("missing", "DELETE FROM psched_runs WHERE id = {third}"),
    "its fate is NULL": ("missing", "UPDATE psched_runs SET fate = NULL WHERE id = {third}"),
    "the row has jumped": (
        "missing",
        "DELETE FROM psched_runs WHERE key = 'tick' AND id > {third}",
    ),
    "a task has no fate": ("missing", "DELETE FROM psched_runs WHERE key = 'task'"),
    "it has two fates": ("repeated", AGAIN),
    "it ran again": ("repeated", AGAIN.replace("outcome, fate\n", "'failed', NULL\n")),
    "it was skipped as well": (
        "repeated",
        AGAIN.replace("outcome, fate\n", "NULL, 'coalesced'\n").replace(
            "SELECT key, type, scheduled_time, until, count",
            "SELECT key, type, scheduled_time - 9, scheduled_time, 9",
        ),
    ),
    "two runs overlap": (
        "overlap",
        "UPDATE psched_runs SET ended = ended + 100000 WHERE id = {third}",
    ),
    "a fence is too small": ("fence", "UPDATE psched_runs SET fence = 1 WHERE id = {sixth}"),
    "two fences are equal": (
        "fence",
        "UPDATE psched_runs SET fence = fence - 1 WHERE id = {sixth}",
    ),
    "it started early": ("early", "UPDATE psched_runs SET due = due + 60000 WHERE id = {third}"),
}


def plant(service, statement, name):
    """Copy the database, and run a statement on the copy; the url of the copy."""
    copy = service.folder / f"{name.replace(' ', '-')}.db"
    with service.sql() as original, contextlib.closing(sqlite3.connect(copy)) as database, database:
        original.backup(database)
        ids = [
            number
            for (number,) in database.execute(
                "SELECT id FROM psched_runs WHERE key = 'tick' ORDER BY id"
            )
        ]
        values = {"{third}": str(ids[2]), "{sixth}": str(ids[5])}
        for place, value in values.items():
            statement = statement.replace(place, value)
        assert database.execute(statement).rowcount >= 1
    return f"sqlite:///{copy}"


def test_a_planted_violation_of_each_kind_is_found_and_nothing_else(ticking):
    clean = ticking.psched("verify")
    assert (clean.returncode, clean.stderr) == (0, "")
    summary = r"checked 2 schedules, \d+ instants and \d+ runs since .* UTC.*: no violation; "
    assert re.fullmatch(rf"{summary}\d+ pending, 0 unknown\n", clean.stdout)

    for name, (kind, statement) in PLANTS.items():
        url = plant(ticking, statement, name)
        found = ticking.invoke("verify", "--database", url)
        assert found.exit_code == 1, (name, found.output)
        *violations, last = found.stdout.splitlines()
        assert {line.partition(":")[0] for line in violations} == {kind}, (name, found.output)
        assert f": {len(violations)} violation" in last
        asked = ticking.invoke("verify", "--json", "--database", url)
        assert asked.exit_code == 1
        told = json.loads(asked.stdout)["violations"]
        assert {each["kind"] for each in told} == {kind}
        assert {each["key"] for each in told} == {"task" if "task" in name else "tick"}


@pytest.mark.extended
def test_only_the_chosen_schedules_are_checked(ticking):
    url = plant(ticking, PLANTS["a fate is gone"][1], "gone")

    assert ticking.invoke("verify", "task", "--database", url).exit_code == 0
    assert ticking.invoke("verify", "tick", "task", "--database", url).exit_code == 1
    wrong = ticking.invoke("verify", "--since", "never", "--database", url)
    assert (wrong.exit_code, "since: 'never' is neither an age" in wrong.output) == (1, True)
    future = ticking.invoke("verify", "--since", "2100-01-01T00:00", "--utc", "--database", url)
    assert future.exit_code == 0
    late = ticking.invoke("verify", "--since", "0", "--database", url)
    assert late.exit_code == 0
    assert "no violation" in late.stdout
    unknown = ticking.invoke("verify", "nobody")
    assert unknown.exit_code == 1
    assert unknown.output == "Error: no schedule and no record has the key 'nobody'\n"


@pytest.mark.extended
def test_what_cannot_be_known_is_said_with_its_reason(ticking):
    ticking.configure(history="none")
    url = plant(ticking, PLANTS["a fate is gone"][1], "gone")

    found = ticking.invoke("verify", "--database", url)

    assert found.exit_code == 0
    assert "no violation; " in found.stdout
    assert "1 unknown\nunknown: 1, because the setting history of the schedule is none\n" in (
        found.stdout
    )


def test_without_the_tables_of_the_history_the_command_says_so(service):
    with service.sql() as database:
        database.execute("DROP TABLE psched_runs")

    found = service.invoke("verify")

    assert found.exit_code == 1
    assert found.output.startswith("Error: ")
    assert "init" in found.output


def test_a_service_through_which_everything_happens_is_clean(each_service):
    service = each_service
    service.configure(processors=2, concurrency=2, alive_time=10, retry_wait=0)
    service.add("tick", cron="@every 1", next_time=None)
    service.add("backlog", cron="* * * * *", next_time=AGO, catchup="latest")
    service.add("fails", data={"fail": 2}, max_attempts=2)
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")
    kill(master.workers()[0])
    service.runs.wait("tick", completed(3))
    with service.schedules() as schedules:
        schedules["tick"].modify(cron="@every 2")
        wait_until(lambda: service.row("fails").status == "failed", what="the end of the task")
        schedules["fails"].requeue()
        schedules["backlog"].delete()
    for _ in range(2):
        # What is added again has fences from 1 on.
        service.add("again", cron="@every 1", next_time=None)
        service.runs.wait("again", lambda runs: runs and runs[-1].completed)
        with service.schedules() as schedules:
            schedules["again"].delete()
            wait_until(lambda: "again" not in schedules, what="the deletion")
        service.runs.clear()
    service.open_gate("gate")
    service.wait_for_finish("long")

    # While it runs, and when it has been stopped.
    assert keeps_its_promises(service).runs > 5
    assert master.stop() == 0
    found = keeps_its_promises(service)
    assert found.runs > 5
    assert service.psched("verify", "--since", "1h").returncode == 0


@pytest.mark.mariadb
@pytest.mark.extended
def test_records_that_a_slow_database_does_not_take_are_written_later(behind_proxy):
    service, proxy, direct = behind_proxy
    service.add("s1", cron="0 0 1 1 *", next_time=None, data={"until": "gate"})
    with service.schedules() as schedules:
        # While it holds its schedule, its end takes a request of several answers.
        extra = schedules["s1"].trigger().key
    master = service.start()
    service.runs.wait(extra)

    with proxy.slow(1.6):
        service.open_gate("gate")
        master.wait_for_log("records of the run history wait .* database_timeout is 5 s")
        wait_until(lambda: direct.get(extra).status == "finished", what="the end without a record")
    wait_until(lambda: [*direct.history.runs()], what="the record")

    [written] = direct.history.runs()
    assert (written.key, written.fate, written.attempt) == (extra, "finished", 1)
    said = service.psched("verify")
    assert (said.returncode, "no violation" in said.stdout) == (0, True), said.stdout
    assert master.stop() == 0
