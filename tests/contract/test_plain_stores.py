"""The store contract, on the documentation's example of a store."""

import importlib.util
import itertools
import random
import threading
from dataclasses import replace
from math import ceil, inf
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

from psched import app
from psched.base.clock import SystemClock
from psched.base.errors import NotSupportedError
from psched.config import from_mapping
from psched.core.alerts.protocol import EVERY_ALERT
from psched.core.store_protocol import Backlog, ExpiredLease, Settled
from psched.testing import (
    AlertsContract,
    BackendContract,
    BacklogContract,
    HoldsContract,
    LanesContract,
    OutputContract,
    OverviewContract,
    PausesContract,
    StatusContract,
    WatchingContract,
)
from psched.testing.store_contract.bench import LEASE, claim, ending, leased
from psched.testing.store_contract.history import claimed, ending_with, recorded
from support.stores import SOME, takes_some_types

EXAMPLE = Path(__file__).parents[2] / "docs/examples/filestore.py"


@pytest.fixture(scope="module")
def example():
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("filestore", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of(folder):
    """What the example reads of the settings."""
    store = {"path": str(folder / "schedules.json")}
    return SimpleNamespace(store=store, only=(), host_names=())


class TestFileStore(
    BackendContract,
    BacklogContract,
    HoldsContract,
    LanesContract,
    OverviewContract,
    StatusContract,
    WatchingContract,
):
    @pytest.fixture
    def backend_factory(self, example, tmp_path):
        settings = settings_of(tmp_path)

        def open_store():
            return example.FileStore(settings, clock=SystemClock(), rng=random.Random())  # noqa: S311

        open_store().init()
        return open_store

    @pytest.fixture
    def open_host(self, backend_factory):
        def open_host(*names):
            store = backend_factory()
            store.host_names = names
            return store

        return open_host

    @pytest.fixture
    def set_status(self, backend_factory):
        def set_status(key, status):
            with backend_factory().all() as rows:
                rows[key] = replace(rows[key], status=status)

        return set_status

    def test_a_settlement_with_records_is_applied_without_a_history(self, backend_factory):
        store = backend_factory()
        held = leased(store, "k")
        assert store.settle([ending_with(held, recorded(held))]) == {"k": Settled.DONE}
        assert (store.history, store.output, store.alerts) == (None, None, None)

    def test_the_time_of_a_claim_is_kept_until_the_lease_ends(self, backend_factory):
        """A subclass that keeps the run history needs it for the records of lost attempts."""
        store = backend_factory()
        before = int(store.now())
        held = leased(store, "k", "w.1")
        claimed_at = store.get("k").claimed_at
        assert before <= claimed_at <= store.now()
        with store.all() as rows:
            rows["k"] = replace(rows["k"], next_run_time=1)
        expired = claim(store, "w.2").expired
        assert expired == {"k": ExpiredLease(held.token, claimed_at)}
        store.recover("w", alive_time=LEASE, retry_wait=0.0)
        assert store.get("k").claimed_at is None
        row = claimed(store, "k", "w.3")
        store.settle([ending(row)])
        assert store.get("k").claimed_at is None

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(self, backend_factory):
        some = backend_factory()
        some.only = SOME
        takes_some_types(backend_factory(), some)


class KeepsOutputInMemory:
    """The shortest implementation of this part of a store."""

    output = property(lambda self: self)

    numbers = itertools.count(1)

    def __init__(self, records, requests, *arguments, **options):
        super().__init__(*arguments, **options)
        self.records = records
        self.requests = requests

    def problem(self):
        return None

    def write_output(self, written):
        for record in written:
            self.records.pop(_lease(record), None)
            self.records[_lease(record)] = replace(record, id=next(self.numbers))
            if not record.is_live:
                self.requests.pop(_lease(record), None)

    def outputs(self, selection):
        found = [
            record
            for record in reversed(self.records.values())
            if record.key == selection.key
            and (record.output or not record.is_live)
            and selection.scheduled_time in {None, record.scheduled_time}
            and selection.attempt in {None, record.attempt}
        ]
        return iter(found[: selection.limit])

    def output_of(self, attempt):
        return self.records.get(_lease(attempt))

    def ask_for_output(self, attempt, *, now, until):
        found, before = self.records.get(_lease(attempt)), self.requests.get(_lease(attempt), 0)
        if found is None or found.is_live:
            self.requests[_lease(attempt)] = max(before, until)
        return before > now

    def asked_output(self, attempts, now):
        return {each for each in attempts if self.requests.get(_lease(each), 0) > now}

    def write_live_output(self, written):
        for record in written:
            found = self.records.get(_lease(record))
            if _lease(record) in self.requests and (found is None or found.is_live):
                self.write_output([record])

    def trim_output(self, *, before, budget, limit):
        deleted = 0
        for attempt, record in [*self.records.items()][:limit]:
            size = sum(len(each.output) for each in self.records.values())
            if record.ended >= before and size <= budget:
                break
            del self.records[attempt]
            deleted += 1
        return deleted


def _lease(of):
    return of.key, of.scheduled_time, of.owner


class TestOutputOfAFileStore(OutputContract):
    """The contract of a part of a store, on the shortest implementation of it."""

    @pytest.fixture
    def backend_factory(self, example, tmp_path):
        settings = settings_of(tmp_path)
        store = type("Store", (KeepsOutputInMemory, example.FileStore), {})
        kept = {}, {}
        return lambda: store(*kept, settings, clock=SystemClock(), rng=random.Random())  # noqa: S311


class KeepsAlertsInMemory:
    """The shortest implementation of this part of a store."""

    alerts = property(lambda self: self)

    def __init__(self, kept, lock, *arguments, **options):
        super().__init__(*arguments, **options)
        self.kept = kept
        self.lock = lock

    def problem(self):
        return None

    def raise_alerts(self, alerts):
        raised = []
        with self.lock:
            for alert in alerts:
                open_now = {each.subject for each in self.kept.values() if each.closed is None}
                if _incident(alert) in self.kept or alert.subject in open_now:
                    continue
                now = self.now_ms()
                new = replace(
                    alert,
                    raised=now,
                    next_try=now if alert.on_raise else None,
                    closed=None,
                    closed_text=None,
                    deliveries={},
                    owner=None,
                    fence=0,
                )
                self.kept[_incident(alert)] = new
                raised.append(new)
        return raised

    def close_alerts(self, alerts, text):
        closed = []
        with self.lock:
            for alert in alerts:
                found = self.kept.get(_incident(alert))
                if found is None or found.closed is not None:
                    continue
                now, due = self.now_ms(), found.next_try
                if found.on_close and found.owner is None:
                    due = now if due is None else min(due, now)
                new = replace(found, closed=now, closed_text=text, next_try=due)
                self.kept[_incident(alert)] = new
                closed.append(new)
        return closed

    def find_alerts(self, selection=EVERY_ALERT):
        found = [
            alert
            for alert in reversed(self.kept.values())
            if selection.key in {None, alert.key}
            and (not selection.rules or alert.rule in selection.rules)
            and not (selection.only_open and alert.closed is not None)
            and alert.raised >= (selection.since or 0)
        ]
        return iter(found[: selection.limit])

    def take_alerts(self, owner, *, lease, limit):
        with self.lock:
            now = self.now_ms()
            due = [each for each in self.kept.values() if (each.next_try or inf) <= now]
            taken = [
                replace(each, owner=owner, fence=each.fence + 1, next_try=now + ceil(lease * 1000))
                for each in sorted(due, key=attrgetter("next_try"))[:limit]
            ]
            self.kept.update({_incident(each): each for each in taken})
        return taken

    def note_deliveries(self, alert):
        with self.lock:
            found = self.kept.get(_incident(alert))
            is_held = found is not None and found.owner is not None
            if not is_held or (found.owner, found.fence) != (alert.owner, alert.fence):
                return False
            is_news = found.on_close and found.closed != alert.closed
            self.kept[_incident(alert)] = replace(
                found,
                deliveries=alert.deliveries,
                next_try=self.now_ms() if is_news else alert.next_try,
                owner=None,
            )
            return True

    def trim_alerts(self, *, before, limit):
        with self.lock:
            old = [
                key
                for key, each in self.kept.items()
                if each.closed is not None and each.closed < before and each.next_try is None
            ][:limit]
            for key in old:
                del self.kept[key]
            return len(old)

    def now_ms(self):
        return int(self.now() * 1000)


def _incident(alert):
    return (*alert.subject, alert.since)


class TestAlertsOfAFileStore(AlertsContract):
    """The contract of a part of a store, on the shortest implementation of it."""

    @pytest.fixture
    def backend_factory(self, example, tmp_path):
        settings = settings_of(tmp_path)
        store = type("Store", (KeepsAlertsInMemory, example.FileStore), {})
        store(None, None, settings, clock=SystemClock(), rng=random.Random()).init()  # noqa: S311
        kept = {}, threading.Lock()
        return lambda: store(*kept, settings, clock=SystemClock(), rng=random.Random())  # noqa: S311


class KeepsPausesInMemory:
    """The shortest implementation of this part of a store."""

    pauses = property(lambda self: self)

    def __init__(self, rules, *arguments, **options):
        super().__init__(*arguments, **options)
        self.rules = rules

    def pause_rules(self):
        return [*self.rules.values()]

    def change_pause_rules(self, *, drop, store):
        for each in drop:
            self.rules.pop(each, None)
        self.rules.update({rule.id: rule for rule in store})


class TestPausesOfAFileStore(PausesContract):
    """The contract of a part of a store, on the shortest implementation of it."""

    @pytest.fixture
    def backend_factory(self, example, tmp_path):
        settings = settings_of(tmp_path)
        store = type("Store", (KeepsPausesInMemory, example.FileStore), {})
        kept = {}
        return lambda: store(kept, settings, clock=SystemClock(), rng=random.Random())  # noqa: S311


def test_a_class_that_does_not_derive_from_the_protocol_can_leave_out_as_much(
    tmp_path, monkeypatch
):
    module = tmp_path / "bare.py"
    module.write_text(
        "class Bare:\n"
        "    def __init__(self, settings, *, clock, rng): pass\n"
        "    def rows(self): return iter('abc')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = from_mapping({"type": "bare:Bare"})
    store = app.create_store(settings, clock=SystemClock(), rng=random.Random())  # noqa: S311
    assert (store.history, store.holds, store.light_reads) == (None, None, None)
    assert (store.count(), store.backlog(9)) == (3, Backlog())
    with pytest.raises(NotSupportedError, match="cannot join a transaction"):
        store.join_transaction(None)
