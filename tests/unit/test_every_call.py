"""Every request of a short run fails once in every way, and no promise is broken.

The run without a fault has claims, extends, settlements, an extra run, a pause and an edit. For
each of its requests to the store, and each kind of fault, it is run once more.
"""

import random
import secrets

import pytest

from psched.testing.simulation.network import CallFault
from psched.testing.simulation.plan import Step
from psched.testing.simulation.simulation import Simulation

pytestmark = pytest.mark.slow

STEPS = [
    Step(3.0, "trigger", 3, 0.0, 0),
    Step(5.0, "push", 1, 0.0, 1),
    Step(6.0, "pause", 2, 0.0, 2),
    Step(8.0, "resume", 2, 0.0, 1),
    Step(9.0, "edit_data", 3, 0.0, 3),
]


def run(store, calls=None):
    """The short run, in which some requests fail."""
    simulation = Simulation(
        17,
        12 / 3600,
        steps=STEPS,
        calls=calls,
        store=store,
        hosts=2,
        schedules=4,
        quiet=40.0,
        processors=1,
        poll_interval=10.0,
        alive_time=10,
        kill_timeout=20,
    )
    return simulation.run()


def fresh_numbers():
    """Random numbers that nobody has drawn before."""
    return random.Random(secrets.randbits(64))  # noqa: S311  # a failure names its plan


def numbers(store):
    """The requests of the short run while people do something."""
    golden = run(store)
    assert golden.violations == []
    assert golden.faults == {}
    assert golden.runs > 5
    return range(1, golden.troubled + 1)


def broken(store, plans):
    """Run each plan; return those that break a promise, with what was found."""
    found = []
    for plan in plans:
        result = run(store, plan)
        assert {*plan.values()} & {*result.faults}
        if result.violations:
            found.append((plan, result.violations))
    return found


@pytest.mark.parametrize("fault", CallFault)
def test_each_request_in_memory(fault):
    assert broken("memory", [{number: fault} for number in numbers("memory")]) == []


def test_some_requests_on_sqlite():
    rng = fresh_numbers()
    found = numbers("sqlite")
    plans = [{rng.choice(found): rng.choice([*CallFault])} for _ in range(25)]
    assert broken("sqlite", plans) == []


def test_some_pairs_of_requests():
    rng = fresh_numbers()
    found = numbers("memory")
    two = [rng.sample(found, 2) for _ in range(40)]
    plans = [{number: rng.choice([*CallFault]) for number in pair} for pair in two]
    assert broken("memory", plans) == []


@pytest.mark.once
@pytest.mark.parametrize("fault", CallFault)
def test_each_request_on_sqlite(fault):
    assert broken("sqlite", [{number: fault} for number in numbers("sqlite")]) == []
