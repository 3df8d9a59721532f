"""Very many short tasks: leases that are taken ahead, and what is left of them after a death."""

from collections import Counter

import pytest

from support.processes import kill
from support.waiting import wait_until

pytestmark = [pytest.mark.verified, pytest.mark.extended]

MANY = 240


def push_many(service):
    keys = {f"k{number:03}" for number in range(MANY)}
    with service.schedules() as schedules:
        schedules.push_many(
            {"key": key, "type": "recorder", "retention_time": 3600} for key in keys
        )
    return keys


def statuses(service):
    with service.schedules() as schedules:
        return Counter(each.status for each in schedules.list())


def attempts(service):
    """How often each task was started, by its key."""
    return Counter(run.key for run in service.runs.runs())


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("reused", [1, 1000])
def test_each_is_run_once(service, concurrency, reused):
    service.configure(processors=2, concurrency=concurrency, max_tasks_per_child=reused)
    service.start().wait_for_workers(2)
    keys = push_many(service)
    wait_until(lambda: statuses(service) == {"finished": MANY}, what="their ends")
    assert attempts(service) == dict.fromkeys(keys, 1)


def test_a_killed_worker_loses_none_and_the_others_run_once(service):
    service.configure(processors=2, concurrency=2, retry_wait=0)
    master = service.start()
    killed, _ = master.wait_for_workers(2)
    keys = push_many(service)
    wait_until(lambda: len(service.runs.runs()) > MANY // 4, what="a quarter of them")
    kill(killed)
    wait_until(lambda: statuses(service) == {"finished": MANY}, what="their ends")
    started = attempts(service)
    assert started.keys() == keys
    # The dead worker held at most two leases per slot.
    again = sum(count > 1 for count in started.values())
    assert again <= 4
    assert max(started.values()) <= 2
