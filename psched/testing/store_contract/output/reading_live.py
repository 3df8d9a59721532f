"""Tests of reading the output of running attempts."""

from dataclasses import replace as changed
from typing import Any

from psched.core.output.records import RunningAttempt
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LATER, LONG_AGO, BackendFactory
from psched.testing.store_contract.output.bench import (
    ENDED,
    LARGE,
    MANY,
    SIZE,
    kept,
    noise,
    output_of,
    printed,
)

_HOUR = 3_600_000
"""Milliseconds."""


class ReadingLive:
    """Tests that a worker learns who reads the output of its attempts, and can write it."""

    def test_output_that_nobody_asks_for_is_not_asked_for(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        attempts = [_running(), _running(owner="worker.2")]
        assert output_of(store).asked_output(attempts, _now(store)) == frozenset()
        assert output_of(store).asked_output([], _now(store)) == frozenset()
        assert output_of(store).output_of(_running()) is None

    def test_a_request_holds_until_its_time(self, backend_factory: BackendFactory) -> None:
        store, now = backend_factory(), _now(backend_factory())
        ask = output_of(store).ask_for_output
        assert not ask(_running(), now=now, until=now + _HOUR)
        assert _asked(backend_factory(), now) == {_running()}
        assert _asked(store, now + _HOUR - 1) == {_running()}
        assert _asked(store, now + _HOUR) == frozenset()
        assert ask(_running(), now=now, until=now + 2 * _HOUR)
        assert _asked(store, now + _HOUR) == {_running()}
        # A shorter request does not end a longer one.
        assert ask(_running(), now=now, until=now + _HOUR)
        assert _asked(store, now + _HOUR) == {_running()}
        assert not ask(_running(), now=now + 2 * _HOUR, until=now + 3 * _HOUR)

    def test_only_what_was_asked_for_is_found_among_many(
        self, backend_factory: BackendFactory
    ) -> None:
        store, now = backend_factory(), _now(backend_factory())
        attempts = [_running(f"k{n % 9}", owner=f"w.{n}") for n in range(3 * MANY)]
        others = [
            _running("K0", owner="w.0"),
            _running("k0", owner="W.0"),
            _running("k0", owner="w.0", scheduled_time=LATER),
        ]
        wanted = {*attempts[::7]}
        for attempt in wanted:
            output_of(store).ask_for_output(attempt, now=now, until=now + _HOUR)
        found = output_of(store).asked_output([*attempts, *others], now)
        assert found == wanted

    def test_a_request_is_no_output(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        _ask(store)
        assert kept(store) == []
        assert output_of(store).output_of(_running()) is None

    def test_what_was_asked_for_is_written_and_read(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        _ask(store)
        for output, dropped in (b"one\n", 0), (b"x" * 5000, 2**40), (b"", None), (noise(SIZE), 7):
            live = _live(output=output, dropped=dropped, ended=ENDED + len(output))
            output_of(store).write_live_output([live])
            assert _of(backend_factory()) == live
            assert kept(store) == ([live] if output else [])
            assert _asked(store, _now(store)) == {_running()}

    def test_an_attempt_that_has_printed_nothing_is_known_but_not_listed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        older = [printed(owner=f"w.{n}") for n in range(3)]
        output_of(store).write_output(older)
        _ask(store)
        output_of(store).write_live_output([_live(output=b"")])
        assert _of(store) == _live(output=b"")
        assert kept(store, limit=2) == older[:0:-1]

    def test_output_that_was_not_asked_for_is_not_written(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        _ask(store)
        others = [_live(key="other"), _live(owner="worker.2"), _live(scheduled_time=LATER)]
        output_of(store).write_live_output([*others, _live()])
        output_of(store).write_live_output([])
        assert kept(store) == [_live()]
        assert kept(store, "other") == []

    def test_what_was_written_stays_when_nobody_asks_any_more(
        self, backend_factory: BackendFactory
    ) -> None:
        store, now = backend_factory(), _now(backend_factory())
        output_of(store).ask_for_output(_running(), now=now, until=now + 100)
        output_of(store).write_live_output([_live()])
        assert _asked(store, now + 100) == frozenset()
        assert kept(store) == [_live()]

    def test_the_final_record_replaces_all(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        _ask(store)
        output_of(store).write_live_output([_live()])
        final = printed(output=b"hello\nworld\n", ended=ENDED + 5)
        output_of(store).write_output([final])
        assert kept(store) == [final]
        assert _asked(store, _now(store)) == frozenset()
        # A reader and a worker that are late change nothing.
        _ask(store)
        output_of(store).write_live_output([_live()])
        assert kept(store) == [final]
        assert _of(store) == final
        assert _asked(store, _now(store)) == frozenset()

    def test_large_output_of_many_attempts_is_written(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for number in range(4):
            _ask(store, owner=f"w.{number}")
        records = [_live(owner=f"w.{n}", output=noise(LARGE, n)) for n in range(4)]
        output_of(store).write_live_output(records)
        assert [_of(store, owner=f"w.{n}") for n in range(4)] == records

    def test_old_records_of_attempts_that_have_not_ended_are_trimmed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        now = _now(store)
        _ask(store, owner="silent")
        _ask(store, owner="lost")
        output_of(store).write_live_output([_live(owner="lost", ended=now)])
        output_of(store).write_live_output([_live(owner="silent", output=b"", ended=now)])
        output_of(store).trim_output(before=now, budget=2**62, limit=100)
        assert _of(store, owner="lost") is not None
        output_of(store).trim_output(before=now + 1, budget=2**62, limit=100)
        assert _of(store, owner="lost") is None
        assert _of(store, owner="silent") is None

    def test_a_request_is_trimmed_by_its_age(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        now = _now(store)
        output_of(store).ask_for_output(_running(), now=now, until=now + 100)
        output_of(store).trim_output(before=now, budget=2**62, limit=100)
        assert _asked(store, now) == {_running()}
        output_of(store).trim_output(before=now + _HOUR, budget=2**62, limit=100)
        assert _asked(store, now + 100) == frozenset()


def _now(store: Store) -> int:
    """The store's time in milliseconds."""
    return int(store.now() * 1000)


def _running(key: str = "k", **fields: Any) -> RunningAttempt:  # noqa: ANN401  # an attempt's
    given = {"scheduled_time": LONG_AGO, "owner": "worker.1", "attempt": 1, **fields}
    return RunningAttempt(key=key, **given)


def _live(**fields: Any) -> Any:  # noqa: ANN401  # a record's
    return printed(is_live=True, **fields)


def _ask(store: Store, **fields: Any) -> None:  # noqa: ANN401  # an attempt's
    now = _now(store)
    output_of(store).ask_for_output(_running(**fields), now=now, until=now + _HOUR)


def _asked(store: Store, now: int) -> object:
    return output_of(store).asked_output([_running()], now)


def _of(store: Store, **fields: Any) -> object:  # noqa: ANN401  # an attempt's
    found = output_of(store).output_of(_running(**fields))
    return None if found is None else changed(found, id=None)
