"""The run history in Python: schedules[key].runs(), schedules.runs() and the fields of `Run`."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

import psched
from psched import InvalidError, NotSupportedError, Run
from psched.base.clock import SystemClock
from psched.client.collection import ScheduleCollection
from psched.core.history.records import FOREVER
from support.run_records import not_run, run_record

pytestmark = pytest.mark.usefixtures("sql")  # the records are inserted into tables

MINUTE = 60


@pytest.fixture
def write(schedules):
    """Writes records to the history."""
    return lambda *records: schedules._store.history.record(records)


def owners(runs):
    return [run.record.owner for run in runs]


def test_the_newest_record_comes_first_also_of_a_deleted_schedule(schedules, write):
    first, other, second = run_record(), run_record("other"), run_record()
    write(first, other, second)
    assert owners(schedules["k"].runs()) == [second.owner, first.owner]
    assert owners(schedules.runs()) == [second.owner, other.owner, first.owner]
    assert owners(schedules.runs("other")) == [other.owner]
    assert owners(schedules.runs(limit=2)) == [second.owner, other.owner]
    assert [*schedules.runs(limit=0)] == []
    assert [*schedules["never"].runs()] == []


def test_more_records_than_a_page_are_read(schedules, write):
    write(*(run_record() for _ in range(450)))
    times = [run.scheduled_time for run in schedules.runs()]
    assert len(times) == 450
    assert times == sorted(times, reverse=True)


def test_conditions_are_combined(schedules, write):
    fine = run_record(type="mail")
    failed = run_record(type="mail", outcome="failed", fate=None)
    gave_up = run_record(outcome="failed", fate="gave_up")
    released = run_record(outcome="released", fate=None)
    expired, skipped = not_run(fate="expired"), not_run()
    write(fine, failed, gave_up, released, expired, skipped)

    def found(**conditions):
        return set(owners(schedules.runs(**conditions)))

    assert found(type="mail") == {fine.owner, failed.owner}
    assert found(type=["mail", "t"]) == found()
    assert found(outcome="failed") == {failed.owner, gave_up.owner}
    assert found(fate=["expired", "gave_up"]) == {gave_up.owner, expired.owner}
    assert found(outcome="failed", fate="gave_up") == {gave_up.owner}
    assert found(outcome="finished", fate="gave_up") == set()
    assert found(failed=True) == {failed.owner, gave_up.owner, expired.owner}
    assert found(failed=True, type="mail") == {failed.owner}
    assert owners(schedules.runs(outcome=["failed", "released"], fate="gave_up", limit=1)) == [
        gave_up.owner
    ]


@pytest.mark.parametrize("form", ["text", "timedelta", "seconds", "Unix seconds", "datetime"])
def test_since_is_an_age_or_a_time(schedules, write, now, form):
    present = now()
    old = run_record(ended=int((present - 61 * MINUTE) * 1000))
    new = run_record(ended=int((present - 59 * MINUTE) * 1000))
    write(old, new)
    since = {
        "text": "1h",
        "timedelta": timedelta(hours=1),
        "seconds": 3600,
        "Unix seconds": present - 3600,
        "datetime": datetime.fromtimestamp(present - 3600, UTC),
    }[form]
    assert owners(schedules.runs(since=since)) == [new.owner]
    assert owners(schedules["k"].runs(since=since)) == [new.owner]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("since", "yesterday"),
        ("since", -1),
        ("since", True),
        ("since", float("nan")),
        ("since", float("inf")),
        ("since", datetime(2026, 1, 1)),  # noqa: DTZ001  # without a zone
        ("limit", -1),
        ("limit", "10"),
        ("outcome", "succeeded"),
        ("outcome", []),
        ("fate", 7),
        ("type", [7]),
        ("key", 7),
    ],
)
def test_an_invalid_argument_is_named(schedules, field, value):
    with pytest.raises(InvalidError) as refused:
        schedules.runs(**{field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("type_", ["no UTF-8: \udc86", "nul: \0"])
def test_a_type_that_no_store_can_contain_has_no_runs(schedules, write, type_):
    write(run_record())
    assert [*schedules.runs(type=type_)] == []
    assert len([*schedules.runs(type=[type_, "t"])]) == 1


@pytest.mark.parametrize("limit", [-1, 1.5, "10", True])
@pytest.mark.parametrize("read", ["audit", "alerts", "runs"])
def test_an_invalid_limit_is_refused(schedules, read, limit):
    with pytest.raises(InvalidError, match=r"^limit: "):
        getattr(schedules, read)(limit=limit)


def test_failed_and_an_outcome_contradict_each_other(schedules):
    for condition in {"outcome": "lost"}, {"fate": "expired"}:
        with pytest.raises(InvalidError, match=r"^failed: and .* both select records; leave one"):
            schedules["k"].runs(failed=True, **condition)


def test_a_run_has_times_in_seconds_and_memory_in_bytes(schedules, write):
    write(
        run_record(
            label="ops",
            scheduled_time=1_800_000_000,
            due=1_800_000_001_000,
            started=1_800_000_002_250,
            ended=1_800_000_004_000,
            attempt=2,
            outcome="failed",
            fate=None,
            generation=7,
            exit_status=None,
            exit_signal=9,
            cpu_ms=1250,
            peak_kb=2048,
            out_of_memory=True,
            reason="killed",
            reason_code="attempt_failed",
            error="Traceback: no memory",
            result='{"rows": 3}',
        )
    )
    [run] = schedules["k"].runs()
    assert isinstance(run, Run)
    assert run.__class__ is psched.Run
    seen = {
        name: getattr(run, name)
        for name in dir(Run)
        if not name.startswith("_") and name != "record"
    }
    assert seen == {
        "key": "k",
        "type": "t",
        "label": "ops",
        "scheduled_time": 1_800_000_000,
        "scheduled_at": datetime(2027, 1, 15, 8, tzinfo=UTC),
        "zone": "UTC",
        "until": None,
        "count": 1,
        "attempt": 2,
        "outcome": "failed",
        "fate": None,
        "due": 1_800_000_001.0,
        "started": 1_800_000_002.25,
        "ended": 1_800_000_004.0,
        "took": 1.75,
        "exit_status": None,
        "exit_signal": 9,
        "cpu_time": 1.25,
        "peak_memory": 2 * 2**20,
        "out_of_memory": True,
        "host": "web1",
        "pid": 4711,
        "generation": 7,
        "reason": "killed",
        "reason_code": "attempt_failed",
        "error": "Traceback: no memory",
        "result": {"rows": 3},
    }


def test_a_span_has_a_last_time_and_a_number_of_occurrences(schedules, write):
    write(
        not_run(scheduled_time=1000, until=2000, count=12),
        not_run(scheduled_time=3000, until=FOREVER, count=None),
    )
    endless, span = schedules.runs()
    assert (span.scheduled_time, span.until, span.count) == (1000, 2000, 12)
    assert (endless.scheduled_time, endless.until, endless.count) == (3000, None, None)
    assert (span.started, span.took, span.attempt, span.outcome) == (None, None, 0, None)
    assert (span.cpu_time, span.peak_memory, span.due, span.result) == (None, None, None, None)


def test_a_result_that_is_not_json_is_refused(schedules, write):
    write(run_record(result="{"))
    [run] = schedules.runs()
    with pytest.raises(InvalidError, match=r"^result: is not JSON"):
        assert run.result


def test_the_last_runs_are_those_of_attempts_and_of_occurrences_that_ended(schedules, write):
    write(
        run_record("a", outcome="failed", fate=None, error="e" * 100),
        run_record("a", result='"x"'),
        not_run("a"),
        not_run("b"),
        run_record("c", outcome="lost", fate=None),
        run_record("d", outcome="lost", fate=None),
        not_run("d", fate="gave_up"),
        run_record("e"),
        not_run("e", fate="cancelled", until=2_100_000_000, count=None),
    )
    keys = ["a", "b", "c", "d", "e", "never", *(f"k{i}" for i in range(250))]
    last = schedules.last_runs(keys)
    ends = {key: (run.outcome, run.fate) for key, run in last.items()}
    finished = ("finished", "finished")
    assert ends == {
        "a": finished,
        "c": ("lost", None),
        "d": (None, "gave_up"),
        "e": finished,
    }
    assert last["a"].result is None
    assert schedules.last_runs([]) == {}


def test_without_its_tables_the_history_says_how_to_create_them(settings, schedules, sql):
    sql("DROP TABLE psched_runs")
    sql("DELETE FROM psched_info WHERE name = 'history_version'")
    schedules.close()
    with psched.open(settings) as opened:
        for ask in opened.runs, opened["k"].runs, lambda: opened.last_runs(["k"]):
            with pytest.raises(NotSupportedError, match="run `psched init`"):
                ask()


def test_a_store_without_the_capability_keeps_no_history(settings):
    reader = ScheduleCollection(
        SimpleNamespace(history=None), settings, clock=SystemClock(), draw_nonce=str
    )
    for ask in reader.runs, lambda: reader.last_runs(["k"]), reader.audit:
        with pytest.raises(NotSupportedError, match="this store keeps no run history"):
            ask()


def test_the_records_of_one_occurrence_are_found(schedules, write):
    first = run_record(outcome="failed", fate=None)
    second = run_record(scheduled_time=first.scheduled_time, attempt=2)
    span = not_run(
        scheduled_time=first.scheduled_time + 10, until=first.scheduled_time + 20, count=3
    )
    write(first, second, span, run_record("other", scheduled_time=first.scheduled_time))
    time = first.scheduled_time
    assert owners(schedules.runs("k", time=time)) == [second.owner, first.owner]
    assert owners(schedules["k"].runs(time=datetime.fromtimestamp(time, UTC))) == [
        second.owner,
        first.owner,
    ]
    assert owners(schedules.runs("k", time=time + 15)) == [span.owner]
    assert owners(schedules.runs("k", time=time, failed=True)) == [first.owner]
    assert [*schedules.runs("k", time=time + 30)] == []
    with pytest.raises(InvalidError, match=r"^time: .* name its key") as raised:
        schedules.runs(time=time)
    assert raised.value.field == "time"
