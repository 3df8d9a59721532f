"""Triggers of one's own in running workers, and what the command line tells of times."""

import json
import re
import sys

import pytest

from support.run_log import completed, in_order

TIDES = """
    class Tides:
        def __init__(self, gap):
            self.gap = gap

        def next_at(self, after):
            return (after // self.gap + 1) * self.gap

    class Stuck:
        def next_at(self, after):
            return after + 1 if after < 1_000_000_001 else after
"""


def insert(service, key, cron):
    with service.sql() as connection:
        connection.execute(
            "INSERT INTO psched (id, type, cron, next_time) VALUES (?, 'recorder', ?, 1000000000)",
            (key, cron),
        )


def test_a_class_of_ones_own_says_when_a_schedule_runs(service):
    service.configure(catchup_limit=3)
    service.write("tides.py", TIDES)
    text = '@call tides:Tides {"gap": 1}'
    added = service.psched("add", "tides", "recorder", text, "-s", "1000000000")
    assert (added.returncode, added.stderr) == (0, "")
    shown = service.psched("next", "tides", "-n", 2, "--json")
    first, second = json.loads(shown.stdout)["occurrences"]
    assert second["time"] - first["time"] == 1

    master = service.start()
    runs = service.runs.wait("tides", completed(3))
    assert master.stop() == 0

    in_order(runs)
    assert min(run.scheduled_time for run in runs) > 1_000_000_000  # of the last three


def test_one_that_answers_wrongly_is_set_aside_and_one_that_is_not_there_is_waited_for(service):
    service.write("tides.py", TIDES)
    insert(service, "stuck", "@call tides:Stuck")
    insert(service, "absent", "@call ebb:Tides")
    insert(service, "good", None)
    master = service.start()

    service.wait_for_finish("good")
    stuck = service.wait_for_row("stuck", lambda seen: seen.status == "quarantined")
    # A row is quarantined, and its worker says so, in either order; so do workers among themselves.
    master.wait_for_log("absent: cron: there is no module 'ebb'")
    log = master.wait_for_log("stuck: quarantined: ")
    waiting = service.row("absent")
    service.write("ebb.py", TIDES.replace("self, gap", "self, gap=3600"))
    service.runs.wait("absent", completed(1))
    assert master.stop() == 0

    problem = "next_at(1000000001) of tides:Stuck answered 1000000001, which is not later"
    assert problem in stuck.reason
    assert f"stuck: quarantined: cron: {problem}" in log
    assert (waiting.status, waiting.next_time) == ("waiting", 1_000_000_000)
    assert "# cron: next_at" in service.psched("list", "--legacy", "--status", "quarantined").stdout


def test_the_command_line_refuses_what_no_worker_could_use(service):
    service.write("tides.py", TIDES)
    for text, problem in {
        "@call tides:Stuck": "which is not later",
        "@call tides:Tides": "tides:Tides cannot be made: TypeError: ",
        "@call ebb:Tides": "there is no module 'ebb' on the load path",
        "@call os:getcwd": "there is no module 'os' on the load path",
    }.items():
        refused = service.psched("add", "k", "t", text)
        assert refused.returncode == 1
        assert re.match(rf"Error: cron: .*{re.escape(problem)}.*\n\Z", refused.stderr)


ALMANAC = """
    class Tides:
        def next_at(self, after):
            if after < 1_700_000_000:
                raise LookupError("the table begins in 2023")
            return (after // 3600 + 1) * 3600
"""


def test_a_class_that_knows_no_time_long_ago_is_tried_from_now_on(service):
    service.write("almanac.py", ALMANAC)
    service.write("s.yml", "label: l\nschedules: {tides: {cron: '@call almanac:Tides'}}\n")
    applied = service.psched("apply", "s.yml")
    assert (applied.returncode, applied.stderr) == (0, "")
    assert service.psched("apply", "s.yml").stdout == "label l: 1 unchanged\n"


WILD = """
    import os, sys, time

    class Wild:
        def __init__(self, how):
            self.how = how

        def next_at(self, after):
            print("noise")
            if self.how == "hangs":
                os.system("sleep 1000 &")
                time.sleep(1000)
            if self.how == "exits":
                os._exit(0)
            if self.how == "interrupts":
                raise KeyboardInterrupt
            return after + 3600
"""


def test_triggers_that_misbehave_cost_no_worker_and_delay_nobody(service):
    service.configure(alive_time=6, catchup="latest")
    service.write("wild.py", WILD)
    service.write("tides.py", TIDES)
    master = service.start()
    workers = master.wait_for_workers(1)
    for how in ("hangs", "exits", "interrupts"):
        insert(service, how, f'@call wild:Wild {{"how": "{how}"}}')
    insert(service, "good", None)
    insert(service, "tides", '@call tides:Tides {"gap": 3600}')
    service.wait_for_finish("good")
    service.runs.wait("tides", completed(1))
    for how, problem in {
        "exits": "failed to answer 2 times: its process",
        "interrupts": "failed to answer 2 times: it raised 'KeyboardInterrupt'",
    }.items():
        row = service.wait_for_row(how, lambda seen: seen.status == "quarantined")
        assert f"cron: wild:Wild has {problem}" in row.reason
    # Nothing has waited for this one.
    assert service.row("hangs").status != "quarantined"
    row = service.wait_for_row("hangs", lambda seen: seen.status == "quarantined")
    assert "it has not answered within 10 s" in row.reason
    assert master.workers() == workers
    assert master.stop() == 0
    master.wait_until_nothing_is_left()


PROGRAM = """
    import recorder
    import psched

    class Seconds:
        def next_at(self, after):
            return after + 1

    if __name__ == "__main__":
        psched.Worker.run(recorder.Dispatch, lambda: {settings!r})
"""


@pytest.mark.extended
def test_the_classes_of_a_program_and_of_the_modules_beside_it_may_be_triggers(service, tmp_path):
    url = f"sqlite:///{tmp_path}/psched.db"
    settings = {"url": url, "poll_interval": 0.2, "cgroup": "off", "catchup": "latest"}
    service.write("program.py", PROGRAM.format(settings=settings))
    service.write("tides.py", TIDES)
    insert(service, "own", "@call __main__:Seconds")
    insert(service, "by name", "@call program:Seconds")
    insert(service, "beside", '@call tides:Tides {"gap": 1}')
    insert(service, "outside", "@call json.tool:Tides")
    master = service.start(sys.executable, "program.py")
    for key in ("own", "by name", "beside"):
        service.runs.wait(key, completed(1))
    master.wait_for_log("outside: cron: there is no module 'json.tool' on the load path")
    assert master.stop() == 0


class TestACommandLetsAChildAskTriggers:
    def test_what_a_trigger_prints_is_not_the_commands_answer(self, service):
        service.write("wild.py", WILD)
        shown = service.psched("next", "--cron", '@call wild:Wild {"how": ""}', "-n", "1", "--json")
        assert len(json.loads(shown.stdout)["occurrences"]) == 1
        assert "noise" in shown.stderr

    @pytest.mark.parametrize(
        ("how", "problem"),
        [
            ("exits", "the process that asked wild:Wild has exited"),
            ("interrupts", "asking wild:Wild raised KeyboardInterrupt"),
            ("hangs", "the process that asked wild:Wild has not answered within 10 s"),
        ],
    )
    def test_one_that_misbehaves_ends_the_child_and_is_told(self, service, how, problem):
        service.write("wild.py", WILD)
        refused = service.psched("add", "k", "t", f'@call wild:Wild {{"how": "{how}"}}')
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.endswith(f"Error: cron: {problem}\n")

    def test_no_command_imports_what_is_not_allowed(self, service):
        service.configure(triggers=["tides"])
        service.write("secret.py", "open('imported', 'w')")
        service.write("tides.py", TIDES)
        insert(service, "secret", "@call secret:x")
        insert(service, "tides", '@call tides:Tides {"gap": 60}')
        declared = "label: l\nschedules: {k: {type: t, cron: '@call secret:x'}}\n"
        file = str(service.write("schedules.yml", declared))
        problem = "the module 'secret' is not one that the setting triggers allows (tides)"
        for words in (
            ["next", "secret"],
            ["next", "--cron", "@call secret:x"],
            ["add", "k", "t", "@call secret:x"],
            ["apply", file],
            ["export"],
        ):
            done = service.psched(*words)
            assert done.returncode == 1
            assert problem in done.stderr
        for words in (["list", "--legacy"], ["show", "secret"]):
            assert "@call secret:x" in service.psched(*words).stdout
        assert "tides:" in service.psched("export").stdout
        assert not (service.folder / "imported").exists()

    def test_a_module_that_starts_a_master_when_it_is_imported_starts_none(self, service):
        program = "import psched\nwith psched.start() as s:\n    s.add('a', run=print, every=9)\n"
        service.write("program.py", program)
        refused = service.psched("next", "--cron", "@call program:Tides")
        assert refused.returncode == 1
        assert "put the call below if __name__ == '__main__'" in refused.stderr


class TestAdding:
    def test_an_interval_stands_in_the_place_of_the_line(self, service):
        added = service.invoke("add", "s1", "t", "--every", "3600", '{"k": 1}', "--jitter", "9")
        assert (added.exit_code, added.stderr) == (0, "")
        row = service.row("s1")
        assert re.fullmatch(r"@every 3600 \+\d+", row.cron)
        assert row.data == {"k": 1}
        assert row.next_time <= row.next_run_time <= row.next_time + 9
        for words in (["s2", "t"], ["s2", "t", "@daily", "{}", "--every", "5"]):
            assert service.invoke("add", *words).exit_code == 2

    def test_durations_have_units(self, service):
        for key, words in {"s1": ["--every", "1h"], "s2": ["@every 1h +5m"]}.items():
            added = service.invoke("add", key, "t", *words, "--jitter", "9s", "-d", "1.5m")
            assert (added.exit_code, added.stderr) == (0, "")
            row = service.row(key).row
            assert re.fullmatch(r"@every 3600 \+\d+", row.cron)
            assert (row.delay, row.options) == (90, b'{"jitter":9}')
        shown = service.invoke("next", "--cron", "@every 5m", "-s", "300", "-n", "2", "--json")
        assert [each["time"] for each in json.loads(shown.stdout)["occurrences"]] == [300, 600]
        help_text = " ".join(service.invoke("add", "--help").stdout.split())
        assert "--every DURATION" in help_text
        assert "number with the unit s, m, h or d: 30s, 5m, 1h, 30d" in help_text

    def test_times_that_a_clock_change_meddles_with_are_warned_of(self, service):
        words = "t", "30 2 * * *", "-t", "Europe/Berlin", "-s", "2030-01-01"
        added = service.invoke("add", "s1", *words)
        assert added.exit_code == 0
        assert added.stderr.splitlines() == [
            (
                "Warning: s1: 2030-03-31 02:30 does not exist in Europe/Berlin: runs once,"
                " right after the clock change"
            ),
            "Warning: s1: 2030-10-27 02:30 comes twice in Europe/Berlin: runs the first time only",
        ]
        assert added.stdout == "s1: first at 2030-01-01 01:30:00 UTC\n"
        assert service.invoke("add", "s2", *words[:-4]).stderr == ""

    def test_steps_that_are_longer_than_their_field_are_warned_of(self, service):
        remark = "minute '*/90' matches only 0, because its step is longer than the field\n"
        warning, line = f"Warning: s1: {remark}", "*/90 * * * *"
        assert service.invoke("add", "s1", "t", line).stderr == warning
        assert service.invoke("edit", "s1", "--cron", line).stderr == warning
        assert service.psched("check").stderr.endswith(warning)
        told = service.invoke("next", "--cron", line)
        assert (told.exit_code, told.stderr) == (0, f"Warning: --cron: {remark}")
        declared = f'label: a\nschedules:\n  s2: {{type: t, cron: "{line}"}}\n'
        service.write("s.yml", declared)
        for _ in range(2):
            told = service.invoke("apply", str(service.folder / "s.yml"))
            assert told.stderr == warning.replace("s1", "s2")
        service.write("crontab", f"{line} true\n0 0 * * * true\n")
        for words in (), ("--apply",):
            command = "import-crontab", str(service.folder / "crontab"), "--user", "root", *words
            told = service.invoke(*command, "--any-user", "-t", "UTC")
            assert told.stderr.count("Warning: ") == told.stderr.count(remark) == 1, told.output


class TestNext:
    LINE = ("--cron", "30 2 * * *", "-t", "Europe/Berlin", "--dst-policy", "wallclock")

    def test_a_line_needs_no_database(self, make_service):
        service = make_service("mysql://nobody:x@127.0.0.1:1/nowhere")
        shown = service.psched("next", *self.LINE, "-s", "2030-03-30", "-n", 2)
        assert (shown.returncode, shown.stderr) == (0, "")
        first, lost, second = shown.stdout.splitlines()
        assert re.fullmatch(
            r"2030-03-30 02:30:00\+01:00  2030-03-30 01:30:00 UTC  (in .*|.* ago)", first
        )
        assert re.fullmatch(
            r"\(none\) +2030-03-31 01:00:00 UTC  .*"
            r"  # 2030-03-31 02:30 does not exist in Europe/Berlin: skipped",
            lost,
        )
        assert second.startswith("2030-04-01 02:30:00+02:00  2030-04-01 00:30:00 UTC")

    def test_programs_read_json(self, service):
        shown = service.invoke("next", *self.LINE, "-s", "2030-10-27", "-n", "1", "--json")
        assert json.loads(shown.stdout) == {
            "cron": "30 2 * * *",
            "timezone": "Europe/Berlin",
            "occurrences": [
                {
                    "time": 1919291400,
                    "run_at": 1919291400,
                    "local": "2030-10-27T02:30:00+02:00",
                    "note": "2030-10-27 02:30 comes twice: runs both times, this is the first",
                }
            ],
        }

    def test_a_schedule_is_shown_with_its_own_delay_jitter_and_status(self, service):
        options = "-d", "30", "--jitter", "60", "-s", "4000000000"
        service.invoke("add", "s1", "t", "0 9 * * *", *options)
        head, first, second = service.invoke("next", "s1", "-n", "2").stdout.splitlines()
        assert head == "s1: waiting, 0 9 * * *, in UTC, delay 30 s, jitter 60 s"
        assert re.fullmatch(
            r"2096-10-02 09:00:00\+00:00  2096-10-02 09:00:00 UTC  in \d+ d( \d+ h)? +"
            r"runs from 2096-10-02 09:0[01]:\d\d UTC",
            first,
        )
        assert second.startswith("2096-10-03 09:00:00+00:00")
        found = json.loads(service.invoke("next", "s1", "--json").stdout)
        assert len(found["occurrences"]) == 10
        assert found["occurrences"][0]["run_at"] == found["next_run_time"]
        assert (found["key"], found["status"], found["jitter"]) == ("s1", "waiting", 60)

    def test_what_rests_has_none_and_says_why(self, service):
        service.add("s1", cron="@daily")
        with service.sql() as connection:
            connection.execute(
                "UPDATE psched SET status = 'quarantined', reason = 'cron: \x1b', cron = 'x',"
                " next_run_time = NULL"
            )
        shown = service.invoke("next", "s1")
        assert (shown.exit_code, shown.stdout) == (
            0,
            "s1: quarantined, x, in UTC  # cron: \\x1b\n",
        )

    @pytest.mark.parametrize(
        ("words", "status", "problem"),
        [
            ([], 2, "name a KEY, or give a trigger with --cron"),
            (["k", "--cron", "@daily"], 2, "name a KEY, or give a trigger with --cron"),
            (["k", "-t", "UTC"], 2, "--timezone, --dst-policy and --start need --cron"),
            (["k"], 1, "no schedule has the key 'k'"),
            (["--cron", "61 * * * *"], 1, "cron: minute '61' is not allowed"),
            (["--cron", "@daily", "-t", ""], 1, "timezone: '' is not a zone"),
            (["--cron", "@daily", "-n", "0"], 2, "0 is not in the range"),
            (["--cron", "@daily", "-s", "soon"], 1, "start: 'soon' is no time; write 18:00"),
        ],
    )
    def test_what_it_cannot_do_is_said(self, service, words, status, problem):
        refused = service.invoke("next", *words)
        assert refused.exit_code == status
        assert problem in refused.stderr
