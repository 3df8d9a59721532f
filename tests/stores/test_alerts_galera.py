"""Alerts in a Galera cluster: all nodes accept writes, and row locks end at the node."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from itertools import chain
from threading import Barrier

import pytest

from psched.base.errors import TransientStoreError, UnknownOutcomeError
from psched.testing.store_contract.alerts import alert, identities, stored, taken
from support.stores import store_factory
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.galera

MANY = [alert(f"k{n}", on_raise=("mail",), on_close=("mail",)) for n in range(40)]


@pytest.fixture
def stores(galera):
    """A list of stores, one connected to each node."""
    name = galera.create_database()
    with contextlib.ExitStack() as opened:
        stores = [opened.enter_context(store_factory(node.url(name)))() for node in galera.nodes]
        stores[0].init()
        yield stores
    galera.drop_database(name)


def on_each(stores, work):
    """What the work returns on each store, all of which do it at the same time."""
    start = Barrier(len(stores))

    def run(number):
        start.wait(timeout=HANG_TIMEOUT)
        return work(stores[number], number)

    with ThreadPoolExecutor(len(stores)) as workers:
        return [*workers.map(run, range(len(stores)))]


def answered(request, *arguments, **options):
    """The answer to a request that is repeated if a node has refused it."""

    def answer():
        try:
            return [request(*arguments, **options)]
        except UnknownOutcomeError:
            raise  # no node dies here, so that each outcome is known
        except TransientStoreError:
            return None

    return wait_until(answer, what="an answer")[0]


def test_each_alert_is_raised_taken_noted_and_closed_by_one_node(stores):
    def raise_all(store, number):
        order = MANY if number % 2 else MANY[::-1]
        return [each for one in order for each in answered(store.alerts.raise_alerts, [one])]

    raised = [*chain.from_iterable(on_each(stores, raise_all))]
    assert identities(raised) == identities(MANY)

    def take_all(store, number):
        held = []
        while found := answered(taken, store, f"monitor.{number}", limit=5):
            held += found
        return held

    held = [*chain.from_iterable(on_each(stores, take_all)), *take_all(stores[0], 9)]
    assert identities(held) == identities(MANY)
    assert {each.fence for each in held} == {1}

    def note_all(store, _number):
        noted = [changed(each, next_try=None) for each in held]
        return [answered(store.alerts.note_deliveries, each) for each in noted]

    answers = on_each(stores, note_all)
    assert [sum(each) for each in zip(*answers, strict=True)] == [1] * len(MANY)

    def close_all(store, number):
        return [
            each
            for one in MANY
            for each in answered(store.alerts.close_alerts, [one], f"node {number}")
        ]

    closed = on_each(stores, close_all)
    assert identities([*chain.from_iterable(closed)]) == identities(MANY)
    for number, own in enumerate(closed):
        assert {each.closed_text for each in own} <= {f"node {number}"}
    for store in stores:
        # A node may lag.
        wait_until(lambda: not stored(store, only_open=True), what="no alert is open")  # noqa: B023
        assert identities(stored(store)) == identities(MANY)
