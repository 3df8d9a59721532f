"""apply, export and import-crontab, as a person types them."""

import json
import re
import socket
import sys
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from psched.contrib.crontab import command as crontab_command

HOST = socket.gethostname()

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

SCHEDULES = "next: " + ", ".join([r"\d{4}-\d\d-\d\d \d\d:\d\d:00 \w+"] * 3)


UNITS = """\
label: reports
schedules:
  often:
    cron: "@every 5m +30s"
    delay: 1m
    jitter: 30s
    kill_timeout: 2h
"""


def test_a_file_can_have_durations_and_the_database_gets_seconds(service):
    service.write("s.yml", UNITS)

    assert service.psched("apply", "s.yml").stdout.endswith("often: added\n")
    assert service.psched("apply", "s.yml").stdout == "label reports: 1 unchanged\n"
    exported = service.psched("export").stdout
    for line in ("cron: '@every 300 +30'", "delay: 60", "jitter: 30", "kill_timeout: 7200"):
        assert f"    {line}\n" in exported

    service.write("s.yml", UNITS.replace("delay: 1m", "delay: 1min"))
    refused = service.psched("apply", "s.yml")
    assert refused.returncode == 1
    assert refused.stderr.endswith(
        "s.yml:5: often: delay: must be whole seconds, or have a unit (30s, 5m, 1h, 30d), not"
        " '1min'\n"
    )


def test_a_file_is_planned_applied_changed_pruned_and_written_back(each_service, set_zone):
    service = each_service
    set_zone("Europe/Berlin")
    path = str(service.write("s.yml", FILE))

    dry = service.psched("apply", "s.yml", "--dry-run")
    assert (dry.returncode, dry.stderr) == (3, "")
    assert dry.stdout.splitlines() == [
        "label reports: 2 to add",
        "+ nightly: 30 2 * * * Europe/Berlin, exec: report",
        "+ weekly: @weekly UTC, recorder",
    ]
    verbose = service.invoke("apply", path, "--dry-run", "--verbose").stdout.splitlines()
    assert '    cron: "30 2 * * *"' in verbose
    assert '    note: "for Ann"' in verbose
    assert sum(re.fullmatch(f"    {SCHEDULES}", line) is not None for line in verbose) == 2
    assert "0 entries.\n" in service.invoke("list", "--legacy").stdout

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
    brief = service.invoke("apply", path, "--dry-run").stdout
    changed = service.invoke("apply", path, "-v")
    assert changed.exit_code == 0
    shown = changed.stdout.splitlines()
    assert brief.splitlines() == [line for line in shown[:-1] if "next" not in line]
    assert shown[:4] == [
        "label reports: 1 to change, 1 no longer in the files, but stay (see --prune)",
        "~ nightly",
        '    cron: "30 2 * * *" -> "45 2 * * *"',
        '    note: "for Ann" -> "for Bo"',
    ]
    assert re.fullmatch(f"    {SCHEDULES.replace('next', 'next was')}", shown[4])
    assert shown[4].count(" 02:30:00 CE") == 3
    assert shown[5].count(" 02:45:00 CE") == 3
    assert shown[6:] == ["- weekly (stays)", "nightly: changed"]
    # Between half past two and a quarter to three in Berlin, the new time is a day earlier.
    after = datetime.fromtimestamp(service.row("nightly").next_time, ZoneInfo("Europe/Berlin"))
    assert (after.hour, after.minute) == (2, 45)

    pruned = service.invoke("apply", path, "--prune")
    assert pruned.stdout.endswith("weekly: deleted\n")
    assert "weekly" not in service.invoke("list", "--legacy").stdout


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
            " to take it over, adopt it (psched apply --adopt); else give one of the two another"
            " key"
        ),
        refused.stderr.splitlines()[0].removeprefix("Error: ").replace("nightly", "weekly"),
    ]
    assert "3 entries" in service.invoke("list", "--legacy").stdout

    adopted = service.invoke("apply", str(b), "--adopt", "--prune")
    assert '    label: "reports" -> "others"' in adopted.stdout
    assert "- " not in adopted.stdout
    assert "3 entries" in service.invoke("list", "--legacy", "--label", "others").stdout
    assert "0 entries" in service.invoke("list", "--legacy", "--label", "reports").stdout
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


def test_several_labels_have_one_summary_first(service):
    service.write("s/a.yml", FILE)
    more = "label: more\nschedules:\n  long: {cron: '0 5 * * *', data: {words: [LONG]}}\n"
    service.write("s/b.yml", more.replace("LONG", "x" * 99))
    shown = service.invoke("apply", str(service.folder / "s")).stdout.splitlines()
    assert shown[0] == "2 labels: 3 to add"
    [long] = [line for line in shown if line.startswith("+ long: ")]
    assert long == f'+ long: 0 5 * * * UTC, default: {{"words": ["{"x" * 48}…'


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
    assert text.startswith(f"label: crontab:{HOST}:~ann/tab\nschedules:\n  {HOST}:~ann-tab.echo.")
    applied = service.invoke("apply", made)
    assert (applied.exit_code, applied.stderr) == (0, "")
    directly = service.invoke("import-crontab", tab, *words, "--apply", "--dry-run")
    assert directly.stdout == f"label crontab:{HOST}:~ann/tab: 1 unchanged\n"

    [key] = re.findall(rf"{HOST}:~ann-tab\.echo\.\w+", text)
    with service.schedules() as schedules:
        schedules[key].modify(next_time=1_767_243_600)  # 2026-01-01T05:00Z, which was missed
    master = service.start()
    row = service.wait_for_row(key, lambda seen: seen.reason)
    assert (service.folder / "out").read_text() == f"ann {key} 1970\none\ntwo\n"
    assert "gave up after 1 attempts: /bin/sh exited with status 3" in row.reason
    assert row.status == "waiting"
    assert row.next_time > 1_767_243_600
    assert master.stop() == 0


def test_two_versions_of_a_line_are_never_both_active_without_a_question(each_service):
    service = each_service
    words = (
        "import-crontab",
        str(service.folder / "tab"),
        "--user",
        "ann",
        "--any-user",
        "--source",
        "db1",
        "--apply",
    )

    def keys():
        with service.schedules() as schedules:
            return {each.data["command"]: each.key for each in schedules.list()}

    def imported(lines, *more):
        service.write("tab", lines)
        return service.invoke(*words, *more)

    imported("@daily echo a\n@daily true 1\n")
    before = keys()
    edited = imported("@daily echo b\n@daily true 1\n")
    assert f"{before['echo a']}: edited: @daily echo a -> @daily echo b\n" in edited.stderr
    assert keys() == {"echo b": before["echo a"], "true 1": before["true 1"]}

    # The line with `true` may have become the one with `printf`: nobody but the user knows.
    new = "@daily echo b\n@daily printf 1\n"
    refused = imported(new)
    assert refused.exit_code == 1
    assert "delete the former (--prune), or keep them (--keep)\n" in refused.stderr
    assert set(keys()) == {"echo b", "true 1"}
    assert "(stays)" in imported(new, "--dry-run").stdout
    assert set(keys()) == {"echo b", "true 1"}
    imported(new, "--keep")
    assert set(keys()) == {"echo b", "true 1", "printf 1"}
    pruned = imported(new, "--prune")
    assert f"{before['true 1']}: not imported from {service.folder}/tab any more: " in pruned.stderr
    assert set(keys()) == {"echo b", "printf 1"}
    # If lines have only left the crontab, nothing replaces them, so nothing is asked.
    assert "(stays)" in imported("@daily echo b\n").stdout
    assert set(keys()) == {"echo b", "printf 1"}


def commands(service):
    with service.schedules() as schedules:
        return {each.key: each.data["command"] for each in schedules.list()}


def importer(service, *words):
    """A function that writes a crontab of two commands, and imports it with further options."""

    def imported(content, *more, path="cron.d/copy"):
        tab = service.write(path, content)
        # On a slow machine, the progress would be shown.
        usual = ("import-crontab", str(tab), "--service-user", "root", "-q")
        return service.invoke(*usual, *words, *more)

    return imported


A = "0 3 * * * root cp -a /srv/a /b\n0 4 * * * root cp -a /etc /b\n"
B = "0 3 * * * root cp -a /srv/b /c\n"


def test_hosts_do_not_change_each_others_schedules(service):
    imported = importer(service, "--apply")
    assert imported(A, "--source", "hA").exit_code == 0
    first = commands(service)
    assert all(key.startswith("hA:copy.cp.") for key in first)

    told = imported(B, "--source", "hB")
    assert (told.exit_code, told.stderr) == (0, "")
    assert "label crontab:hB:copy: 1 to add\n" in told.stdout
    assert first.items() < commands(service).items()
    assert sorted(commands(service).values()) == [
        "cp -a /etc /b",
        "cp -a /srv/a /b",
        "cp -a /srv/b /c",
    ]

    # One host's lines are edited and removed; the other host's stay.
    edited = imported(B.replace("/c", "/d"), "--source", "hB", "--prune")
    assert "edited: 0 3 * * * cp -a /srv/b /c -> 0 3 * * * cp -a /srv/b /d" in edited.stderr
    imported("", "--source", "hB", "--prune")
    assert commands(service) == first


@pytest.mark.parametrize(
    ("path", "words", "user"),
    [
        ("cron.d/copy", (), "root "),
        ("etc/crontab", ("--system",), "root "),
        ("root", ("--user", "root"), ""),
    ],
)
def test_copies_of_hosts_files_do_not_change_each_others_schedules(service, path, words, user):
    imported = importer(service, "--apply", *words)
    a, b = A.replace("root ", user), B.replace("root ", user)
    assert imported(a, path=f"hA/{path}").exit_code == 0
    first = commands(service)
    other = f"0 3 * * * {user}rsync --delete /usr c:/\n"
    for content in (b, a.replace(" 3 ", " 5 "), other, ""):
        refused = imported(content, "--prune", path=f"hB/{path}")
        assert refused.exit_code == 1
        told = f"another host: name its host, with --source {HOST} if it is this one\n"
        assert refused.stderr.endswith(told)
    assert commands(service) == first
    assert imported(b, "--source", "hB", path=f"hB/{path}").exit_code == 0
    assert first.items() < commands(service).items()
    assert imported(a.replace(" 3 ", " 5 "), "--source", HOST, path=path).exit_code == 0


def test_standard_input_is_of_any_host(service):
    def imported(content):
        psched = f"{sys.executable} -m psched -c {service.config} import-crontab - --user root"
        words = f"{psched} --service-user root --apply"
        return service.run("sh", "-c", f"echo '{content}' | {words}")

    assert imported("0 3 * * * cp a b c").returncode == 0
    refused = imported("0 3 * * * cp a b d")
    assert "- may be a copy from any host" in refused.stderr
    assert [*commands(service).values()] == ["cp a b c"]


def test_a_user_and_a_system_file_of_one_name_share_a_label_and_nothing_else(service):
    imported = importer(service, "--apply", "--source", "h1", "--label", "db")
    imported("0 3 * * * root cp a b c\n", path="cron.d/root")
    imported("0 4 * * * cp a b d\n", "--user", "root", path="root")
    assert sorted(commands(service).values()) == ["cp a b c", "cp a b d"]


def test_the_same_command_on_another_host_is_imported_only_if_the_user_says_so(service):
    imported = importer(service, "--apply")
    imported(A, "--source", "hA")
    [key, other] = commands(service)
    refused = imported(B + A.replace("3", "5"), "--source", "hB")
    assert refused.exit_code == 1
    assert "(label crontab:hA:copy): the same command, imported from hA" in refused.stderr
    assert (
        "If hB had that name, add --source hA; if both are to run, add --also\n" in refused.stderr
    )
    assert [*commands(service)] == [key, other]

    # The host has a new name.
    assert "2 unchanged" in imported(A, "--source", "hA").stdout
    # Both hosts run it, and are not asked again.
    assert "2 to add" in imported(A, "--source", "hB", "--also").stdout
    assert "2 unchanged" in imported(A, "--source", "hB").stdout
    assert sorted(commands(service).values()) == sorted(["cp -a /etc /b", "cp -a /srv/a /b"] * 2)


def test_users_and_files_of_one_host_do_not_change_each_others_schedules(service):
    imported = importer(service, "--apply", "--any-user")
    tab = "0 3 * * * cp -a /srv/a /b\n"
    imported(tab, "--user", "ann", path="tab")
    first = commands(service)
    imported(tab, "--user", "bob", path="tab")
    imported(tab.replace("a /b", "a /c"), "--user", "ann", path="tab2")
    imported(tab.replace("cp -a", "bob cp -f"), path="cron.d/bob")
    imported(tab.replace("cp -a", "cp -v"), "--user", "bob", path="bob")
    assert len(commands(service)) == 5
    assert first.items() < commands(service).items()

    renamed = imported(tab, "--user", "ann", path="new-name")
    assert renamed.exit_code == 1
    assert "If its file had another name, delete them (psched delete --label " in renamed.stderr


def test_a_label_that_hosts_share_is_pruned_by_none_of_them(service):
    imported = importer(service, "--apply", "--label", "ops")
    imported(A, "--source", "hA")
    assert imported(B, "--source", "hB").exit_code == 0
    assert len(commands(service)) == 3
    refused = imported("", "--source", "hB", "--prune")
    assert refused.exit_code == 1
    assert "--prune would delete hA:copy.cp." in refused.stderr
    assert len(commands(service)) == 3


def test_files_of_two_hosts_are_applied_and_pruned_on_their_own(service):
    files = [str(service.folder / name) for name in ("a.yml", "b.yml")]
    for content, host, file in zip((A, B), ("hA", "hB"), files, strict=True):
        importer(service)(content, "--source", host, "-o", file)
        service.invoke("apply", file, "--prune")
    assert len(commands(service)) == 3
    assert "3 unchanged" in service.invoke("apply", *files, "--prune").stdout

    again = importer(service, "--source", "hA", "-o", files[0], "--force")
    assert again(A.replace("/b", "/c")).stderr.count(": edited: ") == 2
    assert "hB:copy.cp." in (service.folder / "b.yml").read_text()


def test_a_schedule_that_names_no_host_and_runs_the_same_command_is_told(service):
    with service.schedules() as schedules:
        data = {"command": "cp -a /etc /b", "shell": True, "env": {"LOGNAME": "root"}}
        schedules.add("backup", "exec", cron="@daily", data=data)
    imported = importer(service, "--apply")
    refused = imported(A)
    assert refused.exit_code == 1
    told = "backup (no label): the same command. If one is enough, delete it (psched delete); if"
    assert told in refused.stderr
    assert "2 to add" in imported(A, "--also").stdout


def test_a_file_that_is_written_again_keeps_the_keys_of_edited_lines(service):
    made = service.folder / "tab.yml"
    words = ("import-crontab", str(service.folder / "tab"), "--user", "ann", "--any-user")
    words = (*words, "--source", "db1")
    service.write("tab", "@daily echo a\n")
    service.invoke(*words, "-o", str(made))
    text = made.read_text()
    assert "    kill_timeout: 86400  # one day; 0 sets no limit\n" in text

    service.write("tab", "@daily echo b\n@weekly echo c\n")
    service.invoke(*words, "-o", str(made), "--force")
    [key] = re.findall(r"db1:~ann-tab\.echo\.\w+", text)
    again = made.read_text()
    assert re.search(rf"{key}:\n.*\n    cron: '@daily'(\n.*)+? echo b\n", again)

    # The file is not there: the former lines are those of the database.
    service.invoke("apply", str(made))
    service.write("tab", "@daily echo d\n")
    assert key in service.invoke(*words).stdout
    service.write("tab", "@daily true\n")
    assert service.invoke(*words).exit_code == 1
    pruned = service.invoke(*words, "--prune")
    assert "Apply the file with --prune" in pruned.stderr
    assert key not in pruned.stdout


def test_lines_that_the_services_user_cannot_run_are_named_before_anything_is_written(service):
    secret = service.write("secret", "#!/bin/sh\n")
    secret.chmod(0o600)
    tab = service.write("cron.d/tab", f"@daily root {secret}\n@daily nobody true\n")
    told = service.invoke("import-crontab", str(tab), "--service-user", "root")
    assert told.exit_code == 1
    needed, line, *remarks = told.stderr.splitlines()
    assert needed.endswith("if root's list has these lines, in /etc/psched/run_as:")
    assert line.startswith("nobody ")
    assert line.endswith(" /bin/sh -c true sh")
    assert remarks == [
        f"{tab}:1: root must not execute {secret}",
        f"{tab}:2: nobody cannot enter /nonexistent, the home of nobody: the command runs in /",
    ]
    assert "run_as: nobody\n" in told.stdout
    refused = service.invoke("import-crontab", str(tab), "--service-user", "nobody", "--run-as")
    assert refused.stderr.startswith("Error: --run-as: only root can run commands as other users")
    imported = service.invoke("import-crontab", str(tab), "--service-user", "root", "--run-as")
    assert "      - /sbin/runuser\n      - -u\n      - nobody\n      - --\n" in imported.stdout
    unknown = service.invoke("import-crontab", str(tab), "--service-user", "no-such-user")
    assert unknown.stderr == "Error: --service-user: this host has no user 'no-such-user'\n"


@pytest.mark.parametrize(
    ("name", "content", "words", "why"),
    [
        (
            "a.conf",
            "@daily root true\n",
            (),
            "Debian's cron ignores the whole file because of the characters in",
        ),
        (
            "a~",
            "@daily root true\n",
            ("--dialect", "cronie"),
            "cronie ignores the whole file because of the",
        ),
        ("tab", "@daily root true\n60 * * * * root true\n", (), "because of line 2"),
        ("tab", "MAILTO=\n@daily root true\n", (), "because of line 1"),
        ("tab", "@daily root true", (), "because of its last line"),
        ("../tab", "@daily root true", ("--system",), "because of its last line"),
        ("tab", "@daily root true\n@daily nobody-here true\n", ("--any-user",), "of line 2"),
    ],
)
def test_a_file_that_cron_ignores_is_imported_with_a_remark(service, name, content, words, why):
    tab = service.write(f"cron.d/{name}", content)
    words = ("import-crontab", str(tab), "--service-user", "root", *words)
    told = service.invoke(*words)
    assert told.exit_code == 1
    [line] = [line for line in told.stderr.splitlines() if "ignores the whole file" in line]
    assert line.startswith(f"{tab}: ")
    assert why in line
    assert "command: 'true'" in told.stdout
    if "--dialect" not in words:
        told = service.invoke(*words, "--dialect", "busybox")
        assert "ignores the whole file" not in told.stderr


def test_of_another_host_this_hosts_users_and_environment_are_not_assumed(service, monkeypatch):
    monkeypatch.setattr(crontab_command, "session_variables", lambda _: {"LANG": "de_DE"})
    tab = service.write("cron.d/tab", "@daily root true\n@daily nobody-here true\n")
    words = ("import-crontab", str(tab), "--service-user", "root")
    here, again = (service.invoke(*words, *more) for more in ((), ("--source", HOST)))
    there = service.invoke(*words, "--source", "other")
    assert here.stdout == again.stdout
    for told, is_here in ((here, True), (there, False)):
        assert ("ignores the whole file because of line 2" in told.stderr) == is_here
        assert ("LANG: de_DE" in told.stdout) == is_here


def test_the_dialect_decides_what_a_percent_sign_is(service):
    tab = service.write("tab", "@daily date +%F | true\n")
    words = ("import-crontab", str(tab), "--user", "root", "--service-user", "root")
    told = service.invoke(*words)
    assert told.exit_code == 1
    assert f"{tab}:1: cron ends the command at the first %" in told.stderr
    told = service.invoke(*words, "--dialect", "busybox")
    assert (told.exit_code, told.stderr) == (0, "")
    assert "date +%F | true" in told.stdout


def test_a_user_of_this_host_in_front_of_a_command_is_noticed(service):
    tab = service.write("tab", "@daily nobody /bin/true\n@daily true nobody\n")
    told = service.invoke("import-crontab", str(tab), "--user", "ann", "--service-user", "root")
    hints = [line for line in told.stderr.splitlines() if "is this a system crontab" in line]
    assert hints == [
        f"{tab}:1: the command begins with 'nobody'; is this a system crontab (--system)?"
    ]


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
        (["tab", "--user", "ann", "--any-user", "--run-as"], 2, "--any-user or --run-as"),
        (["latin", "--system"], 1, "latin:2: not UTF-8 text"),
        (["tab", "--user", "ann", "--source", "a:b"], 2, "--source: a name has letters, digits"),
        (["tab", "--user", "ann", "--source", ""], 2, "--source: a name has letters, digits"),
    ],
)
def test_what_is_no_crontab_is_refused(service, words, status, text):
    service.write("tab", "@daily true\n")
    (service.folder / "latin").write_bytes(b"#\n# \xfc\n")
    refused = service.psched("import-crontab", *words)
    assert refused.returncode == status
    assert text in refused.stderr


def test_a_timer_becomes_schedules_that_run_as_under_systemd(service):
    service.write("units/job.timer", "[Timer]\nOnCalendar=daily\nPersistent=true\n")
    unit = "[Service]\nUser=nobody\nExecStart=/bin/echo $A ${A}\nEnvironment='A=1  2'\n"
    service.write("units/job.service", unit)
    words = ("import-timers", str(service.folder / "units"), "--source", "web1", "-t", "UTC")
    refused = service.invoke(*words)
    assert (refused.exit_code, "not imported: systemd runs it as" in refused.stderr) == (1, True)

    planned = service.invoke(*words, "--any-user", "--apply", "--dry-run")
    assert planned.exit_code == 3
    assert "+ web1:job: 0 0 * * * UTC, exec: " in planned.stdout
    service.invoke(*words, "--any-user", "--apply")
    service.write("units/job.service", "[Service]\nUser=nobody\nExecStart=/bin/echo 3\n")
    edited = service.invoke(*words, "--any-user", "--apply")
    assert "web1:job: edited: 0 0 * * * " in edited.stderr
    (service.folder / "units/job.timer").rename(service.folder / "units/other.timer")
    (service.folder / "units/job.service").rename(service.folder / "units/other.service")
    asked = service.invoke(*words, "--any-user", "--apply")
    assert "web1:job: no longer in " in asked.stderr
    service.invoke(*words, "--any-user", "--apply", "--prune")
    assert [*commands(service)] == ["web1:other"]
    # The host has a new name, or both hosts run it.
    renamed = ("import-timers", str(service.folder / "units"), "-t", "UTC", "--any-user", "--apply")
    refused = service.invoke(*renamed, "--source", "web2")
    assert (
        "web1:other (label timers:web1:units): the same command, imported from web1. If web2"
        in (refused.stderr)
    )
    assert [*commands(service)] == ["web1:other"]
    service.invoke(*renamed, "--source", "web2", "--also")
    assert [*commands(service)] == ["web1:other", "web2:other"]
    assert "1 unchanged" in service.invoke(*renamed, "--source", "web2").stdout


def test_timers_of_two_users_and_of_two_folders_never_meet(service):
    def kept(folder, *more):
        service.write(f"{folder}/job.timer", "[Timer]\nOnCalendar=daily\n")
        service.write(f"{folder}/job.service", "[Service]\nExecStart=/bin/echo 1\n")
        words = ("--source", "h1", "--any-user", "--apply", *more)
        told = service.invoke("import-timers", str(service.folder / folder), *words)
        assert not re.search("edited|no longer|any more", told.stderr), told.stderr
        with service.schedules() as schedules:
            return [(each.key, each.label) for each in schedules.list()]

    bob = ("h1:~bob/job", "timers:h1:~bob/user")
    ann = ("h1:~ann/job", "timers:h1:~ann/.config/systemd/user")
    system = ("h1:job", "timers:h1:etc/systemd/system")
    assert kept("bob/systemd/user", "--user", "bob") == [bob]
    assert kept("ann/.config/systemd/user", "--user", "ann") == [ann, bob]
    assert kept("etc/systemd/system") == [system, ann, bob]
    assert kept("usr/lib/systemd/system") == [system, ann, bob]


def test_copies_of_two_hosts_timers_do_not_change_each_others_schedules(service):
    def imported(host, command):
        service.write(f"{host}/job.timer", "[Timer]\nOnCalendar=daily\n")
        service.write(f"{host}/job.service", f"[Service]\nExecStart=/bin/echo {command}\n")
        timer = str(service.folder / host / "job.timer")
        return service.invoke("import-timers", timer, "--service-user", "root", "--apply")

    assert imported("a", "1").exit_code == 0
    assert imported("a", "1").exit_code == 0
    refused = imported("b", "2")
    assert refused.exit_code == 1
    assert "job.timer may be a copy from any host" in refused.stderr
    with service.schedules() as schedules:
        assert [each.data["command"] for each in schedules.list()] == [["/bin/echo", "1"]]


def test_a_timer_that_was_imported_alone_is_adopted_with_its_folder(service):
    service.write("units/job.timer", "[Timer]\nOnCalendar=daily\n")
    service.write("units/job.service", "[Service]\nExecStart=/bin/echo 1\n")
    units, file = service.folder / "units", str(service.folder / "units.yml")
    shared = ("--source", "h1", "--any-user")
    service.invoke("import-timers", str(units / "job.timer"), *shared, "--apply")
    refused = service.invoke("import-timers", str(units), *shared, "--apply")
    assert "adopt it (psched apply --adopt)" in refused.stderr
    service.invoke("import-timers", str(units), *shared, "-o", file)
    assert service.invoke("apply", "--adopt", file).exit_code == 0
    with service.schedules() as schedules:
        assert [(each.key, each.label) for each in schedules.list()] == [
            ("h1:job", "timers:h1:units")
        ]


def test_timers_that_run_the_same_are_told(service):
    service.write("units/a.timer", "[Timer]\nOnCalendar=6:00\nOnCalendar=7:30\n")
    service.write("units/b.timer", "[Timer]\nOnCalendar=6:00\nUnit=a.service\n")
    service.write("units/a.service", "[Service]\nExecStart=/bin/echo 1\n")
    units = str(service.folder / "units")
    told = service.invoke("import-timers", units, "--source", "h1", "--service-user", "root")
    assert told.stderr.splitlines() == [
        f"{units}/{name}.timer:1: {key} runs the same as h1:a: a time that both have runs twice"
        for name, key in [("a", "h1:a/2"), ("b", "h1:b")]
    ]


def test_cronjobs_of_two_clusters_never_meet(service):
    job = {"name": "c", "image": "x", "command": ["true"]}
    spec = {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": {}}}}}
    spec["jobTemplate"]["spec"]["template"]["spec"]["containers"] = [job]
    manifest = {"kind": "CronJob", "metadata": {"name": "a"}, "spec": spec}
    path = str(service.write("jobs.json", json.dumps({"kind": "List", "items": [manifest] * 2})))
    assert service.invoke("import-cronjobs", path).exit_code == 2
    for cluster in "b", "a":
        told = service.invoke("import-cronjobs", path, "--source", cluster, "--apply", "--also")
        assert told.exit_code == 1
        assert f"{cluster}:default.a: image has no effect" in told.stderr
        assert f"{cluster}:default.a: not imported: it is there twice" in told.stderr
    with service.schedules() as schedules:
        assert [each.key for each in schedules.list()] == ["a:default.a", "b:default.a"]
    # A label that clusters share is pruned by none of them.
    refused = service.invoke("import-cronjobs", path, "--source", "c", "--apply")
    assert "a:default.a (label cronjobs:a:jobs.json): the same command, imported" in refused.stderr
    shared = ("import-cronjobs", path, "--label", "ops", "--also", "--apply", "--source")
    service.invoke(*shared, "c")
    refused = service.invoke(*shared, "d", "--prune")
    assert "--prune would delete c:default.a, too: the label ops is not of " in refused.stderr
    assert "cronjobs:a:jobs.json" in service.invoke(*shared, "a").stderr
    with service.schedules() as schedules:
        assert [each.key[0] for each in schedules.list()] == ["a", "b", "c"]
    service.write("none.yml", "kind: Job\n")
    none = service.invoke("import-cronjobs", str(service.folder / "none.yml"), "--source", "a")
    assert (none.exit_code, none.stderr.endswith("none.yml: has no CronJob\n")) == (1, True)


class TestHostsOfAnImport:
    """What ran on one host goes on to run there; a schedule that exists keeps its hosts."""

    @staticmethod
    def hosts(service):
        with service.schedules() as schedules:
            return {each.key.rpartition(".")[2]: each.hosts for each in schedules.list()}

    @staticmethod
    def words(service, *words):
        return (
            *("import-crontab", str(service.folder / "tab"), "--user", "root"),
            *("--service-user", "root", "--source", "db1", "--apply", *words),
        )

    def test_a_first_import_keeps_it_on_its_host(self, service):
        service.write("tab", "0 1 * * * /bin/true one\n")
        assert service.invoke(*self.words(service)).exit_code == 0
        [(key, hosts)] = self.hosts(service).items()
        assert hosts == ["db1"]
        with service.schedules() as schedules:
            [schedule] = schedules.list()
            schedules.modify(schedule.key, hosts=["db*"])
        service.write("tab", "0 2 * * * /bin/true one\n0 3 * * * /bin/true two\n")
        assert service.invoke(*self.words(service)).exit_code == 0
        found = self.hosts(service)
        assert found.pop(key) == ["db*"]
        assert [*found.values()] == [["db1"]]

    def test_an_import_never_adds_hosts_to_what_runs_anywhere(self, service):
        service.write("tab", "0 1 * * * /bin/true one\n")
        assert service.invoke(*self.words(service, "--anywhere")).exit_code == 0
        service.write("tab", "0 2 * * * /bin/true one\n0 3 * * * /bin/true two\n")
        assert service.invoke(*self.words(service)).exit_code == 0
        assert [*self.hosts(service).values()] == [None, None]

    def test_the_name_of_this_host_is_that_of_its_configuration(self, service):
        service.configure(host_name="configured")
        service.write("tab", "0 1 * * * /bin/true one\n")
        words = [word for word in self.words(service) if word not in {"--source", "db1"}]
        assert service.invoke(*words, "--source", HOST).exit_code == 0
        assert [*self.hosts(service).values()] == [["configured"]]
