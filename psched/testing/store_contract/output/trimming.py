"""Tests of deleting old output."""

from collections.abc import Sequence
from functools import partial

from psched.core.output.records import OutputRecord
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import BackendFactory
from psched.testing.store_contract.output.bench import (
    ENDED,
    LARGE,
    SIZE,
    kept,
    noise,
    output_of,
    printed,
)

_NO_BUDGET = 2**62


class Trimming:
    """Tests that old output is deleted, and the oldest if all of it takes too much."""

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
        records = _numbered(30, size=SIZE)
        output_of(store).write_output(records)
        for most in 30, 20, 9:
            budget = most * SIZE
            left = _trim_to(store, budget)
            assert left == records[: -len(left) - 1 : -1], "the newest are left"
            # A store may count what a record takes besides its output.
            assert most // 2 <= len(left) <= most
            assert output_of(store).trim_output(before=0, budget=budget, limit=100) == 0

    def test_one_call_deletes_no_more_than_the_limit(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        records = _numbered(20, size=SIZE)
        output_of(store).write_output(records)
        deleted = output_of(store).trim_output(before=0, budget=SIZE, limit=6)
        assert 0 < deleted <= 6  # noqa: PLR2004  # the limit
        assert kept(store) == records[: deleted - 1 : -1]

    def test_what_was_replaced_takes_no_part_of_the_budget(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        output_of(store).write_output([printed("first", output=noise(SIZE))])
        for number in range(20):
            live = printed(output=noise(SIZE, number), is_live=True)
            output_of(store).write_output([live])
            output_of(store).trim_output(before=0, budget=4 * SIZE, limit=10)
        assert [len(kept(store, key)) for key in ("first", "k")] == [1, 1]

    def test_what_was_trimmed_takes_no_part_of_the_budget(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for number in range(20):
            record = printed(output=noise(SIZE, number), owner=f"w.{number}", ended=ENDED + number)
            output_of(store).write_output([record])
            _trim_to(backend_factory(), 8 * SIZE)
        assert 4 <= len(kept(store)) <= 8  # noqa: PLR2004  # the budget, and a half of it

    def test_the_output_of_an_older_attempt_can_be_larger_than_the_budget(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        output_of(store).write_output([printed(owner="w.1", output=noise(LARGE))])
        small = printed(owner="w.2")
        output_of(store).write_output([small])
        assert _trim_to(store, LARGE // 2) == [small]

    def test_age_and_budget_are_applied_in_one_call(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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
