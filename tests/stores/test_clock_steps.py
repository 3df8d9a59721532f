"""Tests of SQLite, whose clock is its host's clock, while somebody sets this clock."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.core.model import Row
from support.compat import compat_factory
from support.faketime import HostClock
from support.stores import store_factory
from support.waiting import HANG_TIMEOUT, wait_until

TESTS = Path(__file__).resolve().parent.parent
CLAIM = {"limit": 1, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}
HOUR = 3600


@pytest.fixture
def after_a_step(tmp_path):
    """A function that returns a store's answer after the host's clock was set forward."""

    def run(kind, first, request):
        clock = HostClock(tmp_path / "clock")
        words = clock.command(sys.executable, __file__, kind, first, request, tmp_path)
        path = f"{TESTS}{os.pathsep}{TESTS.parent}"
        with subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout.readline() == b"ready\n"
            clock.set(HOUR)
            answer, _ = process.communicate(timeout=HANG_TIMEOUT)
        return json.loads(answer)

    return run


@pytest.mark.parametrize("kind", ["rdb", "rdb_compat"])
def test_no_lease_is_taken_over_when_the_clock_was_set_forward(after_a_step, kind):
    # Free rows can be claimed, although another row seems to be leased no longer.
    assert after_a_step(kind, "claim", "claim") == ["free"]


def test_what_seems_to_be_held_no_more_is_not_claimed(after_a_step):
    assert after_a_step("rdb", "hold", "claim") == ["free"]


@pytest.mark.parametrize("first", ["claim", "hold"])
def test_what_seems_to_be_leased_or_held_no_more_is_not_held_by_another(after_a_step, first):
    assert after_a_step("rdb", first, "hold") == ["free"]


def test_a_hold_that_seems_to_have_ended_is_extended_by_its_holder(after_a_step):
    assert after_a_step("rdb", "hold", "extend") == ["free", "taken"]


def test_what_seems_to_be_held_no_more_is_not_counted_as_waiting(after_a_step):
    assert after_a_step("rdb", "hold", "backlog") == 1


@pytest.mark.parametrize("first", ["claim", "hold"])
def test_what_seems_to_be_leased_or_held_no_more_is_marked_for_its_holder(after_a_step, first):
    assert after_a_step("rdb", first, "delete") == [False, "deleting"]


def main(kind, first, request, folder):
    """Send requests to a store, in a separate process whose clock the test sets.

    Args:
        kind: which store.
        first: the request by which another worker takes a row before the step.
        request: the request that is sent after the step.
        folder: where the database is.
    """
    factory = {"rdb": store_factory, "rdb_compat": compat_factory}[kind]
    clock = SystemClock()
    with factory(f"sqlite:///{folder}/store.db") as open_store:
        store, other = open_store(), open_store()
        store.init()
        begun = int(clock.wall())
        store.add([_every_minute("taken", begun - 60)], nonce="n")
        if first == "hold":
            assert other.hold({"taken": "other.1"}, **LEASE) == {"taken"}
        else:
            assert len(other.claim("other.1", **CLAIM).rows) == 1
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        wait_until(lambda: clock.wall() > begun + HOUR / 2, what="the step")
        store.add([_every_minute("free", int(clock.wall()) - 1)], nonce="n")
        json.dump(_answer(store, request), sys.stdout)


def _every_minute(key, due):
    return Row(key=key, cron="* * * * *", next_time=due, next_run_time=due)


def _answer(store, request):
    if request == "delete":
        removed, row = store.delete("taken"), store.get("taken")
        return removed, row and row.status
    if request == "claim":
        return [row.key for row in store.claim("store.1", **CLAIM).rows]
    if request == "backlog":
        return store.backlog(10).due
    holder = "other.1" if request == "extend" else "store.1"
    return sorted(store.hold({"taken": holder, "free": "store.2"}, **LEASE))


if __name__ == "__main__":
    main(*sys.argv[1:])
