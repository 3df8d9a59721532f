"""Tests of psched.core.operations.skipping."""

from dataclasses import replace

import pytest

from psched.base.errors import AlreadyExistsError, AlreadyFinishedError, InvalidError, NotFoundError
from psched.config import from_mapping
from psched.core.model import Row
from psched.core.operations.skipping import reason_of, skip

HOUR = 3600
NOW = 1_000_000 * HOUR
SETTINGS = from_mapping({"url": "sqlite:///unused.db"})
REASON = "skipped by ann@web1"

ROW = Row(
    key="k", type="t", cron="@hourly", next_time=NOW + HOUR, next_run_time=NOW + HOUR, fence=7,
    version=3, created_at=5,
)  # fmt: skip


def skipped(row, number=1, now=NOW):
    return skip(row, SETTINGS, number, now, reason=REASON)


def spans(found):
    return [(each.fate, each.first, each.until, each.count) for each in found]


def test_the_row_moves_behind_the_occurrences():
    row, found = skipped(ROW, 3)
    assert row == replace(ROW, next_time=NOW + 4 * HOUR, next_run_time=NOW + 4 * HOUR)
    assert spans(found) == [("skipped", NOW + HOUR, NOW + 3 * HOUR, 3)]
    assert found[0].reason == REASON


def test_attempts_and_their_reason_end():
    tried = replace(ROW, next_time=NOW, next_run_time=NOW + 20, attempt=2, reason="no answer")
    row, found = skipped(tried)
    assert (row.next_time, row.attempt, row.reason) == (NOW + HOUR, 0, None)
    assert spans(found) == [("skipped", NOW, NOW, 1)]


@pytest.mark.parametrize(
    ("catchup", "dropped"),
    [
        ("latest", [("coalesced", NOW - 2 * HOUR, NOW - HOUR, 2)]),
        ("skip", [("skipped_catchup", NOW - 2 * HOUR, NOW - HOUR, 2)]),
        ("all", []),
    ],
)
def test_what_the_catch_up_policy_drops_has_its_own_fate(catchup, dropped):
    late = replace(
        ROW, next_time=NOW - 2 * HOUR, next_run_time=NOW - 2 * HOUR,
        options=f'{{"catchup":"{catchup}","catchup_grace":60}}',
    )  # fmt: skip
    row, found = skipped(late)
    first = NOW if dropped else NOW - 2 * HOUR
    assert spans(found) == [*dropped, ("skipped", first, first, 1)]
    assert row.next_time == first + HOUR


def test_a_row_without_a_time_begins_after_what_is_decided():
    row, found = skipped(replace(ROW, next_time=None, decided_until=NOW + HOUR))
    assert spans(found) == [("skipped", NOW + 2 * HOUR, NOW + 2 * HOUR, 1)]
    assert (row.next_time, row.attempt) == (NOW + 3 * HOUR, 0)


def test_a_paused_row_stays_paused_and_begins_with_the_oldest():
    paused = replace(ROW, status="paused", next_time=NOW - HOUR, next_run_time=NOW + 5, reason="p")
    row, found = skipped(paused)
    assert row == replace(paused, next_time=NOW)
    assert spans(found) == [("skipped", NOW - HOUR, NOW - HOUR, 1)]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"owner": "n.1", "attempt": 1}, InvalidError, "runs now"),
        ({"owner": "n.1", "attempt": -1}, InvalidError, "runs now"),
        ({"owner": "n.1", "attempt": 1, "status": "paused"}, InvalidError, "runs now"),
        ({"cron": None}, InvalidError, "runs only once"),
        ({"next_run_time": None}, InvalidError, "has no next run"),
        ({"cron": "@horly"}, InvalidError, "cron"),
        ({"status": "cancelled"}, AlreadyFinishedError, "has ended already"),
        ({"status": "finishing", "owner": "n.1"}, AlreadyFinishedError, "is about to end"),
        ({"status": "quarantined"}, AlreadyExistsError, "it is quarantined"),
        ({"status": "migrating"}, AlreadyExistsError, "it is migrating"),
        ({"status": "deleting", "owner": "n.1"}, NotFoundError, "is being deleted"),
    ],
)
def test_what_cannot_be_skipped(changes, error, text):
    with pytest.raises(error, match=text):
        skipped(replace(ROW, **changes))


def test_the_reason_is_one_line_of_limited_length():
    assert reason_of("ann@web1", None) == "skipped by ann@web1"
    assert reason_of("ann@web1", "a\nb") == r"skipped by ann@web1: a\nb"
    assert len(reason_of("ann@web1", "x" * 5000)) <= 500
