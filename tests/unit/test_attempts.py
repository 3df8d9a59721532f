"""Tests of attempts: how long a failed task waits for the next one, and when it gives up."""

from dataclasses import replace as changed
from itertools import pairwise
from statistics import mean

import pytest

from psched import config
from psched.core import attempts
from psched.core.definition import parse_row
from psched.core.model import EXPIRED, FAILED, PAUSED, Row
from psched.triggers.trigger import Every

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
NOON = 1_800_014_400
HOUR = 3600


def waits(count, *, key="k", next_time=NOON, **settings):
    """The waits after the first failures of a task, in seconds, one wait for each failure."""
    own = SETTINGS.with_settings(**settings)
    rows = (Row(key=key, next_time=next_time, attempt=n) for n in range(1, count + 1))
    return [attempts.retry_delay(row, parse_row(row, own)) for row in rows]


def given_up(row, now, **settings):
    return attempts.give_up_reason(row, parse_row(row, SETTINGS.with_settings(**settings)), now)


class TestFirstTime:
    """Tests of rows without a time."""

    def test_it_follows_what_is_decided(self):
        row = Row(key="k", decided_until=NOON)
        assert attempts.first_time(row, Every(60), NOON + HOUR) == NOON + 60
        assert attempts.first_time(row, Every(1), NOON + HOUR) == NOON + 1
        assert attempts.first_time(row, None, NOON + HOUR + 0.5) == NOON + HOUR + 1

    def test_it_is_the_next_one_if_nothing_is_decided(self):
        assert attempts.first_time(Row(key="k"), Every(60), NOON + 0.5) == NOON + 60


@pytest.mark.parametrize(("attempt", "before"), [(-5, 0), (0, 0), (1, 0), (3, 2)])
def test_a_claim_that_is_no_attempt_is_taken_back(attempt, before):
    assert attempts.before_claim(Row(key="k", attempt=attempt)) == before


@pytest.mark.parametrize(
    ("row", "is_told"),
    [
        (Row(key="k", next_time=NOON, attempt=1), True),
        (Row(key="k", next_time=NOON, attempt=1, status=PAUSED), False),
        (Row(key="k", next_time=NOON, attempt=1, moved_at=NOON), False),
        (Row(key="k", next_time=None, attempt=1), False),
    ],
)
def test_the_death_of_a_worker_is_told_unless_a_client_has_changed_the_row(row, is_told):
    row = changed(row, reason="r", reason_code="c")
    told = {"reason": "its worker died", "reason_code": "worker_died"}
    assert attempts.told_of_death(row) == (told if is_told else {"reason": "r", "reason_code": "c"})


class TestBackoff:
    def test_a_fixed_wait_is_the_same_each_time(self):
        assert waits(50, retry_wait=7) == [7] * 50

    def test_an_exponential_one_doubles_less_a_jitter_of_up_to_a_half(self):
        found = waits(10, retry_wait=10, retry_backoff="exponential", retry_wait_limit=10**9)
        for number, wait in enumerate(found):
            assert 5 * 2**number < wait <= 10 * 2**number
        assert all(two > one / 2 for one, two in pairwise(found))

    def test_it_comes_to_a_limit_and_never_to_an_overflow(self):
        found = waits(3000, retry_wait=10, retry_backoff="exponential", retry_wait_limit=600)
        assert max(found) <= 600
        assert min(found[10:]) >= 300

    def test_a_limit_below_the_wait_itself_makes_it_no_shorter(self):
        found = waits(9, retry_wait=100, retry_backoff="exponential", retry_wait_limit=1)
        assert all(50 < wait <= 100 for wait in found)

    def test_no_wait_stays_none(self):
        assert waits(9, retry_wait=0, retry_backoff="exponential") == [0] * 9

    def test_what_failed_together_is_not_tried_together_again(self):
        exponential = {"retry_wait": 1000, "retry_backoff": "exponential"}
        firsts = [waits(1, key=f"k{n}", **exponential)[0] for n in range(500)]
        assert len({round(wait) for wait in firsts}) > 250
        assert mean(firsts) == pytest.approx(750, rel=0.05)

    def test_who_computes_it_again_finds_the_same(self):
        exponential = {"retry_wait": 1000, "retry_backoff": "exponential"}
        assert waits(5, **exponential) == waits(5, **exponential)
        assert waits(1, **exponential) != waits(1, next_time=NOON + 60, **exponential)

    @pytest.mark.parametrize("attempt", [-1, 0])
    def test_an_attempt_that_nobody_counted_is_the_first(self, attempt):
        row = Row(key="k", next_time=None, attempt=attempt)
        own = SETTINGS.with_settings(retry_wait=10, retry_backoff="exponential")
        assert 5 < attempts.retry_delay(row, parse_row(row, own)) <= 10


class TestWaitAfterDeath:
    @pytest.mark.parametrize(
        ("attempt", "waits"), [(0, 0), (1, 0), (2, 1), (3, 2), (13, 12), (14, 12), (10**6, 12)]
    )
    def test_it_grows_from_the_second_death_on_up_to_twelve_times_the_wait(self, attempt, waits):
        assert attempts.wait_after_death(attempt, 300) == waits * 300


class TestSpent:
    def test_the_last_attempt_is_the_last(self):
        for most, attempt, spent in ((3, 2, False), (3, 3, True), (3, 4, True), (1, 1, True)):
            row = Row(key="k", attempt=attempt)
            own = SETTINGS.with_settings(max_attempts=most)
            assert attempts.is_exhausted(row, parse_row(row, own)) is spent

    def test_without_a_number_there_is_no_last_one(self):
        row = Row(key="k", attempt=10**6)
        assert not attempts.is_exhausted(row, parse_row(row, SETTINGS))

    def test_who_is_claimed_for_one_attempt_more_lost_its_worker_in_the_last(self):
        for cron in (None, "@daily"):
            row = Row(key="k", cron=cron, next_time=NOON, created_at=NOON, attempt=3)
            assert given_up(row, NOON, max_attempts=3) is None
            status, reason = given_up(row, NOON, max_attempts=2)
            assert status == FAILED
            assert reason == "gave up: its worker died in the last of 2 attempts"

    def test_whose_last_attempt_was_settled_was_allowed_more_attempts_then(self):
        row = Row(key="k", next_time=NOON, created_at=NOON, attempt=3, fence=3, reason="no good")
        died = "gave up: its worker died in the last of 2 attempts"
        fewer = "gave up after 2 attempts, because max_attempts is 2: no good"
        for settled_by, code, said in (
            (None, "attempt_failed", died),
            ("w.1#1", "attempt_failed", died),
            ("w.1#2", "worker_died", died),
            ("w.1#2", "attempt_failed", fewer),
            ("w.1#2", None, fewer),
        ):
            claimed = changed(row, settled_by=settled_by, reason_code=code)
            assert given_up(claimed, NOON, max_attempts=2) == (FAILED, said)
        alone = changed(row, settled_by="w.1#2", reason=None, attempt=2)
        said = "gave up after 1 attempt, because max_attempts is 1"
        assert given_up(alone, NOON, max_attempts=1) == (FAILED, said)


class TestExpiry:
    ROW = Row(key="k", next_time=NOON, created_at=NOON - 10, attempt=1)

    def test_what_runs_once_expires_after_the_later_of_its_making_and_its_time(self):
        for next_time, created_at in ((NOON, NOON - 10), (NOON - 10, NOON)):
            row = Row(key="k", next_time=next_time, created_at=created_at, attempt=1)
            assert given_up(row, NOON + HOUR - 0.1, expire=HOUR) is None
            status, reason = given_up(row, NOON + HOUR, expire=HOUR)
            assert (status, reason) == (EXPIRED, "expired: it has not succeeded within 3600 s")

    def test_a_delay_longer_than_that_leaves_it_its_time(self):
        row = Row(key="k", next_time=NOON, created_at=NOON, delay=2 * HOUR, attempt=1)
        assert given_up(row, NOON + 2 * HOUR, expire=HOUR) is None
        assert given_up(row, NOON + 3 * HOUR, expire=HOUR)[0] == EXPIRED

    def test_the_default_is_four_days(self):
        assert given_up(self.ROW, NOON + 345_599) is None
        assert given_up(self.ROW, NOON + 345_600)[0] == EXPIRED

    def test_nothing_expires_that_is_not_to(self):
        assert given_up(self.ROW, NOON + 10**9, expire=0) is None

    def test_a_schedule_does_not_expire(self):
        row = Row(key="k", cron="@daily", next_time=NOON, created_at=NOON, attempt=1)
        assert given_up(row, NOON + 10**9) is None

    def test_a_row_that_does_not_say_when_it_was_made_does_not_expire(self):
        """Plain SQL can insert a row without ``created_at``; reading it as 0 would be 1970."""
        row = Row(key="k", next_time=0, attempt=1)
        assert given_up(row, NOON, expire=1) is None
        assert given_up(Row(key="k", created_at=0, attempt=1), NOON, expire=1) is None
