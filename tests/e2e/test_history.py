"""The commands history, show and list: what ran, as an operator sees it."""

import json
import re
import signal
from datetime import UTC, datetime

import pytest

from psched.app import make_store, read_config
from psched.cli.text_table import LINE
from psched.core.history.records import FOREVER
from support.processes import kill
from support.run_records import not_run, run_record
from support.waiting import wait_until

pytestmark = pytest.mark.extended

LATER = 4_000_000_000


def write(service, *records):
    """Write records into the run history of a service."""
    store = make_store(read_config(service.config))
    try:
        store.history.record(records)
    finally:
        store.disconnect()


@pytest.fixture
def now(service):
    """The time of the service's database, in whole Unix seconds."""
    with service.schedules() as schedules:
        return int(schedules.now())


@pytest.fixture
def history(service):
    """Runs psched history; returns the lines of its output."""

    def history(*options, **env):
        service.env = {**service.env, **env}
        done = service.psched("history", *options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return history


@pytest.mark.landing
def test_a_real_run_is_seen_by_every_command(each_service):
    service = each_service
    service.add("ok")
    service.add("tries", data={"fail": 1})
    service.add("bad", data={"fail": 9}, max_attempts=2)
    master = service.start()
    service.wait_for_row("bad", lambda seen: seen.status == "failed")
    service.wait_for_finish("tries")
    service.wait_for_finish("ok")
    assert master.stop() == 0

    shown = service.psched("history", "tries").stdout.splitlines()
    assert re.match(
        r"WHEN \(UTC\) +ATTEMPT  OUTCOME   FATE      TOOK +EXIT +HOST +REASON$", shown[0]
    )
    assert re.match(r"\w{3} \d\d \d\d:\d\d:\d\d +2 +finished  finished +\d+ m?s", shown[1])
    assert re.match(r"\w{3} \d\d \d\d:\d\d:\d\d +1 +failed +\d+ m?s.* as it was told", shown[2])
    assert shown[3] == "2 records"
    failed = service.psched("history", "--failed", "--since", "10m", "--json").stdout
    found = [json.loads(line) for line in failed.splitlines()]
    assert sorted((each["key"], each["attempt"], each["fate"]) for each in found) == [
        ("bad", 1, None),
        ("bad", 2, "gave_up"),
        ("tries", 1, None),
    ]
    assert all(each["started"] <= each["ended"] for each in found)
    listed = service.psched("list", "--sort", "key").stdout.splitlines()
    assert re.search(r"NEXT \(UTC\)  LAST +REASON", listed[0])
    assert re.search(r"^bad .*gave_up (\d+s ago|now), \d+ m?s", listed[1])
    assert re.search(r"^ok .*finished (\d+s ago|now), \d+ m?s", listed[2])
    about = json.loads(service.psched("show", "tries", "--json").stdout)
    assert [each["outcome"] for each in about["attempts"]] == ["finished", "failed"]
    assert about["last"]["fate"] == "finished"
    assert about["durations"]["runs"] == 1


def test_a_deleted_schedule_keeps_its_records(service, history):
    write(service, run_record("gone"))
    assert history("gone")[-1] == "1 record"
    assert " gone " in history()[1]


def test_a_key_without_records_is_told_from_no_key(service):
    service.add("future", next_time=LATER)
    service.add("due")
    service.add("ended")
    service.invoke("cancel", "ended")
    for key, text in {
        "none": "no schedule has the key 'none', and the run history has no record of one",
        "future": r"future: no run is recorded yet; its next run is in \d+ d.*",
        "due": r"due: no run is recorded yet; it has been due for \d+d\S+",
        "ended": "ended: no run is recorded yet; it is cancelled",
    }.items():
        for form in [], ["--json"], ["--failed"]:
            done = service.psched("history", key, *form)
            assert (done.returncode, done.stdout) == (1, "")
            assert re.fullmatch(f"Error: {text}\n", done.stderr)


def test_nothing_is_no_error_without_a_key_or_with_a_condition(service, history):
    assert history() == ["no record yet"]
    assert history("--failed") == ["no record matches"]
    assert history("--json") == []
    write(service, run_record())
    assert history("k", "--failed") == ["no record matches"]
    assert history("k", "--failed", "--json") == []
    service.add("off")
    service.configure(history="none")
    none = "no record; the setting history is none, so that no run is recorded"
    assert history("--failed") == [none]
    assert service.psched("history", "off").stderr == f"Error: off: {none}\n"


def test_a_table_has_fifty_records_and_says_that_there_are_more(service, history):
    write(service, *(run_record() for _ in range(51)))
    assert len(history()) == 52
    assert history()[-1] == "50 records; --limit N shows older ones"
    assert history("--limit", "51")[-1] == "51 records"
    assert history("--limit", "1")[-1] == "1 record; --limit N shows older ones"
    assert len(history("--json")) == 51
    assert len(history("--json", "--limit", "2")) == 2


def test_times_attempts_exits_and_spans_are_readable(service, history, now):
    hour = 3600
    base = now - now % (24 * hour) - 24 * hour
    at = {"ended": (base + 14 * hour) * 1000, "scheduled_time": base + 14 * hour}
    write(
        service,
        run_record(**at, exit_status=3, outcome="failed", fate=None, reason="three"),
        run_record(**at, exit_status=None, exit_signal=9, out_of_memory=True, host="web2"),
        run_record(**at, started=(base + 13 * hour) * 1000, exit_status=None, host=None),
        not_run(
            **{**at, "scheduled_time": base + 2 * hour},
            until=base + 13 * hour,
            count=12,
            fate="coalesced",
            reason="missed",
        ),
        not_run(**{**at, "scheduled_time": base}, until=FOREVER, count=None),
        not_run(**at, fate="expired"),
    )
    day = datetime.fromtimestamp(base, UTC).strftime("%a %d")
    head, *rows, total = history("k", "--utc")
    assert [re.split(r"  +", row) for row in rows] == [
        [f"{day} 14:00:00", "expired", "web1", "of 14:00"],
        [f"{day} 14:00:00", "skipped_catchup", "web1", "many skipped, from 00:00…"],
        [f"{day} 14:00:00", "coalesced", "web1", "12 skipped, 02:00 to 13:…"],
        [f"{day} 13:00:00", "1", "finished", "finished", "1.0 h", "of 14:00"],
        [
            *(f"{day} 13:59:58", "1", "finished", "finished", "1.5 s"),
            *("SIGKILL", "web2", "probably out of memory"),
        ],
        [f"{day} 13:59:58", "1", "failed", "1.5 s", "3", "web1", "three"],
    ]
    assert max(map(len, [head, *rows])) <= LINE
    assert total == "6 records"
    # Without long names there is room for a whole reason.
    [_, span, _] = history("k", "--utc", "--fate", "coalesced")
    assert span.endswith("12 skipped, 02:00 to 13:00: missed")
    write(service, not_run(**{**at, "scheduled_time": base - 3600}, until=base, count=2))
    [_, span, _] = history("k", "--utc", "--limit", "1", "--fate", "skipped_catchup")[:3]
    day_before = datetime.fromtimestamp(base - 3600, UTC).strftime("%a %d")
    assert f"2 skipped, {day_before} 23:00 to {day[:2]}" in span
    local = history("k", TZ="Asia/Tokyo")
    assert f"{day} 22:59:58" in local[-2]


def test_a_late_run_shows_its_scheduled_time(service, history, now):
    base = now - now % 86_400 - 86_400
    late = {"scheduled_time": base, "started": (base + 60) * 1000, "ended": (base + 61) * 1000}
    write(
        service,
        run_record("late", **late),
        run_record("late", **{**late, "started": (base + 59) * 1000}),
        run_record("late", **late, outcome="failed", reason="three"),
    )
    assert [row.split("web1")[1].strip() for row in history("late", "--utc")[1:-1]] == [
        "three (of 00:00)",
        "",
        "of 00:00",
    ]


@pytest.mark.landing
def test_conditions_of_the_command(service, history, now):
    write(
        service,
        run_record("a", type="mail", outcome="failed", fate=None),
        run_record("b", type="mail"),
        run_record("c", outcome="lost", fate=None),
        not_run("d", fate="expired"),
        not_run("e", fate="coalesced"),
        run_record("f", outcome="failed", fate="gave_up", ended=(now - 7200) * 1000),
    )

    def keys(*options):
        lines = history("--json", *options)
        return "".join(sorted(json.loads(line)["key"] for line in lines))

    assert keys() == "abcdef"
    assert keys("--failed") == "acdf"
    assert keys("--type", "mail") == "ab"
    assert keys("--outcome", "failed", "--outcome", "lost") == "acf"
    assert keys("--fate", "coalesced", "--fate", "expired") == "de"
    assert keys("--outcome", "failed", "--fate", "gave_up") == "f"
    assert keys("--failed", "--since", "3h") == "acdf"  # the others are of the future
    assert keys("--since", "1h") == "abcde"
    assert keys("--since", str(now - 3600)) == "abcde"
    assert keys("--since", "2026-01-31T09:00") == "abcdef"
    assert keys("--since", "2027-01-31T09:00:00Z") == ""


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--since", "soon"], 1, "since: 'soon' is neither an age (30s, 5m, 1h, 30d)"),
        (["--since", "202601310900"], 1, "since: '202601310900' could be a date"),
        (["--failed", "--fate", "expired"], 2, "--failed selects outcomes and fates"),
        (["--json", "--errors"], 2, "--errors is for the table"),
        (["--outcome", "good"], 2, "'good' is not one of 'finished', 'failed'"),
        (["--limit", "0"], 2, "0 is not in the range"),
    ],
)
def test_mistakes_are_refused(service, options, status, text):
    done = service.invoke("history", *options)
    assert done.exit_code == status
    assert text in done.output


def test_errors_are_shown_whole_and_safely(service, history):
    error = "Traceback:\n  File x\nValueError: \x1b[2J password=hunter2 " + "long " * 40
    write(service, run_record(outcome="failed", fate=None, error=error), run_record())
    assert "Traceback" not in "\n".join(history("k"))
    lines = history("k", "--errors")
    assert lines[3:6] == [
        "    Traceback:",
        "      File x",
        r"    ValueError: \x1b[2J password=hunter2 " + "long " * 40,
    ]
    service.configure(redact=["password"])
    assert "    ValueError: \\x1b[2J password=[redacted] long " in "\n".join(
        history("k", "--errors")
    )
    [_, found] = map(json.loads, history("k", "--json"))
    assert "hunter2" not in found["error"]


def test_show_has_the_time_of_the_claim(service):
    service.add("k", next_time=4_000_000_000)
    with service.sql() as connection:
        connection.execute("UPDATE psched SET claimed_at = 1000000000")
    assert "claimed_at:    2001-09-09 01:46:40 UTC\n" in service.psched("show", "k").stdout


def test_show_has_the_last_run_usual_durations_and_next_runs(service, now):
    service.add("k", cron="0 * * * *", next_time=None)
    shown = service.psched("show", "k").stdout
    assert "last run" not in shown
    assert shown.count("UTC  in ") == 3
    now *= 1000
    write(
        service,
        run_record(outcome="failed", fate=None, ended=now - 90_000),
        *(
            run_record(started=now - 60_000 - 1000 * number, ended=now - 60_000, peak_kb=2048)
            for number in range(1, 101)
        ),
        not_run(ended=now),
    )
    shown = service.psched("show", "k").stdout
    assert re.search(r"^last run: finished, 1 min.* ago$", shown, re.MULTILINE)
    assert re.search(r"^took: +1\.7 min$", shown, re.MULTILINE)
    assert re.search(r"^exit: +0$", shown, re.MULTILINE)
    assert re.search(r"^host: +web1$", shown, re.MULTILINE)
    assert re.search(r"^memory: +2 MiB$", shown, re.MULTILINE)
    # The last 50 took from 51 to 100 seconds.
    assert "the last 50 finished: median 1.3 min, 95 % within 1.6 min\n" in shown
    about = json.loads(service.psched("show", "k", "--json").stdout)
    assert about["durations"] == {"runs": 50, "median": 75.5, "p95": 98.0}
    assert len(about["attempts"]) == 5
    assert "error" in about["last"]
    assert len(about["occurrences"]) == 3


def test_the_list_shows_the_last_attempt_in_batches(service, now):
    now *= 1000
    with service.schedules() as schedules:
        schedules.push_many({"key": f"k{n:03}", "run_at": LATER} for n in range(250))
    write(
        service,
        *(
            run_record(f"k{n:03}", started=now - 400_000, ended=now - 330_000)
            for n in range(0, 250, 2)
        ),
        run_record("k001", outcome="released", fate=None, ended=now + 600_000),
        not_run("k002"),
    )
    lines = service.psched("list", "--sort", "key").stdout.splitlines()
    assert [*map(len, lines)] == [len(line.rstrip()) for line in lines]
    for line, n in zip(lines[1:-1], range(250), strict=True):
        if n == 1:
            assert line.endswith("released now, 1.5 s")
        else:
            assert line.endswith("-" if n % 2 else "finished 5m ago, 1.2 min")
    listed = [json.loads(line) for line in service.psched("list", "--json").stdout.splitlines()]
    by_key = {each["key"]: each["last"] for each in listed}
    assert by_key["k002"]["outcome"] == "finished"
    assert by_key["k003"] is None
    only = service.psched("list", "k00[12]", "k001", "--columns", "last,key").stdout.splitlines()
    assert only[:2] == ["LAST                 KEY", "released now, 1.5 s  k001"]


def test_without_a_history_the_other_commands_work(service):
    service.add("k", next_time=LATER)
    with service.sql() as database:
        database.execute("DROP TABLE psched_runs")
        database.execute("DELETE FROM psched_info WHERE name = 'history_version'")
    listed = service.psched("list")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.split("\n")[0] == "KEY  STATUS   SCHEDULE  NEXT (UTC)        REASON"
    assert json.loads(service.psched("list", "--json").stdout)["last"] is None
    shown = service.psched("show", "k")
    assert (shown.returncode, shown.stderr) == (0, "")
    about = json.loads(service.psched("show", "k", "--json").stdout)
    assert (about["last"], "attempts" in about) == (None, False)
    for command in ["history"], ["history", "k"], ["list", "--columns", "key,last"]:
        done = service.psched(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert "run `psched init`" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_schedule_that_is_not_valid_is_shown_without_next_runs(service):
    with service.sql() as database:
        database.execute("INSERT INTO psched (id, cron) VALUES ('odd', 'no cron line')")
    shown = service.psched("show", "odd")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "cron:" in shown.stdout
    assert "next runs" not in shown.stdout


SECRET = "hunter2"


def test_no_command_shows_a_value_that_the_setting_hides(service):
    secret = {"password": SECRET, "deep": [{"Api_Token": SECRET}], "user": "ann"}
    service.configure(redact=["password", "*token*"])
    service.add("k", cron="0 * * * *", data=secret, note=f"password={SECRET}")
    service.add("c", "exec", data={"command": ["x", f"--password={SECRET}"]}, next_time=LATER)
    service.add("raw", next_time=LATER, data={"data": f"token: {SECRET}"}, payload="text")
    with service.sql() as database:
        database.execute("UPDATE psched SET reason = ? WHERE id = 'k'", [f"token={SECRET}"])
        database.execute(
            "INSERT INTO psched (id, data, status, reason) VALUES ('odd', ?, 'paused', 'x')",
            [f'{{"password": "{SECRET}'],
        )
    write(
        service,
        run_record(
            outcome="failed",
            fate=None,
            reason=f"bad password: {SECRET}",
            error=f"Error: token='{SECRET}'",
            result=json.dumps(secret),
        ),
        run_record(result=f"{{'token': '{SECRET}'"),
    )
    file = service.write(
        "new.yml",
        f"""
        label: x
        schedules:
          n: {{type: recorder, cron: "0 * * * *", data: {{password: {SECRET}}}}}
        """,
    )
    commands = (
        *(["list"], ["list", "--json"], ["list", "--legacy"], ["next", "k"]),
        ["list", "--columns", "key,data,options,note,reason,cron"],
        *(["show", key, *form] for key in ("k", "c", "raw", "odd") for form in ([], ["--json"])),
        *(["history"], ["history", "k", "--errors"], ["history", "--json"]),
        *(["next", "k", "--json"], ["apply", "--dry-run", "-v", file.name]),
        ["apply", "--dry-run", "--json", file.name],
        ["apply", file.name],
    )
    for command in commands:
        done = service.psched(*command)
        assert done.returncode == (3 if "--dry-run" in command else 0), done.stderr
        assert SECRET not in done.stdout + done.stderr, command
    shown = json.loads(service.psched("show", "k", "--json").stdout)
    assert shown["data"] == {
        "password": "[redacted]",
        "deep": [{"Api_Token": "[redacted]"}],
        "user": "ann",
    }
    service.write(file.name, file.read_text().replace(SECRET, f"{SECRET}{SECRET}"))
    for form in [], ["--json"]:
        done = service.psched("apply", "--dry-run", "-v", file.name, *form)
        assert done.returncode == 3
        assert SECRET not in done.stdout
    # What is stored is whole.
    assert SECRET in service.psched("export").stdout
    with service.schedules() as schedules:
        assert schedules["k"].metadata().data == secret
        assert SECRET in [*schedules["k"].runs()][1].error


@pytest.mark.landing
def test_the_status_hides_values_in_warnings(service):
    service.configure(redact=["password"])
    service.write(
        "recorder.py",
        f"""
        from psched.application import Dispatch as BaseDispatch

        def fail(task):
            raise ValueError("password={SECRET}")

        class Dispatch(BaseDispatch):
            routes = {{"recorder": fail}}
        """,
    )
    service.start()
    service.add("k")
    shown = wait_until(
        lambda: text if "ValueError" in (text := service.psched("status").stdout) else None,
        what="the warning in the status",
    )
    assert "password=[redacted]" in shown
    assert SECRET not in service.psched("status", "--json").stdout


@pytest.mark.landing
def test_a_task_whose_worker_was_killed_in_its_last_attempt_is_shown_as_given_up(each_service):
    service = each_service
    service.configure(processors=2)
    service.add("k", data={"kills": "worker", "times": 1}, max_attempts=1)
    master = service.start()
    service.wait_for_row("k", lambda seen: seen.status == "failed")
    assert master.stop() == 0
    is_given_up(service)


def test_a_task_whose_host_has_died_in_its_last_attempt_is_shown_as_given_up(service):
    service.configure(alive_time=6)
    service.add("k", data={"until": "gate"}, max_attempts=1)
    first = service.start()
    service.runs.wait("k")
    processes = [first.pid, *first.workers()]
    for pid in processes:
        kill(pid, signal.SIGSTOP)  # so that none has a moment to release the lease
    for pid in processes:
        kill(pid)
    first.wait_until_nothing_is_left()
    second = service.start()
    service.wait_for_row("k", lambda seen: seen.status == "failed")
    assert second.stop() == 0
    assert "taken over, its last lease ended without a settle" in second.text
    is_given_up(service)


def is_given_up(service):
    """Check that each command shows that the task ``k`` was given up after its attempt was lost."""
    lines = service.psched("history", "k", "--json").stdout.splitlines()
    ends = [(each["outcome"], each["fate"]) for each in map(json.loads, lines)]
    assert ends == [(None, "gave_up"), ("lost", None)]
    [_, line, _] = service.psched("list", "--columns", "key,last").stdout.splitlines()
    assert re.fullmatch(r"k +gave_up (\d+s ago|now)", line)
    assert json.loads(service.psched("list", "--json").stdout)["last"]["fate"] == "gave_up"
    shown = service.psched("show", "k").stdout
    assert re.search(r"^last run: gave_up, (\d+ s ago|now)$", shown, re.MULTILINE)
    assert re.search(r"  1 +lost  ", shown)
    about = json.loads(service.psched("show", "k", "--json").stdout)
    assert (about["last"]["outcome"], about["last"]["fate"]) == (None, "gave_up")
    assert [each["outcome"] for each in about["attempts"]] == ["lost"]


@pytest.mark.parametrize("fate", ["quarantined", "expired", "cancelled", "gave_up"])
def test_what_ended_without_any_attempt_is_the_last_run(service, now, fate):
    service.add("k", next_time=LATER)
    write(service, not_run(fate=fate, ended=(now - 90) * 1000), not_run(ended=now * 1000))
    [_, line, _] = service.psched("list", "--columns", "key,last").stdout.splitlines()
    assert re.fullmatch(f"k +{fate} 1m ago", line)
    shown = service.psched("show", "k").stdout
    assert re.search(f"^last run: {fate}, 1 min", shown, re.MULTILINE)
    assert "ATTEMPT" not in shown


def test_a_next_run_that_is_overdue_is_due_for_some_time(service, now):
    service.add("daily", every=86_400, next_time=now - 7200)
    for command, start in ("show", "next runs:"), ("next", "daily: waiting"):
        lines = service.psched(command, "daily").stdout.splitlines()
        [head] = [number for number, line in enumerate(lines) if line.startswith(start)]
        assert re.search(r"UTC  due for 2 h( \d+ min)?$", lines[head + 1])
        assert re.search(r"UTC  in 2[12] h( \d+ min)?", lines[head + 2])
