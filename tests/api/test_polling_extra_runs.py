"""Extra runs of schedules in a program that leases tasks without a worker."""

from itertools import pairwise

import pytest

from psched import PreemptedError
from support.extra_runs import add_extra_runs


@pytest.fixture
def report(schedules):
    """A schedule that is not due; its row."""
    schedules.add("report", "t", cron="0 0 1 1 *")
    return schedules.read("report").row


def is_as_before(schedules, before):
    return schedules.read("report").row == before


def test_an_extra_run_holds_its_schedule(schedules, report):
    [extra] = add_extra_runs(schedules, "report")
    task = schedules.poll()

    assert (task.key, task.attempt) == (extra, 1)
    until = schedules.read("report").row.held_until
    assert until is not None
    task.extend()
    assert schedules.read("report").row.held_until >= until
    task.finish()

    assert is_as_before(schedules, report)
    assert schedules.read(extra).status == "finished"


@pytest.mark.parametrize("overlap", ["queue", "skip"])
def test_a_second_one_does_not_start_meanwhile(schedules, report, overlap):
    first, second = add_extra_runs(schedules, "report", 2, overlap=overlap)
    task = schedules.poll()
    assert schedules.poll() is None

    row = schedules.read({first: second, second: first}[task.key]).row
    assert (row.status, row.attempt, row.owner) == (
        "waiting" if overlap == "queue" else "cancelled",
        0,
        None,
    )
    task.release()
    assert is_as_before(schedules, report)


@pytest.mark.usefixtures("report")
def test_those_that_wait_are_due_one_after_the_other(schedules, now):
    """Else a poll would find them due again and again, and never end."""
    keys = add_extra_runs(schedules, "report", 5)
    task = schedules.poll()
    begun = now()
    assert schedules.poll() is None
    waiting = sorted(schedules.read(key).row.next_run_time for key in {*keys} - {task.key})
    assert waiting[0] > begun
    assert all(earlier < later for earlier, later in pairwise(waiting))
    task.release()


def test_one_that_fails_releases_its_schedule(schedules, report):
    [extra] = add_extra_runs(schedules, "report")
    schedules.poll().retry(60)

    assert is_as_before(schedules, report)
    assert schedules.read(extra).row.attempt == 1


def test_one_whose_payload_cannot_be_read_releases_its_schedule(schedules, report, sql):
    [extra] = add_extra_runs(schedules, "report")
    sql("UPDATE {table} SET data = :data WHERE id = :key", data="[1]", key=extra)

    assert schedules.poll() is None

    assert is_as_before(schedules, report)
    assert schedules.read(extra).status == "quarantined"


def test_one_whose_schedule_was_deleted_is_cancelled(schedules, report):
    assert report.owner is None
    [extra] = add_extra_runs(schedules, "report")
    schedules["report"].delete()

    assert schedules.poll() is None
    assert schedules.read(extra).row.reason == "its schedule report was deleted"


def test_one_that_has_lost_its_schedule_is_told_so(schedules, report, sql):
    assert report.owner is None
    add_extra_runs(schedules, "report")
    task = schedules.poll()
    sql("UPDATE {table} SET leased_by = 'thief.1' WHERE id = 'report'")

    with pytest.raises(PreemptedError):
        task.extend()


def test_one_whose_lease_ends_while_its_schedule_is_held_does_not_start(
    schedules, report, on_host, host
):
    add_extra_runs(schedules, "report")
    hold = on_host._store.hold

    def late(*args, **more):
        held = hold(*args, **more)
        host.suspended += 61
        return held

    on_host._store.hold = late
    assert on_host.poll() is None
    assert is_as_before(schedules, report)


def test_an_unknown_overlap_is_quarantined(schedules, report):
    [extra] = add_extra_runs(schedules, "report", overlap="perhaps")

    assert schedules.poll() is None
    assert is_as_before(schedules, report)
    assert schedules.read(extra).row.reason.startswith("overlap: must be queue, skip, parallel")
