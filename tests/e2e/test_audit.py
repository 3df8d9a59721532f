"""psched audit: who has changed which schedule, as a person asks for it."""

import json
import os
import pwd
import re
import socket

import pytest

from support.old_tables import OldTable, schedule

LATER = 4_000_000_000

WHO = f"{pwd.getpwuid(os.geteuid()).pw_name}@{socket.gethostname()}"

PROGRAM = """
    import psched

    def work():
        pass

    with psched.start({{"url": {url!r}}}, cgroup="off", processors=1, concurrency=1) as s:
        s.add("job", work, cron="0 2 * * *")
"""


def audit(service, *arguments):
    """What psched audit shows as JSON, the oldest change first."""
    shown = service.invoke("audit", "--json", *arguments)
    assert (shown.exit_code, shown.stderr) == (0, "")
    return [json.loads(line) for line in reversed(shown.stdout.splitlines())]


def done(service, *arguments):
    """For each change: the program, the key and what was done."""
    return [(each["program"], each["key"], each["action"]) for each in audit(service, *arguments)]


def test_each_command_that_changes_a_schedule_is_named(service):
    service.invoke("add", "s1", "t", "0 2 * * *", "-m", "ticket 1")
    service.invoke("push", "t1", "t", "{}", "--at", str(LATER))
    service.invoke("cancel", "s1", "t1", "--message", "ticket ü")
    service.invoke("requeue", "s1", "-m", "ticket 3")
    service.invoke("delete", "s1", "t1", "-m", "")
    service.invoke("delete", "nothing", "-m", "in vain")
    changes = audit(service)
    assert [(each["program"], each["key"], each["action"], each["note"]) for each in changes] == [
        ("psched add", "s1", "add", "ticket 1"),
        ("psched cancel", "s1", "cancel", "ticket ü"),
        ("psched cancel", "t1", "cancel", "ticket ü"),
        ("psched requeue", "s1", "requeue", "ticket 3"),
        ("psched delete", "s1", "delete", None),
        ("psched delete", "t1", "delete", None),
    ]
    assert {f"{each['user']}@{each['host']}" for each in changes} == {WHO}
    assert all(1e9 < each["time"] < 1e10 for each in changes)  # seconds
    assert changes[0]["before"] is None
    assert changes[0]["after"]["cron"] == "0 2 * * *"
    assert changes[4]["after"] is None


def test_apply_records_what_it_adds_changes_and_deletes(service):
    file = service.write(
        "web.yml", 'label: web\nschedules:\n  a: {cron: "0 2 * * *"}\n  b: {cron: "@daily"}'
    )
    service.invoke("apply", str(file), "--dry-run")
    assert audit(service) == []
    service.invoke("apply", str(file), "-m", "release 1")
    service.write("web.yml", 'label: web\nschedules:\n  a: {cron: "0 3 * * *"}')
    service.invoke("apply", str(file))
    service.invoke("apply", str(file), "--prune")
    service.invoke("apply", str(file), "--prune")
    assert sorted(done(service)[:2]) == [
        ("psched apply", "a", "add"), ("psched apply", "b", "add")
    ]  # fmt: skip
    assert done(service)[2:] == [("psched apply", "a", "modify"), ("psched apply", "b", "delete")]
    modified = audit(service, "a")[1]
    assert (modified["before"]["cron"], modified["after"]["cron"]) == ("0 2 * * *", "0 3 * * *")
    assert [each["note"] for each in audit(service)] == ["release 1", "release 1", None, None]


def test_importing_a_crontab_is_recorded_if_it_is_applied(service):
    tab = service.write("crontab", "0 2 * * * true\n")
    words = ("import-crontab", str(tab), "--user", "ann", "--any-user", "-t", "UTC")
    service.invoke(*words)
    assert done(service) == []
    service.invoke(*words, "--apply")
    ((program, _, action),) = done(service)
    assert (program, action) == ("psched import-crontab", "add")


def test_a_migration_is_recorded_by_key(service):
    old = OldTable(f"sqlite:///{service.folder.parent}/psched.db", "schedules")
    old.create()
    old.insert(schedule("a", at=LATER), schedule("b", at=LATER))
    service.invoke("migrate", "schedules", "--dry-run")
    assert done(service) == []
    service.psched("migrate", "schedules")
    service.psched("migrate", "schedules")
    old.close()
    assert sorted(done(service)) == [
        ("psched migrate", "a", "migrate"), ("psched migrate", "b", "migrate")
    ]  # fmt: skip
    (change,) = audit(service, "a")
    assert change["before"] is None
    assert change["after"]["cron"] == service.row("a").cron


@pytest.mark.extended
def test_the_jobs_of_a_program_are_recorded_once_and_name_the_program(service):
    url = f"sqlite:///{service.folder.parent}/psched.db"
    for cron in "0 2 * * *", "0 2 * * *", "0 3 * * *":
        service.write("nightly.py", PROGRAM.format(url=url).replace("0 2 * * *", cron))
        master = service.start(*service.master_command[:1], "nightly.py")
        assert master.stop() == 0
    assert done(service) == [("nightly", "job", "add"), ("nightly", "job", "modify")]


def test_a_line_says_when_who_with_what_has_changed_what_and_why(service):
    service.invoke("add", "s1", "t", "0 2 * * *", '{"n": 1}', "-s", "2030-01-01")
    with service.schedules() as schedules, schedules.audited("because"):
        schedules["s1"].modify(cron="0 3 * * *", data={"n": 2}, next_time=LATER)
    service.env = {**service.env, "COLUMNS": "200"}
    shown = service.psched("audit", "--utc").stdout.splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert shown[0].split() == ["WHEN", "(UTC)", "WHO", "PROGRAM", "KEY", "ACTION", "NOTE"]
    assert re.fullmatch(rf"{time}  {re.escape(WHO)}  .+  s1   modify  because", shown[1])
    assert shown[2:5] == [
        "    cron: '0 2 * * *' -> '0 3 * * *'",
        "    next_time: 2030-01-01 02:00:00 UTC -> 2096-10-03 03:00:00 UTC",
        '    data: {"n": 1} -> {"n": 2}',
    ]
    assert re.fullmatch(rf"{time}  {re.escape(WHO)}  psched add +s1   add", shown[5])
    assert shown[6:] == [
        "    type: 't'",
        "    cron: '0 2 * * *'",
        "    timezone: 'UTC'",
        "    next_time: 2030-01-01 02:00:00 UTC",
        '    data: {"n": 1}',
    ]


def test_the_options_select_changes(service):
    for key in ("a", "b", "c"):
        service.invoke("add", key, "t", "@daily")
    with service.sql() as database:
        database.execute("update psched_audit set time = time - 7200000 where key = 'a'")
    assert [key for _, key, _ in done(service, "--since", "1h")] == ["b", "c"]
    assert [key for _, key, _ in done(service, "--since", "9999d")] == ["a", "b", "c"]
    assert [key for _, key, _ in done(service, "--limit", "1")] == ["c"]
    assert [key for _, key, _ in done(service, "a")] == ["a"]
    nothing = service.invoke("audit", "nothing")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "no changes are recorded\n"
    assert service.invoke("audit", "--since", "soon").exit_code == 1


def test_what_others_have_written_cannot_control_the_terminal(service):
    service.add("k", "t", next_time=LATER)
    with service.sql() as database:
        database.execute(
            "update psched_audit set user = ?, host = ?, program = ?, note = ?, after = ?, key = ?",
            (
                "a\x1b[31m",
                "h\r",
                "p\n",
                "\u202en\x07",
                json.dumps({"cron": "\x1b]", "x": 1}),
                "k\x9b",
            ),
        )
        database.execute(
            "insert into psched_audit (key, action, user, host, program, before, after, time)"
            " values ('k', 'a', 'u', 'h', 'p', '[1', '\x1b', 5)"
        )
    shown = service.psched("audit").stdout
    _, first, change, second, *changes = shown.splitlines()
    assert re.search(r"  u@h +p +k +a$", first)
    assert change == "    '[1' -> '\\x1b'"
    assert re.search(r"  a\\x1b\[31m@h\\r  p\\n +k\\x9b  add +\\u202en\\x07$", second)
    assert changes == [r"    cron: '\x1b]'", "    x: 1"]
    assert shown.replace("\n", "").isprintable()
    assert "\x1b" not in service.psched("audit", "--json").stdout


def test_a_table_that_is_missing_is_named(service):
    with service.sql() as database:
        database.execute("delete from psched_info where name = 'history_version'")
    added = service.invoke("add", "k", "t", "@daily")
    assert (added.exit_code, added.stderr) == (0, "")
    shown = service.invoke("audit")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "run `psched init`" in shown.stderr


def test_a_change_that_cannot_be_recorded_is_made_and_a_warning_is_shown(service):
    with service.sql() as database:
        database.execute("drop table psched_audit")
    added = service.psched("add", "k", "t", "@daily")
    assert (added.returncode, added.stdout[:9]) == (0, "k: first ")
    assert added.stderr.startswith("the change of 'k' was made, but is not in the audit trail: ")
    assert service.row("k").cron == "@daily"


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("redact", "hidden"),
    [(None, True), (["*other*"], True), ([], False), (["db_password", "*key"], True)],
)
def test_changes_hide_values_that_are_named_like_secrets(service, redact, hidden):
    if redact is not None:
        service.configure(redact=redact)
    data = {
        "db_password": SECRET,
        "env": {"API_KEY": SECRET, "USER": "ann"},
        "dsn": f"pg://u:{SECRET}@h",
    }
    schedule = {"type": "t", "cron": "@daily", "data": data}
    new = {"label": None, "schedules": {"s1": schedule, "s2": schedule}}
    service.write("new.yml", json.dumps(new))
    service.invoke("add", "s1", "t", "@daily", '{"db_password": "' + SECRET + '!"}')
    file = str(service.folder / "new.yml")
    commands = [
        ["apply", file, "--adopt", "--dry-run", *more] for more in ([], ["-v"], ["--json"])
    ] + [["audit", *more] for more in ([], ["--json"])]
    commands.append(["edit", "s1", "--data", json.dumps(data), "--dry-run"])
    for command in commands:
        shown = service.invoke(*command).stdout
        assert "s1" in shown
        assert SECRET not in shown or not hidden, command
        assert hidden or SECRET in shown or "--json" in command, command
    # What a task has printed, and data that are asked for, are shown as they are.
    assert (SECRET in service.invoke("show", "s1").stdout) == (redact in (None, ["*other*"], []))


def test_texts_tell_times_in_the_zone_of_the_reader(service, set_zone):
    set_zone("Asia/Tokyo")
    service.add("k", cron="0 3 * * *", next_time=LATER)
    assert service.invoke("pause", "k", "--until", "2099-01-01T09:00").exit_code == 0
    assert " until 2099-01-01 09:00:00 JST)" in service.invoke("audit", "k").stdout
    assert " until 2099-01-01T00:00+00:00)" in service.invoke("audit", "k", "--json").stdout
    refused = service.invoke("backfill", "k", "--from", "2098-01-01", "--to", "2099-01-01").output
    assert " JST" in refused
    assert not re.search("T[0-9]{2}:", refused)
