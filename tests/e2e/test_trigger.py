"""psched trigger and psched backfill, with real workers."""

import json
import re
import subprocess

import pytest

from psched.core.operations.extra_runs import schedule_of
from support.waiting import wait_until

LATER = 4_000_000_000
START = 1_700_006_400  # 2023-11-15T00:00:00Z
PARALLEL = ["--overlap", "parallel"]

JOBS = """
    import pathlib, time

    from psched.application import Dispatch as BaseDispatch

    def report(task):
        print("printed by", task.key)
        while "gate" in task.data and not pathlib.Path(task.data["gate"]).exists():
            time.sleep(0.01)
        task.result = {"of": task.schedule_key, "to": task.data.get("to"), "token": "abc"}
        if "fail" in task.data:
            raise ValueError("no")

    class Dispatch(BaseDispatch):
        routes = {"report": report}
"""


@pytest.fixture
def jobs(service):
    """A service with a schedule that does not run by itself during the tests."""
    service.configure(dispatch="jobs:Dispatch", redact=["token"], timezone="Europe/Paris")
    service.write("jobs.py", JOBS)
    with service.schedules() as schedules:
        schedules.add(
            "report", "report", cron="0 * * * *", next_time=LATER, data={"to": "ann"},
            max_attempts=1,
        )  # fmt: skip
    service.env["TZ"] = "Europe/Paris"
    return service


def done(service, *arguments, status=0):
    """What a command has printed."""
    ended = service.psched(*arguments)
    assert ended.returncode == status, (ended.stdout, ended.stderr)
    return ended.stdout


def extra_runs(service):
    with service.schedules() as schedules:
        return sorted(each.key for each in schedules.list(prefix="report!"))


class TestTriggering:
    def test_wait_shows_the_end_of_the_run_and_its_result(self, jobs):
        jobs.start()
        shown = done(jobs, "trigger", "report", *PARALLEL, "--wait", "60", "-m", "ticket 42")
        [key] = extra_runs(jobs)
        assert shown.splitlines() == [
            f"{key}: finished",
            '{"of": "report", "to": "ann", "token": "[redacted]"}',
        ]
        audited = done(jobs, "audit", "report").splitlines()
        [line] = [each for each in audited if "trigger" in each]
        assert re.search("report +trigger +ticket 42$", line)
        assert f"    extra_run: '{key}'" in audited
        data = json.dumps({"to": "bob", "fail": 1})
        failed = jobs.psched("trigger", "report", *PARALLEL, "--data", data, "--wait", "--json")
        assert failed.returncode == 1
        ended = json.loads(failed.stdout)
        assert (ended["status"], ended["result"]["to"]) == ("failed", "bob")
        assert schedule_of(ended["key"]) == "report"
        assert "ValueError: no" in failed.stderr
        late = jobs.psched(
            "trigger", "report", *PARALLEL, "--at", str(LATER), "--wait", "0.1", "--json"
        )
        assert (late.returncode, json.loads(late.stdout)["status"]) == (3, "waiting")

    def test_its_records_and_its_output_are_found(self, jobs):
        jobs.start()
        first = json.loads(done(jobs, "trigger", "report", *PARALLEL, "--wait", "--json"))["key"]
        jobs.wait_for_row(first, lambda seen: seen.status == "finished")
        table = done(jobs, "history", "report").splitlines()
        assert table[0].split()[:4] == ["WHEN", "(CET/CEST)", "KEY", "ATTEMPT"]
        assert first in table[1]
        [run] = map(json.loads, done(jobs, "history", "report", "--json").splitlines())
        assert (run["key"], run["fate"]) == (first, "finished")
        assert "KEY" not in done(jobs, "history", first).splitlines()[0]
        assert f"printed by {first}" in done(jobs, "logs", first)
        assert "ran at" in done(jobs, "why", first)
        assert "no violation" in done(jobs, "verify", "--since", "1h")
        shown = json.loads(done(jobs, "show", "report", "--json"))
        assert (shown["extra_runs"], shown["last"]) == ([], None)
        assert [each["key"] for each in shown["attempts"]] == [first]

    @pytest.mark.extended
    def test_those_that_wait_or_run_are_shown(self, jobs):
        jobs.start()
        done(jobs, "trigger", "report", *PARALLEL, "--data", '{"gate": "gate"}')
        [running] = extra_runs(jobs)
        jobs.wait_for_row(running, lambda seen: seen.status == "running")
        for _ in range(7):
            done(jobs, "trigger", "report", *PARALLEL, "--at", str(LATER))
        shown = done(jobs, "show", "report")
        section = shown[shown.index("extra runs:") :].splitlines()
        running_line = next(each for each in section if running in each)
        assert running_line.endswith(": running")
        assert sum("report!" in each for each in section) == 5
        assert "    and 3 more" in section
        objects = json.loads(done(jobs, "show", "report", "--json"))["extra_runs"]
        assert [each["key"] for each in objects] == [
            running, *(key for key in extra_runs(jobs) if key != running)
        ]  # fmt: skip
        assert objects[0]["status"] == "running"
        listed = done(jobs, "list", "report*").splitlines()
        assert len([line for line in listed if line.startswith("report")]) == 9
        jobs.open_gate("gate")
        jobs.wait_for_row(running, lambda seen: seen.status == "finished")

    @pytest.mark.extended
    def test_several_are_triggered_after_a_question(self, jobs):
        with jobs.schedules() as schedules:
            schedules.add("second", "report", cron="@daily", next_time=LATER, label="team")
            schedules.add("old", "report", cron="@daily", next_time=LATER).cancel()
        preview = done(jobs, "trigger", "--all", *PARALLEL, "--dry-run")
        assert preview.splitlines() == [
            "report: would be triggered", "second: would be triggered",
            "2 schedules would be triggered",
        ]  # fmt: skip
        assert extra_runs(jobs) == []
        shown = done(jobs, "trigger", "--all", *PARALLEL).splitlines()
        assert re.fullmatch(r"report: triggered as report!\w{16}", shown[0])
        assert re.fullmatch(r"second: triggered as second!\w{16}", shown[1])
        assert shown[2] == "2 schedules triggered"
        assert len(done(jobs, "trigger", "--label", "team", *PARALLEL).splitlines()) == 2

    def test_what_cannot_run_is_refused(self, jobs):
        for arguments, status, text in (
            (["none"], 1, "no schedule has the key 'none'"),
            (["report", "--data", "[1]"], 1, "must be a JSON object"),
            (["report", "--data", "x"], 1, "write a JSON object in quotes"),
            (["report", "--json"], 2, "--json needs --wait"),
            (["rep*", "--wait"], 2, "--wait needs one KEY"),
            (["report", "report2", "--wait"], 2, "--wait needs one KEY"),
            (["--wait", "--type", "report"], 2, "--wait needs one KEY"),
            ([], 2, "name KEYS"),
            (["report", "--overlap", "never"], 2, "'never' is not one of"),
        ):
            refused = jobs.psched("trigger", *PARALLEL, *arguments)
            assert (refused.returncode, text in refused.stderr) == (status, True), refused.stderr
        assert extra_runs(jobs) == []

    @pytest.mark.extended
    def test_data_are_read_from_standard_input(self, jobs):
        ended = subprocess.run(
            [*jobs.psched_command, "trigger", "report", *PARALLEL, "--data", "-"],
            cwd=jobs.folder,
            env=jobs.env,
            input=b'{"to": "\xc3\xbc"}\n',
            check=True,
            capture_output=True,
        )
        assert ended.stderr == b""
        [key] = extra_runs(jobs)
        assert jobs.row(key).data == {"to": "ü"}


class TestBackfilling:
    PERIOD = ("--from", "2023-11-15T01:00", "--to", "2023-11-15T05:00")
    """In Paris: 2023-11-15T00:00:00Z to 04:00:00Z."""

    def test_the_missed_times_run_once_each(self, jobs):
        command = ["backfill", "report", *self.PERIOD, *PARALLEL]
        span = "2023-11-15 01:00:00 CET to 2023-11-15 05:00:00 CET"
        assert done(jobs, *command, "--dry-run") == f"report: 5 runs would be added, {span}\n"
        assert extra_runs(jobs) == []
        assert done(jobs, *command, "-m", "outage") == f"report: 5 runs added, {span}\n"
        keys = [f"report!20231115T0{n}0000Z" for n in range(5)]
        assert extra_runs(jobs) == keys
        jobs.start()
        for key in keys:
            jobs.wait_for_row(key, lambda seen: seen.status == "finished")
        again = done(jobs, *command)
        assert again == "report: 0 runs added; 5 finished already\n"
        runs = [json.loads(each) for each in done(jobs, "history", "report", "--json").splitlines()]
        assert sorted(each["scheduled_time"] for each in runs) == [
            START + n * 3600 for n in range(5)
        ]
        assert "no violation" in done(jobs, "verify", "--since", "1h")
        assert "outage" in done(jobs, "audit", "report")

    def test_a_rate_says_how_long_it_takes(self, jobs):
        preview = done(
            jobs, "backfill", "report", *self.PERIOD, *PARALLEL, "--rate", "10/m", "--dry-run"
        )
        assert "due within 24.0 s" in preview

    @pytest.mark.extended
    def test_an_interrupted_command_can_be_repeated(self, jobs):
        """The command is killed while it adds rows, at whatever place."""
        arguments = [
            "backfill", "report", "--from", str(START), "--to", str(START + 5999 * 3600), *PARALLEL
        ]  # fmt: skip
        command = subprocess.Popen(
            [*jobs.psched_command, *arguments],
            cwd=jobs.folder,
            env=jobs.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        wait_until(lambda: extra_runs(jobs) or command.poll() is not None, what="the first rows")
        command.kill()
        command.communicate()
        before = len(extra_runs(jobs))
        assert before > 0
        assert f"{before} there already" in (text := done(jobs, *arguments)) or before == 6000, text
        assert len(extra_runs(jobs)) == 6000

    def test_several_schedules(self, jobs):
        with jobs.schedules() as schedules:
            schedules.add("daily", "report", cron="@daily", timezone="UTC", next_time=LATER)
            schedules.push("once", "report", run_at=LATER)
        shown = done(jobs, "backfill", "--all", *self.PERIOD, *PARALLEL).splitlines()
        assert [each.partition(" added")[0] for each in shown] == [
            "daily: 1 run", "report: 5 runs", "2 schedules: 6 runs",
        ]  # fmt: skip

    def test_each_named_schedule_is_tried(self, jobs):
        command = ["backfill", "none", "report", *self.PERIOD, *PARALLEL]
        preview = jobs.psched(*command, "--dry-run")
        assert preview.returncode == 1
        assert preview.stderr == ("none: would not be backfilled: no schedule has the key 'none'\n")
        assert preview.stdout.splitlines()[1:] == [
            "1 schedule: 5 runs would be added; 1 not backfilled, because of errors"
        ]
        tried = jobs.psched(*command)
        assert (tried.returncode, len(extra_runs(jobs))) == (1, 5)
        assert tried.stderr == "Error: no schedule has the key 'none'\n"

    def test_a_wrong_option_is_refused_once_and_changes_nothing(self, jobs):
        with jobs.schedules() as schedules:
            schedules.add("daily", "report", cron="@daily", next_time=LATER)
        refused = jobs.psched("backfill", "--all", "--from", "x", "--to", "0", *PARALLEL)
        assert refused.stderr.count("\n") == 1
        assert refused.stderr.startswith("Error: from: 'x' is no time")
        refused = jobs.psched("backfill", "--status", "failed", *self.PERIOD, *PARALLEL)
        assert refused.returncode == 1
        assert "status: 'failed' cannot be backfilled; choose from" in refused.stderr

    def test_what_cannot_run_is_refused(self, jobs):
        with jobs.schedules() as schedules:
            schedules.push("once", "report", run_at=LATER)
        for arguments, status, text in (
            (["report", "--from", "2023-11-15"], 2, "Missing option '--to'"),
            (["report", "--from", "x", "--to", "0"], 1, "from: 'x' is no time"),
            (
                ["report", "--from", "0", "--to", str(LATER)],
                1,
                "to: 2096-10-02 09:06:40 CEST is in",
            ),
            (["report", "--from", "0", "--to", str(START)], 1, "more than 10000 instants"),
            (["once", *self.PERIOD], 1, "runs only once"),
            (["none", *self.PERIOD], 1, "no schedule has the key"),
            (["report", *self.PERIOD, "--rate", "x"], 1, "rate: must be a number per time"),
            (["report", *self.PERIOD, "--overlap", "skip"], 1, "skip needs a rate"),
        ):
            refused = jobs.psched("backfill", *PARALLEL, *arguments)
            assert (refused.returncode, text in refused.stderr) == (status, True), refused.stderr
        assert extra_runs(jobs) == []


@pytest.mark.extended
def test_an_extra_run_is_no_schedule_of_a_file(jobs):
    """Pruning does not remove the extra runs of schedules that have the label of the file."""
    jobs.write("own.yml", "label: team\nschedules:\n  mine: {type: report, cron: '@daily'}\n")
    done(jobs, "apply", "own.yml")
    done(jobs, "trigger", "mine", *PARALLEL, "--at", str(LATER))
    done(jobs, "apply", "own.yml", "--prune")
    with jobs.schedules() as schedules:
        assert [schedule_of(each.key) for each in schedules.list(prefix="mine!")] == ["mine"]
    bad = jobs.write("bad.yml", f"label: x\nschedules:\n  k!{'a' * 16}: {{cron: '@daily'}}\n")
    refused = jobs.psched("apply", str(bad))
    assert refused.returncode == 1
    assert "extra run" in refused.stderr
