"""Tests of writing and reading output."""

from dataclasses import replace as changed
from typing import Any

from psched.core.output.protocol import OutputSelection
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


class Keeping:
    """Tests that output is kept as it was printed, and read as it is asked for."""

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
            noise(SIZE),
        ]
        records = [printed(owner=f"w.{i}", output=text) for i, text in enumerate(texts)]
        output_of(store).write_output(records)
        assert kept(store) == records[::-1]

    def test_a_mebibyte_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        records = [
            printed(owner="w.1", output=noise(LARGE)),
            printed(owner="w.2", output=b"\0" * LARGE),
            printed(owner="w.3", output=b"'" * LARGE),
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
