"""The command list: its table, its filters, its order and its forms; and the times of show."""

import json
import os
import pty
import re
import subprocess

import pytest

from psched.app import make_store, read_config
from psched.cli.text_table import FIRST_ROWS
from support.run_records import run_record
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.extended


@pytest.fixture
def listed(service):
    """Runs psched list; returns the lines of its output."""
    service.init()

    def listed(*options, **env):
        service.env = {**service.env, **env}
        done = service.psched("list", *options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return listed


def keys(lines):
    return [line.split()[0] for line in lines[1:-1]]


def test_without_schedules_it_says_how_to_add_one(listed):
    [line] = listed()
    assert line.startswith("no schedules; add one: psched add KEY TYPE 'CRON' [DATA]")
    assert listed("--status", "failed") == ["no schedule matches"]
    assert listed("--json") == []


def test_the_table_has_status_schedule_and_next_run_and_no_payload(service, listed):
    service.invoke(
        "add", "cron", "t", "0 9 * * *", '{"k":1}', "-t", "Asia/Tokyo", "-s", "2030-01-01"
    )
    service.add("every", every=5400, next_time=1893456000)
    service.add("once", next_time=1893456000)
    service.add("ended", next_time=1893456000)
    service.invoke("cancel", "ended")
    assert listed("--utc", "--sort", "key") == [
        "KEY    STATUS     SCHEDULE              NEXT (UTC)        LAST  REASON",
        "cron   waiting    0 9 * * * Asia/Tokyo  2030-01-01 00:00  -",
        "ended  cancelled  once                  -                 -",
        "every  waiting    every 1h30m           2030-01-01 00:00  -",
        "once   waiting    once                  2030-01-01 00:00  -",
        "4 schedules",
    ]


@pytest.mark.landing
def test_what_is_due_and_what_runs_is_seen(service, listed):
    service.add("due")
    service.add("runs")
    with service.sql() as connection:
        connection.execute(
            "UPDATE psched SET leased_by = 'w.1', next_run_time = unixepoch() + 600,"
            " next_time = unixepoch() + 3 WHERE id = 'runs'"
        )
    _, due, runs, _ = listed("--utc")
    assert re.fullmatch(r"due +due +once +\d+d\w* late +-", due)
    with service.sql() as connection:
        connection.execute("INSERT INTO psched (id) VALUES ('sql')")
    assert re.fullmatch(r"sql +due +once +now +-", listed("sql")[1])
    service.invoke("delete", "sql")
    assert re.fullmatch(r"runs +running +once +\w{3} \d\d \d\d:\d\d +-", runs)
    for options, expected in {
        ("--due",): ["due"],
        ("--status", "due"): ["due"],
        ("--status", "waiting"): ["due"],
        ("--status", "running"): ["runs"],
        ("--status", "due", "--status", "running"): ["due", "runs"],
        ("--due", "--status", "running"): [],
    }.items():
        assert keys(listed(*options)) == expected
    in_json = [json.loads(line) for line in listed("--json")]
    assert [each["status"] for each in in_json] == ["due", "running"]
    assert [each["state"] for each in in_json] == ["due", "running"]
    assert json.loads(service.psched("show", "due", "--json").stdout)["status"] == "due"


def test_a_task_that_is_being_stopped_is_shown_with_its_scheduled_time(service, listed):
    service.add("k", next_time=1893456000)
    with service.sql() as connection:
        connection.execute(
            "UPDATE psched SET leased_by = 'w.1', next_run_time = unixepoch() + 600,"
            " status = 'cancelling'"
        )
    assert re.fullmatch(r"k +stopping +once +2030-01-01 00:00 +-", listed("--utc")[1])


def test_the_line_of_all_hosts_shows_the_scheduled_time_of_what_runs_on_one(service, listed):
    service.psched("add", "trim", "t", "0 0 1 1 *", "--each-host")
    columns = "id, type, cron, next_time, next_run_time, lane, leased_by"
    with service.sql() as connection:
        connection.execute(
            f"INSERT INTO psched ({columns}) VALUES"  # noqa: S608
            " ('trim@a', 't', '0 0 1 1 *', 1893456000, unixepoch() + 600, '@a', 'w.1'),"
            " ('trim@b', 't', '0 0 1 1 *', 1924992000, 1924992000, '@b', NULL)"
        )
    line = listed("--utc", "--columns", "key,status,next")[1]
    assert re.fullmatch(r"trim +2 of 2 hosts +2030-01-01 00:00", line)


def test_a_task_that_runs_is_shown_as_running(service, listed):
    service.configure(exec_type=True)
    service.add("runs", "exec", data={"command": ["sleep", "600"]})
    service.start()
    assert wait_until(lambda: keys(listed("--status", "running")), what="the task") == ["runs"]


def test_times_are_in_the_viewers_zone_or_in_utc(service, listed):
    service.add("k", next_time=1893456000)
    assert "2030-01-01 01:00" in listed(TZ="Europe/Berlin")[1]
    assert "2030-01-01 00:00" in listed("--utc", TZ="Europe/Berlin")[1]
    shown = service.psched("show", "k").stdout
    assert "next_time:     2030-01-01 01:00:00 CET\n" in shown
    listed(TZ="UTC")
    assert "next_time:     2030-01-01 00:00:00 UTC\n" in service.psched("show", "k").stdout


@pytest.mark.landing
def test_keys_patterns_order_limit_and_filters_can_be_combined(service, listed):
    for place, key in enumerate(("mail-b", "mail-a", "nail-c", "m*l", "[x]")):
        service.add(key, "even" if place % 2 == 0 else "odd", next_time=4_000_000_000 - place)
    assert keys(listed()) == ["[x]", "m*l", "nail-c", "mail-a", "mail-b"]
    assert keys(listed("mail-*")) == ["mail-a", "mail-b"]
    assert keys(listed("?ail-*", "--sort", "key")) == ["mail-a", "mail-b", "nail-c"]
    several = listed("nail*", "mail-b", "mail-*", "m?l")
    assert keys(several) == ["m*l", "nail-c", "mail-a", "mail-b"]
    assert keys(listed("[x]")) == ["[x]"]
    assert keys(listed("mail")) == []
    assert keys(listed("--type", "odd")) == ["m*l", "mail-a"]
    assert keys(listed("--type", "odd", "mail*")) == ["mail-a"]
    assert keys(listed("--sort", "type")) == ["[x]", "nail-c", "mail-b", "m*l", "mail-a"]
    assert listed("--sort", "key", "--limit", "2", "*ail*")[1:] == [
        *listed("--sort", "key", "mail-?")[1:-1],
        "2 schedules; --limit omits the others",
    ]
    assert listed("--limit", "5")[-1] == "5 schedules"
    assert listed("--limit", "1", "nail*")[-1] == "1 schedule"


def test_sorted_by_status(service, listed):
    for key in "abc":
        service.add(key, next_time=4_000_000_000)
    service.invoke("cancel", "b")
    assert keys(listed("--sort", "status")) == ["b", "a", "c"]


def test_any_columns_can_be_shown(service, listed):
    service.add("k", "mail", data={"to": "ann"}, next_time=1893456000, label="me", note="x")
    assert listed("--utc", "--columns", "key,TYPE,label,note,data,next_time,status") == [
        "KEY  TYPE  LABEL  NOTE  DATA          NEXT_TIME (UTC)      STATUS",
        'k    mail  me     x     {"to":"ann"}  2030-01-01 00:00:00  waiting',
        "1 schedule",
    ]
    refused = service.psched("list", "--columns", "key,dat")
    assert refused.returncode == 2
    assert "'DAT' is no column; choose from KEY, STATUS, " in refused.stderr
    for form in "--json", "--legacy":
        refused = service.psched("list", form, "--columns", "key")
        assert refused.returncode == 2
        assert "--columns is for the table" in refused.stderr


def test_the_table_fits_a_hundred_columns_and_cuts_what_is_long(service, listed):
    service.add("k" * 200, next_time=4_000_000_000, cron="0 9 1,2,3,4,5,6,7,8,9,10,11,12 * *")
    service.add("short", next_time=4_000_000_000)
    with service.sql() as connection:
        connection.execute("UPDATE psched SET reason = ?", ["because " * 50])
    lines = listed()
    assert max(map(len, lines)) == 100
    assert [line.count("…") for line in lines] == [0, 1, 3, 0]
    assert lines[1].startswith("short  ")
    columns = ["key", "reason", "cron", "type", "timezone", "status"]
    some = listed("--columns", ",".join(columns))
    assert all(cell in some[1] for cell in ("short", "recorder", "because", "waiting"))
    assert max(map(len, listed("--columns", ",".join(columns * 3)))) <= 100


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_is_as_wide_as_the_terminal_or_as_columns_says(service, listed, width):
    service.add("nightly-backup-of-shop", cron="30 2 * * 1-5", timezone="Europe/Berlin")
    service.add("a-much-longer-key-than-fits-into-the-line", next_time=4_000_000_000)
    with service.sql() as connection:
        connection.execute("UPDATE psched SET reason = ?", ["because " * 50])
    heading, *rows, _ = listed("--sort", "key", COLUMNS=str(width))
    assert max(map(len, (heading, *rows))) == width
    assert [row.split()[0][:10] for row in rows] == ["a-much-lon", "nightly-ba"]
    place = heading.index("NEXT (UTC)")
    assert re.match(r"\S+ late |now ", rows[1][place:])
    assert rows[0][place:].startswith("2096-10-02 07:06  -")
    assert all(row[place - 2 : place] == "  " for row in rows)


def test_what_is_wrong_is_told_and_comes_first_with_bad(service, listed):
    at = 1893456000
    for key in "abcdef":
        service.add(key, cron="0 0 1 1 *", next_time=at)
    service.add("once", next_time=at)
    with service.sql() as connection:
        connection.execute("UPDATE psched SET status = 'quarantined' WHERE id = 'f'")
        connection.execute("UPDATE psched SET next_run_time = 9 WHERE id = 'd'")
        connection.execute(
            "UPDATE psched SET leased_by = 'w.1', next_run_time = unixepoch() + 600,"
            " status = 'cancelling' WHERE id = 'c'"
        )
    store = make_store(read_config(service.config))
    store.history.record([run_record("e", outcome="failed", fate="gave_up")])
    store.history.record([run_record("b", outcome="failed", fate=None)])
    store.disconnect()
    shown = {line.split()[0]: line.split()[1] for line in listed()[1:-1]}
    assert shown == {
        **dict.fromkeys(("a", "b", "once"), "waiting"),
        "c": "stopping",
        "d": "due",
        "e": "failing",
        "f": "quarantined",
    }
    assert keys(listed("--bad")) == ["f", "e", "d", "c", "a", "b", "once"]
    assert keys(listed("--bad", "--limit", "1")) == ["f"]
    assert keys(listed("--status", "failing", "--status", "stopping")) == ["c", "e"]
    assert keys(listed("--status", "waiting", "--sort", "key")) == ["a", "b", "d", "e", "once"]
    assert json.loads(listed("e", "--json")[0])["status"] == "failing"
    assert re.search("^status: +failing$", service.psched("show", "e").stdout, re.MULTILINE)


def test_a_key_is_listed_with_its_extra_runs(service, listed):
    service.add("k", next_time=4_000_000_000)
    service.add("kk", next_time=4_000_000_000)
    extra = service.invoke("trigger", "k").output.split()[-1]
    assert sorted(keys(listed("k"))) == ["k", extra]


def test_a_longer_row_after_the_first_ones_is_cut_to_its_columns(service, listed):
    service.init()
    with service.schedules() as schedules:
        schedules.push_many(
            {"key": f"k{number:04}", "run_at": 4_000_000_000} for number in range(FIRST_ROWS)
        )
        schedules.push("z" * 150, run_at=4_000_000_001)
        schedules.push("z" * 30, run_at=4_000_000_002)
    *_, before, long, shorter, total = listed()
    assert len({line.index("waiting") for line in (before, long, shorter)}) == 1
    assert "zz…" in long
    assert "zz…" in shorter
    assert total == f"{FIRST_ROWS + 2} schedules"


def test_wide_and_combining_characters_keep_the_columns_aligned(service, listed):
    service.add("日本", next_time=4_000_000_000, type="t")
    service.add("e\N{COMBINING ACUTE ACCENT}", next_time=4_000_000_001, type="t")
    service.add("漢" * 99, next_time=4_000_000_002, type="t")
    lines = listed("--columns", "key,type,status")
    assert lines[1] == "日本" + " " * 83 + "t     waiting"
    assert lines[2] == "e\N{COMBINING ACUTE ACCENT}" + " " * 86 + "t     waiting"
    assert lines[3] == "漢" * 42 + "…" + " " * 2 + "t     waiting"


def test_with_a_closed_standard_output_nothing_is_shown(service):
    service.add("s1")
    done = service.run("sh", "-c", '"$@" >&-', "sh", *service.psched_command, "list")
    assert (done.returncode, done.stderr) == (0, "")


def on_a_terminal(service, *options, **env):
    """The output of psched list on a terminal, with its escape sequences."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*service.psched_command, "list", *options],
            cwd=service.folder,
            env={**service.env, "TERM": "xterm", **env},
            stdout=theirs,
            timeout=HANG_TIMEOUT,
            check=True,
        )
        assert done.returncode == 0
        return os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_statuses_are_coloured_on_a_terminal_only(service, listed):
    service.add("due")
    service.add("evil", next_time=4_000_000_000)
    with service.sql() as connection:
        connection.execute("UPDATE psched SET reason = ? WHERE id = 'evil'", ["\x1b[2J"])
    shown = on_a_terminal(service)
    assert "\x1b[33mdue" in shown
    assert r"\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    assert "\x1b" not in on_a_terminal(service, NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(service, TERM="dumb")
    assert "\x1b" not in "".join(listed())
