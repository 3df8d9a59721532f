"""Tests of the delivery of alerts to hooks; an outage's alert stands for those in a store."""

import queue
import threading
from dataclasses import replace as changed

import pytest

from psched.base.clock import SystemClock
from psched.config import from_mapping
from psched.core.alerts.alert import Alert, Delivery
from psched.errors import StoreUnavailableError
from psched.monitor.alarms import PATIENCE, Outage
from psched.monitor.delivering import MOST_TOLD, Deliveries, due_deliveries, next_try
from psched.notify.notification import DeliveryError
from psched.testing import ManualClock
from support.waiting import HANG_TIMEOUT, wait_until

ALERT = Alert(key="key", rule="late", since=1, raised=5_000, text="late", on_raise=("a", "b"))


def delivered(**deliveries):
    named = {name.replace("_", "/"): each for name, each in deliveries.items()}
    return changed(ALERT, deliveries=named)


def test_what_was_not_tried_is_due_at_once():
    assert due_deliveries(ALERT, 0) == ["raised/a", "raised/b"]
    assert next_try(ALERT) == 5_000


def test_what_was_delivered_or_given_up_is_not_due_again():
    alert = delivered(raised_a=Delivery(tries=1, done=True), raised_b=Delivery(tries=9))
    assert due_deliveries(alert, 1e9) == []
    assert next_try(alert) is None


def test_a_failed_delivery_is_due_at_its_next_try():
    alert = delivered(
        raised_a=Delivery(tries=1, next_try=20_000), raised_b=Delivery(tries=2, next_try=10_000)
    )
    assert due_deliveries(alert, 9.9) == []
    assert due_deliveries(alert, 10) == ["raised/b"]
    assert next_try(alert) == 10_000


def test_a_hook_is_told_of_the_end_after_the_beginning_or_not_at_all():
    alert = changed(ALERT, on_raise=("a",), on_close=("a", "c"), closed=7_000, closed_text="over")
    assert due_deliveries(alert, 0) == ["raised/a", "closed/c"]

    def after(begun):
        seen = changed(alert, deliveries={"raised/a": begun, "closed/c": Delivery(done=True)})
        return due_deliveries(seen, 0), next_try(seen)

    assert after(Delivery(tries=1, done=True)) == (["closed/a"], 5_000)
    assert after(Delivery(tries=1, next_try=60_000)) == ([], 60_000)
    assert after(Delivery(tries=12)) == ([], None)


# --- with threads --------------------------------------------------------------------


class Shelf:
    """Keeps alerts as a store does, for one user."""

    def __init__(self, *alerts):
        self.alerts = {alert.key: changed(alert, next_try=0) for alert in alerts}
        self.time = 100.0

    def now(self):
        return self.time

    def take_alerts(self, owner, *, lease, limit):
        ms = self.time * 1000
        due = [a for a in self.alerts.values() if a.next_try is not None and a.next_try <= ms]
        for alert in due[:limit]:
            held = changed(
                alert, owner=owner, fence=alert.fence + 1, next_try=round(ms + lease * 1000)
            )
            self.alerts[alert.key] = held
        return [self.alerts[alert.key] for alert in due[:limit]]

    def note_deliveries(self, alert):
        if self.alerts[alert.key].fence != alert.fence:
            return False
        self.alerts[alert.key] = changed(alert, owner=None)
        return True


class Hooks:
    """Notes what is delivered; can fail, or not return before it is told to."""

    def __init__(self):
        self.told = queue.Queue()
        self.errors = {}
        self.gates = {}
        self.names = {"a", "b"}
        self.read = set()

    def tries(self, _hook):
        return 12

    def is_read(self, hook):
        return hook in self.read

    def deliver(self, hook, told):
        if hook in self.gates:
            assert self.gates[hook].wait(HANG_TIMEOUT)
        if len(told) > 1:
            self.told.put((hook, *((event, alert.key) for event, alert, _ in told)))
        else:
            [(event, alert, _)] = told
            self.told.put((hook, event, alert.key))
        if hook in self.errors:
            raise self.errors[hook]

    def next(self):
        return self.told.get(timeout=HANG_TIMEOUT)


@pytest.fixture
def hooks():
    return Hooks()


def run(deliveries, shelf, done):
    def step():
        deliveries.step(shelf.now)
        return done()

    wait_until(step, what="the deliveries")


def started(shelf, hooks):
    clock = SystemClock()
    return Deliveries(shelf, "me", hooks, clock=clock, wake=threading.Event())


def test_each_hook_is_told_and_the_store_says_so(hooks):
    shelf = Shelf(ALERT)
    deliveries = started(shelf, hooks)
    run(deliveries, shelf, lambda: deliveries.is_idle and shelf.alerts["key"].deliveries)

    assert {hooks.next(), hooks.next()} == {("a", "raised", "key"), ("b", "raised", "key")}
    kept = shelf.alerts["key"]
    assert kept.next_try is None
    assert kept.deliveries == dict.fromkeys(["raised/a", "raised/b"], Delivery(tries=1, done=True))


def test_a_failure_is_tried_again_when_the_hook_says_so_and_only_there(hooks):
    hooks.errors["b"] = DeliveryError("status 500", retry=True)
    shelf = Shelf(ALERT)
    deliveries = started(shelf, hooks)
    run(deliveries, shelf, lambda: deliveries.is_idle and shelf.alerts["key"].deliveries)
    assert shelf.alerts["key"].deliveries["raised/b"] == Delivery(
        tries=1, next_try=160_000, problem="status 500"
    )
    assert shelf.alerts["key"].next_try == 160_000

    shelf.time = 160.0
    hooks.errors["b"] = DeliveryError("status 404", retry=False)
    run(deliveries, shelf, lambda: shelf.alerts["key"].next_try is None)
    assert shelf.alerts["key"].deliveries["raised/b"] == Delivery(tries=2, problem="status 404")
    assert sorted(hooks.next() for _ in range(3)) == [
        ("a", "raised", "key"),
        ("b", "raised", "key"),
        ("b", "raised", "key"),
    ]


def test_a_slow_hook_delays_no_other(hooks):
    hooks.gates["a"] = threading.Event()
    keys = [f"k{n}" for n in range(30)]
    shelf = Shelf(*(changed(ALERT, key=key) for key in keys))
    deliveries = started(shelf, hooks)
    told = []

    def all_told():
        while not hooks.told.empty():
            told.append(hooks.told.get())
        return sum(hook == "b" for hook, *_ in told) == len(keys)

    def b_is_told():
        shelf.time += 1
        return all_told()

    run(deliveries, shelf, b_is_told)
    assert not any(hook == "a" for hook, *_ in told)

    hooks.gates["a"].set()
    del hooks.gates["a"]

    def everything():
        shelf.time += 10
        return deliveries.is_idle and all(alert.next_try is None for alert in shelf.alerts.values())

    run(deliveries, shelf, everything)
    all_told()
    assert sorted(key for hook, _, key in told if hook == "a") == sorted(keys)
    assert all(
        alert.deliveries["raised/a"] == Delivery(tries=1, done=True)
        for alert in shelf.alerts.values()
    )


def test_a_fault_of_a_hook_is_noted_and_ends_nothing(hooks, caplog):
    hooks.errors["a"] = ZeroDivisionError("division by zero")
    shelf = Shelf(ALERT)
    deliveries = started(shelf, hooks)
    run(deliveries, shelf, lambda: deliveries.is_idle and shelf.alerts["key"].deliveries)
    assert shelf.alerts["key"].deliveries["raised/a"].problem == "a fault: division by zero"
    assert shelf.alerts["key"].deliveries["raised/b"].done
    assert "a fault in hook a" in caplog.text


def test_what_another_monitor_has_taken_meanwhile_is_left_to_it(hooks):
    hooks.gates["a"] = threading.Event()
    shelf = Shelf(changed(ALERT, on_raise=("a",)))
    deliveries = started(shelf, hooks)
    deliveries.step(shelf.now)
    shelf.alerts["key"] = other = changed(shelf.alerts["key"], owner="other", fence=7)
    hooks.gates["a"].set()
    run(deliveries, shelf, lambda: deliveries.is_idle)
    assert shelf.alerts["key"] == other


def test_a_hook_that_no_host_defines_costs_no_thread_and_is_given_up_at_last(hooks):
    names = [f"hook{n}" for n in range(40)]
    shelf = Shelf(*(changed(ALERT, key=name, on_raise=(name,)) for name in names))
    deliveries = started(shelf, hooks)
    threads = threading.active_count()
    for _ in range(13):
        run(deliveries, shelf, lambda: deliveries.is_idle)
        shelf.time += 3600
    assert threading.active_count() == threads
    for alert in shelf.alerts.values():
        [seen] = alert.deliveries.values()
        assert seen.tries == 12
        assert seen.problem == f"hooks does not define {alert.key} on this host"
        assert alert.next_try is None


def test_many_alerts_are_put_off_once_each_until_a_slow_hook_is_free(hooks):
    hooks.gates["a"] = threading.Event()
    keys = [f"k{n}" for n in range(200)]
    shelf = Shelf(*(changed(ALERT, key=key, on_raise=("a",)) for key in keys))
    deliveries = started(shelf, hooks)
    for _ in range(10):
        deliveries.step(shelf.now)
    waiting = [alert.next_try for alert in shelf.alerts.values() if alert.owner is None]
    assert len(waiting) > 150
    assert len({*waiting}) == len(waiting)
    assert all(alert.fence == 1 for alert in shelf.alerts.values())
    hooks.gates.pop("a").set()
    run(deliveries, shelf, lambda: deliveries.is_idle)
    assert max(alert.fence for alert in shelf.alerts.values()) <= 2


def shelf_of(*keys, **more):
    return Shelf(*(changed(ALERT, key=key, on_raise=("a",), **more) for key in keys))


def test_what_is_too_much_to_read_is_told_in_one_message(hooks):
    hooks.read.add("a")
    shelf = shelf_of(*(f"k{number}" for number in range(MOST_TOLD)))
    deliveries = started(shelf, hooks)
    run(deliveries, shelf, lambda: deliveries.is_idle and hooks.told.qsize() == MOST_TOLD)
    assert {hooks.next() for _ in range(MOST_TOLD)} == {
        ("a", "raised", f"k{number}") for number in range(MOST_TOLD)
    }

    # In the same minute, no message more is sent; after it, one.
    later = shelf_of("late", "later", *(f"m{number}" for number in range(MOST_TOLD)))
    shelf.alerts |= later.alerts
    shelf.time += 59
    deliveries.step(shelf.now)
    assert deliveries.is_idle
    assert {
        each.next_try for each in shelf.alerts.values() if not each.deliveries["raised/a"].done
    } == {160_000}
    shelf.time += 1
    run(deliveries, shelf, lambda: deliveries.is_idle and not hooks.told.empty())
    hook, *events = hooks.next()
    assert (hook, {*events}) == ("a", {("raised", key) for key in later.alerts})
    assert hooks.told.empty()
    assert all(each.deliveries["raised/a"].done for each in shelf.alerts.values())


def test_a_message_that_fails_is_tried_again_as_one(hooks):
    hooks.read.add("a")
    hooks.errors["a"] = DeliveryError("status 500", retry=True)
    shelf = shelf_of(*(f"k{number}" for number in range(MOST_TOLD + 1)))
    deliveries = started(shelf, hooks)
    run(deliveries, shelf, lambda: deliveries.is_idle and not hooks.told.empty())
    assert len(hooks.next()) == 1 + len(shelf.alerts)
    tried = Delivery(tries=1, next_try=160_000, problem="status 500")
    assert all(each.deliveries["raised/a"] == tried for each in shelf.alerts.values())
    hooks.errors.clear()
    shelf.time += 60
    run(deliveries, shelf, lambda: deliveries.is_idle and not hooks.told.empty())
    assert len(hooks.next()) == 1 + len(shelf.alerts)
    assert all(each.deliveries["raised/a"].done for each in shelf.alerts.values())


def test_a_program_is_told_each_event(hooks):
    shelf = shelf_of(*(f"k{number}" for number in range(2 * MOST_TOLD)))
    deliveries = started(shelf, hooks)

    def step():
        deliveries.step(shelf.now)
        shelf.time += 60
        return hooks.told.qsize() == 2 * MOST_TOLD

    wait_until(step, what="all events")


def test_after_the_last_step_nothing_is_begun(hooks):
    hooks.gates["a"] = threading.Event()
    shelf = Shelf(changed(ALERT, on_raise=("a",)), changed(ALERT, key="later", on_raise=("b",)))
    shelf.alerts["later"] = changed(shelf.alerts["later"], next_try=10**9)
    deliveries = started(shelf, hooks)
    deliveries.step(shelf.now)
    shelf.time = 10**7
    hooks.gates["a"].set()

    def done():
        deliveries.step(shelf.now, takes=False)
        return deliveries.is_idle

    wait_until(done, what="the last delivery")
    assert shelf.alerts["key"].deliveries["raised/a"].done
    assert not shelf.alerts["later"].deliveries


# --- an outage of the store ----------------------------------------------------------


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def outage(clock, hooks):
    defined = {"a": {"command": ["true"]}, "b": {"command": ["true"]}, "c": {"task": "tell"}}
    told = {"on_late": ["a", "c"], "on_recovered": ["b", "c"]}
    settings = from_mapping({"url": "sqlite:///x.db", "hooks": defined, **told})
    return Outage(settings, host="web1", deliverer=hooks, clock=clock, wake=threading.Event())


def settled(outage):
    def step():
        outage.step()
        return outage.is_idle

    wait_until(step, what="the deliveries")


def test_a_short_outage_is_not_told(outage, clock, hooks):
    error = StoreUnavailableError("connection refused")
    outage.failed(error)
    clock.advance(PATIENCE - 1)
    outage.failed(error)
    outage.passed()
    clock.advance(PATIENCE)
    outage.failed(error)
    settled(outage)
    assert hooks.told.empty()


def test_an_outage_and_its_end_are_told_once(outage, clock, hooks):
    error = StoreUnavailableError("connection refused")
    for _ in range(2):
        for _ in range(3):
            outage.failed(error)
            clock.advance(PATIENCE)
            settled(outage)
        assert hooks.next() == ("a", "raised", "")
        outage.passed()
        outage.passed()
        settled(outage)
        assert hooks.next() == ("b", "closed", "")
        assert hooks.told.empty()


def test_a_hook_that_fails_during_an_outage_is_tried_again(outage, clock, hooks):
    hooks.errors["a"] = DeliveryError("status 500", retry=True)
    outage.failed(StoreUnavailableError("connection refused"))
    clock.advance(PATIENCE)
    outage.failed(StoreUnavailableError("connection refused"))
    settled(outage)
    clock.advance(59)
    settled(outage)
    assert hooks.next() == ("a", "raised", "")
    assert hooks.told.empty()
    clock.advance(1)
    settled(outage)
    assert hooks.next() == ("a", "raised", "")


def test_the_end_of_an_outage_is_told_even_if_another_one_has_begun(outage, clock, hooks):
    error = StoreUnavailableError("connection refused")
    hooks.errors["b"] = DeliveryError("status 500", retry=True)
    for _ in range(2):
        outage.failed(error)
        clock.advance(PATIENCE)
        outage.failed(error)
        settled(outage)
        outage.passed()
        settled(outage)
    del hooks.errors["b"]
    clock.advance(600)
    settled(outage)
    told = [hooks.next() for _ in range(hooks.told.qsize())]
    assert told.count(("a", "raised", "")) == 2
    first, second = outage._kept._alerts
    assert first.since < second.since
    for alert in first, second:
        assert alert.deliveries["closed/b"].done
