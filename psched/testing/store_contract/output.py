"""Tests of what attempts have printed: the capability `psched.core.output.protocol.KeepsOutput`."""

import random
from collections.abc import Sequence
from dataclasses import replace as changed
from functools import partial
from typing import Any

from psched.core.output.protocol import KeepsOutput, OutputSelection
from psched.core.output.records import OutputRecord
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LATER, LONG_AGO, BackendFactory

ENDED = 1_700_000_000_000
"""When the first record of a test ended, in milliseconds."""

MANY = 70
"""More records than a store reads or writes in one request."""

_LARGE = 2**20
"""The largest output of an attempt, in bytes; see the setting ``output_limit``."""

_SIZE = 4096
"""The bytes of each output in a test of the budget."""

_NO_BUDGET = 2**62


def output_of(store: Store) -> KeepsOutput:
    """The store, which must have the capability."""
    assert isinstance(store, KeepsOutput)
    return store


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


class OutputContract:
    """Tests of a store that keeps output. Needs the fixture ``backend_factory``."""

    def test_output_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        assert output_of(store).output_problem() is None
        assert kept(store) == []
        record = printed()
        output_of(store).write_output([record])
        assert kept(store) == [record]
        assert kept(backend_factory()) == [record]
        store.try_rights()
        assert kept(store) == [record]

    def test_no_record_is_written_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        output_of(store).write_output([])
        assert kept(store) == []

    def test_every_field_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        records = [
            printed(owner="w.1", output=b"", dropped=None),
            printed(owner="w.2", dropped=2**40, attempt=2**31, scheduled_time=0),
            printed(owner="w.3", is_live=True, ended=LATER * 1000, scheduled_time=LATER),
            printed(owner="w" * 64),
        ]
        output_of(store).write_output(records)
        assert kept(store) == records[::-1]

    def test_any_bytes_are_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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
            noise(_SIZE),
        ]
        records = [printed(owner=f"w.{i}", output=text) for i, text in enumerate(texts)]
        output_of(store).write_output(records)
        assert kept(store) == records[::-1]

    def test_a_mebibyte_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        records = [
            printed(owner="w.1", output=noise(_LARGE)),
            printed(owner="w.2", output=b"\0" * _LARGE),
            printed(owner="w.3", output=b"'" * _LARGE),
        ]
        for record in records:
            output_of(store).write_output([record])
        assert kept(store) == records[::-1]

    def test_key_scheduled_time_and_owner_identify_an_attempt(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        records = [printed(output=b"x" * size) for size in range(5)]
        output_of(store).write_output([*records, printed("other")])
        assert kept(store) == [records[-1]]
        assert kept(store, "other") == [printed("other")]

    def test_a_selection_returns_the_records_that_fulfil_it(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_later_records_have_larger_numbers(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        for number in range(3):
            output_of(store).write_output([printed(owner=f"w.{number}")])
        ids = [each.id or 0 for each in output_of(store).outputs(OutputSelection(key="k"))]
        assert ids == sorted(ids, reverse=True)
        assert len({*ids}) == len(ids)

    # --- trimming ----------------------------------------------------------------------

    def test_old_records_are_trimmed_a_part_at_a_time(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_the_oldest_are_trimmed_until_the_others_fit(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        records = _numbered(30, size=_SIZE)
        output_of(store).write_output(records)
        for most in 30, 20, 9:
            budget = most * _SIZE
            left = _trim_to(store, budget)
            assert left == records[: -len(left) - 1 : -1], "the newest are left"
            # A store may count what a record takes besides its output.
            assert most // 2 <= len(left) <= most
            assert output_of(store).trim_output(before=0, budget=budget, limit=100) == 0

    def test_one_call_deletes_no_more_than_the_limit(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        records = _numbered(20, size=_SIZE)
        output_of(store).write_output(records)
        deleted = output_of(store).trim_output(before=0, budget=_SIZE, limit=6)
        assert 0 < deleted <= 6  # noqa: PLR2004  # the limit
        assert kept(store) == records[: deleted - 1 : -1]

    def test_what_was_replaced_takes_no_part_of_the_budget(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        output_of(store).write_output([printed("first", output=noise(_SIZE))])
        for number in range(20):
            live = printed(output=noise(_SIZE, number), is_live=True)
            output_of(store).write_output([live])
            output_of(store).trim_output(before=0, budget=4 * _SIZE, limit=10)
        assert [len(kept(store, key)) for key in ("first", "k")] == [1, 1]

    def test_what_was_trimmed_takes_no_part_of_the_budget(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for number in range(20):
            record = printed(output=noise(_SIZE, number), owner=f"w.{number}", ended=ENDED + number)
            output_of(store).write_output([record])
            _trim_to(backend_factory(), 8 * _SIZE)
        assert 4 <= len(kept(store)) <= 8  # noqa: PLR2004  # the budget, and a half of it

    def test_the_output_of_an_older_attempt_can_be_larger_than_the_budget(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        output_of(store).write_output([printed(owner="w.1", output=noise(_LARGE))])
        small = printed(owner="w.2")
        output_of(store).write_output([small])
        assert _trim_to(store, _LARGE // 2) == [small]

    def test_age_and_budget_are_applied_in_one_call(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        records = _numbered(20, size=_SIZE)
        output_of(store).write_output(records)
        trim = partial(output_of(store).trim_output, before=records[10].ended, limit=100)
        while trim(budget=15 * _SIZE):
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
