"""The progress of a task, as bytes that a runner shares with its worker."""

import pytest

from psched.runner.shared_memory import (
    LONGEST,
    NOTHING,
    Progress,
    Reason,
    StopFlagTable,
    pack,
    unpack,
)
from psched.runner.shared_memory import (
    LONGEST_PROGRESS as SIZE,
)
from support.fuzzing import cases, told


def kept(percent, text):
    """What is read after this was written."""
    flags = StopFlagTable(2).at(1)
    flags.write_progress(pack(percent, text))
    return flags.progress


@pytest.mark.parametrize(
    ("percent", "text", "shown"),
    [
        (40, "rows", "40 % rows"),
        (0, "", "0 %"),
        (100, "", "100 %"),
        (99.99, "", "99.9 %"),
        (33.3333, "é鍵", "33.3 % é鍵"),
        (None, "loading", "loading"),
        (None, "", ""),
        (1, "two\nlines\x1b[2J\u202e\0", "1 % two lines\\x1b[2J\\u202e\\x00"),
        (2, "\ud800", "2 % ?"),
    ],
)
def test_what_was_written_is_read(percent, text, shown):
    assert str(kept(percent, text)) == shown


@pytest.mark.parametrize("character", ["x", "\U0001f600", "\x1b", "\U000e0001"])
def test_a_long_text_is_cut(character):
    text = character * 10_000
    assert len(pack(1, text)) <= SIZE
    assert kept(1, text) == kept(1, character * LONGEST)
    assert len(kept(1, text).text) in (LONGEST, 4 * LONGEST, 10 * LONGEST)


def test_the_last_report_replaces_a_longer_one():
    flags = StopFlagTable(1).at(0)
    flags.write_progress(pack(1, "a long text"))
    flags.write_progress(pack(None, "b"))
    assert flags.progress == Progress(None, "b")
    flags.write_progress(NOTHING)
    assert flags.progress is None


def test_nothing_was_reported_at_first_and_neighbours_have_their_own():
    table = StopFlagTable(3)
    before, middle, after = map(table.at, range(3))
    middle.write_progress(pack(50, "\U0001f600" * LONGEST))
    middle.write(Reason.TIMEOUT)
    middle.begun = True
    assert (before.progress, after.progress) == (None, None)
    assert (after.read(), after.begun) == (Reason.NONE, False)
    assert middle.progress == Progress(50, "\U0001f600" * LONGEST)
    assert middle.read() is Reason.TIMEOUT
    middle.close()
    assert middle.progress is None


def test_bytes_that_do_not_belong_together_are_no_progress():
    one, other = pack(40, "one" * 10), pack(41, "two" * 10)
    for place in range(1, len(one)):
        torn = one[:place] + other[place:] + bytes(SIZE)
        assert unpack(torn) in (
            None,
            unpack(one + bytes(SIZE)),
            unpack(other + bytes(SIZE)),
        )


def test_any_bytes_can_be_read():
    for case in cases("progress", 3000):
        stored = bytearray(case.bytes(SIZE).ljust(SIZE, b"\0"))
        if case.maybe():
            stored[:0] = pack(case.randint(0, 100), case.text(150))
            stored[case.randrange(60)] ^= case.randrange(256)
        with told(case, stored):
            found = unpack(bytes(stored))
            assert found is None or found.percent is None or 0 <= found.percent <= 100
            assert found is None or found.text.isprintable()


@pytest.mark.parametrize("percent", [float("nan"), float("inf"), -1.0, 100.5])
def test_a_percent_that_no_task_can_report_is_not_known(percent):
    assert unpack(pack(percent, "x") + bytes(SIZE)) == Progress(None, "x")
