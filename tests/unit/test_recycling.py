"""Tests of when a worker is to be replaced, because it has run long enough."""

import random
from pathlib import Path

import pytest

from psched.config import from_mapping
from psched.worker.worker import Recycling


def enough(seed=0, **settings):
    config = from_mapping({"url": f"sqlite://{Path('/x.db')}", **settings})
    return Recycling(config, random.Random(seed), 1000.0)  # noqa: S311  # jitter


def first_reached(limits, readings):
    return next((each for each in readings if limits.reached(*each)), None)


def test_without_limits_a_worker_works_for_ever():
    assert not enough().reached(10**9, 1e12)


@pytest.mark.parametrize("seed", range(20))
def test_each_limit_is_met_within_a_tenth_and_told_once(seed):
    by_tasks = enough(seed, worker_max_tasks=1000)
    tasks, _ = first_reached(by_tasks, [(n, 1000.0) for n in range(2000)])
    assert 900 <= tasks <= 1100
    assert by_tasks.why == f"has run {tasks} tasks"
    assert not by_tasks.reached(tasks + 1, 1000.0)

    by_age = enough(seed, worker_max_age=1000)
    _, now = first_reached(by_age, [(0, 1000.0 + second) for second in range(2000)])
    assert 1900 <= now <= 2101
    assert by_age.why == "has reached worker_max_age"


def test_workers_differ_so_that_not_all_go_at_once():
    limits = {
        first_reached(enough(seed, worker_max_tasks=1000), [(n, 0.0) for n in range(2000)])
        for seed in range(20)
    }
    assert len(limits) > 10


def test_a_limit_of_one_task_is_one_task():
    for seed in range(20):
        assert enough(seed, worker_max_tasks=1).reached(1, 1000.0)
