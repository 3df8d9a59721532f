"""Tests of what attempts have printed: a store's part `psched.core.output.KeepsOutput`."""

import random
from collections.abc import Sequence
from dataclasses import replace as changed
from functools import partial
from typing import Any

from psched.core.output import KeepsOutput, OutputRecord, OutputSelection, RunningAttempt
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LATER, LONG_AGO, BackendFactory, WithStore

ENDED = 1_700_000_000_000  # when the first record of a test ended, in milliseconds
MANY = 70  # more records than a store reads or writes in one request
LARGE = 2**20  # the largest output of an attempt, in bytes; see the setting ``output_limit``
SIZE = 4096  # the bytes of each output in a test of the budget


def output_of(store: Store) -> KeepsOutput:
    """What keeps the output of the store, which must have it."""
    assert store.output is not None
    return store.output


def printed(key: str = "k", **fields: Any) -> OutputRecord:  # noqa: ANN401  # a record's
    """A record of the first attempt, with these changes."""
    given = {
        "scheduled_time": LONG_AGO,
        "owner": "worker.1",
        "attempt": 1,
        "ended": ENDED,
        "output": b"hello\n",
        **fields,
    }
    return OutputRecord(key=key, **given)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that no compression makes shorter."""
    return random.Random(seed).randbytes(size)  # noqa: S311  # a test


def kept(store: Store, key: str = "k", **conditions: Any) -> list[OutputRecord]:  # noqa: ANN401
    """The records that fulfil these conditions, the newest first, without their numbers."""
    selection = OutputSelection(key=key, **conditions)
    return [changed(record, id=None) for record in output_of(store).outputs(selection)]


class Keeping(WithStore):
    """Tests that output is kept as it was printed, and read as it is asked for."""

    def test_output_is_kept(self, store: Store, other: Store) -> None:
        assert output_of(store).problem() is None
        assert kept(store) == []
        record = printed()
        output_of(store).write_output([record])
        assert kept(store) == [record]
        assert kept(other) == [record]
        store.try_rights()
        assert kept(store) == [record]

    def test_no_record_is_written_at_once(self, store: Store) -> None:
        output_of(store).write_output([])
        assert kept(store) == []

    def test_every_field_is_kept(self, store: Store) -> None:
        records = [
            printed(owner="w.1", output=b"", dropped=None),
            printed(owner="w.2", dropped=2**40, attempt=2**31, scheduled_time=0),
            printed(owner="w.3", is_live=True, ended=LATER * 1000, scheduled_time=LATER),
            printed(owner="w" * 64),
        ]
        output_of(store).write_output(records)
        assert kept(store) == records[::-1]

    def test_any_bytes_are_kept(self, store: Store) -> None:
        texts = [
            b"",
            b"\0",
            b"\0\0a\0",
            bytes(range(256)),
            b"\xff\xfe not UTF-8 \xc3",
            "日本語 \N{GRINNING FACE}\n".encode(),
            b"'; DROP TABLE psched; -- \\ \\' \\0 %s %(a)s :a ? \"",
            b"\x1f\x8b looks like gzip",
            b"\x1f\x8b\x08" + bytes(5000),
            b"H4sI",
            b"H4sI" * 3000,
            b"a line\n" * 9000,
            noise(SIZE),
        ]
        records = [printed(owner=f"w.{i}", output=text) for i, text in enumerate(texts)]
        output_of(store).write_output(records)
        assert kept(store) == records[::-1]

    def test_a_mebibyte_is_kept(self, store: Store) -> None:
        records = [
            printed(owner="w.1", output=noise(LARGE)),
            printed(owner="w.2", output=b"\0" * LARGE),
            printed(owner="w.3", output=b"'" * LARGE),
        ]
        for record in records:
            output_of(store).write_output([record])
        assert kept(store) == records[::-1]

    def test_key_scheduled_time_and_owner_identify_an_attempt(self, store: Store) -> None:
        first = printed("a")
        others = [
            changed(first, key="A"),
            changed(first, scheduled_time=LONG_AGO + 1),
            changed(first, owner="worker.2"),
            changed(first, owner="Worker.1"),
        ]
        output_of(store).write_output([first, *others])
        assert kept(store, "a") == [others[3], others[2], others[1], first]
        assert kept(store, "A") == [others[0]]
        assert kept(store, "none") == []

    def test_a_record_of_the_same_attempt_is_replaced(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        live = printed(output=b"one\n", is_live=True)
        other = printed(owner="worker.2")
        output_of(store).write_output([live, other])
        final = printed(output=b"one\ntwo\n", ended=ENDED + 5, dropped=3, attempt=2)
        output_of(store).write_output([final])
        # The record that has replaced another one is the newest.
        assert kept(store) == [final, other]
        for _ in range(3):  # as after a lost answer
            output_of(backend_factory()).write_output([final])
        assert kept(store) == [final, other]

    def test_the_last_of_several_records_of_one_attempt_in_one_request_is_kept(
        self, store: Store
    ) -> None:
        records = [printed(output=b"x" * size) for size in range(5)]
        output_of(store).write_output([*records, printed("other")])
        assert kept(store) == [records[-1]]
        assert kept(store, "other") == [printed("other")]

    def test_a_selection_returns_the_records_that_fulfil_it(self, store: Store) -> None:
        records = [
            printed(
                f"k{n % 2}",
                scheduled_time=LONG_AGO + n // 6,
                attempt=1 + n // 2 % 3,
                owner=f"w.{n}",
                output=b"%d\n" % n,
            )
            for n in range(MANY)
        ]
        output_of(store).write_output(records)
        newest_first = records[::-1]
        selections: list[dict[str, Any]] = [
            {},
            {"scheduled_time": LONG_AGO + 2},
            {"attempt": 2},
            {"scheduled_time": LONG_AGO + 3, "attempt": 1},
            {"scheduled_time": LONG_AGO + 3, "attempt": 9},
            {"scheduled_time": LATER},
        ]
        for conditions in selections:
            expected = [
                each
                for each in newest_first
                if each.key == "k1"
                and all(getattr(each, name) == value for name, value in conditions.items())
            ]
            assert kept(store, "k1", **conditions) == expected, conditions
            for limit in 0, 1, 2, len(expected), MANY:
                found = kept(store, "k1", **conditions, limit=limit)
                assert found == expected[:limit], (conditions, limit)

    def test_later_records_have_larger_numbers(self, store: Store) -> None:
        for number in range(3):
            output_of(store).write_output([printed(owner=f"w.{number}")])
        ids = [each.id or 0 for each in output_of(store).outputs(OutputSelection(key="k"))]
        assert ids == sorted(ids, reverse=True)
        assert len({*ids}) == len(ids)


_HOUR = 3_600_000  # milliseconds


class ReadingLive(WithStore):
    """Tests that a worker learns who reads the output of its attempts, and can write it."""

    def test_output_that_nobody_asks_for_is_not_asked_for(self, store: Store) -> None:
        attempts = [_running(), _running(owner="worker.2")]
        assert output_of(store).asked_output(attempts, _now(store)) == frozenset()
        assert output_of(store).asked_output([], _now(store)) == frozenset()
        assert output_of(store).output_of(_running()) is None

    def test_a_request_holds_until_its_time(self, store: Store, other: Store) -> None:
        now = _now(store)
        ask = output_of(store).ask_for_output
        assert not ask(_running(), now=now, until=now + _HOUR)
        assert _asked(other, now) == {_running()}
        assert _asked(store, now + _HOUR - 1) == {_running()}
        assert _asked(store, now + _HOUR) == frozenset()
        assert ask(_running(), now=now, until=now + 2 * _HOUR)
        assert _asked(store, now + _HOUR) == {_running()}
        # A shorter request does not end a longer one.
        assert ask(_running(), now=now, until=now + _HOUR)
        assert _asked(store, now + _HOUR) == {_running()}
        assert not ask(_running(), now=now + 2 * _HOUR, until=now + 3 * _HOUR)

    def test_only_what_was_asked_for_is_found_among_many(self, store: Store) -> None:
        now = _now(store)
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

    def test_a_request_is_no_output(self, store: Store) -> None:
        _ask(store)
        assert kept(store) == []
        assert output_of(store).output_of(_running()) is None

    def test_what_was_asked_for_is_written_and_read(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        _ask(store)
        for output, dropped in (b"one\n", 0), (b"x" * 5000, 2**40), (b"", None), (noise(SIZE), 7):
            live = _live(output=output, dropped=dropped, ended=ENDED + len(output))
            output_of(store).write_live_output([live])
            assert _of(backend_factory()) == live
            assert kept(store) == ([live] if output else [])
            assert _asked(store, _now(store)) == {_running()}

    def test_an_attempt_that_has_printed_nothing_is_known_but_not_listed(
        self, store: Store
    ) -> None:
        older = [printed(owner=f"w.{n}") for n in range(3)]
        output_of(store).write_output(older)
        _ask(store)
        output_of(store).write_live_output([_live(output=b"")])
        assert _of(store) == _live(output=b"")
        assert kept(store, limit=2) == older[:0:-1]

    def test_output_that_was_not_asked_for_is_not_written(self, store: Store) -> None:
        _ask(store)
        others = [_live(key="other"), _live(owner="worker.2"), _live(scheduled_time=LATER)]
        output_of(store).write_live_output([*others, _live()])
        output_of(store).write_live_output([])
        assert kept(store) == [_live()]
        assert kept(store, "other") == []

    def test_what_was_written_stays_when_nobody_asks_any_more(self, store: Store) -> None:
        now = _now(store)
        output_of(store).ask_for_output(_running(), now=now, until=now + 100)
        output_of(store).write_live_output([_live()])
        assert _asked(store, now + 100) == frozenset()
        assert kept(store) == [_live()]

    def test_the_final_record_replaces_all(self, store: Store) -> None:
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

    def test_large_output_of_many_attempts_is_written(self, store: Store) -> None:
        for number in range(4):
            _ask(store, owner=f"w.{number}")
        records = [_live(owner=f"w.{n}", output=noise(LARGE, n)) for n in range(4)]
        output_of(store).write_live_output(records)
        assert [_of(store, owner=f"w.{n}") for n in range(4)] == records

    def test_old_records_of_attempts_that_have_not_ended_are_trimmed(self, store: Store) -> None:
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

    def test_a_request_is_trimmed_by_its_age(self, store: Store) -> None:
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


_NO_BUDGET = 2**62


class Trimming(WithStore):
    """Tests that old output is deleted, and the oldest if all of it takes too much."""

    def test_old_records_are_trimmed_a_part_at_a_time(self, store: Store) -> None:
        records = _numbered(30)
        output_of(store).write_output(records)
        trim = partial(output_of(store).trim_output, budget=_NO_BUDGET)
        assert trim(before=0, limit=100) == 0
        assert trim(before=ENDED, limit=100) == 0
        left = len(records)
        while deleted := trim(before=records[20].ended, limit=7):
            assert 0 < deleted <= 7  # noqa: PLR2004  # the limit
            left -= deleted
            assert kept(store) == records[: -left - 1 : -1]
        assert kept(store) == records[:19:-1]

    def test_the_oldest_are_trimmed_until_the_others_fit(self, store: Store) -> None:
        records = _numbered(30, size=SIZE)
        output_of(store).write_output(records)
        for most in 30, 20, 9:
            budget = most * SIZE
            left = _trim_to(store, budget)
            assert left == records[: -len(left) - 1 : -1], "the newest are left"
            # A store may count what a record takes besides its output.
            assert most // 2 <= len(left) <= most
            assert output_of(store).trim_output(before=0, budget=budget, limit=100) == 0

    def test_one_call_deletes_no_more_than_the_limit(self, store: Store) -> None:
        records = _numbered(20, size=SIZE)
        output_of(store).write_output(records)
        deleted = output_of(store).trim_output(before=0, budget=SIZE, limit=6)
        assert 0 < deleted <= 6  # noqa: PLR2004  # the limit
        assert kept(store) == records[: deleted - 1 : -1]

    def test_what_was_replaced_takes_no_part_of_the_budget(self, store: Store) -> None:
        output_of(store).write_output([printed("first", output=noise(SIZE))])
        for number in range(20):
            live = printed(output=noise(SIZE, number), is_live=True)
            output_of(store).write_output([live])
            output_of(store).trim_output(before=0, budget=4 * SIZE, limit=10)
        assert [len(kept(store, key)) for key in ("first", "k")] == [1, 1]

    def test_what_was_trimmed_takes_no_part_of_the_budget(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        for number in range(20):
            record = printed(output=noise(SIZE, number), owner=f"w.{number}", ended=ENDED + number)
            output_of(store).write_output([record])
            _trim_to(backend_factory(), 8 * SIZE)
        assert 4 <= len(kept(store)) <= 8  # noqa: PLR2004  # the budget, and a half of it

    def test_the_output_of_an_older_attempt_can_be_larger_than_the_budget(
        self, store: Store
    ) -> None:
        output_of(store).write_output([printed(owner="w.1", output=noise(LARGE))])
        small = printed(owner="w.2")
        output_of(store).write_output([small])
        assert _trim_to(store, LARGE // 2) == [small]

    def test_age_and_budget_are_applied_in_one_call(self, store: Store) -> None:
        records = _numbered(20, size=SIZE)
        output_of(store).write_output(records)
        trim = partial(output_of(store).trim_output, before=records[10].ended, limit=100)
        while trim(budget=15 * SIZE):
            pass
        assert kept(store) == records[:9:-1]


def _numbered(count: int, size: int = 10) -> list[OutputRecord]:
    """Records of one key, the oldest first; they cannot be compressed."""
    return [
        printed(owner=f"w.{n}", ended=ENDED + n, output=noise(size, seed=n)) for n in range(count)
    ]


def _trim_to(store: Store, budget: int) -> Sequence[OutputRecord]:
    """Trim until nothing more is deleted; return what is left."""
    while output_of(store).trim_output(before=0, budget=budget, limit=7):
        pass
    return kept(store)


class OutputContract(Keeping, ReadingLive, Trimming):
    """Tests of a store that keeps output. Needs the fixture ``backend_factory``."""
