"""What psched top shows, as lines, in terminals of all sizes and with odd texts; and its keys."""

import contextlib
import os
import re
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from psched.cli.text_table import width_of
from psched.cli.top.command import ACTIONS, PAUSE, RESUME, TRIGGER, State, target_of
from psched.cli.top.rendering import FAILURE, SELECTED, WARNING, Window, render, tasks
from psched.cli.top.screen import Screen, keys_in
from psched.cli.top.snapshot import (
    MOST_ROWS,
    ComingTask,
    FailedTask,
    LateTask,
    Master,
    PausedTask,
    RunningTask,
    Snapshot,
)

NOW = 1_800_000_000.0

SNAPSHOT = Snapshot(
    now=NOW,
    table="table psched on postgresql://db/psched",
    masters=(
        Master(
            host="web1",
            pid=4321,
            generation=7,
            workers=2,
            slots=8,
            free=6,
            clock=0.25,
        ),
        Master(host="web2", workers=1, slots=4, free=4, clock=-7.5, seen=12.0),
    ),
    counts={"running": 2, "due": 1, "paused": 1, "quarantined": 0},
    running=(
        RunningTask(
            key="backup",
            type="shell",
            status="running",
            host="web1",
            attempt=2,
            elapsed=300.0,
            usual=100.0,
            percent=45.0,
            text="copying",
        ),
        RunningTask(key="mail", type="mail", status="running", host="web2", attempt=1, elapsed=5.0),
    ),
    late=(LateTask(key="report", type="report", late=130.0, reason="its worker died"),),
    coming=(
        ComingTask(
            key="hourly", type="poll", status="waiting", at=int(NOW) + 90, trigger="0 * * * *"
        ),
        ComingTask(key="held", type="poll", status="paused", at=int(NOW) + 900, trigger="@daily"),
    ),
    failed=(
        FailedTask(
            key="sync",
            type="sync",
            result="gave_up",
            ended=NOW - 180,
            host="web1",
            reason="timeout",
        ),
    ),
    paused=(PausedTask(key="old", type="poll", reason="by ann@web1: deploy"),),
)


def text_of(snapshot, **view):
    return [line.text for line in render(snapshot, Window(**view))]


def test_the_screen_at_80x24():
    lines = text_of(SNAPSHOT)
    assert len(lines) == 24
    assert max(map(width_of, lines)) <= 80
    assert lines[:-2] == [
        "psched top  table psched on postgresql://db/psched       2027-01-15 08:00:00 UTC",
        "2 running, 1 late, 10 of 12 slots free, 1 failed in 1 h, 1 paused",
        "web1: 6 of 8 slots free, clock +250 ms, 2 workers, master 4321 serving, gen 7",
        "web2: 4 of 4 slots free, clock -7.5 s, 1 worker, seen 12s ago",
        "  RUNNING 2  TYPE   HOST  ELAPSED  USUAL    PROGRESS",
        "  backup     shell  web1  5.0 min  1.7 min  attempt 2 [####------] 45 % copying",
        "  mail       mail   web2  5.0 s",
        "  LATE 1  TYPE    FOR    REASON",
        "  report  report  2m10s  its worker died",
        "  NEXT 2  TYPE  IN     AT               SCHEDULE",
        "  hourly  poll  1m30s  Fri 15 08:01:30  0 * * * *",
        "  held    poll  15m    Fri 15 08:15:00  paused until then",
        "  FAILED 1  RESULT   AGO  HOST  REASON",
        "  sync      gave_up  3m   web1  timeout",
        "  PAUSED 1  TYPE  REASON",
        "  old       poll  by ann@web1: deploy",
        *[""] * 6,
    ]
    assert lines[-1].startswith("q quit")


EXAMPLE = Snapshot(
    now=NOW,
    table="table psched on postgresql://db/psched",
    masters=(
        Master(host="web1", pid=4321, generation=7, workers=2, slots=8, free=6, clock=0.012),
        Master(host="web2", workers=2, slots=8, free=7, clock=-0.003, seen=12.0),
    ),
    counts={"running": 3, "due": 1, "paused": 1},
    running=(
        replace(SNAPSHOT.running[0], elapsed=280.0, usual=120.0, attempt=1, text="table 7"),
        RunningTask(
            key="digest-7",
            type="mail",
            status="running",
            host="web1",
            attempt=2,
            elapsed=12.0,
            usual=14.5,
        ),
        RunningTask(
            key="report!2b7f9k3m5p8r1t4v",
            type="report",
            status="running",
            host="web2",
            attempt=1,
            elapsed=3.0,
            usual=6.1,
        ),
    ),
    late=(
        LateTask(key="sync", type="sync", late=72.0, reason="its lease has ended: its worker died"),
    ),
    coming=(
        ComingTask(
            key="poll", type="poll", status="waiting", at=int(NOW) + 8, trigger="@every 60 +8"
        ),
        ComingTask(
            key="hourly", type="report", status="waiting", at=int(NOW) + 3600, trigger="0 * * * *"
        ),
    ),
    failed=(
        FailedTask(
            key="digest-6",
            type="mail",
            result="gave_up",
            ended=NOW - 260,
            host="web2",
            reason="SMTP: timed out",
        ),
    ),
    paused=(
        PausedTask(
            key="import",
            type="import",
            reason="since Fri 15 07:40 by ann@web1: deploy",
        ),
    ),
)


def test_the_documentation_shows_a_real_screen():
    lines = text_of(EXAMPLE, height=19, selected=("RUNNING", "backup", 0.0))
    page = Path(__file__).parents[2].joinpath("docs/operate.md").read_text()
    section = page.partition("## What runs now: `psched top`")[2]
    assert section.split("```text\n")[1].split("```")[0].splitlines() == lines


def test_styles_tell_what_is_wrong():
    styles = {line.text.split()[0]: line.style for line in render(SNAPSHOT, Window()) if line.text}
    assert (styles["backup"], styles["mail"]) == (WARNING, "")
    assert (styles["report"], styles["sync"]) == (WARNING, FAILURE)


def test_the_selected_row_is_marked_also_without_colours():
    shown = render(SNAPSHOT, Window(selected=("NEXT", "hourly", 0.0)))
    (line,) = [line for line in shown if line.style == SELECTED]
    assert line.text.startswith("> hourly")


@pytest.mark.parametrize("height", range(1, 30))
@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
def test_it_fits_every_terminal(width, height):
    for selected in None, ("FAILED", "sync", NOW - 180):
        lines = text_of(SNAPSHOT, width=width, height=height, selected=selected)
        assert len(lines) <= max(2, height)
        assert all(width_of(line) <= width for line in lines)


def many(number):
    rows = tuple(
        RunningTask(key=f"task{i:03}", type="t", status="running", host="h", attempt=1, elapsed=1.0)
        for i in range(number)
    )
    counts = {**SNAPSHOT.counts, "running": number}
    return replace(SNAPSHOT, running=rows, counts=counts)


def test_the_sections_share_the_room_and_say_how_many_there_are():
    lines = text_of(many(100))
    shown = [line for line in lines if line.startswith("  task")]
    assert len(shown) > 5
    assert any(line.startswith(f"  RUNNING {len(shown)} of 100") for line in lines)
    for each in "report", "hourly", "sync", "old":
        assert any(line.startswith(f"  {each}") for line in lines)


@pytest.mark.parametrize("number", [0, 5, 50, 99])
@pytest.mark.parametrize("height", [6, 10, 24])
def test_the_selected_row_is_always_visible(number, height):
    lines = text_of(many(100), height=height, selected=("RUNNING", f"task{number:03}", 0.0))
    assert any(line.startswith(f"> task{number:03}") for line in lines)


def test_more_than_can_be_counted():
    assert "1000 or more late" in text_of(replace(SNAPSHOT, counts={"due": 1000}))[1]


@pytest.mark.parametrize(
    "key",
    [
        "日本語の長い鍵" * 20,
        "k" * 1000,
        "a\x1b[31mb",
        "two\nlines",
        "e\u0301" * 90,
        "\u202ereversed",
    ],
)
def test_odd_keys_neither_break_lines_nor_control_the_terminal(key):
    odd = replace(
        SNAPSHOT,
        running=(replace(SNAPSHOT.running[0], key=key, text=key),),
        late=(LateTask(key=key, type=key, late=1.0, reason=key),),
        failed=(replace(SNAPSHOT.failed[0], key=key, reason=key),),
        pauses=(key,),
        problems=(key,),
        table=key,
    )
    lines = text_of(odd)
    assert len(lines) == 24
    assert all(width_of(line) <= 80 for line in lines)
    assert all(line.isprintable() or "\u0301" in line for line in lines)


def test_plain_text_has_every_row_and_no_keys():
    lines = text_of(many(50), height=None, width=100)
    assert sum(line.startswith("  task") for line in lines) == 50
    assert not any("q quit" in line for line in lines)


def test_problems_and_the_age_of_what_is_shown():
    away = replace(SNAPSHOT, problems=("the store does not answer: refused",), away=True)
    lines = text_of(away, age=12.3)
    assert "the store does not answer: refused" in lines
    assert "what the store says is 12.3 s old" in lines


def test_before_anything_was_read():
    lines = text_of(Snapshot(now=None, table="table psched on x"), message="reading ...")
    assert lines[0] == "psched top  table psched on x"
    assert lines[-1] == "reading ..."


def test_help_explains_each_key():
    lines = text_of(SNAPSHOT, helps=True)
    assert len(lines) <= 24
    text = "\n".join(lines)
    for key in *ACTIONS, "l", "q", "Ctrl-C":
        assert key in text


# --- keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "keys", "left"),
    [
        (b"jq", ["j", "q"], b""),
        (b"\x1b[A\x1bOB", ["up", "down"], b""),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"], b""),
        (b"\x03", ["quit"], b""),
        (b"\r", ["enter"], b""),
        (b"k\x1b", ["k"], b"\x1b"),
        (b"\x1b[", [], b"\x1b["),
        (b"\x1b[1;5C", [], b""),
        (b"\x1bq", ["escape", "q"], b""),
        ("é".encode(), [], b""),
    ],
)
def test_keys_are_recognized(received, keys, left):
    assert keys_in(received) == (keys, left)


def test_an_unknown_key_is_dropped():
    keys, _ = keys_in(b"\x1b[99~x")
    assert keys == ["x"]


def test_a_row_stays_selected_while_others_come_and_go():
    state = State(SNAPSHOT, 0.0)
    state.move(1)
    assert state.selected == ("RUNNING", "backup", 0.0)
    state.move(1)
    state.move(1)
    assert state.selected == ("LATE", "report", 0.0)
    state.take(replace(SNAPSHOT, running=()))
    assert state.selected == ("LATE", "report", 0.0)
    state.take(replace(SNAPSHOT, running=(), late=()))
    assert state.selected == ("NEXT", "hourly", 0.0)
    state.take(Snapshot(now=NOW, table="x"))
    assert state.selected is None
    state.move(1)
    assert state.task is None


def test_the_ends_of_the_list():
    state = State(SNAPSHOT, 0.0)
    state.jump(-1)
    assert state.selected == ("PAUSED", "old", 0.0)
    state.move(5)
    assert state.selected == ("PAUSED", "old", 0.0)
    state.move(-100)
    assert state.selected == ("RUNNING", "backup", 0.0)


def test_each_row_can_be_selected_once():
    assert [key for _, key, _ in tasks(SNAPSHOT)] == [
        *("backup", "mail", "report", "hourly", "held", "sync", "old")
    ]


def test_what_the_keys_do_depends_on_the_row():
    found = {task.key: ACTIONS["p"](task) for task in tasks(SNAPSHOT).values()}
    assert {key for key, action in found.items() if action is RESUME} == {"held", "old"}
    assert found["backup"] is PAUSE
    assert all(ACTIONS["t"](task) is TRIGGER for task in tasks(SNAPSHOT).values())


def test_the_schedule_of_an_extra_run_is_what_is_changed():
    extra = replace(SNAPSHOT.running[0], key="backup!20261125t023000z")
    assert target_of(extra) == "backup"
    assert target_of(SNAPSHOT.running[0]) == "backup"


@pytest.mark.parametrize("height", [1, 2, 3, 4])
def test_a_very_low_screen_is_not_exceeded(height):
    lines = text_of(SNAPSHOT, height=height)
    assert len(lines) == height
    assert lines[-1].startswith("q quit")
    assert text_of(SNAPSHOT, height=height, message="pause old? [y/N]")[-1] == "pause old? [y/N]"


def test_the_next_schedules_are_a_part_of_all():
    coming = tuple(replace(SNAPSHOT.coming[0], key=f"k{number:03}") for number in range(MOST_ROWS))
    (heading,) = [
        line for line in text_of(replace(SNAPSHOT, coming=coming)) if line.startswith("  NEXT ")
    ]
    assert re.match("  NEXT [0-9]+ of 100 or more ", heading)
    (heading,) = [
        line for line in text_of(replace(SNAPSHOT, coming=coming[1:])) if line.startswith("  NEXT ")
    ]
    assert re.match("  NEXT [0-9]+ of 99 ", heading)


def test_a_snapshot_is_one_json_object():
    shown = SNAPSHOT.as_object()
    assert (shown["slots"], shown["free"]) == (12, 10)
    assert shown["running"][0]["key"] == "backup"


def test_the_terminal_is_restored_after_an_exception():
    master, terminal = os.openpty()
    before = termios.tcgetattr(terminal)

    def fail():
        with Screen(terminal, terminal, colours=False) as screen:
            assert termios.tcgetattr(terminal) != before
            screen.draw(render(SNAPSHOT, Window()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    written = _rest_of(master)
    assert written.startswith("\x1b[?1049h")
    assert written.endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[1m" not in written
    os.close(master)


def test_a_terminal_that_is_gone_is_no_error_at_the_end():
    master, terminal = os.openpty()
    with Screen(terminal, terminal, colours=True):
        os.close(master)
    os.close(terminal)


def test_a_line_that_fills_the_screen_is_erased_before_it_is_written():
    """After the last column, the cursor stays on it, so erasing then would erase its character."""
    master, terminal = os.openpty()
    lines = render(SNAPSHOT, Window(width=len("q quit   up"), height=3, message="full to end"))
    with Screen(terminal, terminal, colours=False) as screen:
        screen.draw(lines)
    os.close(terminal)
    drawn = _rest_of(master).replace("\r\r\n", "\r\n").rpartition("\x1b[H")[2]
    first, second, last = drawn.split("\r\n")
    assert first == "\x1b[K" + lines[0].text
    assert second == "\x1b[K" + lines[1].text
    assert last.startswith("\x1b[Jfull to end\x1b[0m")
    os.close(master)


def _rest_of(master):
    """All that was written to a terminal that has been closed; it may arrive in several parts."""
    parts = []
    with contextlib.suppress(OSError):
        while part := os.read(master, 4096):
            parts.append(part)
    return b"".join(parts).decode()
