"""``psched why`` with real services: what became of an occurrence, and why."""

import json
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from psched.app import make_store, read_config
from psched.base.errors import InvalidError, NotFoundError
from psched.core.history.records import AuditRecord, WorkerRecord
from psched.reports.why.explain import explain_from_store
from support.run_records import run_record

MINUTE = 60


def why(service, *arguments):
    """The answer to ``psched why --json``, and its exit status."""
    found = service.invoke("why", *map(str, arguments), "--json")
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return json.loads(found.stdout), found.exit_code


def store_of(service):
    return make_store(read_config(service.config))


def now_of(service):
    with service.schedules() as schedules:
        return int(schedules.now())


def test_times_in_utc(service):
    service.add("s1", "0 3 * * *", timezone="Asia/Tokyo", next_time=4_000_000_000)
    for zone in "--zone", "-t":
        assert " JST " in why(service, "s1", zone, "Asia/Tokyo")[0]["sentence"]
    assert " UTC " in why(service, "s1", "--utc")[0]["sentence"]
    assert service.invoke("why", "s1", "--utc", "--zone", "UTC").exit_code == 2


def test_the_times_of_history_are_accepted(service, set_zone):
    set_zone("Asia/Tokyo")
    now = now_of(service)
    service.add("s1", cron="0 3 * * *", timezone="Europe/Berlin", next_time=4_000_000_000)
    extra = service.invoke("trigger", "s1").output.split()[-1]
    at, store = now - 86_400, store_of(service)
    store.history.record(
        [
            run_record("s1", scheduled_time=at - 3, started=at * 1000 + 70, ended=at * 1000 + 80),
            run_record(
                extra, scheduled_time=at, started=(at + 9) * 1000, ended=(at + 10) * 1000,
                outcome="failed", fate="gave_up", reason="exit status 1",
            ),
        ]
    )  # fmt: skip
    store.disconnect()
    heading, *lines, _ = service.invoke("history", "s1").stdout.splitlines()
    assert heading.startswith("WHEN (JST) ")
    times = {line.split()[3]: " ".join(line.split()[:3]) for line in lines}
    answer, _ = why(service, "s1", times["s1"])
    assert (answer["code"], answer["time"]) == ("ran", at - 3)
    assert " JST ran at " in answer["sentence"]
    answer, status = why(service, "s1", times[extra])
    assert (answer["key"], answer["code"], status) == (extra, "gave_up", 1)
    answer, _ = why(service, "s1")
    assert f"; its extra run {extra} failed at " in answer["sentence"]
    assert service.invoke("why", "s1", times["s1"], "--utc").stdout != answer["sentence"]


def test_a_start_in_an_hour_that_comes_twice_is_accepted(service, set_zone):
    set_zone("Europe/Berlin")
    second = int(datetime(2025, 10, 26, 1, 30, 12, tzinfo=UTC).timestamp())
    service.add("s1", cron="0 3 * * *", next_time=4_000_000_000)
    store = store_of(service)
    record = run_record(
        "s1", scheduled_time=second - 99, started=second * 1000, ended=second * 1000 + 80
    )
    store.history.record([record])
    store.disconnect()
    answer, _ = why(service, "s1", "2025-10-26", "02:30:12")
    assert (answer["code"], answer["time"]) == ("ran", second - 99)


def test_row_and_records_are_read_as_they_were_at_one_moment(service):
    service.add("s1", "0 3 * * *", next_time=1_000_000_000)
    store, settled = store_of(service), []
    with service.sql() as database:
        database.execute(
            "UPDATE psched SET leased_by = 'w.2', fence = 2, attempt = 2,"
            " next_run_time = unixepoch() + 600"
        )

    def settle_after(request):
        found = request()
        if not settled:
            settled.append(found)
            with service.sql() as database:
                database.execute(
                    "UPDATE psched SET leased_by = NULL, settled_by = 'w.2#2', attempt = 0,"
                    " next_time = 4000000000, next_run_time = 4000000000"
                )
            store.history.record(
                [
                    run_record(
                        "s1", scheduled_time=1_000_000_000, owner="w.2", attempt=2,
                        outcome="failed", fate="gave_up",
                    )
                ]
            )  # fmt: skip
        return found

    answer = explain_from_store(
        store, read_config(service.config), settle_after, "s1", time=1_000_000_000, zone=None
    )
    store.disconnect()
    assert settled
    assert answer.code == "gave_up"


def note_worker(service, nonce="web1-1", **fields):
    """Write the record of a worker, as the worker itself does once a minute."""
    given = {
        "host": "web1",
        "pid": 1,
        "number": 0,
        "generation": 1,
        "slots": 1,
        "busy": 0,
        "types": None,
        "started": now_of(service) - 3600,
        "seen": 0,
    }
    store = store_of(service)
    store.history.beat(WorkerRecord(nonce=nonce, **{**given, **fields}))
    store.disconnect()


def note_change(service, key, action, before, after):
    """Write what a person has changed."""
    store = store_of(service)
    made = {"user": "ann", "host": "desk", "program": "psched"}
    texts = {"before": json.dumps(before), "after": json.dumps(after)}
    store.history.audit([AuditRecord(key=key, action=action, **made, **texts)])
    store.disconnect()


def passed(service, every=10 * MINUTE):
    """The last multiple of an interval, by the store's clock, at least a minute ago."""
    now = now_of(service) - MINUTE
    return now - now % every


def test_a_task_that_ran_and_one_that_failed_first(each_service):
    service = each_service
    service.add("good")
    service.add("bad", data={"fail": 1})
    service.start()
    for key, outcomes in {"good": ["finished"], "bad": ["failed", "finished"]}.items():
        service.wait_for_finish(key)
        answer, status = why(service, key)
        assert (answer["code"], answer["state"], status) == ("ran", "ran", 0)
        assert [each["outcome"] for each in answer["details"]["attempts"]] == outcomes
        assert " and took " in answer["sentence"]


@pytest.mark.extended
def test_a_task_that_fails_is_retried_and_given_up(service):
    service.configure(retry_wait=1000, max_attempts=2)
    service.add("s1", data={"fail": 9})
    service.start()
    service.wait_for_row("s1", lambda seen: seen.attempt == 1 and seen.row.owner is None)
    answer, status = why(service, "s1")
    assert (answer["code"], answer["state"], status) == ("retrying", "will run", 0)
    assert "RecorderError: as it was told" in answer["sentence"]

    with service.schedules() as schedules:
        schedules["s1"].modify(next_run_time=int(schedules.now()))
    service.wait_for_row("s1", lambda seen: seen.status == "failed")
    answer, status = why(service, "s1")
    assert (answer["code"], answer["state"], status) == ("gave_up", "did not run", 1)
    assert [each["attempt"] for each in answer["details"]["attempts"]] == [1, 2]


@pytest.mark.extended
def test_no_worker_was_alive(service):
    due = passed(service)
    service.add("s1", cron="*/10 * * * *", next_time=due, timezone="UTC")
    note_worker(service, started=due - 9000, ended=due - 300)
    answer, status = why(service, "s1", due)
    assert (answer["code"], answer["state"], status) == ("no_worker", "did not run", 1)
    assert " because no worker has been alive since " in answer["sentence"]
    assert why(service, "s1")[0] | {"details": {}, "sentence": ""} == answer | {
        "details": {},
        "sentence": "",
    }

    service.start()
    service.wait_for_row("s1", lambda seen: seen.next_time > due and seen.row.owner is None)
    answer, status = why(service, "s1", due)
    assert (answer["code"], status) == ("ran", 0)
    assert answer["details"]["late_code"] == "no_worker"
    assert answer["details"]["late"] >= MINUTE


def test_a_task_is_running_and_the_next_waits_for_its_slot(service):
    service.add("first", data={"until": "gate"})
    service.start()
    service.runs.wait("first")
    answer, status = why(service, "first")
    assert (answer["code"], answer["state"], status) == ("running", "ran", 0)

    nonce = service.row("first").row.owner.rpartition(".")[0]
    note_worker(service, nonce)
    with service.schedules() as schedules:
        schedules.push("second", "recorder")
    answer, status = why(service, "second")
    assert (answer["code"], answer["state"], status) == ("all_slots_busy", "will run", 0)
    service.open_gate("gate")
    service.wait_for_finish("second")
    assert why(service, "second")[0]["code"] == "ran"


@pytest.mark.extended
def test_no_worker_takes_the_type(service):
    service.configure(only=["mail"])
    note_worker(service, types='["mail"]')
    service.add("s1", next_time=passed(service))
    service.start()
    answer, status = why(service, "s1")
    assert (answer["code"], status) == ("no_worker_takes_type", 1)
    assert "takes the type 'recorder' (they take only mail)" in answer["sentence"]


@pytest.mark.extended
def test_missed_occurrences_that_are_dropped(service):
    due = passed(service)
    missed = {"cron": "*/10 * * * *", "next_time": due - 50 * MINUTE, "timezone": "UTC"}
    service.add("latest", **missed, catchup="latest")
    service.add("skip", **missed, catchup="skip")
    note_worker(service, started=due - 9000, ended=due - 4000)
    expected = {"latest": "coalesced", "skip": "skipped_catchup"}
    for key, code in expected.items():
        answer, status = why(service, key, due - 40 * MINUTE)
        assert (answer["code"], answer["state"], status) == (code, "did not run", 1)

    service.start()
    for key, code in expected.items():
        service.wait_for_row(key, lambda seen: seen.next_time > due and seen.row.owner is None)
        answer, status = why(service, key, due - 40 * MINUTE)
        assert (answer["code"], status) == (code, 1)
        assert answer["details"]["span"]["from"] == due - 50 * MINUTE
        assert answer["details"]["missed_code"] == "no_worker"


@pytest.mark.extended
def test_a_row_that_is_quarantined(service):
    with service.sql() as database:
        database.execute("INSERT INTO psched (id, type, cron) VALUES ('s1', 'recorder', 'daily')")
    service.start()
    service.wait_for_row("s1", lambda seen: seen.status == "quarantined")
    answer, status = why(service, "s1")
    assert (answer["code"], status) == ("quarantined", 1)
    assert "cron: " in answer["sentence"]


def test_a_schedule_that_was_cancelled(service):
    due = passed(service)
    service.add("s1", cron="*/10 * * * *", next_time=due, timezone="UTC")
    with service.schedules() as schedules:
        schedules["s1"].cancel()
    answer, status = why(service, "s1", due)
    assert (answer["code"], status) == ("cancelled", 1)
    assert why(service, "s1", due + 6000)[0]["code"] == "cancelled"


def test_a_trigger_that_was_changed(service):
    past = now_of(service) - 500 * 86_400
    service.add("s1", cron="0 0 1 1 *", next_time=past, timezone="UTC")
    with service.sql() as database:
        database.execute("UPDATE psched SET created_at = created_at - 86400")
    with service.schedules() as schedules:
        schedules["s1"].modify(cron="*/10 * * * *")
    note_change(service, "s1", "modify", {"cron": "0 0 1 1 *"}, {"cron": "*/10 * * * *"})
    answer, status = why(service, "s1", passed(service) - 600)
    assert (answer["code"], status) == ("before_trigger_change", 1)
    assert "from '0 0 1 1 *' to '*/10 * * * *' by " in answer["sentence"]


def test_the_days_of_clock_changes(service):
    service.add("s1", cron="30 2 * * *", timezone="Europe/Berlin", next_time=now_of(service))
    service.add(
        "s2",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        next_time=now_of(service),
        dst_policy="wallclock",
    )
    year = datetime.fromtimestamp(now_of(service), UTC).year + 1
    spring, autumn = _last_sunday(year, 3), _last_sunday(year, 10)
    answer, status = why(service, "s1", spring, "02:30", "--zone", "Europe/Berlin")
    assert (answer["code"], status) == ("will_run", 0)
    assert "does not exist" in answer["sentence"]
    answer, status = why(service, "s2", spring, "02:30", "--zone", "Europe/Berlin")
    assert (answer["code"], status) == ("no_such_local_time", 1)
    codes = {
        key: [each["code"] for each in asked[0]["details"]["readings"]]
        for key in ("s1", "s2")
        for asked in [why(service, key, autumn, "02:30", "--zone", "Europe/Berlin")]
    }
    assert codes == {"s1": ["will_run", "no_instant"], "s2": ["will_run", "will_run"]}


def _last_sunday(year, month):
    days = (datetime(year, month, day, tzinfo=ZoneInfo("UTC")) for day in range(25, 32))
    return next(f"{day:%Y-%m-%d}" for day in days if day.weekday() == 6)


@pytest.mark.extended
def test_times_as_people_write_them(service):
    now = now_of(service)
    service.add("s1", cron="30 2 * * *", timezone="Europe/Berlin", next_time=now)
    for words in (
        ["-2h"],
        ["yesterday", "02:30"],
        ["02:30"],
        ["2020-01-01T02:30+01:00"],
        ["86400"],
    ):
        answer, status = why(service, "s1", *words)
        assert (answer["code"], status) == ("before_creation", 1)
    there, _ = why(service, "s1", "2030-01-01 10:30", "--zone", "Asia/Tokyo")
    assert (there["code"], there["time"]) == ("will_run", 1893461400)
    plain = service.invoke("why", "s1", "03:00")
    assert plain.output.endswith(".\n")
    for wrong in (["s1", "noon"], ["s1", "02:30", "--zone", "Mars/Olympus"]):
        refused = service.invoke("why", *wrong)
        assert refused.exit_code == 2
    assert "'-999999999d' is no time" in service.invoke("why", "s1", "-999999999d").output
    assert "write 2026-11-22 02:30, 02:30 (the last one)" in service.invoke("why", "s1", "x").output


def test_a_key_that_does_not_exist(service):
    service.add("backup-db")
    answer, status = why(service, "backup-bd")
    assert (answer["code"], status) == ("no_such_schedule", 1)
    assert answer["details"]["similar"] == ["backup-db"]
    long = "k" * 200
    service.add(f"{long}1")
    answer, _ = why(service, f"{long}2")  # to compare long keys would take too long
    assert "similar" not in answer["details"] or not answer["details"]["similar"]


def test_a_table_without_history(service):
    with service.sql() as database:
        database.execute("DELETE FROM psched_info WHERE name = 'history_version'")
    service.add("s1", cron="30 2 * * *", next_time=now_of(service))
    with service.sql() as database:
        database.execute("UPDATE psched SET created_at = created_at - 8640000")
    assert why(service, "s1", "02:30")[0]["code"] == "history_off"
    last, status = why(service, "s1")
    assert (last["code"], status) == ("history_off", 1)
    assert "; the next is " in last["sentence"]
    assert why(service, "s1", last["details"]["next"])[0]["code"] == "will_run"


def test_a_program_asks(each_service):
    with each_service.schedules() as schedules:
        now = int(schedules.now())
        schedules.add("s1", "recorder", cron="30 2 * * *", next_time=now, timezone="UTC")
        answer = schedules["s1"].why(datetime(2030, 1, 1, 2, 30, tzinfo=UTC))
        assert (answer.code, answer.state) == ("will_run", "will run")
        assert schedules["s1"].why("2030-01-01 02:31").code == "no_instant"
        assert schedules["s2"].why().code == "no_such_schedule"
        with pytest.raises(InvalidError, match=r"^time: "):
            schedules["s1"].why("noon")
        with pytest.raises(NotFoundError):
            schedules["\0"].why()
