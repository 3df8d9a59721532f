"""psched edit: by options, and in an editor on a terminal of its own."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

import support
from support.waiting import wait_until

pytestmark = pytest.mark.extended

SCRIPT = Path(support.__file__).with_name("on_terminal.py")

FIRST = 4_000_003_200  # 2096-10-02T08:00Z

EDITOR = """#!/bin/sh
# Counts its calls, keeps a copy of what it is given, and runs the step of this call.
cd "$(dirname "$0")" || exit 1
number=$(($(cat calls 2>/dev/null || echo 0) + 1))
echo $number >calls
cp "$1" "seen-$number"
if [ -e "step-$number" ]; then . "./step-$number"; fi
"""


class Editor:
    """A real program as the user's editor.

    Args:
        folder: its folder.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.path = folder / "editor"
        self.path.write_text(EDITOR)
        self.path.chmod(0o755)

    def step(self, number, script):
        """Run a shell script in one of the calls; ``$1`` is the file."""
        (self.folder / f"step-{number}").write_text(script)

    def seen(self, number):
        """What the file contained when the editor was called for this time."""
        return (self.folder / f"seen-{number}").read_text()

    @property
    def calls(self):
        return len([*self.folder.glob("seen-*")])


@pytest.fixture
def editor(tmp_path, service):
    editor = Editor(tmp_path / "editor of ann")
    service.env["EDITOR"] = f"'{editor.path}'"
    service.env.pop("VISUAL", None)
    service.env["TMPDIR"] = str(tmp_path / "drafts")
    (tmp_path / "drafts").mkdir()
    return editor


@pytest.fixture
def drafts(editor, tmp_path):  # noqa: ARG001  # it has made the folder
    return lambda: [each.read_text() for each in sorted((tmp_path / "drafts").glob("psched-*.yml"))]


@pytest.fixture
def service(service):
    with service.schedules() as schedules:
        schedules.add(
            "nightly", "report", cron="@hourly", timezone="Europe/Paris", next_time=FIRST,
            jitter=30, label="team", data={"to": "ann", "password": "secret"},
        )  # fmt: skip
        schedules.add("other", "report", cron="@hourly", next_time=FIRST)
        schedules.push("once", "report", run_at=FIRST)
    service.env["TZ"] = "Europe/Paris"
    return service


def on_terminal(service, *arguments):
    """Start psched edit on a terminal of its own; what it shows is ``text``."""
    words = [sys.executable, "-I", "-S", SCRIPT, service.folder / "keys", *service.psched_command]
    return service.start(*words, "edit", *arguments, log="terminal", generation=0)


class TestOptions:
    @pytest.mark.landing
    def test_it_shows_what_changes_and_the_next_runs(self, service):
        arguments = ["edit", "nightly", "--cron", "0 3 * * *", "--delay", "5m", "--unset", "jitter"]
        shown = service.psched(*arguments, "--dry-run")
        lines = shown.stdout.splitlines()
        assert lines[0] == "nightly: would be edited"
        assert lines[1:4] == [
            '    cron: "@hourly" -> "0 3 * * *"',
            "    delay: 0 -> 300",
            "    jitter: 30 -> (default)",
        ]
        assert lines[4].startswith("    next was: 2096-10-02 10:00:00 CEST (starts ")
        assert re.fullmatch(
            r"    next: (....-..-.. 03:00:00 CES?T \(starts 5m later\)(, |$)){3}", lines[5]
        )
        assert service.row("nightly").cron == "@hourly"

        done = service.psched(*arguments, "-m", "less load")
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "nightly: edited")
        row = service.row("nightly")
        assert (row.cron, row.delay, row.label) == ("0 3 * * *", 300, "team")
        assert (row.row.label, row.row.options) == ("team", None)
        audited = json.loads(service.psched("audit", "nightly", "--json").stdout.splitlines()[0])
        assert (audited["action"], audited["note"]) == ("edit", "less load")
        assert "does not exist in Europe/Paris" not in done.stderr

    def test_other_fields(self, service):
        done = service.psched(
            "edit", "nightly", "--every", "2h", "--data", '{"to": "bob"}', "--new-type", "mail",
            "--timezone", "Asia/Tokyo", "--catchup", "all", "--dst-policy", "wallclock",
            "--unset", "label",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        row = service.row("nightly")
        assert row.cron.startswith("@every 7200 ")
        assert (row.type, row.timezone, row.data) == ("mail", "Asia/Tokyo", {"to": "bob"})
        assert json.loads(row.row.options) == {
            "jitter": 30,
            "catchup": "all",
            "dst_policy": "wallclock",
        }

    def test_a_local_time_is_in_the_zone_of_the_reader(self, service):
        service.env["TZ"] = "Asia/Tokyo"
        done = service.psched("edit", "nightly", "other", "--start", "2096-10-05T12:00")
        assert done.returncode == 0, done.stderr
        assert "2096-10-05 12:00:00 JST" in done.stdout
        assert service.row("nightly").next_time == FIRST + 3 * 86_400 - 5 * 3600
        assert service.row("other").next_time == FIRST + 3 * 86_400 - 5 * 3600

    def test_times_are_shown_as_dates_and_a_missing_value_as_none(self, service):
        service.env["TZ"] = "UTC"
        moved = service.psched("edit", "once", "--start", str(FIRST + 60))
        assert moved.stdout.splitlines()[1] == (
            "    next_time: 2096-10-02 08:00:00 UTC -> 2096-10-02 08:01:00 UTC"
        )
        shown = service.psched("edit", "once", "--cron", "@daily", "--dry-run")
        assert shown.stdout.splitlines()[1] == '    cron: (none) -> "@daily"'

    def test_data_that_are_no_json_are_shown_as_they_are_stored(self, service):
        with service.sql() as database:
            database.execute("UPDATE psched SET data = ? WHERE id = 'other'", [b"notjson\xff"])
        shown = service.psched("edit", "other", "--data", "{}").stdout.splitlines()
        assert shown[1].strip() == r'data: "notjson\\xff" -> {}'

    def test_what_stays_the_same_is_unchanged(self, service):
        done = service.psched("edit", "nightly", "--jitter", "30")
        assert done.stdout == "nightly: unchanged\n"
        shown = service.psched("edit", "nightly", "--jitter", "30", "--dry-run")
        assert shown.stdout.splitlines()[0] == "nightly: would stay unchanged"
        assert "edit" not in service.psched("audit", "nightly").stdout

    @pytest.mark.landing
    def test_many(self, service):
        done = service.psched("edit", "--type", "report", "--delay", "10")
        assert done.stdout.splitlines()[-1] == "3 schedules edited"
        assert {service.row(key).delay for key in ("nightly", "other", "once")} == {10}

    def test_on_a_terminal_it_asks_before_it_changes_several(self, service):
        terminal = on_terminal(service, "nightly", "other", "--delay", "10")
        wait_until(lambda: "[y/N]" in terminal.text, what="the question")
        assert "edit 2 schedules (nightly, other)? [y/N]" in terminal.text
        (service.folder / "keys").write_text("n\n")
        assert terminal.wait() == 1
        assert service.row("other").delay == 0

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["nightly", "--cron", "0 3 * *"], "nightly: cron: "),
            (["nightly", "--cron", "@daily", "--every", "1h"], "--every replaces --cron"),
            (["nightly", "--jitter", "5", "--unset", "jitter"], "--unset jitter contradicts"),
            (["nightly", "--unset", "cron"], "Invalid value for '--unset'"),
            (["nightly", "--data", "[]"], "data: "),
            (["nightly", "--at", "2020-01-01T00:00"], "nightly: at: "),
            (["nightly", "--timezone", ""], "timezone: "),
            (["none", "--delay", "5"], "no schedule has the key 'none'"),
            (["nightly", "other"], "the editor opens one schedule, which is named by its KEY"),
            (["--type", "report"], "the editor opens one schedule"),
            (["--delay", "5"], "name KEYS, or choose by"),
            (["once"], "'once' runs only once, which the editor cannot show"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, service, arguments, said):
        before = service.row("nightly").row
        done = service.psched("edit", *arguments)
        assert done.returncode in {1, 2}
        assert said in done.stderr
        assert service.row("nightly").row == before


class TestEditor:
    @pytest.mark.landing
    def test_the_saved_text_is_applied(self, service, editor, drafts):
        editor.step(1, "sed -i -e 's/@hourly/@daily/' -e 's/to: ann/to: bob/' \"$1\"")
        terminal = on_terminal(service, "nightly", "-m", "less load")
        assert terminal.wait() == 0, terminal.text
        assert editor.seen(1).splitlines() == [
            "# psched: change the text below, save it, and close the editor.",
            "# psched: If the text stays as it is, or is empty, nothing is changed.",
            "label: team",
            "schedules:",
            "  nightly:",
            "    type: report",
            "    cron: '@hourly'",
            "    timezone: Europe/Paris",
            "    data:",
            "      to: ann",
            "      password: secret",
            "    jitter: 30",
        ]
        shown = terminal.text.replace("\r\n", "\n")
        assert "nightly: edited\n" in shown
        assert '    cron: "@hourly" -> "@daily"\n' in shown
        assert "    next was: 2096-10-02 10:00:00 CEST" in shown
        row = service.row("nightly")
        assert (row.cron, row.data["to"], json.loads(row.row.options)["jitter"]) == (
            "@daily",
            "bob",
            30,
        )
        audited = json.loads(service.psched("audit", "nightly", "--json").stdout.splitlines()[0])
        assert (audited["action"], audited["note"]) == ("edit", "less load")
        assert drafts() == []

    @pytest.mark.parametrize("script", [":", 'touch "$1"', ': >"$1"', 'echo "# psched: x" >>"$1"'])
    def test_an_unchanged_or_empty_text_changes_nothing(self, service, editor, drafts, script):
        before = service.row("nightly").row
        editor.step(1, script)
        terminal = on_terminal(service, "nightly")
        assert terminal.wait() == 0, terminal.text
        assert terminal.text.strip() == "nightly: unchanged"
        assert service.row("nightly").row == before
        assert drafts() == []

    def test_an_invalid_text_is_opened_again_with_the_error(self, service, editor, drafts):
        editor.step(1, "sed -i -e 's/@hourly/@horly/' -e 's/to: ann/to: bob/' \"$1\"")
        editor.step(2, "sed -i 's/jitter/jiter/' \"$1\"")
        editor.step(3, "sed -i -e 's/jiter/jitter/' -e 's/@horly/@daily/' \"$1\"")
        terminal = on_terminal(service, "nightly")
        assert terminal.wait() == 0, terminal.text
        [error, *_, jitter] = editor.seen(2).splitlines()
        # The line number is that of the file as it is opened now.
        found = re.fullmatch(r"# psched: Error: line ([0-9]+): nightly: cron: .*", error)
        assert "@horly" in editor.seen(2).splitlines()[int(found[1]) - 1]
        assert "to: bob" in editor.seen(2)
        assert jitter == "    jitter: 30"
        assert "did you mean jitter?" in editor.seen(3)
        assert editor.seen(3).count("# psched: Error") == 2
        row = service.row("nightly")
        assert (row.cron, row.data["to"]) == ("@daily", "bob")
        assert drafts() == []

    def test_an_invalid_text_that_stays_is_kept_in_its_file(self, service, editor, drafts):
        before = service.row("nightly").row
        editor.step(1, "sed -i -e 's/@hourly/@horly/' -e 's/to: ann/to: bob/' \"$1\"")
        terminal = on_terminal(service, "nightly")
        assert terminal.wait() == 1
        assert editor.calls == 2
        assert service.row("nightly").row == before
        [kept] = drafts()
        assert "to: bob" in kept
        path = re.search(r"the text stays in (\S+\.yml)", terminal.text)[1]
        assert Path(path).read_text() == kept
        assert Path(path).stat().st_mode & 0o777 == 0o600
        number = int(re.search(r"nothing was changed: line ([0-9]+): ", terminal.text)[1])
        assert "@horly" in kept.splitlines()[number - 1]

    def test_without_a_terminal_an_invalid_text_is_refused_at_once(self, service, editor, drafts):
        editor.step(1, "sed -i 's/@hourly/@horly/' \"$1\"")
        done = service.psched("edit", "nightly")
        assert (done.returncode, editor.calls) == (1, 1)
        assert "nothing was changed: line " in done.stderr
        assert len(drafts()) == 1

    @pytest.mark.parametrize(
        ("script", "said"),
        [
            ("sed -i 's/nightly/weekly/' \"$1\"", "must contain nightly alone"),
            ('sed -i \'/jitter/a\\  more: {cron: "@daily"}\' "$1"', "must contain nightly alone"),
            ("printf '\\377' >\"$1\"", "cannot be read as UTF-8 text"),
            ('echo hello >"$1"', "has no schedules"),
            ('rm "$1"', "nothing was changed: the file is gone"),
            ("exit 3", "has failed with status 3"),
            ("kill -9 $$", "has been killed by signal 9"),
        ],
    )
    def test_what_the_editor_must_not_leave(self, service, editor, script, said):
        before = service.row("nightly").row
        editor.step(1, script)
        done = service.psched("edit", "nightly")
        assert done.returncode == 1
        assert said in done.stderr
        assert service.row("nightly").row == before

    @pytest.mark.parametrize("end", ["exit 1", "kill -9 $$"])
    def test_a_text_that_was_saved_before_the_editor_failed_stays(
        self, service, editor, drafts, end
    ):
        editor.step(1, f"sed -i 's/@hourly/@daily/' \"$1\"; {end}")
        done = service.psched("edit", "nightly")
        assert done.returncode == 1
        assert "the text stays in " in done.stderr
        assert service.row("nightly").cron == "@hourly"
        [kept] = drafts()
        assert "@daily" in kept

    def test_a_file_that_is_no_text_stays(self, service, editor):
        editor.step(1, "printf '\\377' >>\"$1\"")
        done = service.psched("edit", "nightly")
        path = re.search(r"the text stays in (\S+\.yml)", done.stderr)[1]
        assert Path(path).read_bytes().endswith(b"\xff")

    def test_a_file_that_was_not_saved_is_removed_when_the_editor_fails(
        self, service, editor, drafts
    ):
        editor.step(1, "exit 1")
        done = service.psched("edit", "nightly")
        assert (done.returncode, "stays in" in done.stderr) == (1, False)
        assert drafts() == []

    def test_an_editor_that_cannot_be_started(self, service, editor, drafts):  # noqa: ARG002
        service.env["VISUAL"] = "/none --wait"
        done = service.psched("edit", "nightly")
        assert done.returncode == 1
        assert "the editor '/none --wait' ($VISUAL) cannot be started: " in done.stderr
        assert drafts() == []

    def test_a_change_by_somebody_else_is_kept_and_so_is_the_text(self, service, editor, drafts):
        psched = " ".join(map(str, service.psched_command))
        editor.step(1, f"cd {service.folder}; {psched} edit nightly --delay 7 -m theirs\n"
            "sed -i 's/@hourly/@daily/' \"$1\"")  # fmt: skip
        terminal = on_terminal(service, "nightly")
        assert terminal.wait() == 1
        shown = terminal.text.replace("\r\n", "\n")
        assert re.search(
            r"Error: nothing was changed: 'nightly' was changed meanwhile \(edit\) by \S+ on \S+"
            r" \(psched edit\); edit it again",
            shown,
        )
        row = service.row("nightly")
        assert (row.cron, row.delay) == ("@hourly", 7)
        [kept] = drafts()
        assert "@daily" in kept

    def test_a_run_meanwhile_is_no_change(self, service, editor):
        editor.step(1, f"while [ ! -e {service.folder}/ran ]; do sleep 0.1; done\n"
            "sed -i 's/to: ann/to: bob/' \"$1\"")  # fmt: skip
        with service.schedules() as schedules:
            schedules["nightly"].modify(next_time=0, type="recorder", catchup="latest")
        terminal = on_terminal(service, "nightly")
        wait_until(lambda: editor.calls == 1, what="the editor")
        service.start()
        service.wait_for_row("nightly", lambda seen: seen.next_time > 3600 and seen.row.fence > 1)
        (service.folder / "ran").touch()
        assert terminal.wait() == 0, terminal.text
        assert service.row("nightly").data["to"] == "bob"

    def test_ctrl_c_is_meant_for_the_editor(self, service, editor):
        editor.step(1, "trap 'interrupted=1' INT\n"
            'while [ -z "$interrupted" ]; do sleep 0.1; done\n'
            "sed -i 's/to: ann/to: bob/' \"$1\"")  # fmt: skip
        terminal = on_terminal(service, "nightly")
        wait_until(lambda: editor.calls == 1, what="the editor")
        keys = os.open(service.folder / "keys", os.O_WRONLY | os.O_NONBLOCK)
        os.write(keys, b"\x03")
        os.close(keys)
        assert terminal.wait() == 0, terminal.text
        assert service.row("nightly").data["to"] == "bob"

    def test_a_dry_run_keeps_the_text(self, service, editor, drafts):
        editor.step(1, "sed -i 's/@hourly/@daily/' \"$1\"")
        done = service.psched("edit", "nightly", "--dry-run")
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "nightly: would be edited")
        assert service.row("nightly").cron == "@hourly"
        assert len(drafts()) == 1

    def test_a_quarantined_schedule_is_corrected(self, service, editor):
        with service.sql() as database:
            database.execute(
                "UPDATE psched SET cron = '@horly', status = 'quarantined', version = version + 1,"
                " reason = 'x' WHERE id = 'nightly'"
            )
        editor.step(1, "sed -i 's/@horly/@daily/' \"$1\"")
        terminal = on_terminal(service, "nightly")
        assert terminal.wait() == 0, terminal.text
        row = service.row("nightly")
        assert (row.cron, row.status, row.reason) == ("@daily", "waiting", None)
