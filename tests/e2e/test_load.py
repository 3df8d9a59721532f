"""The command load: the worst minutes, the slots that they need, and proposals that apply."""

import json
import shlex

import pytest
import yaml

from psched.core.history.records import Outcome
from support.run_records import run_record

HOURLY = [f"report-{i:02}" for i in range(12)]


@pytest.fixture
def busy(service):
    """A service with schedules that run at the same time, with past runs of some of them."""
    with service.schedules() as schedules:
        schedules.add_many({"key": key, "type": "report", "cron": "0 * * * *"} for key in HOURLY)
        schedules.add("nightly", "backup", cron="30 2 * * *")
        records = [
            run_record(key, owner=f"w.{i}", started=0, ended=took, outcome=Outcome.FINISHED)
            for key in HOURLY
            for i, took in enumerate([1000, 30_000, 900_000])
        ]
        schedules._store.history.record(records)
    return service


def load(service, *options):
    shown = service.psched("load", *options)
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout


def test_the_worst_minutes_and_a_proposal_are_shown(busy):
    text = load(busy, "--utc")
    assert "of 13 schedules" in text
    assert "without a past run, and estimated: 1 schedule by 1 s per run" in text
    assert "at the peak, 12 slots would be occupied; no worker is known to be alive" in text
    assert "  12 schedules: report-00 30.0 s, report-01 30.0 s" in text
    assert "    psched edit --cron '" in text
    assert "nightly" not in text


def test_the_slots_of_live_workers_are_compared(busy):
    busy.configure(concurrency=3)
    busy.start()
    text = load(busy, "--next", "2h")
    assert "12 slots would be occupied; the live workers have 3, so runs will wait then" in text


@pytest.mark.extended
def test_the_commands_of_a_proposal_lower_the_peak(busy):
    before = json.loads(load(busy, "--json"))
    assert (before["slots_needed"], before["proposal"]["movable"]) == (12, 12)
    commands = load(busy, "--commands").splitlines()
    assert commands == [each["command"] for each in before["proposal"]["moves"]]
    for command in commands:
        done = busy.psched(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr
    after = json.loads(load(busy, "--json"))
    assert after["slots_needed"] == before["proposal"]["slots_needed"] < 12
    assert after["proposal"]["moves"] == []


@pytest.mark.extended
def test_the_lines_of_a_proposal_can_be_applied(busy):
    moved = yaml.safe_load(load(busy, "--yaml"))
    assert {*moved} <= {*HOURLY}
    schedules = {key: {"type": "report", **fields} for key, fields in moved.items()}
    busy.write("spread.yml", yaml.safe_dump({"label": "x", "schedules": schedules}))
    with busy.schedules() as found:
        for key in moved:
            found[key].delete()
    done = busy.psched("apply", "spread.yml")
    assert done.returncode == 0, done.stderr
    for key, fields in moved.items():
        assert busy.row(key).row.cron == fields["cron"]


def test_json_has_the_intervals(busy):
    found = json.loads(load(busy, "--json", "--next", "3h"))
    assert found["end"] - found["start"] == 3 * 3600
    busiest = max(found["intervals"], key=lambda each: each["slots"])
    assert (busiest["slots"], busiest["runs"]) == (12, 12)
    assert busiest["start"] % 3600 == 0
    assert found["worst"][0]["schedules"][0] == {"key": "report-00", "share": 1.0, "took": 30.0}


def test_what_is_paused_or_has_ended_does_not_count(busy):
    with busy.schedules() as schedules:
        for key in HOURLY[:10]:
            schedules[key].pause()
        schedules[HOURLY[10]].cancel()
    assert json.loads(load(busy, "--json"))["slots_needed"] == 1


def test_the_end_of_a_pause_counts(service):
    hour = 3600
    with service.schedules() as schedules:
        schedules.add("a", "mail", cron="*/10 * * * *")
        schedules.add("b", "poll", cron="*/10 * * * *")
        schedules.add("c", "poll", cron="*/10 * * * *")
        until = int(schedules.now()) + hour
        schedules.pause_type("mail")
        schedules["b"].pause(until)
        schedules["c"].pause()
    found = json.loads(load(service, "--json", "--next", "2h"))
    begun = [each["start"] for each in found["intervals"] if each["runs"]]
    assert (found["schedules"], found["slots_needed"]) == (1, 1)
    assert min(begun) >= until - 60
    assert 5 <= found["runs"] <= 7


def test_users_triggers_are_asked_in_another_process(service):
    service.write(
        "mytriggers.py",
        """
        class Often:
            def next_at(self, after):
                return after + 600 - after % 600

        class Breaks:
            asked = 0

            def next_at(self, after):
                Breaks.asked += 1
                if Breaks.asked > 20:
                    raise ValueError("no more")
                return after + 60
        """,
    )
    for key, name in ("often", "Often"), ("breaks", "Breaks"):
        added = service.psched("add", key, "t", f"@call mytriggers:{name}")
        assert added.returncode == 0, added.stderr
    found = json.loads(load(service, "--json", "--next", "2h"))
    assert found["schedules"] >= 1
    assert 10 <= found["runs"] <= 16
    assert "no more" in found["left_out"]["breaks"]


def test_nothing_to_run(service):
    text = load(service)
    assert "0 runs of 0 schedules" in text


def test_a_row_that_cannot_be_understood_is_left_out(service):
    service.add("fine", cron="0 * * * *")
    service.insert("broken", "t", data={})
    with service.sql() as database:
        database.execute(
            "update psched set cron = 'no cron', next_run_time = 0 where id = 'broken'"
        )
    assert "left out: broken: cron: " in load(service)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--next", "32d"], "at most 31d"),
        (["--next", "1s"], "less than 60 seconds"),
        (["--json", "--yaml"], "give one of"),
    ],
)
def test_refusals(service, options, text):
    shown = service.psched("load", *options)
    assert shown.returncode == 2
    assert text in shown.stderr
