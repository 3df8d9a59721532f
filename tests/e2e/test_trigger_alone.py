"""Extra runs that never overlap with other runs of their schedule, with real workers."""

import json

import pytest

from psched.core.operations.extra_runs import schedule_of
from support.waiting import wait_until

LATER = 4_000_000_000
START = 1_700_006_400

JOBS = """
    import pathlib, time

    from psched.application import Dispatch as BaseDispatch

    def report(task):
        with open("log", "a") as log:
            log.write(f"begin {task.key}\\n")
        while "gate" in task.data and not pathlib.Path(task.data["gate"]).exists():
            time.sleep(0.01)
        with open("log", "a") as log:
            log.write(f"end {task.key}\\n")

    class Dispatch(BaseDispatch):
        routes = {"report": report}
"""


@pytest.fixture
def jobs(service):
    """A service that could run two tasks at once, and a schedule that waits for a gate."""
    service.configure(dispatch="jobs:Dispatch", concurrency=2)
    service.write("jobs.py", JOBS)
    with service.schedules() as schedules:
        schedules.add("report", "report", cron="0 * * * *", next_time=LATER, data={"gate": "gate"})
    return service


def begun(service):
    log = service.folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def done(service, *arguments, status=0):
    ended = service.psched(*arguments)
    assert ended.returncode == status, (ended.stdout, ended.stderr)
    return ended.stdout


def extra_runs(service):
    with service.schedules() as schedules:
        return sorted(each.key for each in schedules.list(prefix="report!"))


def test_queue_waits_and_skip_does_not_run(jobs):
    jobs.start()
    done(jobs, "trigger", "report")
    [first] = extra_runs(jobs)
    jobs.wait_for_row(first, lambda seen: seen.status == "running")
    done(jobs, "trigger", "report")
    [second] = {*extra_runs(jobs)} - {first}
    skipped = jobs.psched("trigger", "report", "--overlap", "skip", "--wait", "60", "--json")
    ended = json.loads(skipped.stdout)
    assert (skipped.returncode, ended["status"]) == (1, "cancelled")
    assert begun(jobs) == [f"begin {first}"]
    shown = json.loads(done(jobs, "show", "report", "--json"))
    assert {each["key"] for each in shown["extra_runs"]} == {first, second}
    assert "attempt:       0" in done(jobs, "show", "report")
    assert shown["occurrences"][0]["run_at"] == LATER + 3200
    assert "will run" in done(jobs, "why", "report")
    jobs.open_gate("gate")
    for key in first, second:
        jobs.wait_for_row(key, lambda seen: seen.status == "finished")
    assert begun(jobs) == [f"{what} {key}" for key in (first, second) for what in ("begin", "end")]
    wait_until(lambda: jobs.row("report").row.owner is None, what="the lease to be given back")
    row = jobs.row("report").row
    assert (row.next_time, row.attempt) == (LATER + 3200, 0)
    fates = [
        (each["key"], each["fate"])
        for each in map(json.loads, done(jobs, "history", "report", "--json").splitlines())
    ]
    assert {*fates} == {
        (first, "finished"), (second, "finished"), (ended["key"], "skipped_overlap"),
    }  # fmt: skip
    assert "no violation" in done(jobs, "verify", "--since", "1h")


@pytest.mark.extended
def test_a_backfill_runs_one_after_the_other(jobs):
    jobs.open_gate("gate")
    jobs.start()
    done(jobs, "backfill", "report", "--from", str(START), "--to", str(START + 7 * 3600))
    keys = extra_runs(jobs)
    assert len(keys) == 8
    for key in keys:
        jobs.wait_for_row(key, lambda seen: seen.status == "finished")
    log = begun(jobs)
    assert sorted(line.partition(" ")[2] for line in log[::2]) == keys
    for begin, end in zip(log[::2], log[1::2], strict=True):
        assert end == begin.replace("begin", "end")
    assert "no violation" in done(jobs, "verify", "--since", "1h")


@pytest.mark.extended
def test_why_says_what_a_schedule_that_is_due_waits_for(jobs):
    jobs.start()
    done(jobs, "trigger", "report")
    [extra] = extra_runs(jobs)
    jobs.wait_for_row(extra, lambda seen: seen.status == "running")
    with jobs.schedules() as schedules:
        now = int(schedules.now())
        schedules["report"].modify(every="1s", next_time=now - 5)
    assert "waits for the end of an extra run of the schedule" in done(jobs, "why", "report")
    assert schedule_of(extra) == "report"
    jobs.open_gate("gate")
    jobs.wait_for_row(extra, lambda seen: seen.status == "finished")
    wait_until(lambda: "begin report" in begun(jobs), what="a regular run")
