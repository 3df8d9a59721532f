"""Tests that systemd's timers are read as systemd reads them, and converted to schedules."""

import os
import re
import subprocess
from datetime import datetime
from pathlib import Path
from zlib import crc32

import pytest

from psched import config
from psched.base.errors import ConfigError, InvalidError
from psched.contrib.crontab.crontab_to_schedules import CrontabContext
from psched.contrib.crontab.service_user import ServiceUser
from psched.contrib.systemd_syntax import place_of, search_path, timers_in
from psched.contrib.timers import convert
from psched.triggers.calendar_event import Times, merged, seconds_of, times_of
from psched.triggers.trigger import parse

CALENDAR = {
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "Daily": "0 0 * * *",
    "weekly": "0 0 * * MON",
    "monthly": "0 0 1 * *",
    "quarterly": "0 0 1 */3 *",
    "semi-annually": "0 0 1 */6 *",
    "yearly": "0 0 1 1 *",
    "*:0/15": "*/15 * * * *",
    "*:7/15": "7,22,37,52 * * * *",
    "03:05": "5 3 * * *",
    "*-*-* 6,18:00": "0 6,18 * * *",
    "Mon..Fri 08..18/2:30": "30 8,10,12,14,16,18 * * MON-FRI",
    "mon,Wednesday *-*-* 3:5:00": "5 3 * * MON,WED",
    "Sat..Sun,Tue": "0 0 * * TUE,SAT,SUN",
    "Mon..Sun *-*-1 4:00": "0 4 1 * *",
    "Mon-Fri 9:00": "0 9 * * MON-FRI",
    "Sun": "0 0 * * SUN",
    "02-29": "0 0 29 2 *",
    "*-1/3-1": "0 0 1 */3 *",
    "*-*-1..7,15/5 0:00": "0 0 1,2,3,4,5,6,7,15,20,25,30 * *",
    "*-*~01 23:59": "59 23 L * *",
    "*-02~1": "0 0 L 2 *",
    "Mon *-*~07/1 5:00": "0 5 * * 1L",
    "Sat,Sun *-*~7/1": "0 0 * * 6L,0L",
    "Sat *-*-01..07 01:00": "0 1 * * SAT#1",
    "Tue,Thu *-*-8..14": "0 0 * * TUE#2,THU#2",
    "Mon *-*-29..31": "0 0 * * MON#5",
    "Mon *-*-1/2": "0 0 */2 * MON",
    "*-*-1/2": "0 0 */2 * *",
    "*-*-2/2": "0 0 2,4,6,8,10,12,14,16,18,20,22,24,26,28,30 * *",
    "0/6:0": "0 */6 * * *",
    "*-*-01..31 00..23:00..59": "* * * * *",
    "10..12,11:00": "0 10-12 * * *",
    "Mon,Sun": "0 0 * * MON,SUN",
    "Mon,Wed,Fri,Sun,": "0 0 * * MON,WED,FRI,SUN",
    "*:5..5/7": "5 * * * *",
    "*:30/29": "30,59 * * * *",
}
"""Calendar events, and the cron lines with the same times."""

_ANALYZE = ("systemd-analyze", "calendar")

EVERY = {"*:*:*": "@every 1", "*:*:0/10": "@every 10", "*:*:5/15": "@every 15 +5"}

REFUSED = {
    "2030-01-01 03:00": "a year: cron lines have none; write * for the year",
    "2026..2030-*-*": "a year",
    "@1395716396": "a year",
    "*-*~02": "days from the end of a month",
    "Fri *-*~01": "days from the end of a month",
    "Fri *-*-13": "a weekday and a day of the month: in a cron line one of them is enough",
    "*:00:0/10": "several seconds of a minute",
    "*:*:0/7": "several seconds of a minute",
    "*:*:00.5": "'00.5' is not in 0..59",
    "Fri..Mon": "the weekdays Fri..Mon run backwards",
    "22..2:00": "'22..2' is not in 0..23",
    "*/2:00": "'*/2' is not in 0..23",
    "24:00": "'24' is not in 0..23",
    "*-13-1": "'13' is not in 1..12",
    "*-*-0": "'0' is not in 1..31",
    "*-*-31/0": "'31/0' is not in 1..31",
    "*:0/60": "'0/60' is not in 0..59",
    "*:59/5": "'59/5' is not in 0..59",
    "*:30/30": "'30/30' is not in 0..59",
    "Mon,,Tue 3:00": "'' is no weekday",
    "foo": "'foo' is no weekday, and no name such as daily",
    "*-*-* 03:00 Mars/Base": "it is no calendar event",
    "*-*-* 3": "it is no calendar event",
    "daily 3:00": "'daily' is no weekday",
    "": "it is no calendar event",
    "*-*-* ٣:00": "'٣' is not in 0..23",
}


class TestCalendar:
    @pytest.mark.parametrize(("event", "cron"), [*CALENDAR.items(), *EVERY.items()])
    def test_an_event_becomes_the_cron_line_with_the_same_times(self, event, cron):
        assert times_of(event, "Europe/Berlin") == Times(cron, "Europe/Berlin")

    def test_a_second_becomes_a_delay(self):
        assert times_of("*-*-* 03:04:05", "UTC") == Times("4 3 * * *", "UTC", 5)

    @pytest.mark.parametrize(
        ("event", "zone"),
        [("daily Asia/Tokyo", "Asia/Tokyo"), ("03:00 utc", "UTC"), ("Mon 3:00 CET", "CET")],
    )
    def test_an_event_can_name_its_zone(self, event, zone):
        assert times_of(event, "Europe/Berlin").timezone == zone

    @pytest.mark.parametrize(("event", "problem"), REFUSED.items())
    def test_what_no_trigger_says_exactly_is_refused(self, event, problem):
        with pytest.raises(InvalidError) as refused:
            times_of(event, "UTC")
        assert refused.value.problem.startswith(problem)

    def test_events_that_differ_in_one_field_become_one_line(self):
        def joined(*events):
            return [each.cron for each in merged(times_of(event, "UTC") for event in events)]

        assert joined("6:00", "18:00", "6:00", "12:00") == ["0 6,18,12 * * *"]
        assert joined("Mon 6:00", "Tue 6:00") == ["0 6 * * MON,TUE"]
        assert joined("Mon 6:00", "Tue 7:00") == ["0 6 * * MON", "0 7 * * TUE"]
        assert joined("daily", "6:00", "hourly") == ["0 0,6 * * *", "0 * * * *"]
        assert joined("*-*-1", "Mon") == ["0 0 1 * *", "0 0 * * MON"]
        assert joined("*:*:0/10", "6:00:01", "7:00") == ["@every 10", "0 6 * * *", "0 7 * * *"]
        assert joined("*:*:0/10", "*:*:0/15") == ["@every 10", "@every 15"]
        assert joined("Mon", "Tue *-*-1..7") == ["0 0 * * MON", "0 0 * * TUE#1"]
        assert joined("*-*-1", "*-*~1") == ["0 0 1 * *", "0 0 L * *"]

    @pytest.mark.extended
    @pytest.mark.parametrize(("event", "cron"), [*CALENDAR.items(), *EVERY.items()])
    def test_systemd_computes_the_same_times(self, event, cron):
        number = crc32(event.encode())
        zone = ("UTC", "Asia/Kolkata", "America/New_York")[number % 3]
        begin = 1_767_830_400 + number % 1_000_000
        shown = subprocess.run(
            [
                "systemd-analyze",
                "calendar",
                "--iterations=9",
                f"--base-time=@{begin}",
                f"{event} {zone}",
            ],
            env={**os.environ, "TZ": "UTC", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found = re.findall(r"(?:Next elapse|Iter\. #\d+): \w+ (\S+ \S+) UTC", shown)
        theirs = [datetime.fromisoformat(f"{each}+00:00").timestamp() for each in found]
        trigger, ours = parse(cron, zone), [begin]
        while len(ours) <= len(theirs):
            ours.append(trigger.next_after(ours[-1]))
        assert theirs
        assert ours[1:] == theirs

    @pytest.mark.extended
    @pytest.mark.parametrize("event", [each for each in REFUSED if each])
    def test_systemd_accepts_no_event_that_is_called_none(self, event):
        with pytest.raises(InvalidError) as refused:
            times_of(event, "UTC")
        status = subprocess.run([*_ANALYZE, event], capture_output=True, check=False).returncode
        is_event = refused.value.problem.startswith(("a ", "days ", "several ", "'00.5'"))
        assert (status == 0) == is_event

    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            ("30", 30),
            ("1h 30min", 5400),
            ("1h30m", 5400),
            ("2 days", 172_800),
            ("1.5h", 5400),
            ("500ms", 0.5),
            ("500000us", 0.5),
            ("1month", 2_629_800),
            ("1M 2years", 65_745_000),
            ("infinity", None),
        ],
    )
    def test_a_duration_is_read_in_seconds(self, text, seconds):
        assert seconds_of(text) == seconds

    @pytest.mark.parametrize("text", ["", "soon", "1x", "1Y", "-1", "1h x", "h"])
    def test_what_is_no_duration_is_refused(self, text):
        with pytest.raises(InvalidError):
            seconds_of(text)


SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Root(ServiceUser):
    """A user who can run every program but /sbin/secret, and enter every folder but /secret."""

    def can_enter(self, folder):
        return folder != "/secret"

    def why_not_run(self, program, *, path, cwd):
        del path, cwd
        return "root must not execute /sbin/secret" if program == "/sbin/secret" else None


ROOT = Root("root", 0, frozenset([0]))


@pytest.fixture
def units(tmp_path):
    """Writes units, and converts one of them."""

    class Units:
        folder = tmp_path

        def write(self, name, *lines):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("\n".join([*lines, ""]))

        def convert(self, name, folder=tmp_path, settings=SETTINGS, **known):
            usual = {
                "key_prefix": "web1:",
                "timezone": "Europe/Berlin",
                "user": ROOT,
                "any_user": False,
                "owner": None,
                "home": {"ann": "/home/ann", "root": "/root"}.get,
            }
            context = CrontabContext(**{**usual, **known})
            made, remarks = convert(name, search_path(folder), context, settings)
            return [*made], [each.replace(f"{tmp_path}/", "") for each in remarks]

        def job(self, *service, timer=("OnCalendar=daily",), **known):
            self.write("job.timer", "[Timer]", *timer)
            self.write("job.service", "[Service]", *service)
            return self.convert("job.timer", **known)

    return Units()


class TestUnits:
    def test_a_service_runs_as_under_systemd(self, units):
        units.write(
            "backup.timer",
            *("# comment", "[Unit]", "Description=Daily backup", "After=network.target", ""),
            *("[Timer]", "OnCalendar=*-*-* 06,18:00:30", "Persistent=true"),
            *("RandomizedDelaySec=1h 30min", "AccuracySec=1h"),
            *("[Install]", "WantedBy=timers.target", "[X-Own]", "A=b"),
        )
        units.write(
            "backup.service",
            *("[Unit]", "Description=Backup %p", "[Service]", "Type=oneshot"),
            *("ExecStart=/usr/bin/backup --all \\", "; between", "  'a b' \\x41 %% *.gz"),
            *("WorkingDirectory=/srv", "Environment=A=b 'C=d e' \"F=%n\"", "TimeoutStartSec=2h"),
        )
        [declared], remarks = units.convert("backup.timer")
        assert declared == {
            "key": "web1:backup",
            "type": "exec",
            "cron": "0 6,18 * * *",
            "timezone": "Europe/Berlin",
            "delay": 30,
            "catchup": "latest",
            "jitter": 5400,
            "dst_policy": "debian",
            "data": {
                "command": ["/usr/bin/backup", "--all", "a b", "A", "%", "*.gz"],
                "env": {"PATH": PATH, "A": "b", "C": "d e", "F": "backup.service"},
                "cwd": "/srv",
                "stdin": "",
            },
            "max_attempts": 1,
            "kill_timeout": 7200,
            "note": "Backup backup",
        }
        assert not remarks

    def test_a_timer_that_is_not_persistent_drops_missed_runs(self, units):
        [declared], _ = units.job("ExecStart=/bin/x")
        assert (declared["catchup"], declared["kill_timeout"]) == ("skip", 86_400)
        [declared], _ = units.job("ExecStart=/bin/x", "RuntimeMaxSec=infinity")
        assert declared["kill_timeout"] == 0

    def test_several_times_become_one_schedule_if_one_cron_line_says_them(self, units):
        lines = ("OnCalendar=1:00", "OnCalendar=", "OnCalendar=6:00", "OnCalendar=18:00")
        [declared], remarks = units.job("ExecStart=/bin/x", timer=lines)
        assert (declared["cron"], remarks) == ("0 6,18 * * *", [])

        made, _ = units.job("ExecStart=/bin/x", timer=["OnCalendar=6:00", "OnCalendar=7:30"])
        assert [(each["key"], each["cron"]) for each in made] == [
            ("web1:job", "0 6 * * *"),
            ("web1:job/2", "30 7 * * *"),
        ]

    def test_an_interval_is_counted_from_1970(self, units):
        [declared], remarks = units.job(
            "ExecStart=/bin/x", timer=["OnBootSec=5min", "OnUnitActiveSec=1h 30min"]
        )
        assert (declared["cron"], declared["catchup"]) == ("@every 5400", "latest")
        assert remarks == [
            (
                "job.timer:3: OnUnitActiveSec=1h 30min: runs at whole multiples of 1h 30min since"
                " 1970, and not that long after its last start"
            ),
            "job.timer:2: OnBootSec=5min: has no effect in psched",
        ]

    def test_an_instance_of_a_template_needs_no_file_of_its_own(self, units):
        units.write("dump@.timer", "[Timer]", "OnCalendar=%i")
        units.write("dump@.service", "[Service]", "ExecStart=/bin/dump %i %I %j", "User=root")
        units.write("dump@.service.d/x.conf", "[Service]", "ExecStart=", "ExecStart=/bin/d %i %I")
        [declared], _ = units.convert("dump@daily.timer")
        assert (declared["key"], declared["cron"]) == ("web1:dump@daily", "0 0 * * *")
        assert declared["data"]["command"] == ["/bin/d", "daily", "daily"]
        _, [remark] = units.convert("dump@.timer")
        assert remark.startswith(
            "dump@.timer:1: not imported: it is a template; import an instance"
        )

    def test_drop_ins_change_units_in_the_order_of_their_names(self, units):
        system, usr = units.folder / "etc/systemd/system", "usr/lib/systemd/system"
        units.write(f"{usr}/my-job.timer", "[Timer]", "OnCalendar=daily")
        units.write(f"{usr}/my-job.service", "[Service]", "ExecStart=/bin/a", "Environment=A=1")
        units.write(f"{usr}/my-job.timer.d/20.conf", "[Timer]", "OnCalendar=hourly")
        units.write(f"{system}/my-job.timer.d/10.conf", "[Timer]", "OnCalendar=", "OnCalendar=6:00")
        units.write(f"{system}/my-job.timer.d/20.conf", "[Timer]", "OnCalendar=7:00")
        units.write(f"{system}/my-.service.d/x.conf", "[Service]", "Environment=B=2")
        units.write(f"{system}/service.d/y.conf", "[Service]", "Environment=C=3")
        [declared], _ = units.convert("my-job.timer", units.folder / usr)
        assert declared["cron"] == "0 6,7 * * *"
        assert declared["data"]["env"] == {"PATH": PATH, "A": "1", "B": "2", "C": "3"}

    def test_of_a_folder_the_enabled_timers_are_imported(self, units):
        folder = units.folder / "etc/systemd/system"
        for name in ("on.timer", "off.timer", "t@.timer"):
            units.write(folder / name, "[Timer]", "OnCalendar=daily")
        assert [*timers_in(folder, search_path(folder))] == [
            ("off.timer", ""), ("on.timer", ""), ("t@.timer", "")
        ]  # fmt: skip
        for name in ("on.timer", "t@a.timer", "elsewhere.timer"):
            units.write(folder / "timers.target.wants" / name)
        assert [*timers_in(folder, search_path(folder))] == [
            ("off.timer", "it is not enabled"), ("on.timer", ""), ("t@a.timer", "")
        ]  # fmt: skip

    def test_a_timer_that_a_more_important_folder_has_too_is_imported_from_there(self, units):
        folders = [units.folder / f"{each}/systemd/system" for each in ("etc", "usr/lib")]
        for folder in folders:
            units.write(folder / "a.timer", "[Timer]", "OnCalendar=daily")
        [etc, usr] = [[*timers_in(folder, search_path(folder))] for folder in folders]
        assert etc == [("a.timer", "")]
        assert usr == [("a.timer", f"{folders[0] / 'a.timer'} takes its place")]

    @pytest.mark.parametrize(
        ("folder", "place"),
        [
            ("/etc/systemd/system", "etc/systemd/system"),
            ("/mnt/a/usr/local/lib/systemd/user", "usr/local/lib/systemd/user"),
            ("/home/ann/.config/systemd/user", ".config/systemd/user"),
            ("/home/ann/.local/share/systemd/user", ".local/share/systemd/user"),
            ("/srv/units", "units"),
        ],
    )
    def test_each_of_systemds_folders_has_a_name_of_its_own(self, folder, place):
        assert place_of(Path(folder)) == place

    def test_a_masked_timer_and_one_without_a_service_are_told(self, units):
        (units.folder / "a.timer").symlink_to("/dev/null")
        units.write("b.timer", "[Timer]", "OnCalendar=daily")
        units.write("d.timer")
        units.write("d.timer.d/a.conf", "[Timer]", "OnCalendar=daily")
        assert units.convert("d.timer") == ([], ["d.timer:1: not imported: it is masked"])
        assert units.convert("a.timer") == ([], ["a.timer:1: not imported: it is masked"])
        _, [remark] = units.convert("b.timer")
        assert remark.startswith("b.timer:1: not imported: b.service is no service, is masked, or")
        with pytest.raises(ConfigError, match="there is no such unit"):
            units.convert("c.timer")

    def test_nothing_silently_runs_as_somebody_else(self, units):
        made, remarks = units.job("ExecStart=/bin/x", "User=ann")
        [remark] = remarks
        assert made == []
        assert remark == (
            "job.service:3: not imported: systemd runs it as ann, and psched as root; --any-user"
            " imports such units, too"
        )
        assert "as a dynamic user," in units.job("ExecStart=/bin/x", "DynamicUser=yes")[1][0]

        [declared], [remark] = units.job("ExecStart=/bin/x", "User=ann", any_user=True)
        assert remark == "job.service:3: systemd runs it as ann, and psched as root"
        assert declared["note"] == "systemd ran it as ann"
        assert declared["data"]["env"]["HOME"] == "/home/ann"
        assert declared["data"]["cwd"] == "/"

    def test_the_units_of_a_user_run_in_their_home(self, units):
        [declared], _ = units.job("ExecStart=%h/bin/x", owner="ann", any_user=True)
        assert declared["data"]["command"] == ["/home/ann/bin/x"]
        assert declared["data"]["cwd"] == "/home/ann"

    @pytest.mark.parametrize(
        ("lines", "out"),
        [
            (["ExecStart=printf '%%s|' a  \"b  c\" it\\'s x\\tz \\; \\x41 ~ * a#b"],
             "a|b  c|it's|x\tz|;|A|~|*|a#b|"),
            (["ExecStart=:printf '%%s|' $A ${A}"], "$A|${A}|"),
            (["Environment='A=x  y' B=", "ExecStart=printf '%%s|' $A ${A} -${A}- $B ${B} $$A x$A"],
             "x|y|x  y|-x  y-||$A|x$A|"),
            (["Type=oneshot", "ExecStartPre=echo 1", "ExecStart=-false",
              "ExecStart=echo 2 ; echo 3", "ExecStartPost=echo 4"], "1\n2\n3\n4\n"),
            (["Type=oneshot", "ExecStart=echo 1", "ExecStart=false", "ExecStart=echo 2"], "1\n"),
            (["EnvironmentFile={}/env", "EnvironmentFile=-{}/none",
              "ExecStart=printf '%%s|' $A ${B}"], "1|2|* 3|"),
            (["EnvironmentFile={}/none", "ExecStart=echo 1"], ""),
            (["EnvironmentFile={}/env", "ExecStart=sh -c 'echo \"$$B\"'"], "* 3\n"),
            (["ExecStart=@echo argv0 1"], "1\n"),
        ],
    )  # fmt: skip
    def test_a_command_gets_the_words_that_systemd_would_give_it(self, units, lines, out):
        units.write("env", "# comment", "A='1 2'", "B='* 3'")
        [declared], told = units.job(*(each.format(units.folder) if "{}" in each else each
                                    for each in lines))  # fmt: skip
        data = declared["data"]
        words = ["/bin/sh", "-c", data["command"]] if data.get("shell") else data["command"]
        done = subprocess.run(words, env=data["env"], capture_output=True, text=True, check=False)
        assert done.stdout == out
        assert not [each for each in told if "has no effect" in each and "prefix" not in each]

    @pytest.mark.parametrize(
        ("lines", "remark"),
        [
            (["Nice=19"], "job.service:3: Nice=19: has no effect in psched"),
            (["Restart=always"], "job.service:3: Restart=always: has no effect in psched"),
            (["Restart=no", "KillMode=control-group", "StandardOutput=journal"], None),
            (
                ["StandardOutput=append:/a"],
                "job.service:3: StandardOutput=append:/a: has no effect",
            ),
            (["ExecStopPost=/bin/y"], "job.service:3: ExecStopPost=/bin/y: has no effect"),
            (["[Unit]", "Wants=a.target", "After=a.target b.target"], None),
            (["[Unit]", "After=db.service"], "job.service:4: After=db.service: has no effect"),
            (["[Unit]", "ConditionPathExists=/a"], "job.service:4: ConditionPathExists=/a: has no"),
            (["EnvironmentFile=/a"], "job.service:3: /a is read by a shell, where blanks,"),
            (["WorkingDirectory=/secret"], "job.service:3: root cannot enter /secret"),
            (["ExecStartPre=/sbin/secret"], "job.service:3: root must not execute /sbin/secret"),
            (["ExecStartPre=@/bin/a b"], "job.service:3: the prefix @ has no effect"),
        ],
    )
    def test_what_differs_is_told_with_its_line(self, units, lines, remark):
        [_], told = units.job("ExecStart=/bin/x", *lines)
        assert len(told) == (remark is not None)
        assert all(each.startswith(remark) for each in told)

    @pytest.mark.parametrize(
        ("service", "timer", "problem"),
        [
            ("Type=simple", "", "job.service:1: not imported: it has no ExecStart="),
            ("Type=forking", "", "job.service:2: not imported: Type=forking: psched ends what"),
            ("ExecStart=/bin/x 'a", "", "job.service:2: not imported: a quote or a backslash"),
            ("ExecStart=|/bin/x", "", "job.service:2: not imported: '|/bin/x' is no program"),
            ("ExecStart=/bin/x %H", "", "job.service:2: not imported: %H is not known here"),
            ("ExecStart=/bin/x\nEnvironment=A=%H", "", "job.service:3: not imported: %H is not"),
            ("ExecStart=/bin/x $A\nEnvironment=A='x'\\'y", "", "job.service:2: not imported: the"),
            ("ExecStart=/bin/x\nRuntimeMaxSec=x", "", "job.service:3: not imported: 'x' is no dur"),
            (
                "ExecStart=/bin/x",
                "OnCalendar=Fri *-*-13",
                "job.timer:2: not imported: a weekday and a day of",
            ),
            ("User=%H", "", "job.service:2: not imported: %H is not known here"),
            ("WorkingDirectory=%H", "", "job.service:2: not imported: %H is not known here"),
            ("EnvironmentFile=%H", "", "job.service:2: not imported: %H is not known here"),
            ("EnvironmentFile=-/etc/foo/*.env", "", "job.service:2: not imported: -/etc/foo/*.env"),
            (
                "ExecStart=/bin/x\n[Unit]\nDescription=%H",
                "",
                "job.service:4: not imported: %H is not known here",
            ),
            ("ExecStart=/bin/x", "Unit=%H.service", "job.timer:2: not imported: %H is not known"),
            ("ExecStart=/bin/x", "Unit=b.service", "job.timer:2: not imported: b.service is no"),
            ("ExecStart=/bin/x", "OnBootSec=5min", "job.timer:2: not imported: it has no time"),
            ("ExecStart=/bin/x", "OnUnitInactiveSec=1", "job.timer:2: not imported: it has no"),
            ("ExecStart=/bin/x", "Persistent=true", "job.timer:1: not imported: it has no time"),
            ("ExecStart=/bin/x", "", "job.timer:1: not imported: it has no time"),
            ("ExecStart=/bin/x", "OnCalendar=*-2-30", "job.timer:2: not imported: cron: day of"),
            ("ExecStart=/bin/x", "OnUnitActiveSec=500ms", "job.timer:2: not imported: cron: "),
            (
                "ExecStart=/bin/x",
                "RandomizedDelaySec=2d\nOnCalendar=daily",
                "job.timer:2: not imported: jitter: ",
            ),
        ],
    )
    def test_what_cannot_be_imported_is_told_with_its_line(self, units, service, timer, problem):
        lines = timer if timer or "job.timer" in problem else "OnCalendar=daily"
        made, told = units.job(*service.split("\n"), timer=lines.split("\n"))
        assert made == []
        assert len(told) == 1
        assert told[-1].startswith(problem)
