"""apply, export and import-crontab, as a person types them."""

import json
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

FILE = """\
label: reports
schedules:
  nightly:
    type: exec
    cron: 30 2 * * *
    timezone: Europe/Berlin
    data:
      command:
      - report
    note: for Ann
  weekly:
    type: recorder
    cron: '@weekly'
"""

SCHEDULES = "next: " + ", ".join([r"\d{4}-\d\d-\d\d \d\d:\d\d [+-]\d\d:\d\d"] * 3)


def test_a_file_is_planned_applied_changed_pruned_and_written_back(each_service):
    service = each_service
    path = str(service.write("s.yml", FILE))

    dry = service.psched("apply", "s.yml", "--dry-run")
    assert (dry.returncode, dry.stderr) == (3, "")
    lines = dry.stdout.splitlines()
    assert [lines[0], lines[1], lines[3]] == ["label reports: 2 to add", "+ nightly", "+ weekly"]
    assert re.fullmatch(f"    {SCHEDULES}", lines[2])
    assert "0 entries.\n" in service.invoke("list").stdout

    done = service.invoke("apply", path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("nightly: added\nweekly: added\n")
    for again in (("apply", path), ("apply", path, "--dry-run", "--prune")):
        nothing = service.invoke(*again)
        assert (nothing.exit_code, nothing.stdout) == (0, "label reports: 2 unchanged\n")
    assert service.invoke("export").stdout == FILE

    service.write(
        "s.yml", FILE.partition("  weekly:")[0].replace("30 2 ", "45 2 ").replace("Ann", "Bo")
    )
    changed = service.invoke("apply", path)
    assert changed.exit_code == 0
    shown = changed.stdout.splitlines()
    assert shown[:4] == [
        "label reports: 1 to change, 1 no longer in the files, but stay (see --prune)",
        "~ nightly",
        '    cron: "30 2 * * *" -> "45 2 * * *"',
        '    note: "for Ann" -> "for Bo"',
    ]
    assert re.fullmatch(f"    {SCHEDULES.replace('next', 'next was')}", shown[4])
    assert shown[4].count(" 02:30 +01:00") + shown[4].count(" 02:30 +02:00") == 3
    assert shown[5].count(" 02:45 +0") == 3
    assert shown[6:] == ["- weekly (stays)", "nightly: changed"]
    # Between half past two and a quarter to three in Berlin, the new time is a day earlier.
    after = datetime.fromtimestamp(service.row("nightly").next_time, ZoneInfo("Europe/Berlin"))
    assert (after.hour, after.minute) == (2, 45)

    pruned = service.invoke("apply", path, "--prune")
    assert pruned.stdout.endswith("weekly: removed\n")
    assert "weekly" not in service.invoke("list").stdout


def test_two_labels_stay_apart(service):
    service.invoke("add", "loose", "t", "@daily")
    a = service.write("a.yml", FILE)
    b = service.write("b.yml", FILE.replace("reports", "others") + "  more: {cron: '@daily'}\n")
    assert service.invoke("apply", str(a)).exit_code == 0

    refused = service.invoke("apply", str(b), "--prune")
    assert refused.exit_code == 1
    assert refused.stderr.splitlines() == [
        (
            "Error: nightly belongs to the label 'reports', and is declared for the label 'others';"
            " to take it over, adopt it (--adopt); else give one of the two another key"
        ),
        refused.stderr.splitlines()[0].removeprefix("Error: ").replace("nightly", "weekly"),
    ]
    assert "3 entries" in service.invoke("list").stdout

    adopted = service.invoke("apply", str(b), "--adopt", "--prune")
    assert '    label: "reports" -> "others"' in adopted.stdout
    assert "- " not in adopted.stdout
    assert "3 entries" in service.invoke("list", "--label", "others").stdout
    assert "0 entries" in service.invoke("list", "--label", "reports").stdout
    shown = service.invoke("show", "nightly").stdout
    assert re.search(r"^label: +others$", shown, re.MULTILINE)
    assert re.search(r"^note: +for Ann$", shown, re.MULTILINE)

    folder = service.folder / "out"
    folder.mkdir()
    assert service.invoke("export", str(folder / "all.yml")).exit_code == 0
    assert "label: null\nschedules:\n  loose:" in (folder / "all.yml").read_text()
    assert service.invoke("apply", str(folder), "--dry-run").exit_code == 0
    again = service.invoke("export", str(folder / "all.yml"))
    assert (again.exit_code, again.stderr) == (
        1,
        f"Error: {folder}/all.yml exists already; --force replaces it\n",
    )
    assert service.invoke("export", "--label", "no").stdout == "label: 'no'\nschedules: {}\n"


def test_what_is_exported_can_be_applied_through_a_pipe(service):
    service.add("s", cron="@daily", next_time=None, label="web")
    command = " ".join(service.psched_command)
    piped = service.run("sh", "-c", f"{command} export | {command} apply -")
    assert (piped.returncode, piped.stdout) == (0, "label web: 1 unchanged\n"), piped.stderr


def test_a_plan_can_be_read_by_programs(service):
    path = str(service.write("s.yml", FILE))
    shown = service.invoke("apply", path, "--json")
    assert shown.stderr == "nightly: added\nweekly: added\n"
    plan = json.loads(shown.stdout)
    assert [item["key"] for item in plan.pop("added")] == ["nightly", "weekly"]
    assert plan == {
        "label": "reports", "pending": True,
        "changed": [], "left": [], "unchanged": [], "refused": {},
    }  # fmt: skip
    service.write("s.yml", FILE.replace("30 2", "31 2"))
    [item] = json.loads(service.invoke("apply", path, "--json", "--dry-run").stdout)["changed"]
    assert item["changes"] == {"cron": {"old": "30 2 * * *", "new": "31 2 * * *"}}
    assert [late - early for early, late in zip(item["next_was"], item["next"], strict=True)] == [
        60, 60, 60,
    ]  # fmt: skip


def test_what_rests_stays_at_rest_and_is_named(service):
    path = str(service.write("s.yml", FILE))
    service.invoke("apply", path)
    service.invoke("cancel", "weekly")

    # Naming the same file twice does not count as declaring a key twice.
    again = service.invoke("apply", path, str(service.folder / "." / "s.yml"))

    assert again.stdout == (
        "label reports: 2 unchanged\n= weekly (unchanged: it stays cancelled)\n"
    )
    assert service.row("weekly").status == "cancelled"
    assert service.invoke("export").stderr == "weekly: is cancelled, which a file cannot declare\n"


def test_mistakes_are_told_before_anything_is_done(service):
    service.write("s.yml", "label: a\nschedules:\n  one: {crom: '@daily'}\n  two: {cron: '@x'}\n")
    refused = service.invoke("apply", str(service.folder / "s.yml"))
    assert refused.exit_code == 1
    assert [line.partition("s.yml:")[2][:20] for line in refused.stderr.splitlines()] == [
        "3: one: crom: is not",
        "4: two: cron: '@x' i",
    ]
    assert service.invoke("apply").exit_code == 2


def test_what_cannot_be_understood_is_left_out_of_an_export_and_named(service):
    service.invoke("add", "good", "t", "@daily")
    service.invoke("push", "task", "{}")
    with service.sql() as database:
        database.execute("insert into psched (id, cron) values ('bad', '99 * * * *')")
    written = service.invoke("export")
    assert written.exit_code == 1
    assert written.stdout == ("label: null\nschedules:\n  good:\n    type: t\n    cron: '@daily'\n")
    assert written.stderr.startswith("bad: left out, because it cannot be understood: cron: ")


CRONTAB = """\
SHELL=/bin/sh
HOME={folder}
# For Ann.
0 5 1 1 *  echo "$LOGNAME $PSCHED_KEY $(date -u -d @0 +\\%Y)" >out; cat >>out; exit 3%one%two
@reboot    true
"""


def test_a_crontab_becomes_schedules_that_run_as_under_cron(each_service):
    service = each_service
    tab = str(service.write("cron.d/tab", CRONTAB.format(folder=service.folder)))
    made, words = str(service.folder / "tab.yml"), ("--user", "ann", "--any-user")

    assert service.invoke("import-crontab", tab, *words, "--system").exit_code == 2
    told = service.invoke("import-crontab", tab, *words, "-o", made)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "tab:5: not imported: @reboot" in told.stderr
    assert "tab:4: cron runs it as ann" in told.stderr

    text = (service.folder / "tab.yml").read_text()
    assert text.startswith("label: crontab:tab\nschedules:\n  tab.echo.")
    applied = service.invoke("apply", made)
    assert (applied.exit_code, applied.stderr) == (0, "")
    directly = service.invoke("import-crontab", tab, *words, "--apply", "--dry-run")
    assert directly.stdout == "label crontab:tab: 1 unchanged\n"

    [key] = re.findall(r"tab\.echo\.\w+", text)
    with service.schedules() as schedules:
        schedules[key].modify(next_time=1_767_243_600)  # 2026-01-01T05:00Z, which was missed
    master = service.start()
    row = service.wait_for_row(key, lambda seen: seen.reason)
    assert (service.folder / "out").read_text() == f"ann {key} 1970\none\ntwo\n"
    assert "gave up after 1 attempts: /bin/sh exited with status 3" in row.reason
    assert row.status == "waiting"
    assert row.next_time > 1_767_243_600
    assert master.stop() == 0


def test_a_crontab_that_exec_type_does_not_let_run_is_told(service):
    service.write("tab", "@daily true\n")
    words = ("import-crontab", str(service.folder / "tab"), "--user", "ann", "--any-user")
    assert "Warning" not in service.invoke(*words).stderr
    service.configure(exec_type=["/usr/bin/true"])
    told = service.invoke(*words)
    assert "Warning: exec_type refuses these schedules here" in told.stderr
    assert "schedules:" in told.stdout


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["tab"], 2, "does a user precede each command of tab? Use --system if so"),
        (["cron.d/nothing"], 1, "cron.d/nothing: cannot be read: No such file"),
        (["tab", "--user", "ann", "-t", "Mars"], 1, "'Mars' is not a zone"),
        (["tab", "--user", "ann", "--apply", "-o", "x"], 2, "--apply or --output"),
        (["latin", "--system"], 1, "latin:2: not UTF-8 text"),
    ],
)
def test_what_is_no_crontab_is_refused(service, words, status, text):
    service.write("tab", "@daily true\n")
    (service.folder / "latin").write_bytes(b"#\n# \xfc\n")
    refused = service.psched("import-crontab", *words)
    assert refused.returncode == status
    assert text in refused.stderr
