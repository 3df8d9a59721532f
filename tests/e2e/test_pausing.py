"""``psched pause`` and ``psched resume`` with real services, also while processes are killed."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import support
from support.processes import kill
from support.waiting import wait_until

pytestmark = pytest.mark.verified

HOUR = 3600

SCRIPT = Path(support.__file__).with_name("on_terminal.py")


def now_of(service):
    with service.schedules() as schedules:
        return schedules.now()


def fates(service, key):
    with service.schedules() as schedules:
        return [str(run.fate) for run in schedules.runs(key) if run.fate][::-1]


def psched(service, *arguments):
    done = service.psched(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_schedule_is_paused_and_resumed(each_service):
    service = each_service
    hour = int(now_of(service)) // HOUR * HOUR
    service.add("hourly", cron="@hourly", next_time=hour - 2 * HOUR)
    service.add("task")
    assert psched(service, "pause", "hourly", "task", "-m", "deploy") == (
        "hourly: paused\ntask: paused\n"
    )
    listed = psched(service, "list", "--status", "paused")
    assert listed.count(": deploy") == 2
    assert "2 schedules" in listed
    service.start()
    service.add("other")
    service.wait_for_finish("other")
    assert service.row("task").row.fence == 0

    assert psched(service, "resume", "*") == "hourly: resumed\ntask: resumed\n2 schedules resumed\n"
    service.wait_for_finish("task")
    assert fates(service, "hourly") == ["skipped_paused"]
    assert (
        "because the schedule was paused by " in service.psched("why", "hourly", str(hour)).stdout
    )
    assert " skipped, " in psched(service, "history", "hourly")
    [record] = [
        json.loads(line)
        for line in psched(service, "history", "--fate", "skipped_paused", "--json").splitlines()
    ]
    assert ": deploy (since " in record["reason"]
    found = [json.loads(line) for line in psched(service, "audit", "--json").splitlines()]
    actions = [(each["key"], each["action"], each["note"]) for each in found]
    assert ("task", "pause", "deploy") in actions
    assert ("task", "resume", None) in actions


def test_a_backfill_runs_what_was_missed(service):
    hour = int(now_of(service)) // HOUR * HOUR
    service.add("hourly", cron="@hourly", next_time=hour - 2 * HOUR)
    psched(service, "pause", "hourly")
    psched(service, "resume", "hourly", "--backfill")
    service.start()
    service.wait_for_row("hourly", lambda seen: seen.next_time > hour and seen.row.owner is None)
    assert {*fates(service, "hourly")} == {"finished"}
    assert len(fates(service, "hourly")) >= 3


@pytest.mark.extended
def test_a_worker_that_is_alive_resumes_at_the_end(each_service):
    service = each_service
    hour = int(now_of(service)) // HOUR * HOUR
    service.add("hourly", cron="@hourly", next_time=hour - 2 * HOUR)
    service.add("task")
    psched(service, "pause", "hourly", "task", "--until", "+3s")
    service.start()
    service.wait_for_finish("task")
    service.wait_for_row("hourly", lambda seen: seen.status != "paused")
    assert fates(service, "hourly")[0] == "skipped_paused"


@pytest.mark.extended
def test_the_first_worker_after_the_end_resumes(service):
    hour = int(now_of(service)) // HOUR * HOUR
    service.add("hourly", cron="@hourly", next_time=hour - 2 * HOUR)
    service.add("task")
    until = int(now_of(service)) + 3
    with service.schedules() as schedules:
        schedules.select("*").pause(until)
    wait_until(lambda: now_of(service) > until, what="the end of the pause")
    assert service.row("task").status == "paused"
    service.start()
    service.wait_for_finish("task")
    service.wait_for_row("hourly", lambda seen: seen.status != "paused")
    with service.schedules() as schedules:
        [span] = schedules.runs("hourly", fate="skipped_paused")
    assert span.record.last < until


def test_a_running_task_goes_on_and_the_end_of_the_pause_outlives_it(each_service):
    service = each_service
    service.add("long", data={"until": "gate"}, cron="* * * * *", catchup="latest")
    service.start()
    service.runs.wait("long")
    until = int(now_of(service)) + HOUR
    told = psched(service, "pause", "long", "--until", str(until))
    assert told == "long: will be paused when its task has ended\n"
    service.open_gate("gate")
    seen = service.wait_for_row("long", lambda seen: seen.row.owner is None)
    assert (seen.status, seen.next_run_time, seen.paused_until) == ("paused", until, until)
    assert [run.completed for run in service.runs.runs("long")] == [True]


def test_a_task_whose_worker_dies_stays_paused(service):
    service.add("dies", data={"until": "gate"})
    master = service.start()
    service.runs.wait("dies")
    until = int(now_of(service)) + HOUR
    psched(service, "pause", "dies", "--until", str(until))
    for worker in master.workers():
        kill(worker, signal.SIGKILL)
    master.wait_for_log("dies: released, its worker has died")
    seen = service.wait_for_row(
        "dies", lambda seen: seen.row.owner is None and seen.next_run_time == until
    )
    assert (seen.status, seen.paused_until) == ("paused", until)
    psched(service, "resume", "dies")
    service.open_gate("gate")
    service.wait_for_finish("dies")


@pytest.mark.parametrize("number", range(3))
@pytest.mark.extended
def test_a_worker_that_is_killed_when_it_resumes(service, number):
    """Workers are killed again and again around the end of the pause."""
    hour = int(now_of(service)) // HOUR * HOUR
    keys = [f"hourly-{each}" for each in range(20)]
    for key in keys:
        # They do not run before they are paused.
        service.add(key, cron="@hourly", next_time=hour - 2 * HOUR, next_run_time=hour + 9 * HOUR)
    service.configure(processors=2)
    master = service.start()
    until = int(now_of(service)) + 3
    with service.schedules() as schedules:
        assert len(schedules.select("hourly-*").pause(until).changed) == len(keys)
    wait_until(lambda: now_of(service) >= until - 0.01 + number * 0.01, what="the end")
    for worker in master.workers():
        kill(worker, signal.SIGKILL)
    for key in keys:
        service.wait_for_row(key, lambda seen: seen.status == "waiting" and not seen.row.owner)
        assert fates(service, key)[0] == "skipped_paused"


@pytest.mark.extended
def test_two_operators_at_once(service):
    keys = [f"k{number}" for number in range(10)]
    hour = int(now_of(service)) // HOUR * HOUR
    for key in keys:
        service.add(key, cron="* * * * *", next_time=hour - HOUR)

    def operate(verb):
        return [service.psched(verb, *keys).returncode for _ in range(3)]

    service.start()
    with ThreadPoolExecutor() as pool:
        list(pool.map(operate, ["pause", "resume"] * 2))
    psched(service, "pause", "*")
    psched(service, "resume", "*")
    assert {service.row(key).status for key in keys} <= {"waiting", "running"}


def test_after_failures_a_schedule_is_paused(each_service):
    service = each_service
    service.configure(retry_wait=0, max_attempts=1, pause_after_failures=2)
    hour = int(now_of(service)) // HOUR * HOUR
    service.add("bad", cron="@hourly", next_time=hour - 5 * HOUR, data={"fail": 9})
    master = service.start()
    seen = service.wait_for_row("bad", lambda seen: seen.status == "paused")
    assert seen.reason == "paused after 2 failures in a row: RecorderError: as it was told"
    assert seen.reason_code == "paused_after_failures"
    assert fates(service, "bad") == ["gave_up", "gave_up"]
    told = [json.loads(line) for line in psched(service, "history", "bad", "--json").splitlines()]
    assert {run["reason_code"] for run in told} == {"gave_up", "paused_after_failures"}
    master.wait_for_log("bad: paused after 2 failures in a row")
    assert "after 2 failures in a row" in psched(service, "list", "--columns", "KEY,REASON")


class TestCommand:
    @pytest.mark.extended
    def test_what_would_be_done_is_shown(self, service):
        service.add("a")
        service.add("b", label="mail")
        told = psched(service, "pause", "--label", "mail", "--dry-run")
        assert told == "b: would be paused\n1 schedule would be paused\n"
        assert psched(service, "pause", "*") == "a: paused\nb: paused\n2 schedules paused\n"
        told = psched(service, "resume", "a", "--dry-run")
        assert told == "a: would be resumed\n1 schedule would be resumed\n"

    @pytest.mark.extended
    def test_it_asks_on_a_terminal_before_it_pauses_several(self, service):
        for key in "a", "b":
            service.add(key)
        keys = service.folder / "keys"
        words = [sys.executable, "-I", "-S", SCRIPT, keys, *service.psched_command]
        terminal = service.start(*words, "pause", "*", log="seen", generation=0)
        wait_until(lambda: "pause 2 schedules (a, b)? [y/N]" in terminal.text, what="the question")
        keys.write_text("n\n")
        assert terminal.wait() == 1
        assert service.row("a").status == "waiting"

    @pytest.mark.parametrize(
        ("arguments", "status", "error"),
        [
            (["pause"], 2, "name KEYS"),
            (["pause", "never"], 1, "no schedule has the key 'never'"),
            (["pause", "a", "--until", "soon"], 1, "until: 'soon' is no time; write 18:00"),
            (["pause", "a", "--until", "5"], 1, "until: must be in the future"),
            (["pause", "a", "--until", "2026-01-31"], 1, "until: must be in the future"),
            (["pause", "a", "--until", "yesterday"], 1, "until: must be in the future"),
            (["resume", "a"], 1, "'a' is not paused: it is waiting"),
            (["pause", "--status", "failed"], 1, "'failed' cannot be paused"),
        ],
    )
    def test_what_it_refuses(self, service, arguments, status, error):
        service.add("a")
        done = service.psched(*arguments)
        assert done.returncode == status
        assert error in done.stderr

    @pytest.mark.extended
    def test_what_is_shown_of_a_pause(self, service):
        service.add("a", cron="@hourly", timezone="UTC", next_time=4_000_000_000)
        psched(service, "pause", "a", "--until", "2099-01-01T08:00", "-m", "deploy")
        [listed] = [json.loads(line) for line in psched(service, "list", "--json").splitlines()]
        assert listed["paused_until"] == 4_070_937_600
        assert listed["paused_at"] <= now_of(service)
        assert "until 2099-01-01 08:00 by " in psched(service, "list", "--utc")
        assert "deploy" in psched(service, "show", "a")
        times = psched(service, "next", "a", "-n", "1")
        assert "paused" in times
        assert "2099-01-01 08:00:00+00:00" in times

    @pytest.mark.extended
    def test_secrets_in_its_note_are_hidden(self, service):
        service.configure(redact=["password"])
        service.add("a", cron="@hourly", timezone="UTC", next_time=4_000_000_000)
        psched(service, "pause", "a", "-m", "password=sesame")
        for command in (["list", "--json"], ["list"], ["show", "a"]):
            shown = psched(service, *command)
            assert "password" in shown
            assert "sesame" not in shown
