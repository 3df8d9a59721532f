"""Tests of the output that Redis keeps beyond the contract: its limits, and what it loses."""

import contextlib
import logging

import pytest

from psched.base.errors import StoreError
from psched.core.model import Row
from psched.core.output import OutputSelection, RunningAttempt
from psched.core.store_protocol import Settled
from psched.testing.store_contract.history import ending_with, recorded
from psched.testing.store_contract.output import ENDED, SIZE, kept, noise, printed
from support.stores import store_factory
from support.waiting import wait_until

pytestmark = pytest.mark.redis

CLAIM = {"limit": 200, "alive_time": 60, "shortest": 1, "horizon": 0}
WEEK = 7 * 86_400
ALL, INFO = "{psched}:output", "{psched}:output_info"

ABOVE = 1000
"""About the bytes that a record takes besides its output, and some."""


@pytest.fixture
def database(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def open_with(database, store):  # noqa: ARG001  # the store has initialised the database
    """A function that opens a further store with these parameters."""
    with contextlib.ExitStack() as opened:

        def open_with(**parameters):
            return opened.enter_context(store_factory(database.url, **parameters))()

        yield open_with


@pytest.fixture
def left(redis_cli):
    """A function that returns all keys of output, without the prefix."""

    def left():
        names = (name.decode().partition(":")[2] for name in redis_cli("KEYS", "*"))
        return sorted(name for name in names if name.startswith(("output", "printed")))

    return left


def numbered(count, size=10, key="k"):
    """Records of one key, the oldest first; they cannot be compressed."""
    return [
        printed(key, owner=f"w.{n}", ended=ENDED + n, output=noise(size, n)) for n in range(count)
    ]


def total(redis_cli):
    return int(redis_cli("HGET", INFO, "size"))


class TestWhatCannotBeWritten:
    def test_a_full_memory_loses_output_and_nothing_else(self, store, set_memory, caplog):
        caplog.set_level(logging.INFO)
        store.output.write_output([printed("old")])
        store.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
        [row] = store.claim("nonce.1", **CLAIM).rows
        set_memory(1)
        store.output.write_output([printed("a"), printed("b")])
        store.output.write_output([printed("c")])
        assert store.settle([ending_with(row, recorded(row))]) == {"k": Settled.DONE}
        assert [kept(store, key) for key in "abc"] == [[], [], []]
        assert kept(store, "old") == [printed("old")]
        assert store.output.trim_output(before=ENDED + 1, budget=2**62, limit=100) == 1
        set_memory(0)
        store.output.write_output([printed("d")])
        assert kept(store, "d") == [printed("d")]
        said = [each.getMessage() for each in caplog.records if "outputs" in each.getMessage()]
        assert len(said) == 2
        assert said[0].startswith("outputs of attempts are lost (2 so far): ")
        assert "its memory is full: OOM" in said[0]
        assert said[1] == "outputs of attempts are written again; 3 lost"

    def test_a_user_without_a_right_keeps_no_output(self, store, database, redis_cli):
        redis_cli("ACL", "SETUSER", "u", "on", "nopass", "~{psched}*", "+@all", "-set", "-getrange")
        try:
            with store_factory(database.url.replace("://", "://u:x@")) as open_mine:
                mine = open_mine()
                assert mine.output.problem() == (
                    "the server refuses SET, GETRANGE (ERR The user executing the script can't run"
                    " this command or subcommand); give the user of url the rights that"
                    " docs/redis.md lists"
                )
                mine.try_rights()
                with pytest.raises(StoreError, match="can't run this command"):
                    mine.output.write_output([printed()])
                assert (kept(mine), mine.history.problem()) == ([], None)
        finally:
            redis_cli("ACL", "DELUSER", "u")
        assert store.output.problem() is None
        assert redis_cli("EXISTS", ALL) == 0

    def test_the_rights_that_the_documentation_lists_suffice(self, store, database, redis_cli):
        rights = (
            "~{psched}:* +@read +@write +@connection +evalsha +eval +time +wait +info +config|get"
        )
        redis_cli("ACL", "SETUSER", "u", "on", "nopass", *rights.split())
        try:
            with store_factory(database.url.replace("://", "://u:x@")) as open_mine:
                mine = open_mine()
                assert mine.output.problem() is None
                mine.output.write_output([printed(), printed("other")])
                assert kept(mine) == [printed()]
                assert mine.output.trim_output(before=ENDED + 1, budget=2**62, limit=9) == 2
        finally:
            redis_cli("ACL", "DELUSER", "u")
        assert kept(store) == []

    def test_keys_of_another_kind_stop_the_output_of_no_other_key(self, store, redis_cli):
        redis_cli("SET", f"{ALL}:k", "taken")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            store.output.write_output([printed()])
        store.output.write_output([printed("other")])
        assert kept(store, "other") == [printed("other")]


class TestLimits:
    def test_output_expires(self, open_with, redis_cli, left):
        store = open_with(output_keep=WEEK)
        store.output.write_output([printed()])
        assert left() == ["output", "output:k", "output_info", "printed:1"]
        for name in f"{ALL}:k", "{psched}:printed:1":
            assert WEEK - 60 < redis_cli("TTL", name) <= WEEK
        # What has expired is not found, and is no obstacle.
        redis_cli("DEL", "{psched}:printed:1")
        assert kept(store) == []
        store.output.write_output([printed()])
        assert kept(store) == [printed()]
        assert redis_cli("ZCARD", ALL) == 1
        redis_cli("DEL", "{psched}:printed:2", f"{ALL}:k")
        assert kept(store) == []
        assert store.output.trim_output(before=ENDED + 1, budget=2**62, limit=9) == 1
        assert left() == ["output_info"]
        assert total(redis_cli) == 0

    def test_nothing_is_left_of_what_was_deleted(self, store, redis_cli, left):
        store.output.write_output([*numbered(5), printed("other", ended=ENDED + 9)])
        assert store.output.trim_output(before=ENDED + 4, budget=2**62, limit=9) == 4
        assert redis_cli("ZCARD", f"{ALL}:k") == 1
        assert store.output.trim_output(before=ENDED + 9, budget=2**62, limit=9) == 1
        assert left() == ["output", "output:other", "output_info", "printed:6"]
        assert store.output.trim_output(before=0, budget=0, limit=9) == 1
        assert left() == ["output_info"]
        assert total(redis_cli) == 0

    def test_output_is_gone_after_its_time(self, open_with):
        store = open_with(output_keep=1)
        store.output.write_output([printed()])
        wait_until(lambda: not kept(store), what="the output to expire")

    def test_without_an_age_nothing_expires(self, open_with, store, redis_cli):
        open_with(output_keep=WEEK).output.write_output([printed()])
        store.output.write_output([printed(owner="w.2")])
        assert redis_cli("TTL", f"{ALL}:k") == -1
        assert redis_cli("TTL", "{psched}:printed:2") == -1

    def test_a_key_keeps_the_newest(self, open_with, redis_cli, left):
        store = open_with(history_keep_per_key=3)
        records = numbered(5)
        store.output.write_output([printed("other"), *records[:4]])
        store.output.write_output(records[4:])
        assert kept(store) == records[:1:-1]
        assert kept(store, "other") == [printed("other")]
        assert [name for name in left() if name.startswith("printed")] == [
            f"printed:{number}" for number in (1, 4, 5, 6)
        ]
        assert redis_cli("ZCARD", ALL) == 4

    def test_what_exceeds_the_budget_is_deleted_when_output_is_written(self, open_with, redis_cli):
        store = open_with(output_budget=8 * (SIZE + ABOVE))
        records = numbered(60, SIZE)
        for start in range(0, 60, 20):
            store.output.write_output(records[start : start + 20])
            assert total(redis_cli) <= 8 * (SIZE + ABOVE)
        found = kept(store)
        assert 8 <= len(found) <= 9
        assert found == records[: -len(found) - 1 : -1]

    def test_a_smaller_budget_is_reached_after_some_writes(self, store, open_with, redis_cli):
        store.output.write_output(numbered(100, SIZE, "old"))
        smaller = open_with(output_budget=10 * SIZE)
        for number in range(30):
            smaller.output.write_output([printed(owner=f"w.{number}", output=noise(SIZE, number))])
        assert total(redis_cli) <= 10 * SIZE
        assert kept(store, "old") == []

    def test_output_takes_at_most_a_quarter_of_the_memory(self, store, set_memory, redis_cli):
        used = int(redis_cli("INFO", "memory")["used_memory"])
        set_memory(2 * used + 40_000_000)
        store.output.write_output(numbered(50, SIZE))
        assert store.output.trim_output(before=0, budget=2**62, limit=100) == 0
        redis_cli("HINCRBY", INFO, "size", 2 * used + 40_000_000)
        assert store.output.trim_output(before=0, budget=2**62, limit=10) == 10

    def test_the_sum_of_sizes_is_about_the_memory(self, store, redis_cli):
        def used():
            return int(redis_cli("INFO", "memory")["used_memory"])

        for size in (20, SIZE):
            before, counted = used(), total(redis_cli) if size == SIZE else 0
            for start in range(0, 2000, 100):
                records = [printed(f"k{start + n}", output=noise(size, n)) for n in range(100)]
                store.output.write_output([*map(_of(size), records)])
            took, counted = used() - before, total(redis_cli) - counted
            assert 0.6 < took / counted < 1.2, (size, took / 2000, counted / 2000)


class TestRequests:
    def test_a_request_expires_and_ends_with_the_attempt(self, store, redis_cli):
        attempt = RunningAttempt(key="k", scheduled_time=60, owner="w.1", attempt=1)
        name = "{psched}:asked:60 w.1 k"
        now = int(store.now() * 1000)
        store.output.ask_for_output(attempt, now=now, until=now + 15_000)
        assert 0 < redis_cli("PTTL", name) <= 15_000
        store.output.write_live_output([printed(scheduled_time=60, owner="w.1", is_live=True)])
        assert 0 < redis_cli("PTTL", name) <= 15_000
        store.output.write_output([printed(scheduled_time=60, owner="w.1")])
        assert redis_cli("EXISTS", name) == 0
        assert redis_cli("ZCARD", ALL) == 1

    def test_live_output_is_limited_like_other_output(self, open_with, redis_cli, left):
        store = open_with(output_keep=WEEK, output_budget=3 * (SIZE + ABOVE))
        now = int(store.now() * 1000)
        for n in range(10):
            attempt = RunningAttempt(key="k", scheduled_time=60, owner=f"w.{n}", attempt=1)
            store.output.ask_for_output(attempt, now=now, until=now + 15_000)
            record = printed(scheduled_time=60, owner=f"w.{n}", output=noise(SIZE, n), is_live=True)
            store.output.write_live_output([record])
        assert total(redis_cli) <= 3 * (SIZE + ABOVE)
        printed_keys = [name for name in left() if name.startswith("printed")]
        assert 0 < redis_cli("TTL", f"{{psched}}:{printed_keys[-1]}") <= WEEK


class TestReading:
    def test_an_attempt_among_many_is_found(self, store):
        records = [
            printed(owner=f"w.{n}", attempt=n % 7 + 1, scheduled_time=n // 7) for n in range(1400)
        ]
        store.output.write_output(records)
        assert kept(store, scheduled_time=3, attempt=2) == [records[22]]
        assert kept(store, scheduled_time=0) == records[6::-1]
        assert len(kept(store, attempt=7)) == 200
        assert kept(store, limit=1) == [records[-1]]

    def test_much_output_is_read_in_parts(self, store):
        records = numbered(30, 2**19)
        store.output.write_output(records)
        assert kept(store) == records[::-1]

    def test_output_that_comes_meanwhile_disturbs_no_reader(self, store):
        records = numbered(60)
        store.output.write_output(records)
        reading = store.output.outputs(OutputSelection(key="k"))
        first = next(reading)
        store.output.write_output([records[10], printed(owner="late")])
        owners = [each.owner for each in (first, *reading)]
        assert owners == [f"w.{n}" for n in reversed(range(60)) if n != 10]

    def test_what_no_version_of_psched_has_written_is_left_out(self, store, redis_cli):
        store.output.write_output([printed()])
        for number, garbage in enumerate(("", "nonsense", "[]\n", "{}\nx", b"\xff\n"), 10):
            redis_cli("SET", f"{{psched}}:printed:{number}", garbage)
            redis_cli("ZADD", f"{ALL}:k", number, f"1 g.{number}")
            redis_cli("ZADD", ALL, number, garbage)
        redis_cli("ZADD", f"{ALL}:k", 1.5, "odd")
        assert kept(store) == [printed()]
        store.output.write_output([printed(owner="w.2")])
        while store.output.trim_output(before=ENDED + 1, budget=2**62, limit=3):
            pass
        assert kept(store) == []
        assert redis_cli("EXISTS", ALL) == 0

    def test_output_is_compressed(self, store, redis_cli):
        record = printed(output=b"a line that is repeated\n" * 1000)
        store.output.write_output([record])
        assert redis_cli("STRLEN", "{psched}:printed:1") < 1000
        assert kept(store) == [record]


def _of(size):
    """A function that gives a record another owner for each size."""
    return lambda record: printed(record.key, owner=f"w.{size}", output=record.output)
