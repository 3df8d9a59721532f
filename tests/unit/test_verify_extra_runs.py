"""Whether the extra runs of a schedule overlap with its other runs."""

import json

import pytest

from psched.core.history.records import AuditRecord, RunRecord
from psched.core.model import Row
from psched.reports.findings import Kind
from psched.reports.verify import check_extra_runs

NOON = 1_800_014_400
EXTRA, OTHER = "k!20270115T120000Z", "k!" + "m" * 16


def run(key, start, end, **fields):
    """A record of a run from so many seconds after noon to so many."""
    return RunRecord(
        **{
            "key": key, "type": "t", "scheduled_time": NOON, "owner": f"w.{key}", "fence": 1,
            "started": (NOON + start) * 1000, "ended": (NOON + end) * 1000, "attempt": 1,
            "outcome": "finished", "fate": "finished", **fields,
        }
    )  # fmt: skip


def row(key, overlap):
    options = {"schedule": "k", **({"overlap": overlap} if overlap else {})}
    return Row(key=key, options=json.dumps(options))


def audit(action, **about):
    return AuditRecord(
        key="k", action=action, user="u", host="h", program="p", before="{}",
        after=json.dumps(about),
    )  # fmt: skip


def found(runs, rows=(), audits=()):
    return [*check_extra_runs("k", runs, {each.key: each for each in rows}, audits)]


@pytest.mark.parametrize("overlap", ["queue", "skip", None])
def test_an_extra_run_must_not_overlap_with_a_regular_run(overlap):
    runs = [run("k", 0, 60), run(EXTRA, 30, 90)]
    [violation] = found(runs, [row(EXTRA, overlap)])
    assert (violation.kind, violation.key, violation.instant) == (Kind.OVERLAP, EXTRA, NOON)
    assert violation.text == (
        f"the run of 2027-01-15T12:00:00Z (w.{EXTRA}#1) started at 2027-01-15T12:00:30.000Z, but"
        " the run k of 2027-01-15T12:00:00Z (w.k#1) ended only at 2027-01-15T12:01:00.000Z"
    )
    assert found(runs[::-1], [row(EXTRA, overlap)]) == [violation]


def test_an_extra_run_that_was_lost_may_not_have_started():
    """Its worker may have died when it had found the schedule busy."""
    rows = [row(EXTRA, "queue"), row(OTHER, "queue")]
    lost = run(EXTRA, 30, 90, outcome="lost", fate=None)
    assert found([run("k", 0, 60), lost], rows) == []
    assert found([run(OTHER, 0, 60), lost], rows) == []
    # Such a regular run had the lease of the schedule.
    lost = run("k", 30, 90, outcome="lost", fate=None)
    assert [each.key for each in found([run(OTHER, 0, 60), lost], rows)] == ["k"]


def test_a_regular_run_must_not_overlap_with_an_extra_run():
    [violation] = found([run(EXTRA, 0, 60), run("k", 30, 90)], [row(EXTRA, "queue")])
    assert violation.key == "k"


def test_extra_runs_must_not_overlap_with_each_other():
    rows = row(EXTRA, "queue"), row(OTHER, "skip")
    [violation] = found([run(EXTRA, 0, 60), run(OTHER, 58, 90)], rows)
    assert violation.key == OTHER
    assert found([run(EXTRA, 0, 60), run(OTHER, 60, 90)], rows) == []


@pytest.mark.parametrize("end", [29, 30, 30.9])
def test_runs_one_after_the_other_are_right(end):
    assert found([run("k", 0, end), run(EXTRA, 30, 90)], [row(EXTRA, "queue")]) == []


def test_parallel_runs_may_overlap():
    runs = [run("k", 0, 60), run(EXTRA, 30, 90), run(OTHER, 0, 99)]
    assert found(runs, [row(EXTRA, "parallel"), row(OTHER, "parallel")]) == []


def test_the_runs_of_one_key_are_not_compared():
    """The check of each key compares them."""
    assert found([run(EXTRA, 0, 60), run(EXTRA, 30, 90)], [row(EXTRA, "queue")]) == []


def test_the_end_of_a_lost_attempt_is_not_known():
    runs = [run(EXTRA, 0, 60, outcome="lost", fate=None), run("k", 30, 90)]
    assert found(runs, [row(EXTRA, "queue")]) == []


def test_of_a_row_that_is_gone_the_audit_trail_tells():
    runs = [run("k", 0, 60), run(EXTRA, 30, 90)]
    assert found(runs) == []
    assert len(found(runs, (), [audit("trigger", extra_run=EXTRA, overlap="skip")])) == 1
    assert found(runs, (), [audit("trigger", extra_run=OTHER, overlap="skip")]) == []
    assert found(runs, (), [audit("trigger", extra_run=EXTRA, overlap="parallel")]) == []
    around = {"first": NOON - 60, "last": NOON}
    assert len(found(runs, (), [audit("backfill", **around, overlap="queue")])) == 1
    later = {"first": NOON + 1, "last": NOON + 60}
    assert found(runs, (), [audit("backfill", **later, overlap="queue")]) == []
    both = [audit("backfill", **around, overlap=each) for each in ("queue", "parallel")]
    assert found(runs, (), both) == []
    assert found(runs, (), [audit("modify", **around, overlap="queue")]) == []


def test_a_row_that_cannot_be_read_proves_nothing():
    runs = [run("k", 0, 60), run(EXTRA, 30, 90)]
    for options in "[", '{"schedule": "other"}', '{"schedule": "k", "overlap": "x"}':
        assert found(runs, [Row(key=EXTRA, options=options)]) == []
