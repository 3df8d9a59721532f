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

    def run(kind, request):
        clock = HostClock(tmp_path / "clock")
        words = clock.command(sys.executable, __file__, kind, request, tmp_path)
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
    assert after_a_step(kind, "claim") == ["free"]


def test_no_lease_by_key_is_taken_over_when_the_clock_was_set_forward(after_a_step):
    assert after_a_step("rdb", "claim_keys") == ["free"]


def test_what_seems_to_be_leased_no_more_is_marked_for_its_holder(after_a_step):
    assert after_a_step("rdb", "delete") == [False, "deleting"]


def main(kind, request, folder):
    """Send a request to a store, in a separate process whose clock the test sets."""
    factory = {"rdb": store_factory, "rdb_compat": compat_factory}[kind]
    clock = SystemClock()
    with factory(f"sqlite:///{folder}/store.db") as open_store:
        store, other = open_store(), open_store()
        store.init()
        begun = int(clock.wall())
        row = Row(key="leased", cron="* * * * *", next_time=begun - 60, next_run_time=begun - 60)
        store.add([row], nonce="n")
        if request == "claim_keys":
            assert len(other.claim_keys("other.1", ["leased"], **LEASE)) == 1
        else:
            assert len(other.claim("other.1", **CLAIM).rows) == 1
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        wait_until(lambda: clock.wall() > begun + HOUR / 2, what="the step")
        if request == "delete":
            removed, row = store.delete("leased"), store.get("leased")
            answer = removed, row and row.status
        else:
            due = int(clock.wall()) - 1
            free = Row(key="free", cron="* * * * *", next_time=due, next_run_time=due)
            store.add([free], nonce="n")
            if request == "claim":
                rows = store.claim("store.1", **CLAIM).rows
            else:
                rows = store.claim_keys("store.1", ["leased", "free"], **LEASE)
            answer = [row.key for row in rows]
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
