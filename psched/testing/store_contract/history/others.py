"""Tests of the records of workers, and of changes of schedules."""

from dataclasses import replace as changed
from math import floor
from typing import Any

from psched.core.history.protocol import AuditSelection
from psched.core.history.records import AuditRecord, WorkerRecord
from psched.testing.store_contract.bench import LATER, BackendFactory
from psched.testing.store_contract.history.bench import MANY, history_of, trim

_WORKER = WorkerRecord(
    nonce="nonce",
    host="host",
    pid=77,
    number=0,
    generation=3,
    slots=4,
    busy=1,
    types='["a"]',
    started=0,
    seen=0,
    clock_offset=-86_400_123,
    zone_data="2026b",
)

_CHANGE = AuditRecord(key="k", action="modify", user="root", host="host", program="psched modify")


class WorkersAndChanges:
    """Tests that it is known who was alive, and who has changed a schedule."""

    def test_a_worker_has_one_record_with_the_time_of_its_last_beat(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        before = floor(store.now())
        history_of(store).beat(_WORKER)
        (first,) = history_of(backend_factory()).workers()
        assert before <= first.started <= first.seen <= store.now()
        assert changed(first, started=0, seen=0) == _WORKER
        busy = changed(first, busy=2, types=None, number=2**31, slots=1000)
        history_of(store).beat(changed(busy, seen=0))
        (second,) = history_of(store).workers()
        assert changed(second, seen=0) == changed(busy, seen=0)
        assert second.seen >= first.seen
        # A worker of an earlier version does not know by how much its clock is off, for example.
        unknown: dict[str, Any] = {"clock_offset": None, "zone_data": None}
        history_of(store).beat(changed(first, **unknown))
        (third,) = history_of(store).workers()
        assert changed(third, seen=0) == changed(first, seen=0, **unknown)

    def test_the_record_of_a_worker_that_has_ended_has_its_end(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        history_of(store).beat(_WORKER)
        (alive,) = history_of(store).workers()
        assert alive.ended is None
        before = floor(store.now())
        history_of(store).beat(changed(alive, busy=0, ended=0))
        (over,) = history_of(store).workers()
        assert before <= (over.ended or 0) <= store.now()
        assert over.started == alive.started
        history_of(store).beat(changed(_WORKER, nonce="other", started=5, ended=7))
        others = [each for each in history_of(store).workers() if each.nonce == "other"]
        assert [(each.started, each.ended) for each in others] == [(5, 7)]

    def test_workers_are_found_by_when_they_were_seen(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for nonce in "a", "b", "B":
            history_of(store).beat(changed(_WORKER, nonce=nonce))
        found_workers = history_of(store).workers()
        assert sorted(each.nonce for each in found_workers) == ["B", "a", "b"]
        since = max(each.seen for each in found_workers)
        assert {each.nonce for each in history_of(store).workers(since)} == {
            each.nonce for each in found_workers if each.seen >= since
        }
        assert [*history_of(store).workers(LATER)] == []

    def test_workers_that_were_not_seen_for_long_are_trimmed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        history_of(store).beat(_WORKER)
        (seen,) = history_of(store).workers()
        history_of(store).trim(before=seen.seen * 1000, limit=10)
        assert [*history_of(store).workers()] == [seen]
        history_of(store).trim(before=(seen.seen + 1) * 1000, limit=10)
        assert [*history_of(store).workers()] == []

    # --- changes -----------------------------------------------------------------------

    def test_changes_are_kept_with_the_time_of_the_store(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        full = changed(_CHANGE, note='why "日本"', before='{"cron":"a"}', after='{"cron":"b"}')
        before = floor(store.now() * 1000)
        history_of(store).audit([_CHANGE])
        history_of(store).audit([full])
        history_of(store).audit([])
        kept = [*history_of(backend_factory()).audits(AuditSelection())]
        assert [changed(each, id=None, time=None) for each in kept] == [full, _CHANGE]
        # The database may round its clock.
        assert all(before - 1 <= (each.time or 0) <= store.now() * 1000 + 1 for each in kept)

    def test_changes_are_read_newest_first_by_key_and_time(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for number in range(MANY // 10):
            # A batch has one time, so that its changes have no order.
            key = f"k{number % 3}"
            history_of(store).audit([changed(_CHANGE, key=key, note=str(number))] * 10)
        kept = [*history_of(store).audits(AuditSelection())]
        assert [int(each.note or "") for each in kept] == [
            number for number in reversed(range(MANY // 10)) for _ in range(10)
        ]
        since = kept[MANY // 2].time or 0
        for selection in (
            AuditSelection(key="k1"),
            AuditSelection(key="K1"),
            AuditSelection(since=since),
            AuditSelection(key="k2", since=since),
            AuditSelection(since=LATER * 1000),
        ):
            expected = [
                each
                for each in kept
                if selection.key in {None, each.key} and (each.time or 0) >= (selection.since or 0)
            ]
            read = [*history_of(store).audits(selection)]
            assert read == expected, selection
            for limit in 0, 1, 200, 201:
                some = history_of(store).audits(changed(selection, limit=limit))
                assert [*some] == expected[:limit], (selection, limit)

    def test_old_changes_are_trimmed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        history_of(store).audit([changed(_CHANGE, key=f"k{number}") for number in range(9)])
        times = [each.time or 0 for each in history_of(store).audits(AuditSelection())]
        assert history_of(store).trim(before=min(times), limit=4) == 0
        assert 0 < history_of(store).trim(before=max(times) + 1, limit=4) <= 4  # noqa: PLR2004
        trim(store, before=max(times) + 1)
        assert [*history_of(store).audits(AuditSelection())] == []
