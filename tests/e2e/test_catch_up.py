"""Occurrences that fell due while nobody ran: in order, the newest only, or none; and bad rows."""

import re
import signal
from datetime import UTC, datetime

import pytest

from support.run_log import completed, exactly_once, in_order

pytestmark = pytest.mark.verified

MINUTE = 60
TEN_YEARS = 10 * 365 * 24 * 60 * MINUTE


def this_minute(service):
    """The last full minute, by the database's clock."""
    with service.schedules() as schedules:
        schedules.add("clock")
        now = schedules["clock"].metadata().next_time
        schedules["clock"].delete()
    return now - now % MINUTE


def test_what_was_missed_is_run_in_order_or_only_the_newest_or_not_at_all(each_service):
    service = each_service
    now = this_minute(service)
    missed = {"cron": "* * * * *", "next_time": now - 5 * MINUTE}
    service.add("all", **missed)
    service.add("latest", **missed, catchup="latest")
    service.add("skip", cron="0 0 1 1 *", next_time=0, catchup="skip")
    service.add("limited", **missed, catchup_limit=2)
    master = service.start()

    for key in "all", "latest", "limited", "skip":
        service.wait_for_row(key, lambda seen: seen.next_time > now and seen.row.owner is None)
    assert master.stop() == 0

    # A minute may have begun meanwhile.
    def caught_up(key):
        times = [run.scheduled_time for run in service.runs.runs(key)]
        return [time for time in times if time <= now]

    assert caught_up("all") == [now - n * MINUTE for n in (5, 4, 3, 2, 1, 0)]
    assert caught_up("latest") in ([now], [])
    assert len(caught_up("limited")) in (1, 2)
    assert service.runs.runs("skip") == []
    in_order(service.runs.runs())
    assert all(run.completed for run in service.runs.runs())
    assert re.search(
        r"latest: catch-up \(latest\) dropped the occurrences from \S+ to", master.text
    )
    assert "limited: catch-up (all, limit 2) dropped the occurrences from" in master.text


def test_occurrences_missed_between_stop_and_start_are_carried_on_with(service):
    now = this_minute(service)
    service.add("s1", cron="* * * * *", next_time=now - 9 * MINUTE, data={"until": "gate"})
    first = service.start()
    service.runs.wait("s1")
    first.send(signal.SIGTERM)
    first.wait_for_log("stopping")
    service.open_gate("gate")
    assert first.wait() == 0
    assert len(service.runs.runs("s1")) == 1

    second = service.start()
    service.wait_for_row("s1", lambda seen: seen.next_time > now and seen.row.owner is None)
    assert second.stop() == 0

    runs = [run for run in service.runs.runs("s1") if run.scheduled_time <= now]
    exactly_once(runs, [("s1", now - n * MINUTE) for n in range(10)])
    in_order(runs)


def test_a_schedule_ten_years_behind_neither_floods_nor_starves_another(service):
    now = this_minute(service)
    service.add("old", cron="* * * * *", next_time=now - TEN_YEARS, catchup_limit=5)
    service.add("older", cron="* * * * *", next_time=now - TEN_YEARS)
    for number in range(5):
        service.add(f"young {number}", next_time=now)
    master = service.start()

    for number in range(5):
        service.wait_for_finish(f"young {number}")
    service.wait_for_row("old", lambda seen: seen.next_time > now and seen.row.owner is None)
    assert master.stop() == 0

    old = [run.scheduled_time for run in service.runs.runs("old") if run.scheduled_time <= now]
    assert old in ([now - n * MINUTE for n in range(start, -1, -1)] for start in (3, 4))
    begin = datetime.fromtimestamp(now - TEN_YEARS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    dropped = re.findall(
        rf"WARNING worker 0 (\w+): catch-up .* from {begin} to before", master.text
    )
    assert sorted(dropped) == ["old", "older"]


def test_a_row_that_cannot_be_understood_rests_with_its_reason_and_holds_up_no_other(service):
    bad = {
        "cron": ("cron", "every day at noon"),
        "zone": ("timezone", "Asia/Atlantis"),
        "data": ("data", '{"k": '),
        "list": ("data", "[1]"),
        "options": ("options", '{"catchup": "perhaps"}'),
        "delay": ("delay", -5),
    }
    with service.sql() as connection:
        for key, (column, value) in bad.items():
            # Data are not read before they are to be run.
            cron = None if column == "data" else "@daily"
            connection.execute(
                "INSERT INTO psched (id, type, cron) VALUES (?, 'recorder', ?)", (key, cron)
            )
            update = f"UPDATE psched SET {column} = ? WHERE id = ?"  # noqa: S608  # our own names
            connection.execute(update, (value, key))
        connection.execute("INSERT INTO psched (id, type) VALUES ('good', 'recorder')")
    master = service.start()

    service.wait_for_finish("good")
    active = {"waiting", "running"}
    rows = {k: service.wait_for_row(k, lambda seen: seen.status not in active) for k in bad}
    assert master.stop() == 0

    assert {row.status for row in rows.values()} == {"quarantined"}
    assert all((rows[key].reason or "").startswith(f"{bad[key][0]}: ") for key in bad)
    assert {run.key for run in service.runs.runs()} == {"good"}
    listed = service.psched("list", "--legacy").stdout
    assert listed.count("quarantined") == len(bad)
    assert "# timezone: " in listed


def test_rows_written_by_plain_sql_are_run(each_service, database):
    service = each_service
    insert = "INSERT INTO psched (id, type) VALUES ('s1', 'recorder')"
    if database.server is None:
        with service.sql() as connection:
            connection.execute(insert)
    else:
        database.server.query(insert, database=database.url.rpartition("/")[2])
    service.start()

    assert len(service.runs.wait("s1", completed(1))) == 1
    service.wait_for_finish("s1")
