"""Tests that crontabs are read as cron reads them, and converted to schedules."""

import os
import subprocess
import tracemalloc
from textwrap import dedent

import pytest

from psched import config
from psched.base.errors import ConfigError
from psched.contrib.crontab.command import host_zone, session_variables
from psched.contrib.crontab.crontab_to_schedules import CrontabContext, allowing_lines, convert
from psched.contrib.crontab.earlier_imports import Known, Line, Origin, line_of, match
from psched.contrib.crontab.parser import Remark, parse
from psched.contrib.crontab.service_user import ServiceUser
from psched.contrib.crontab.shell_command import first_program, is_guarded, program_name
from psched.process.run_as_list import parse as parse_list

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
HOMES = {"root": "/root", "ann": "/home/ann", "www-data": "/var/www"}


class Ann(ServiceUser):
    """A user who can run every program, and enter every folder but /var/www."""

    def can_enter(self, folder):
        return folder != "/var/www"

    def why_not_run(self, program, *, path, cwd):
        del path, cwd
        return "ann must not execute /sbin/secret" if program == "/sbin/secret" else None


ANN = Ann("ann", 1000, frozenset([1000]))
ROOT = Ann("root", 0, frozenset([0]))


def context(**known):
    usual = {
        "key_prefix": "tab",
        "timezone": "Europe/Berlin",
        "user": ANN,
        "any_user": False,
        "owner": "ann",
        "home": HOMES.get,
    }
    return CrontabContext(**{**usual, **known})


def read(content, *, system=False, dialect="debian"):
    return parse(dedent(content), system=system, dialect=dialect)


def imported(content, *, system=False, dialect="debian", settings=SETTINGS, **known):
    tab = read(content, system=system, dialect=dialect)
    return convert(tab, context(dialect=dialect, **known), settings)


def converted(content, **known):
    made = imported(content, **known)
    return list(made.declarations), list(made.remarks)


class TestParsing:
    def test_a_users_crontab_has_times_and_commands(self):
        tab = read("""\
            # m h  dom mon dow   command

            5 0 * * *  \t $HOME/bin/daily >> $HOME/out 2>&1  # not a comment
              \t15 14 1 jan-Mar,DEC sun,1-3/2 /bin/x
            @daily\tbackup
            """)
        assert [(each.cron, each.command) for each in tab.entries] == [
            ("5 0 * * *", "$HOME/bin/daily >> $HOME/out 2>&1  # not a comment"),
            ("15 14 1 jan-Mar,DEC sun,1-3/2", "/bin/x"),
            ("@daily", "backup"),
        ]
        assert [each.line for each in tab.entries] == [3, 4, 5]
        assert not tab.remarks

    def test_in_a_systems_crontab_the_user_comes_before_the_command(self):
        tab = read("17 *\t* * *\troot\tcd / && run-parts x\n@hourly www-data a b", system=True)
        assert [(each.user, each.command) for each in tab.entries] == [
            ("root", "cd / && run-parts x"),
            ("www-data", "a b"),
        ]

    @pytest.mark.parametrize(
        ("line", "name", "value"),
        [
            ("A=b", "A", "b"),
            ("  A \t=  b c  ", "A", "b c"),
            ('A=" b "', "A", " b "),
            ("A=' b \"'", "A", ' b "'),
            ("A=b'c\"", "A", "b'c\""),
            ('A=""', "A", ""),
            ("A=", "A", ""),
            ("A=$B:~", "A", "$B:~"),
            ("A=b=c # d", "A", "b=c # d"),
            ("\" A B\" = 'c'", " A B", "c"),
        ],
    )
    def test_a_setting_holds_for_the_lines_below_it(self, line, name, value):
        tab = read(f"@daily before\n{line}\n@daily after\n")
        assert [each.variables for each in tab.entries] == [{}, {name: value}]

    def test_a_command_with_an_equals_sign_is_no_setting(self):
        tab = read("* * * * * A=b c=d\n@daily A=b c")
        assert [each.command for each in tab.entries] == ["A=b c=d", "A=b c"]

    @pytest.mark.parametrize(
        ("text", "command", "stdin"),
        [
            ("a", "a", ""),
            ("mail ann%Ann,%%Bye%", "mail ann", "Ann,\n\nBye\n"),
            ("mail ann%Ann", "mail ann", "Ann\n"),
            ("cat%", "cat", ""),
            ("cat%%", "cat", "\n"),
            (r"date +\%d", "date +%d", ""),
            (r"date '+\%d' % 5\% \a \\", "date '+%d' ", " 5% \\a \\\\\n"),
            (r"echo \\% x", "echo \\", " x\n"),
            (r"grep 'a\\b' 'c\\\%d'", r"grep 'a\b' 'c\%d'", ""),
            (r"echo \n\"", r"echo \n\"", ""),
            ("echo \\", "echo \\", ""),
        ],
    )
    def test_a_percent_sign_ends_the_command_and_further_ones_the_lines_of_its_input(
        self, text, command, stdin
    ):
        [entry] = read(f"* * * * * {text}").entries
        assert (entry.command, entry.stdin) == (command, stdin)

    @pytest.mark.parametrize(
        ("dialect", "command", "stdin"),
        [
            ("debian", r"echo \ % \%c", "d\n"),
            ("cronie", r"echo \\ % \\%c", "d\n"),
            ("busybox", r"echo \\ \% \\%c%d", ""),
        ],
    )
    def test_crons_differ_in_what_percent_signs_and_backslashes_mean(self, dialect, command, stdin):
        text = r"echo \\ \% \\%c%d" if dialect == "busybox" else r"echo \\ \% \\\%c%d"
        [entry] = read(f"@daily {text}", dialect=dialect).entries
        assert (entry.command, entry.stdin) == (command, stdin)

    @pytest.mark.parametrize(
        ("line", "dialect", "cron"),
        [
            ("0 3 * * Fri-Sun a", "cronie", "0 3 * * Fri-Sun"),
            ("0 3 * * 5-0,2 a", "cronie", "0 3 * * 5-0,2"),
            ("0 22-2 * * FRI-MON a", "busybox", "0 22-2 * * FRI-MON"),
            ("0 0 */2 * * a", "busybox", "0 0 2-31/2 * *"),
            ("0 0 */1 * * a", "busybox", "0 0 */1 * *"),
            ("0 0 1 * */2 a", "busybox", "0 0 1 * 0-6/2"),
            ("*/5 */2 * */3 */2 a", "busybox", "*/5 */2 * */3 */2"),
        ],
    )
    def test_crons_differ_in_what_times_mean(self, line, dialect, cron):
        [entry] = read(line, dialect=dialect).entries
        assert entry.cron == cron

    @pytest.mark.parametrize("line", ["0 22-2 * * * a", "0 3 * * SAT-MON a", "0 3 * * SAT-SUN/2 a"])
    def test_cronie_too_has_ranges_that_never_match(self, line):
        [remark] = read(line, dialect="cronie").remarks
        assert "runs backwards" in remark.text

    @pytest.mark.parametrize("days", ["7", "5-7", "1,7"])
    def test_busyboxs_cron_knows_no_day_7(self, days):
        [remark] = read(f"0 3 * * {days} a", dialect="busybox").remarks
        assert remark.text.endswith("7 is no day of the week in BusyBox's cron; write 0 for Sunday")
        assert not read(f"0 7 7 7 {days} a").remarks

    def test_cronies_option_in_front_of_a_command_is_left_out(self):
        for line, system in (("@daily -n /bin/x -n", False), ("@daily ann -n /bin/x -n", True)):
            tab = read(line, system=system, dialect="cronie")
            assert [each.command for each in tab.entries] == ["/bin/x -n"]
            assert [each.text.partition(" is left")[0] for each in tab.remarks] == [
                "cronie's option -n"
            ]
            assert read(line, system=system).entries[0].command == "-n /bin/x -n"

    def test_busyboxs_cron_has_three_settings(self):
        tab = read("PATH=/bin\nHOME=/srv\n@daily a", dialect="busybox")
        assert [each.variables for each in tab.entries] == [{"PATH": "/bin"}]
        assert tab.remarks == [Remark(2, "not imported: BusyBox's cron ignores HOME")]

    @pytest.mark.parametrize(
        ("line", "keep"),
        [
            ("00 12 * * * * /srv/job", ["12 * * * *", "00 12 * * *"]),
            ("0 0 12 * * ? /srv/job", ["0 12 * * *"]),
            ("0 30 4 * * 1 /srv/job", ["30 4 * * 1"]),
            ("0 0 3 * * MON-FRI job", ["0 3 * * MON-FRI"]),
            ("*/5 * * * * * * echo x", ["@every 5s"]),
            ("0 3 * * * 2026 job", ["0 3 * * *"]),
        ],
    )
    @pytest.mark.parametrize("system", [False, True])
    def test_a_sixth_time_field_is_refused_with_the_five_to_keep(self, line, keep, system):
        tab = read(line.replace(" job", " root job"), system=system)
        [remark] = tab.remarks
        assert not tab.entries
        assert "not imported: the time " in remark.text
        assert "fields; write five: " in remark.text
        assert [each for each in keep if f"it is '{each}'" not in remark.text] == []

    @pytest.mark.parametrize(
        "command", ["mon", "7z x", "sun-clock", "2to3 x", "[ -e x ] && a", "at"]
    )
    def test_a_command_that_resembles_a_time_field_is_a_command(self, command):
        [entry] = read(f"0 3 * * * {command}").entries
        assert entry.command == command

    @pytest.mark.parametrize(
        "command",
        [
            'tar czf "/b/$(date +%F).tgz" /srv',
            "cp a b-`date +%F`",
            "pg_dump x > $(hostname)-$(date -u +%F)",
            "date +%F > /tmp/x",
            "date -d yesterday +%F",
            "echo 'load: 5%' >> log",
            "curl -w '%{http_code}' x",
            "printf %s a",
            "git log --format=%H",
            "gzip ${f%.gz}",
            "stat -c %Y f",
            "curl http://x/a%20b",
            "dump > db-%d.sql",
            "x --date-format %Y-%m-%d",
            "mail ann%Ann,%%Bye",
            "cat%",
        ],
    )
    def test_a_percent_sign_that_cron_does_not_leave_alone_is_told(self, command):
        for dialect in ("debian", "cronie"):
            [remark] = read(f"@daily {command}", dialect=dialect).remarks
            assert r"write \%, or give --dialect busybox" in remark.text
        tab = read(f"@daily {command}", dialect="busybox")
        assert not tab.remarks
        assert tab.entries[0].command == command
        assert not read("@daily " + command.replace("%", r"\%")).remarks

    @pytest.mark.parametrize(
        ("command", "kept"),
        [
            ("/srv/job >/dev/null 2>&1 &", "/srv/job >/dev/null 2>&1"),
            ("cd /x && nohup ./a& # later", "cd /x && nohup ./a"),
            ("(a; b) &", "(a; b)"),
            (r"a \&&", r"a \&"),
        ],
    )
    def test_an_ampersand_at_the_end_is_left_out(self, command, kept):
        tab = read(f"@daily {command}")
        assert [each.command for each in tab.entries] == [kept]
        [remark] = tab.remarks
        assert remark.text.startswith("the '&' at its end is left out")

    @pytest.mark.parametrize(
        "command",
        [
            "/srv/job &2>/dev/null",
            "a & b",
            "(a &)",
            "a & wait; b & c",
            "bash -lc 'a >/dev/null 2>&1 &'",
        ],
    )
    def test_what_a_command_starts_in_the_background_is_told(self, command):
        tab = read(f"@daily {command}")
        assert [each.command for each in tab.entries] == [command]
        [remark] = tab.remarks
        assert remark.text.startswith("what '&' starts in the background is killed")

    @pytest.mark.parametrize(
        "command",
        [
            *(
                "a && b",
                "a >& b",
                "a &> b",
                "a 2>&1",
                "a |& b",
                r"a \&",
                "a '&'",
                'a "b & c"',
                "a & wait",
            ),
            *("a & b & wait", "curl 'x?a=1&b=2'", "a # b & c", "sh -c 'a && b'", "echo -c 'R&D'"),
        ],
    )
    def test_other_ampersands_are_left_alone(self, command):
        tab = read(f"@daily {command}")
        assert [each.command for each in tab.entries] == [command]
        assert not tab.remarks

    @pytest.mark.parametrize(
        ("line", "setting", "rest"),
        [
            ("CRON_TZ=Europe/Berlin 0 3 * * * a", "CRON_TZ=Europe/Berlin", "0 3 * * * a"),
            ("TZ = UTC */5 * 1-5 JAN MON a b", "TZ=UTC", "*/5 * 1-5 JAN MON a b"),
            ("MAILTO=ann  0 3 * * * a", "MAILTO=ann", "0 3 * * * a"),
            ("TZ=UTC @daily a", "TZ=UTC", "@daily a"),
            ("TZ=UTC @reboot a", "TZ=UTC", "@reboot a"),
            ("TZ=UTC 0 3 * jan-mar mon-fri a", "TZ=UTC", "0 3 * jan-mar mon-fri a"),
            ("TZ=UTC 0~30 3 L * FRI#2 a", "TZ=UTC", "0~30 3 L * FRI#2 a"),
        ],
    )
    def test_a_setting_and_a_line_in_one_are_told_and_the_next_lines_do_without(
        self, line, setting, rest
    ):
        tab = read(f"{line}\n0 4 * * * b")
        assert tab.remarks[0].line == 1
        assert f"write {setting} on a line, and below it {rest!r}" in tab.remarks[0].text
        assert [(each.command, each.variables) for each in tab.entries] == [("b", {})]

    @pytest.mark.parametrize(
        "value",
        ["1 2 3", "'UTC 0 3 * * * a'", "a 1 2 3 4 5", "a b c d e f g", "a # 1 2 3 4 b", "a @b"],
    )
    def test_another_setting_is_one(self, value):
        tab = read(f"A={value}\n0 4 * * * b")
        assert not tab.remarks

    @pytest.mark.parametrize(
        "line",
        [
            *("60 * * * * a", "5/15 * * * * a", "* * * * monday a", "@Daily a", "* * * *", "hello"),
            *(
                "MAILTO=",
                "A= ",
                "A='b",
                "-@daily a",
                "* * * * * * a",
                "0 mon * * * a",
                "*/0 * * * * a",
            ),
            *("@daily * a", "* * 5L * * a", "* * * * 1,monday a", "? * * * * a"),
        ],
    )
    def test_a_line_because_of_which_debians_cron_ignores_the_file_is_known(self, line):
        assert read(f"@daily b\n{line}\n* * *\n").fatal == 2

    @pytest.mark.parametrize(
        "line",
        [
            *(
                "@reboot a",
                "22-2 * * * * a",
                "* * * * 5#3 a",
                "0~30 * * * * a",
                'MAILTO=""',
                "A=b c",
            ),
            *("0 0 31 2 * a", "0 0 12 * * ? a", "TZ=UTC 0 3 * * * a", "\t# x", "0 3 * * * a\r"),
            *("0 3 * * FRI#2 a", "*/5/2 * * * * a", "1-5-7 * * * * a", "0 3 ** * * a"),
            *(r"*\* * * * * a", "0 3 * * 1,FRI#2 a"),
        ],
    )
    def test_what_debians_cron_accepts_makes_it_ignore_nothing(self, line):
        assert read(f"@daily b\n{line}\n").fatal is None

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("5/15 * * * * a", "; write 5-59/15"),
            ("* 3/6 * * * a", "; write 3-23/6"),
            ("* * L * * a", "; outside a crontab, psched has '* * L * *'"),
            ("0 0 * * 5#2 a", "; outside a crontab, psched has '0 0 * * 5#2'"),
            ("0 0 * * monday a", "; write '0 0 * * MON'"),
            ("H 3 * * * a", "H is a number that Jenkins chooses; choose one, as in '"),
            ("0~30 5 * * * a", "~ is a number that cronie chooses; choose one, as in '"),
            ("@Daily a", "; write '@daily'"),
            ("@every 5m a", "; outside a crontab, psched has '@every 300'"),
            ("@every 5 minutes /bin/x", "; outside a crontab, psched has '@every 300'"),
            ("@EVERY 1h30m a", "; outside a crontab, psched has '@every 5400'"),
            ("@every 7 a", "; outside a crontab, psched has '@every 7'"),
            ("@every day a", "; '@every' takes whole seconds"),
        ],
    )
    def test_what_cron_does_not_know_is_refused_with_what_psched_has(self, line, told):
        [remark] = read(line).remarks
        assert told in remark.text

    def test_the_comment_right_above_a_command_is_its_note(self):
        tab = read("""\
            # The head of the file.

            # Ann reads it:
            #  every day.
            @daily a
            @daily b
            # about the setting
            A=b
            @daily c
            """)
        assert [each.note for each in tab.entries] == ["Ann reads it:\nevery day.", None, None]

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("@reboot a", "@reboot: psched runs nothing when a host starts"),
            ("@Daily a", "@Daily is unknown; cron has @yearly"),
            ("* * * * *", "there is no command"),
            ("@daily", "there is no command"),
            ("* * * * * %a", "there is no command"),
            ("* * * *", "it is neither NAME=VALUE nor five fields"),
            ("22-2 * * * * a", "the range 22-2 runs backwards"),
            ("* * * * FRI-MON a", "the range FRI-MON runs backwards"),
            ("5/15 * * * * a", "'5/15' is not a field as crontab(5)"),
            ("* 0~59 * * * a", "'0~59' is not a field"),
            ("* * L * * a", "'L' is not a field"),
            ("* * 15W * * a", "'15W' is not a field"),
            ("* * * * 5#3 a", "'5#3' is not a field"),
            ("* * ? * * a", "'?' is not a field"),
            ("@hourly * * * * * a", "a command cannot begin with *"),
            ("0 5 * * * *.sh", "a command cannot begin with *"),
            ("A='b\"", "the quotes around the value of A do not match"),
            ('A="b" c', "the quotes around the value of A do not match"),
            ("hello there", "it is neither"),
            ("a b c d e f", "'a' is not a field"),
        ],
    )
    def test_what_cannot_be_imported_is_told_with_its_line(self, line, problem):
        tab = read(f"\n{line}\n@daily b\n")
        assert [each.command for each in tab.entries] == ["b"]
        [remark] = tab.remarks
        assert remark.line == 2
        assert remark.text.startswith(f"not imported: {problem}")

    def test_a_time_behind_the_user_is_noticed(self):
        tab = read("@daily root * * * a", system=True)
        assert [each.text for each in tab.remarks] == [
            "not imported: a command cannot begin with *; is it a part of the time?"
        ]
        assert tab.fatal is None  # cron lets the shell replace the stars by names of files

    def test_the_wrong_form_is_noticed(self):
        [remark] = read("@daily /bin/x y", system=True).remarks
        assert "is this a user's crontab" in remark.text


class TestConversion:
    def test_a_command_that_begins_with_a_user_of_this_host_is_noticed(self):
        class Nobody(Ann):
            def why_not_run(self, program, *, path, cwd):
                del path, cwd
                return None if program == "sync" else f"{program} is in none of the folders"

        homes = {**HOMES, "sync": "/bin"}
        tab = "@daily root\ta\n@daily www-data b\n@daily eve c\n@daily sync /x\n@daily ann\n"
        for user in ("nobody", "ann"):
            told = converted(tab, user=Nobody(user, 7, frozenset()), home=homes.get)[1]
            assert [each.line for each in told if "is this a system crontab" in each.text] == [1, 2]

    def test_the_variables_of_crons_session_are_set_below_those_of_cron_and_the_crontab(self):
        session = {"LANG": "C", "PATH": "/x", "SHELL": "/x", "HOME": "/x", "LOGNAME": "x", "A": "x"}
        [declared], _ = converted("A=b\n@daily a", session=session)
        assert declared["data"]["env"] == {
            "LANG": "C", "A": "b", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin",
            "HOME": "/home/ann", "LOGNAME": "ann",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("dialect", "known"),
        [
            ("debian", {"PATH": "/usr/bin:/bin", "USER": "x"}),
            ("cronie", {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "USER": "ann"}),
            ("busybox", {"USER": "ann"}),
        ],
    )
    def test_each_cron_sets_its_own_path_and_the_users_name(self, dialect, known):
        [declared], _ = converted("USER=x\nLOGNAME=x\n@daily a", dialect=dialect)
        always = {"SHELL": "/bin/sh", "HOME": "/home/ann", "LOGNAME": "ann"}
        assert declared["data"]["env"] == {**always, **known}

    def test_a_command_runs_as_under_cron(self):
        [declared], remarks = converted("""\
            MAILTO=""
            TZ=UTC
            # why
            5 0 * * * report --all%input
            """)
        assert [each.text[:37] for each in remarks] == ["cron ends the command at the first %,"]
        assert declared == {
            "key": "tab.report.14a992",
            "type": "exec",
            "cron": "5 0 * * *",
            "timezone": "Europe/Berlin",
            "data": {
                "shell": True,
                "command": "report --all",
                "env": {
                    "SHELL": "/bin/sh",
                    "PATH": "/usr/bin:/bin",
                    "HOME": "/home/ann",
                    "LOGNAME": "ann",
                    "MAILTO": "",
                    "TZ": "UTC",
                },
                "cwd": "/home/ann",
                "stdin": "input\n",
            },
            "catchup": "latest",
            "max_attempts": 1,
            "kill_timeout": 86400,
            "note": "why",
        }

    def test_settings_of_the_crontab_win_but_for_the_users_name(self):
        [declared], _ = converted(
            "SHELL=/bin/bash\nPATH=/opt\nHOME=/srv\nLOGNAME=eve\nCRON_TZ=Asia/Tokyo\n@daily a b"
        )
        assert declared["timezone"] == "Asia/Tokyo"
        assert declared["data"] == {
            "command": ["/bin/bash", "-c", "a b"],
            "env": {"SHELL": "/bin/bash", "PATH": "/opt", "HOME": "/srv", "LOGNAME": "ann"},
            "cwd": "/srv",
            "stdin": "",
        }

    @pytest.mark.parametrize("empty", ["CRON_TZ=", 'CRON_TZ=""'])
    def test_an_empty_time_zone_of_the_crontab_is_none(self, empty):
        [declared], remarks = converted(f"CRON_TZ=Asia/Tokyo\n{empty}\n@daily b")
        assert declared["timezone"] == "Europe/Berlin"
        assert not remarks

    @pytest.mark.parametrize("name", ["RANDOM_DELAY", "START_HOURS_RANGE"])
    def test_a_setting_that_is_not_imported_is_no_variable_of_the_command(self, name):
        [declared], _ = converted(f"{name}=5\n@daily b")
        assert name not in declared["data"]["env"]

    def test_crons_rule_for_clock_changes_holds_where_psched_is_set_to_another(self):
        settings = SETTINGS.with_settings(dst_policy="wallclock")
        [declared], _ = converted("@daily a", settings=settings)
        assert declared["dst_policy"] == "debian"

    def test_nothing_silently_runs_as_somebody_else(self):
        tab = "@daily ann a\n@daily www-data b\n# why\n@hourly root c\n"

        users = {"www-data": Ann("www-data", 33, frozenset([33]))}
        [own, other], remarks = converted(tab, system=True, owner=None, find_user=users.get)
        assert (own["data"]["command"], own.get("run_as")) == ("a", None)
        assert (other["data"]["command"], other["run_as"]) == ("b", "www-data")
        assert "note" not in other
        assert remarks == [
            Remark(
                2, "www-data cannot enter /var/www, the home of www-data: the command runs in /"
            ),
            Remark(
                4,
                "not imported: cron runs it as root, and psched as ann; --run-as keeps the"
                " user, for workers of root; --any-user imports it without",
            ),
        ]

        declarations, remarks = converted(tab, system=True, owner=None, any_user=True)
        assert [each.get("note") for each in declarations] == [
            None,
            "cron ran it as www-data",
            "why\ncron ran it as root",
        ]
        assert remarks == [
            Remark(2, "ann cannot enter /var/www, the home of www-data: the command runs in /"),
            Remark(2, "cron runs it as www-data, and psched as ann"),
            Remark(4, "cron runs it as root, and psched as ann"),
        ]
        assert declarations[1]["data"]["cwd"] == "/"

    def test_root_is_told_the_lines_that_its_list_needs(self):
        tab = (
            "SHELL=/bin/bash\n@daily ann a\n@daily www-data b 'c d'\nSHELL=/bin/sh\n@daily bob b\n"
        )
        made = imported(tab, system=True, owner=None)
        homes = {"www-data": "/var/www"}.get

        lines = allowing_lines(made, homes)

        assert lines == [
            "www-data SHELL=/bin/bash PATH=/usr/bin:/bin /bin/bash -c 'b '\"'\"'c d'\"'\"''",
            "bob SHELL=/bin/sh PATH=/usr/bin:/bin /bin/sh -c b sh",
        ]
        for line, fields in zip(lines, made.declarations[1:], strict=True):
            [rule] = parse_list(line)
            assert rule.user == fields["run_as"]

    def test_workers_of_root_run_a_line_as_its_user(self):
        users = {"ann": ANN, "www-data": Ann("www-data", 33, frozenset([33]))}
        known = {"system": True, "owner": None, "user": ROOT, "run_as": users.get}
        tab = "@daily root a\n@daily ann b\n"
        [own, wrapped], remarks = converted(tab, **known)
        assert not remarks
        assert (own["data"]["shell"], own["data"]["command"]) == (True, "a")
        assert "shell" not in wrapped["data"]
        assert "note" not in wrapped
        runuser = ["/sbin/runuser", "-u", "ann", "--", "/usr/bin/env"]
        assert wrapped["data"]["command"] == [*runuser, "HOME=/home/ann", "/bin/sh", "-c", "b"]
        assert wrapped["data"]["env"]["LOGNAME"] == "ann"
        # Lines that were imported without --run-as keep their keys.
        old = former(tab, **{**known, "run_as": None, "any_user": True})
        made = imported(tab, **known, former=old)
        assert [each["key"] for each in made.declarations] == [*old]
        assert not made.edited

        [declared], _ = converted("HOME=/srv\nSHELL=/bin/bash\n@daily ann b\n", **known)
        assert declared["data"]["command"] == [*runuser, "HOME=/srv", "/bin/bash", "-c", "b"]

    @pytest.mark.parametrize(
        ("line", "remark"),
        [
            ("ann /sbin/secret", "ann must not execute /sbin/secret"),
            ("www-data a", "www-data cannot enter /var/www, the home of www-data"),
            ("bob a", "this host has no user bob, so runuser fails"),
            ("ann [ -x /a ] && /a", "if the test at its beginning is false, it fails"),
        ],
    )
    def test_what_its_user_cannot_run_is_told(self, line, remark):
        users = {"ann": ANN, "www-data": Ann("www-data", 33, frozenset([33]))}
        [declared], [told, *_] = converted(
            f"@daily {line}\n", system=True, owner=None, user=ROOT, run_as=users.get
        )
        assert told.text.startswith(remark)
        # The status of runuser's own errors is 1, so 1 must not count as success.
        assert "ok_exit" not in declared["data"]

    @pytest.mark.parametrize(
        ("line", "remark"),
        [
            (
                "MAILTO=ann\n@daily b",
                "MAILTO=ann: so that psched mails failures, add to the configuration: hooks: ",
            ),
            ("MAILTO=;rm -rf\n@daily b", "MAILTO=;rm -rf: not imported: it is no list of"),
            ("RANDOM_DELAY=5", "RANDOM_DELAY: not imported"),
            ("-@daily b", "the leading '-' has no effect"),
            ("@daily cd / && /sbin/secret -v", "ann must not execute /sbin/secret"),
            ("0 0 31 2 * b", "not imported: cron: day of month '31' does not come in month"),
            ("CRON_TZ=Mars\n@daily b", "not imported: timezone: 'Mars' is not a zone"),
        ],
    )
    def test_what_is_not_imported_exactly_is_told(self, line, remark):
        _, [told] = converted(line)
        assert told.text.startswith(remark)

    def test_failures_are_mailed_to_those_whom_cron_would_mail(self):
        tab = """\
            @daily a
            MAILTO=ops@example.org, ann
            @daily b
            @daily c
            MAILTO=""
            @daily d
            """
        declarations, remarks = converted(tab)
        hook = "mail-ops-example-org-ann-c1ca6d"
        assert [each.get("on_failed") for each in declarations] == [None, hook, hook, None]
        [remark] = remarks
        assert remark.line == 3
        assert remark.text.endswith(f"hooks: {{{hook}: {{mail: [ops@example.org, ann]}}}}")

    @pytest.mark.parametrize("name", ["mail-ops-example-org", "pager"])
    def test_a_hook_that_mails_to_the_same_addresses_is_used(self, name):
        settings = SETTINGS.with_settings(
            hooks={name: {"mail": "ops@example.org"}, "other": {"mail": "ann"}}
        )
        [declared], remarks = converted("MAILTO=ops@example.org\n@daily a", settings=settings)
        assert declared["on_failed"] == name
        assert not remarks

    def test_a_hook_that_is_not_defined_yet_prevents_no_import(self):
        settings = SETTINGS.with_settings(hooks={"other": {"mail": "ann"}})
        [declared], [remark] = converted("MAILTO=eve\n@daily a", settings=settings)
        assert declared["on_failed"] == "mail-eve"
        assert "add to the configuration" in remark.text

    @pytest.mark.parametrize(
        "others",
        [
            ["a.b@x.org", "a-b@x.org", "a@b.x.org", "a-b-x-org", "a@b-x.org"],
            ["a@b.c", "a,b,c", "a-b-c", "a,b@c", "a@b,c"],
            ["ann, ben", "ann-ben"],
        ],
    )
    def test_hooks_that_mail_to_others_have_other_names(self, others):
        tab = "\n".join(f"MAILTO={each}\n@daily a" for each in others)
        declarations, remarks = converted(tab)
        names = [each["on_failed"] for each in declarations]
        assert len({*names}) == len(remarks) == len(others)
        assert names == [each["on_failed"] for each in converted(tab)[0]]
        defined = SETTINGS.with_settings(
            hooks={
                name: {"mail": each.replace(",", " ").split()}
                for name, each in zip(names, others, strict=True)
            }
        )
        again, remarks = converted(tab, settings=defined)
        assert [each["on_failed"] for each in again] == names
        assert not remarks

    @pytest.mark.parametrize("hook", [{"mail": "boss@example.org"}, {"task": "clean"}])
    def test_a_hook_that_tells_others_is_not_used(self, hook):
        tab = "MAILTO=ops@example.org\n@daily a"
        name = "mail-ops-example-org"
        settings = SETTINGS.with_settings(hooks={name: hook})
        [declared], [remark] = converted(tab, settings=settings)
        other = declared["on_failed"]
        assert other.startswith(f"{name}-")
        assert remark.text.endswith(f"hooks: {{{other}: {{mail: [ops@example.org]}}}}")

        settings = SETTINGS.with_settings(hooks={name: hook, other: hook})
        [declared], [remark] = converted(tab, settings=settings)
        assert declared["on_failed"].startswith(f"{other}")
        assert declared["on_failed"] != other

    def test_the_name_of_a_hook_with_many_addresses_is_short(self):
        many = ",".join(f"somebody-{number}@example.org" for number in range(9))
        [declared], _ = converted(f"MAILTO={many}\n@daily a")
        assert len(declared["on_failed"]) < 50

    def test_keys_are_made_of_the_files_name_and_the_command_and_are_stable(self):
        lines = [
            "1 * * * * [ -x /usr/lib/php/sessionclean ] && /usr/lib/php/sessionclean",
            "2 * * * * test -e /run/systemd/system || MODE=1 /sbin/scrub -a",
            "3 * * * * command -v sa1 > /dev/null && sa1 1 1",
            "4 * * * * command -v sa1 > /dev/null && sa1 60 2",
            "5 * * * * : 1 2",
            "6 * * * * : 1 2",
        ]
        keys = {
            each["cron"][0]: each["key"]
            for each in converted("\n".join(lines), key_prefix="a-b")[0]
        }
        names = [
            "a-b.sessionclean",
            "a-b.scrub",
            "a-b.sa1",
            "a-b.sa1",
            "a-b.command",
            "a-b.command",
        ]
        assert [key.rpartition(".")[0] for key in keys.values()] == names
        assert len(set(keys.values())) == len(lines)
        assert keys["6"] == keys["5"] + "-2"
        # The key stays the same if the time of the command or the lines around it change.
        [other], _ = converted(lines[2].replace("3 *", "9 9"), key_prefix="a-b")
        assert other["key"] == keys["3"]


def former(content, **known):
    """The former lines by key, as a file of an earlier import has them."""
    return {each["key"]: line_of(each) for each in imported(content, **known).declarations}


class TestEdits:
    def test_an_edited_line_keeps_its_key_and_unchanged_commands_are_matched_first(self):
        old = former("""\
            1 * * * * backup --all /srv
            2 * * * * backup --all /home
            3 * * * * mail ann
            4 * * * * report
            """)
        srv, home, mail, report = old

        made = imported(
            """\
            @daily report
            2 * * * * backup --all --fast /home
            1 * * * * backup --all /srv
            1 * * * * backup --fast /tmp
            """,
            former=old,
        )

        keys = [each["key"] for each in made.declarations]
        assert keys[:3] == [report, home, srv]
        assert {key: (was.shown, now.shown) for key, (was, now) in made.edited.items()} == {
            report: ("4 * * * * report", "@daily report"),
            home: ("2 * * * * backup --all /home", "2 * * * * backup --all --fast /home"),
        }
        assert [*made.added] == [keys[3]]
        assert keys[3] not in old
        assert [*made.gone] == [mail]

    def test_lines_with_one_program_are_matched_in_order(self):
        old = former("1 * * * * run a\n2 * * * * run b\n")
        made = imported("1 * * * * run c\n2 * * * * run d\n", former=old)
        assert [each["key"] for each in made.declarations] == [*old]

    def test_of_equal_commands_the_one_at_the_same_time_is_matched(self):
        old = former("1 * * * * a\n2 * * * * a\n")
        first, second = old
        made = imported("2 * * * * a\n", former=old)
        assert [each["key"] for each in made.declarations] == [second]
        assert not made.edited
        assert [*made.gone] == [first]

    def test_the_key_of_an_edited_line_is_not_given_to_another(self):
        old = former("@daily run a\n")
        edited = imported("@daily run b\n", former=old)
        [key] = [each["key"] for each in edited.declarations]
        lines = {each["key"]: line_of(each) for each in edited.declarations}
        made = imported("@daily run b\n@daily run a\n", former=lines)
        assert [each["key"] for each in made.declarations] == [key, f"{key}-2"]

    @pytest.mark.parametrize(
        ("old", "new", "is_edited"),
        [
            ("run a", "run b", True),
            ("rsync -a /srv/a b:/a", "rsync -a /srv/a c:/a", True),
            ("rsync -a /srv/a b:/a", "rsync --delete /home/x c:/x", False),
            ("run", "run --all /srv /home", False),
            ("run", "run >> /var/log/run 2>&1", True),
            ("run >/dev/null 2>&1", "run", True),
            ("run a", "nice -n 19 ionice -c 3 run a", True),
            ("run a | logger -t run -p cron.info", "run a", True),
        ],
    )
    def test_commands_with_less_than_half_of_their_words_in_common_are_not_matched(
        self, old, new, is_edited
    ):
        lines = former(f"@daily {old}\n")
        [key] = lines
        made = imported(f"@daily {new}\n", former=lines)
        assert [*made.edited] == ([key] if is_edited else [])
        assert len(made.added) == len(made.gone) == (0 if is_edited else 1)

    @pytest.mark.parametrize(
        "edited",
        [lambda number: f"run {number} >> /srv/log", lambda number: f"run x{number}"],
    )
    def test_the_memory_for_many_lines_of_one_program_grows_with_their_number(self, edited):
        def peak(number):
            lines = {f"k{n:03}": Line("@daily", "ann", f"run {n}", "") for n in range(number)}
            new = [Line("@daily", "ann", edited(n), "") for n in range(number)]
            tracemalloc.start()
            try:
                assert [*match(new, lines)] == [*lines]
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        assert peak(320) < 8 * peak(80)  # 16 times as much, if each line is paired with each

    def test_lines_that_have_moved_are_found_among_many(self):
        lines = {f"k{n:03}": Line("@daily", "ann", f"run a{n}", "") for n in range(100)}
        moved = [line._replace(command=f"{line.command} -v") for line in lines.values()]
        assert [*match(moved[::-1], lines)] == [*lines][::-1]

    def test_many_equal_commands_have_keys_that_are_found_at_once(self):
        tab = "@daily run\n" * 3
        first, second, third = former(tab)
        assert [second, third] == [f"{first}-2", f"{first}-3"]
        assert [*former(tab, former=former(tab))] == [first, second, third]
        again = imported(tab, former={f"{first}-2": Line("@hourly", "ann", "other", "")})
        assert [*again.added] == [first, f"{first}-3", f"{first}-4"]

    def test_a_line_with_another_shell_and_with_input_is_found_again(self):
        tab = "SHELL=/bin/bash\n@daily mail ann%hello\n@weekly true\n"
        old = former(tab)
        made = imported(tab, former=old)
        assert [each["key"] for each in made.declarations] == [*old]
        assert not made.edited
        assert not made.added
        assert not made.gone


class TestOrigin:
    """Whose the schedules of earlier imports are; the keys say the host."""

    @pytest.mark.parametrize(
        ("file", "owner", "key_prefix", "label"),
        [
            ("php", None, "db1:php", "crontab:db1:php"),
            ("crontab", None, "db1:crontab", "crontab:db1:crontab"),
            ("-", None, "db1:crontab", "crontab:db1:crontab"),
            ("ann", "ann", "db1:~ann", "crontab:db1:~ann"),
            ("-", "ann", "db1:~ann", "crontab:db1:~ann"),
            ("a b.tab", "ann", "db1:~ann-a-b-tab", "crontab:db1:~ann/a b.tab"),
        ],
    )
    def test_host_user_and_file_are_part_of_label_and_key(self, file, owner, key_prefix, label):
        origin = Origin(source="db1", file=file, owner=owner)
        assert (origin.key_prefix, origin.label) == (key_prefix, label)
        assert Origin(source="db1", file=file, owner=owner, given_label="x").label == "x"

    def test_schedules_of_a_shared_label_belong_to_the_crontab_that_their_key_names(self):
        known = [
            Known(key, "ops", Line("@daily", "ann", key, ""))
            for key in ("db1:php.a.1", "db1:php-x.a.1", "db2:php.a.1", "php.a.1")
        ]
        origin = Origin(source="db1", file="php", owner=None, given_label="ops")
        assert [each.key for each in known if origin.is_own(each)] == ["db1:php.a.1"]

    @pytest.mark.parametrize(
        ("key", "label", "way_out"),
        [
            ("db2:php.a.1", "crontab:db2:php", "If db1 had that name, add --source db2; if"),
            ("db1:web.a.1", "crontab:db1:web", "(psched delete --label crontab:db1:web); if"),
            ("db1:php.a.1", "ops", "with another label: add --label ops"),
            ("backup", "ops", "the same command. If one is enough, delete it (psched delete); if"),
        ],
    )
    def test_the_way_out_fits_the_schedule_that_runs_the_same_command(self, key, label, way_out):
        line = Line("@daily", "ann", "a", "")
        origin = Origin(source="db1", file="php", owner=None)
        later = line._replace(cron="@weekly")
        [found] = origin.twice([later], [Known(key, label, line)])
        [text] = origin.ways_out([found] * 9)
        assert text.startswith(f"{key}, {key}, {key} and 6 more (label {label}): ")
        assert way_out in text
        for other in (line._replace(user="bob"), line._replace(stdin="x")):
            assert not origin.twice([other], [Known(key, label, line)])


class TestCommands:
    @pytest.mark.parametrize(
        ("command", "name"),
        [
            ("cd /srv/app && php artisan x", "php"),
            ('cd "/srv/my app"; ./manage.py run', "manage.py"),
            ("cd `dirname /srv/x` && (run; clean)", "run"),
            ("cd /srv", "cd"),
            ("/bin/bash -l -c 'cd /srv/app && MODE=1 bundle exec rake x'", "bundle"),
            ("bash -euo pipefail -c 'run | gzip > /srv/x'", "run"),
            ("bash -lc \"sh -c 'run'\"", "run"),
            ("sh /srv/run.sh -c x", "run.sh"),
            ("bash", "bash"),
            ("/usr/bin/env -i -u HOME A=1 run", "run"),
            ("nice -n 19 ionice -c idle run", "run"),
            ("flock -n /run/lock/x /srv/run", "run"),
            ("flock -w 10 /run/lock/x -c 'cd /srv && run'", "run"),
            ("(flock -n 9 || exit 1; run) 9> /run/lock/x", "run"),
            ("timeout -k 10 -s KILL 5m run", "run"),
            ("sudo -Hu www-data -- run", "run"),
            ("sudo -uann run", "run"),
            ("su - ann -s /bin/sh -c 'run a'", "run"),
            ("su -c 'run a' ann", "run"),
            ("runuser -u ann -- /bin/sh -c 'cd /srv && run'", "run"),
            ("runuser -l ann -c run", "run"),
            ("systemd-cat -t name stdbuf -oL run", "run"),
            ("chrt -i 0 taskset -c 0,1 run", "run"),
            (". /etc/profile; source ~/.venv && export A=b; umask 022; run", "run"),
            ("sleep $((RANDOM % 60)) && run", "run"),
            ("[ $(date +%d) -le 07 ] && run", "run"),
            ("for i in 1 2; do run $i; done", "run"),
            ("2>/dev/null >/srv/log run", "run"),
            ("`which php` /srv/x.php", "php"),
            ("cd /srv && run 'a", "run"),
            ("$HOME/bin/run", "run"),
            ("flock", "flock"),
            ("'", "command"),
        ],
    )
    def test_a_key_names_the_program_that_the_command_is_there_for(self, command, name):
        assert program_name(command) == name

    @pytest.mark.parametrize(
        ("command", "program"),
        [
            ("/usr/sbin/a -b", "/usr/sbin/a"),
            ("a | b", "a"),
            ("cd / && run-parts --report /etc/cron.hourly", "run-parts"),
            ("A=1 B='x y' exec ./a", "./a"),
            ("nice -n 5 a", "nice"),
            ("cd /srv && ./a", None),
            ("PATH=/opt a", None),
            ("[ -x /sbin/a ] && /sbin/a", None),
            ("test -x /sbin/a || /sbin/b", None),
            ("if true; then a; fi", None),
            ("command -v a > /dev/null && a", None),
            ("$HOME/bin/a", None),
            ("~/bin/a", None),
            ("`a`", None),
            ("(a; b)", None),
            ("echo 'a", None),
            ("cd", None),
        ],
    )
    def test_the_program_that_always_runs_first_is_found(self, command, program):
        assert first_program(command) == program

    @pytest.mark.parametrize(
        ("command", "guarded"),
        [
            ("[ -x /usr/lib/php/sessionclean ] && /usr/lib/php/sessionclean", True),
            ("test -x /sbin/a && a", True),
            ("[ ! -e /x -a -d /y ] && a", True),
            ("[ -x /sbin/a ]; a", False),
            ("test -e /run/systemd/system || a", False),
            ("[ $(date +%d) -le 07 ] && a", False),
            ("a && [ -x /b ] && b", False),
            ("if [ -x /a ] && b; then c; fi", False),
        ],
    )
    def test_a_command_that_does_nothing_without_its_file_is_recognised(self, command, guarded):
        assert is_guarded(command) == guarded

    def test_only_such_a_command_may_exit_with_1(self):
        [first, second], _ = converted("@daily [ -x /a ] && /a\n@daily /a\n")
        assert first["data"]["ok_exit"] == [0, 1]
        assert "ok_exit" not in second["data"]


class TestServiceUser:
    """The checks are of another user than the one who runs the tests, so modes alone decide."""

    @pytest.fixture
    def other(self, tmp_path):
        # Only folders below tmp_path count, because pytest's own folders are the caller's alone.
        class Other(ServiceUser):
            def _has_right(self, path):
                return not path.is_relative_to(tmp_path) or super()._has_right(path)

        tmp_path.chmod(0o755)
        return Other("other", 4_000_000, frozenset([4_000_001]))

    def test_a_folder_needs_the_right_to_search_it_and_all_above_it(self, other, tmp_path):
        home = tmp_path / "home/other"
        home.mkdir(parents=True)
        assert other.can_enter(str(home))
        home.chmod(0o700)
        assert not other.can_enter(str(home))
        home.chmod(0o755)
        home.parent.chmod(0o700)
        assert not other.can_enter(str(home))
        assert not other.can_enter(str(tmp_path / "none"))
        assert ServiceUser("root", 0, frozenset([0])).can_enter(str(home))

    def test_the_groups_right_counts_for_its_members_alone(self, tmp_path):
        folder = tmp_path / "folder"
        folder.mkdir()
        folder.chmod(0o701)
        status = folder.stat()
        member = ServiceUser("other", 4_000_000, frozenset([status.st_gid]))
        stranger = ServiceUser("other", 4_000_000, frozenset())
        assert not member._has_right(folder)
        assert stranger._has_right(folder)

    def test_a_program_is_found_as_the_shell_finds_it(self, other, tmp_path):
        program = tmp_path / "bin/work"
        program.parent.mkdir()
        program.touch()

        def why(name, path=f"/none:{program.parent}"):
            return other.why_not_run(name, path=path, cwd=str(tmp_path))

        assert why("work") == why(str(program)) == f"other must not execute {program}"
        program.chmod(0o755)
        assert why("work") is why("bin/work") is why(str(program)) is None
        assert why("work", "/none") == "work is in none of the folders /none on this host"
        assert why("./work") == "./work does not exist on this host"

    def test_a_user_that_this_host_does_not_have_is_refused(self):
        with pytest.raises(ConfigError, match="--service-user: this host has no user 'nobody-here"):
            ServiceUser.find("nobody-here")
        assert ServiceUser.find("root").number == 0


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (
            r"""printf '\%s|' "$LOGNAME" "$(pwd)" "$PATH"; cat%one%two\%%%three""",
            "ann|{home}|/usr/bin:/bin|one\ntwo%\n\nthree\n",
        ),
        (r"date -u -d @0 +\%Y; echo $HOME; cat", "1970\n{home}\n"),
        (r"printf \%s\\\\n '\%' \"a\"; cat%%x", '%\n"a"\n\nx\n'),
    ],
)
def test_what_is_imported_does_in_a_shell_what_cron_documents(line, output, tmp_path):
    [declared], _ = converted(f"* * * * * {line}", home=lambda _user: str(tmp_path))
    data = declared["data"]
    done = subprocess.run(
        ["/bin/sh", "-c", data["command"]],
        env=data["env"], cwd=data["cwd"], input=data["stdin"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == output.format(home=tmp_path)


@pytest.mark.extended
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as another user")
def test_what_runuser_runs_has_the_users_rights_and_the_crontabs_environment():
    users = {"nobody": ServiceUser.find("nobody")}
    [declared], _ = converted(
        "HOME=/usr\nA=b c\n@daily nobody id -un; echo $HOME $LOGNAME $A; pwd; cat; exit 3%in%put\n",
        system=True, owner=None, user=ServiceUser.find("root"), run_as=users.get,
    )  # fmt: skip
    data = declared["data"]
    done = subprocess.run(
        data["command"], env=data["env"], cwd=data["cwd"], input=data["stdin"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "nobody\n/usr nobody b c\n/usr\nin\nput\n"
    assert done.returncode == 3


def test_the_zone_of_a_host_is_where_its_clock_points_to(tmp_path):
    zones = tmp_path / "zoneinfo/Europe"
    zones.mkdir(parents=True)
    (zones / "Berlin").touch()
    link = tmp_path / "localtime"
    assert host_zone(link) == "UTC"
    link.symlink_to(zones / "Berlin")
    assert host_zone(link) == "Europe/Berlin"
    link.unlink()
    link.write_bytes(b"TZif")
    with pytest.raises(ConfigError, match="give it with -t"):
        host_zone(link)


def test_the_variables_of_crons_session_are_read_as_pam_reads_them(tmp_path):
    file = tmp_path / "environment"
    assert session_variables("debian", [file]) == {}
    file.write_text(
        'A="a b"\nexport B=x # c\n# C=d\n  D=\'e\'\nE=\nF="f\nG=${HOME}\\n\nnonsense\nH=a=b\n'
    )
    assert session_variables("debian", [file]) == {
        "A": "a b", "B": "x", "D": "e", "E": "", "F": "f", "G": "${HOME}\\n", "H": "a=b",
    }  # fmt: skip
    assert session_variables("busybox") == {}
