"""The command psched: add, list, show, delete, --help and completion."""

import gzip
import json
import re
import subprocess
import sys

import pytest
import yaml

from psched.cli.commands import load
from psched.cli.commands import psched as psched_command

HANDLERS = """
    from psched.application import Base, Dispatch as BaseDispatch

    class UserTask(Base):
        def run(self):
            print("acquired", self.task.key, self.task.data["k"])

    class Dispatch(BaseDispatch):
        routes = {"user_task": UserTask}
"""


def test_the_commands_of_the_readme_work_one_after_another(make_service, tmp_path):
    service = make_service(f"sqlite:///{tmp_path}/psched.db", load_path=None, dispatch=None)
    service.write("myapp/schedules.py", HANDLERS)

    first, again = service.psched("init"), service.psched("init")
    assert (first.returncode, again.returncode) == (0, 0)
    assert "created table psched\n" in first.stdout
    assert "created" not in again.stdout

    added = service.psched(
        "add", "s1", "user_task", "* * * * *", '{"k": 1}', "-t", "Asia/Tokyo", "-d", 30
    )
    assert (added.returncode, added.stderr) == (0, "")
    assert re.fullmatch(r"s1: first at \d{4}-\d\d-\d\d \d\d:\d\d:00 UTC\n", added.stdout)
    service.psched("add", "s2", "user_task", "@daily", '{"k": 2}', "-s", "2026-01-01")

    listed = service.psched("list", "--legacy")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "2 entries.\n" in listed.stdout

    master = service.start(
        *[*service.psched_command, "run", "-I", "."],
        *["-r", "myapp.schedules"],
        "myapp.schedules:Dispatch",
    )
    master.wait_for_log("acquired s2 2")
    assert master.stop() == 0

    deleted = service.psched("delete", "s1")
    assert (deleted.returncode, deleted.stdout, deleted.stderr) == (0, "s1: deleted\n", "")
    assert "1 entries.\n" in service.psched("list", "--legacy").stdout
    missing = service.psched("delete", "s1")
    assert (missing.returncode, missing.stderr) == (1, "Error: no schedule has the key 's1'\n")


def test_list_has_perfectscheds_columns_and_shows_those_due_first(service):
    service.invoke("add", "late", "t", "0 9 * * *", "-s", "4000000000")
    service.invoke(
        *["add", "early", "t", "30 4 1 * *", '{"k": "ü\\n"}', "-d", "90", "-t", "Europe/Berlin"],
        *["-s", "2030-01-01"],
    )

    heading, early, late, total = service.invoke("list", "--legacy").stdout.splitlines()

    layout = "%30s %15s %18s %7s %11s %28s %28s  %s"
    names = ("key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data")
    assert heading == layout % names
    times = ("2030-01-01 03:30:00 UTC", "2030-01-01 03:31:30 UTC")
    assert early == layout % (
        *("early", "t", "30 4 1 * *", 90, "Europe/Berlin"), *times, '{"k":"ü\\n"}'
    )  # fmt: skip
    assert late.split()[:2] == ["late", "t"]
    assert total == "2 entries."


def test_a_first_run_before_its_scheduled_time_takes_its_place_and_says_so(service):
    started = ("add", "s1", "t", "30 2 * * *", "-s", "2030-01-01")

    early = service.invoke(*started, "--at", "2029-12-31")
    late = service.invoke("add", "s2", *started[2:], "--at", "2030-01-01T02:31")

    assert (early.exit_code, early.stdout) == (
        0,
        "s1: first at 2029-12-31 00:00:00 UTC, in place of 2030-01-01 02:30:00 UTC\n",
    )
    assert (late.exit_code, late.stdout) == (0, "s2: first at 2030-01-01 02:30:00 UTC\n")
    assert "runs from 2029-12-31 00:00:00 UTC" in service.invoke("next", "s1").stdout


def test_a_command_that_exec_could_not_run_is_refused_when_it_is_added(service):
    service.configure(dispatch=None)

    for words in (
        ["add", "s1", "exec", "@daily", '{"command": "pg_dump"}'],
        ["push", "s1", "exec", '{"command": "pg_dump"}'],
    ):
        refused = service.invoke(*words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == (
            'Error: data: "command" must be a list of texts, such as ["program", "argument"];'
            ' one text needs "shell": true\n'
        )
    fixed = service.invoke("add", "s1", "exec", "@daily", '{"command": ["pg_dump"]}')
    assert fixed.exit_code == 0


def test_list_in_json_has_every_column_and_a_schedule_on_each_line(service):
    service.invoke("add", "s1", "t", "0 9 * * *", '{"k": [1]}', "-s", "2030-01-01")
    service.add("s2", next_time=1)

    s2, s1 = map(json.loads, service.invoke("list", "--json").stdout.splitlines())

    assert s1["key"] == "s1"
    assert s1["data"] == {"k": [1]}
    assert s1["cron"] == "0 9 * * *"
    assert s1["next_time"] == s1["next_run_time"] == 1893488400
    assert s2["cron"] is None
    assert s1.keys() == s2.keys() >= {"fence", "attempt", "status", "reason", "owner", "version"}


def test_nothing_that_a_row_holds_moves_the_cursor(service):
    evil = "\x1b[2J\r\n\x07"
    service.add("s1")
    with service.sql() as connection:
        connection.execute(
            "UPDATE psched SET id = ?, type = ?, cron = ?, timezone = ?, data = ?, reason = ?",
            [evil] * 6,
        )

    listed = service.psched("list", "--legacy")

    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == 3
    assert not set(evil) - {"[", "2", "J", "\n"} & set(listed.stdout)


HIDDEN = [
    "\x1b]0;owned\x07",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u061c",
    "\u200b",
    "\x85",
    "\u2028",
    "\x7f",
]
"""Characters that control a terminal, or that cannot be seen."""


def test_keys_that_cannot_be_seen_are_not_run_and_shown_as_escapes(service):
    keys = [f"a{hidden}b" for hidden in HIDDEN]
    service.init()
    with service.sql() as connection:
        for key in keys:
            connection.execute("INSERT INTO psched (id, type, next_time) VALUES (?, 't', 1)", [key])
    service.add("good")
    master = service.start()
    service.wait_for_finish("good")
    master.wait_for_log(
        "quarantined: key: .* holds characters that cannot be seen", count=len(keys)
    )
    shown = [service.psched("list"), service.psched("list", "--json"), service.psched("status")]
    shown += [service.psched("show", keys[0]), service.psched("next", keys[1])]
    shown += [service.psched("next", keys[1], "--json"), service.psched("export")]
    assert master.stop() == 0
    for text in (*(done.stdout + done.stderr for done in shown), master.text):
        assert all(c.isprintable() or c in "\n\t" for c in text)
    assert shown[1].stdout.isascii()
    assert {json.loads(line)["status"] for line in shown[1].stdout.splitlines()} == {
        "quarantined",
        "finished",
    }
    assert r"a\x1b]0;owned\x07b" in shown[0].stdout
    assert r"a\u202eb" in shown[0].stdout
    deleted = service.psched("delete", *keys)
    assert deleted.returncode == 0
    assert r"a\u2066b: deleted" in deleted.stdout


def test_what_is_hidden_in_other_columns_is_shown_as_escapes_everywhere(service):
    evil = "".join(HIDDEN)
    service.init()
    row = {"note": evil, "label": evil}
    service.invoke("add", "s1", "t", "0 9 * * *", '{"k": 1}')
    with service.sql() as connection:
        connection.execute(
            "UPDATE psched SET data = ?, options = ?, reason = ?",
            [json.dumps({"k": evil}, ensure_ascii=False), json.dumps(row), evil],
        )
    service.write("s.yml", 'label: null\nschedules: {s1: {type: t, cron: "0 8 * * *"}}')
    commands = [
        ["list"],
        ["show", "s1"],
        ["next", "s1"],
        ["export"],
        ["apply", "--dry-run", "s.yml"],
    ]
    for command in commands:
        done = service.psched(*command)
        assert all(c.isprintable() or c in "\n\t" for c in done.stdout + done.stderr), command
        assert "Traceback" not in done.stderr
    exported = next(yaml.safe_load_all(service.psched("export").stdout))
    assert exported["schedules"]["s1"]["data"] == {"k": evil}
    for command in ["list", "--json"], ["show", "s1", "--json"], ["next", "s1", "--json"]:
        assert service.psched(*command).stdout.isascii()


def test_a_list_shows_no_more_than_the_beginning_of_what_is_large(service):
    brackets = '{"a":[' + ",".join(["[]"] * 2_000_000) + "]}"
    service.init()
    with service.sql() as connection:
        for number in range(3):
            connection.execute(
                "INSERT INTO psched (id, data, next_run_time) VALUES (?, ?, NULL)",
                [f"s{number}", gzip.compress(brackets.encode())],
            )
    for options, most in ([], 10_000), (["--json"], 400_000):
        done = service.psched("list", "--legacy", *options)
        assert done.returncode == 0
        assert len(done.stdout) < most
    shown = service.psched("show", "s1").stdout
    assert len(shown) < 200_000
    assert "[],[]" in shown


@pytest.mark.parametrize(
    ("options", "first", "runs"),
    [
        (["-s", "1893456000"], 1893456000, 1893456000),
        (["-s", "2030-01-01T00:00:00Z"], 1893456000, 1893456000),
        (["-s", "2030-01-01T00:00:01+00:00"], 1893456060, 1893456060),
        (["-s", "2030-01-01T05:30+05:30"], 1893456000, 1893456000),
        # A time without an offset is in the schedule's zone.
        (["-s", "2030-01-01T09:00", "-t", "Asia/Tokyo"], 1893456000, 1893456000),
        (["-s", "2030-01-01", "-d", "30"], 1893456000, 1893456030),
        (["-s", "2030-01-01", "-a", "2030-01-02", "-d", "30"], 1893456000, 1893542400),
        # 02:30 does not exist in Berlin on that day: the instant of the change, 03:00, is used.
        (["-s", "2030-03-31T02:30", "-t", "Europe/Berlin"], 1901149200, 1901149200),
        # 02:30 exists twice: the first of the two is used.
        (["-s", "2030-10-27T02:30", "-t", "Europe/Berlin"], 1919291400, 1919291400),
    ],
)
def test_times_are_unix_seconds_or_iso_8601(service, options, first, runs):
    added = service.invoke("add", "s1", "t", "* * * * *", *options)

    assert (added.exit_code, added.stderr) == (0, "")
    row = service.row("s1")
    assert (row.next_time, row.next_run_time) == (first, runs)


def test_a_schedule_has_the_catch_up_that_it_was_added_with(service):
    service.invoke("add", "s1", "t", "@hourly", "--catchup", "latest", "--dst-policy", "wallclock")

    [s1] = map(json.loads, service.invoke("list", "--json").stdout.splitlines())

    assert s1["options"] == {"catchup": "latest", "dst_policy": "wallclock"}


def test_every_command_has_help_and_names_what_it_takes(service):
    shown = {
        words: service.run(sys.executable, "-m", *words, "--help")
        for words in [
            ("psched",),
            ("psched.cli.daemon.master",),
            *(("psched", name) for name in ("init", "add", "list", "delete", "run", "check")),
        ]
    }

    assert {words: done.returncode for words, done in shown.items()} == dict.fromkeys(shown, 0)
    assert [done.stderr for done in shown.values()] == [""] * len(shown)
    for name in ("init", "add", "list", "delete", "run", "check"):
        assert re.search(rf"^  {name} ", shown["psched",].stdout, re.MULTILINE)
    for option in ("--delay", "--timezone", "--start", "--at", "--catchup", "-d", "-t", "-s", "-a"):
        assert option in shown["psched", "add"].stdout
    for word in ("HUP USR1 +restart", "USR2 +reopen", "75 +another", "78 +the configuration"):
        assert re.search(rf"^ +{word}", shown["psched.cli.daemon.master",].stdout, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(psched_command.commands))
def test_every_command_takes_the_file_and_the_section_also_after_its_name(name):
    by_option = {word: each for each in load(name).params for word in each.opts}
    for word in "-c", "--config", "-e", "--environment":
        assert by_option[word].help


def test_what_follows_the_command_replaces_what_precedes_it(service):
    service.init()
    service.add("s1")
    settings = {"one": {"url": f"sqlite:///{service.folder}/no.db"}, "two": {"table": "no"}}
    service.write("sections.yml", yaml.safe_dump(settings))

    def run(*words):
        return service.run(sys.executable, "-m", "psched", *words)

    shown = run("-c", "no.yml", "list", "-c", service.config)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "s1" in shown.stdout
    refused = run("-e", "two", "list", "--config", "sections.yml", "-e", "three")
    assert refused.returncode == 1
    assert "no section for the environment three; there are one, two" in refused.stderr


@pytest.mark.extended
def test_a_shell_can_complete_commands_and_options(service):
    def completions(*words):
        done = subprocess.run(
            [sys.executable, "-m", "psched"],
            env=service.env
            | {
                "_PSCHED_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(words),
                "COMP_CWORD": str(len(words) - 1),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    script = subprocess.run(
        [sys.executable, "-m", "psched"],
        env=service.env | {"_PSCHED_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "complete -o nosort -F _psched_completion psched" in script.stdout
    assert completions("psched", "de") == ["plain,delete", "plain,demo"]
    assert "plain,--catchup" in completions("psched", "add", "--c")
    assert completions("psched", "add", "k", "t", "@daily", "--catchup", "l") == ["plain,latest"]


def test_importing_psched_loads_nothing_heavy(service):
    heavy = ("sqlalchemy", "click", "yaml", "redis", "pymysql", "croniter", "daemon")
    done = service.run(
        sys.executable,
        *["-c", f"import sys, psched; print([m for m in {heavy} if m in sys.modules])"],
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.extended
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list", "--help"]])
def test_a_full_disk_is_told_in_one_line(service, words):
    command = [*service.psched_command, *words]
    done = service.run("sh", "-c", 'exec "$@" >/dev/full', "sh", *command)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: [Errno 28] ")
    assert done.stderr.count("\n") == 1
