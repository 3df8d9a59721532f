"""Tests of the times at which a worker looks for due rows."""

import contextlib

import pytest

from psched.config import from_mapping
from psched.core.store_protocol import Claimed, Store
from psched.testing import ManualClock, ManualDeadMan, ManualRunnerPool
from psched.worker.execution import Execution
from psched.worker.task_table import TaskTable
from support.worker import context

NEAR = 0.02
"""The time shortly before a row is due, in seconds."""


class Looked(Store):
    """A store with one row that becomes due; another worker always claims the row first.

    Attributes:
        looks: the times of all claims, in seconds after the time when the row is due.
    """

    def __init__(self, clock, *, due):
        self._clock = clock
        self._due = clock.monotonic() + due
        self.looks = []

    def claim(self, _owner, *, horizon, **_lease):
        now = self._clock.monotonic()
        self.looks.append(now - self._due)
        near = now < self._due <= now + horizon
        return Claimed(now=now, next_due=self._due if near else None)


def looks(due, *, poll_interval=1.0):
    """The times of a worker's claims until a row is due in ``due`` seconds; see `Looked.looks`."""
    clock = ManualClock()
    store = Looked(clock, due=due)
    settings = from_mapping({"url": "sqlite:///unused.db", "poll_interval": poll_interval})
    with contextlib.closing(ManualRunnerPool(clock)) as pool:
        shared = context(clock, settings, store=store, pool=pool, deadman=ManualDeadMan(clock))
        execution = Execution(shared, TaskTable(shared))
        execution.claim()
        while store.looks[-1] < 0:
            assert len(store.looks) < 100
            sleep = execution.pacing.wakes - clock.monotonic()
            # On Linux, a sleep can last a thousandth longer than requested.
            clock.advance(sleep * 1.001 if sleep > NEAR else sleep)
            execution.claim()
    return store.looks


def test_a_row_is_looked_for_a_moment_before_it_is_due_and_then_at_the_very_instant():
    [_first, before, at] = looks(0.7)
    assert -NEAR < before < 0
    assert at == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("due", [0.001, 0.005, 0.01])
def test_a_row_that_is_nearly_due_is_looked_for_when_it_is(due):
    [_first, at] = looks(due)
    assert at == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("poll_interval", [10.0, 60.0])
def test_a_long_sleep_that_ends_late_does_not_make_the_look_for_a_due_row_late(poll_interval):
    found = looks(0.8 * poll_interval, poll_interval=poll_interval)
    assert found[-1] == pytest.approx(0, abs=1e-6)
    assert len(found) <= 4


def test_while_nothing_is_near_there_is_one_look_in_a_poll_interval():
    found = looks(100.5, poll_interval=10.0)
    assert len([each for each in found if each < -10]) <= 11
