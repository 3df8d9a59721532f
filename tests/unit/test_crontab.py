"""Crontabs, as cron reads them, and the schedules that they become."""

import subprocess
from textwrap import dedent

import pytest

from psched import config
from psched.base.errors import ConfigError
from psched.contrib.crontab.command import host_zone
from psched.contrib.crontab.crontab_to_schedules import CrontabContext, convert
from psched.contrib.crontab.parser import Remark, parse

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
HOMES = {"root": "/root", "ann": "/home/ann", "www-data": "/var/www"}


def context(**known):
    usual = {
        "name": "tab",
        "timezone": "Europe/Berlin",
        "user": "ann",
        "any_user": False,
        "owner": "ann",
        "home": HOMES.get,
        "is_folder": lambda path: path != "/var/www",
    }
    return CrontabContext(**{**usual, **known})


def read(content, *, system=False):
    return parse(dedent(content), system=system)


def converted(content, *, system=False, settings=SETTINGS, **known):
    declarations, remarks = convert(read(content, system=system), context(**known), settings)
    return list(declarations), list(remarks)


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
            (r"echo \\% x", r"echo \\", " x\n"),
            (r"echo \n\"", r"echo \n\"", ""),
            ("echo \\", "echo \\", ""),
        ],
    )
    def test_a_percent_sign_ends_the_command_and_further_ones_the_lines_of_its_input(
        self, text, command, stdin
    ):
        [entry] = read(f"* * * * * {text}").entries
        assert (entry.command, entry.stdin) == (command, stdin)

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

    def test_the_wrong_form_is_noticed(self):
        [remark] = read("@daily root a").remarks
        assert "is this a system crontab" in remark.text
        [remark] = read("@daily /bin/x y", system=True).remarks
        assert "is this a user's crontab" in remark.text


class TestConversion:
    def test_a_command_runs_as_under_cron(self):
        [declared], remarks = converted("""\
            MAILTO=""
            TZ=UTC
            # why
            5 0 * * * report --all%input
            """)
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
            "kill_timeout": 0,
            "note": "why",
        }
        assert not remarks

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

    def test_crons_rule_for_clock_changes_holds_where_psched_is_set_to_another(self):
        settings = SETTINGS.with_settings(dst_policy="wallclock")
        [declared], _ = converted("@daily a", settings=settings)
        assert declared["dst_policy"] == "debian"

    def test_nothing_silently_runs_as_somebody_else(self):
        tab = "@daily ann a\n@daily www-data b\n# why\n@hourly root c\n"

        [own], remarks = converted(tab, system=True, owner=None)
        assert own["data"]["command"] == "a"
        assert remarks == [
            Remark(
                line,
                f"not imported: cron runs it as {user}, and psched probably as ann;"
                " --any-user imports such lines, too",
            )
            for line, user in ((2, "www-data"), (4, "root"))
        ]

        declarations, remarks = converted(tab, system=True, owner=None, any_user=True)
        assert [each.get("note") for each in declarations] == [
            None,
            "cron ran it as www-data",
            "why\ncron ran it as root",
        ]
        assert remarks == [
            Remark(2, "/var/www, the home of www-data, is not a folder: it runs in /"),
            Remark(2, "cron runs it as www-data, and psched as the user of its workers"),
            Remark(4, "cron runs it as root, and psched as the user of its workers"),
        ]
        assert declarations[1]["data"]["cwd"] == "/"

    @pytest.mark.parametrize(
        ("line", "remark"),
        [
            ("MAILTO=ann", "MAILTO=ann: psched sends no mail"),
            ("RANDOM_DELAY=5", "RANDOM_DELAY: not imported"),
            ("-@daily b", "the leading '-' has no effect"),
            ("0 0 31 2 * b", "not imported: cron: day of month '31' does not come in month"),
            ("CRON_TZ=Mars\n@daily b", "not imported: timezone: 'Mars' is not a zone"),
        ],
    )
    def test_what_is_not_imported_exactly_is_told(self, line, remark):
        _, [told] = converted(line)
        assert told.text.startswith(remark)

    def test_keys_are_made_of_the_files_name_and_the_command_and_are_stable(self):
        lines = [
            "1 * * * * [ -x /usr/lib/php/sessionclean ] && /usr/lib/php/sessionclean",
            "2 * * * * test -e /run/systemd/system || MODE=1 /sbin/scrub -a",
            "3 * * * * command -v sa1 > /dev/null && sa1 1 1",
            "4 * * * * command -v sa1 > /dev/null && sa1 60 2",
            "5 * * * * : 1 2",
            "6 * * * * : 1 2",
        ]
        keys = {each["cron"][0]: each["key"] for each in converted("\n".join(lines), name="a b")[0]}
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
        # Another time, other neighbours: the same key.
        [other], _ = converted(lines[2].replace("3 *", "9 9"), name="a b")
        assert other["key"] == keys["3"]


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (
            r"""printf '\%s|' "$LOGNAME" "$(pwd)" "$PATH"; cat%one%two\%%%three""",
            "ann|{home}|/usr/bin:/bin|one\ntwo%\n\nthree\n",
        ),
        (r"date -u -d @0 +\%Y; echo $HOME; cat", "1970\n{home}\n"),
        (r"printf \%s\\n '\%' \"a\"; cat%%x", '%\n"a"\n\nx\n'),
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
