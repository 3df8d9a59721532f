"""Tests that long work shows how far it has come, and that short work shows nothing."""

import os
import pty
import subprocess
import sys

import pytest

from psched.cli.progress import Progress
from psched.testing import ManualClock

TERMINAL = """
from psched.cli.output import filter_output
from psched.cli.progress import Progress
from psched.testing import ManualClock

filter_output()
clock = ManualClock()
for _ in Progress(clock=clock)(range(8), "adding"):
    clock.advance(0.5)
for _ in Progress(clock=clock)(iter(range(8)), "listing"):
    clock.advance(0.5)
"""


@pytest.fixture
def run(capsys):
    """Let work on some items take so many seconds each; return what standard error shows."""

    def run(items, seconds, **options):
        clock = ManualClock()
        passed = []
        for item in Progress(clock=clock, **options)(items, "adding"):
            passed.append(item)
            clock.advance(seconds)
        assert passed == [*range(len(passed))]
        shown = capsys.readouterr()
        assert not shown.out
        return shown.err.splitlines()

    return run


def test_without_a_terminal_each_tenth_is_a_line(run):
    assert run(range(40), 1) == [f"adding: {tenth}0 %" for tenth in range(1, 11)]
    assert run(range(3), 1) == ["adding: 30 %", "adding: 60 %", "adding: 100 %"]


def test_with_a_closed_standard_error_the_work_is_done(monkeypatch):
    for name in "stderr", "__stderr__":
        monkeypatch.setattr(sys, name, None)
    clock, passed = ManualClock(), []
    for item in Progress(clock=clock)(range(3), "adding"):
        passed.append(item)
        clock.advance(2)
    assert passed == [0, 1, 2]


def test_without_a_number_of_items_there_is_a_line_every_ten_seconds(run):
    assert run(iter(range(25)), 1) == ["adding: 11", "adding: 21"]


def test_short_work_shows_nothing(run):
    assert run(range(1000), 0.0005) == []
    assert run([], 1) == []


def test_quiet_work_shows_nothing(run):
    assert run(range(40), 1, quiet=True) == []


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar():
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        subprocess.run([sys.executable, "-c", TERMINAL], stderr=theirs, check=True)
        os.close(theirs)
        shown = terminal.read(65536).decode()
    assert "adding" in shown
    assert "100%" in shown
    assert "listing" in shown
    assert "\\x" not in shown
