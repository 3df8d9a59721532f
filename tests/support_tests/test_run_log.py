"""The oracle of what really ran can tell right from wrong."""

import json

import pytest

from psched.base.clock import SystemClock
from support.run_log import (
    RunLog,
    completed,
    exactly_once,
    in_order,
    never_early,
    never_two_at_once,
)


@pytest.fixture
def log(tmp_path):
    return RunLog(tmp_path / "runs")


def note(log, key, time, event, at, *, fence=1, **more):
    record = {"key": key, "scheduled_time": time, "attempt": 1, "fence": fence, "pid": 7}
    record |= {"event": event, "at": at, "worker": 6, **more}
    with log.path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def run(log, key, time, start, end, *, fence=1):
    note(log, key, time, "start", start, fence=fence)
    note(log, key, time, "end", end, fence=fence, how="returned")


def test_runs_are_told_apart_by_schedule_and_fence_and_come_in_order(log):
    run(log, "b", 60, 3.0, 4.0)
    run(log, "a", 60, 1.0, 2.0)
    run(log, "a", 120, 5.0, 6.0, fence=2)

    assert [(r.key, r.fence, r.started) for r in log.runs()] == [
        ("a", 1, 1),
        ("b", 1, 3),
        ("a", 2, 5),
    ]
    assert [r.occurrence for r in log.runs("a")] == [("a", 60), ("a", 120)]
    assert completed(2)(log.runs("a"))
    assert not completed(3)(log.runs("a"))


def test_a_line_that_is_being_written_is_left_for_later(log):
    run(log, "a", 60, 1.0, 2.0)
    with log.path.open("a") as file:
        file.write('{"key": "a", "sch')

    assert len(log.runs()) == 1


def test_a_run_that_was_killed_has_a_last_sign_but_no_end(log):
    note(log, "a", 60, "start", 1.0)
    note(log, "a", 60, "alive", 3.0)
    note(log, "a", 60, "alive", 2.0)

    [killed] = log.runs()
    assert (killed.last_sign, killed.end, killed.completed) == (3.0, None, False)


def test_a_sign_of_life_after_the_next_start_is_two_at_once(log):
    run(log, "a", 60, 1.0, 2.0)
    run(log, "b", 60, 1.5, 1.6)
    run(log, "a", 60, 3.0, 4.0, fence=2)
    never_two_at_once(log.runs())

    # By a daemon that the first has left behind.
    note(log, "a", 60, "alive", 3.1)
    with pytest.raises(AssertionError, match="two at once"):
        never_two_at_once(log.runs())


def test_to_go_back_is_out_of_order(log):
    run(log, "a", 60, 1.0, 2.0)
    run(log, "b", 0, 2.0, 3.0)
    run(log, "a", 60, 3.0, 4.0, fence=2)
    in_order(log.runs())

    run(log, "a", 0, 5.0, 6.0, fence=3)
    with pytest.raises(AssertionError, match="out of order"):
        in_order(log.runs())


def test_once_is_neither_twice_nor_never_nor_half(log):
    run(log, "a", 60, 1.0, 2.0)
    exactly_once(log.runs(), [("a", 60)])

    for expected in [("a", 60), ("a", 120)], []:
        with pytest.raises(AssertionError):
            exactly_once(log.runs(), expected)
    note(log, "b", 60, "start", 3.0)
    with pytest.raises(AssertionError):
        exactly_once(log.runs(), [("a", 60), ("b", 60)])
    run(log, "a", 60, 4.0, 5.0, fence=2)
    with pytest.raises(AssertionError):
        exactly_once(log.runs("a"), [("a", 60)])


def test_a_run_before_its_scheduled_time_is_early(log):
    clock = SystemClock()
    now, booted = clock.wall(), clock.wall() - clock.boottime()
    run(log, "a", int(now), now - booted, now - booted + 1)
    never_early(log.runs())

    run(log, "b", int(now) + 2, now - booted, now - booted + 5)
    with pytest.raises(AssertionError, match="s early"):
        never_early(log.runs())
