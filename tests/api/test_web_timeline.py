"""The pages of psched web that show time: marks of every fate, order, limits, hostile texts, JSON.

A test moves the time of their store, so that every place on the axis is known.
"""

import re
from datetime import UTC, datetime, timedelta

import pytest

from psched import testing
from psched.client.collection import ScheduleCollection
from psched.core.output import OutputRecord
from psched.web import pages, timeline
from psched.web.search import parse_search
from support.run_records import not_run, run_record, worker_record
from support.web_pages import get, site_of

NOW = int(datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp())
HOUR = 3600

HOSTILE = """<script>alert(1)</script>"onmouseover='x'&<img src=x onerror=y>"""


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")


@pytest.fixture
def schedules():
    with testing.Schedules(now=NOW, timezone="UTC") as schedules:
        yield schedules


@pytest.fixture
def site(schedules):
    return site_on(schedules)


def site_on(schedules):
    """The pages of these schedules; they have a connection of their own, which they close."""
    own = ScheduleCollection(**schedules._parts())
    return site_of(own, schedules._all_settings)


@pytest.fixture
def write(schedules):
    """Writes records to the run history."""
    return lambda *records: schedules._store.history.record(records)


def ran(start, end=None, key="k", **fields):
    """A record of a run that started so many seconds from now, and ended a minute later."""
    end = start + 60 if end is None else end
    given = {"scheduled_time": NOW + start, "due": 1000 * (NOW + start)}
    given |= {"started": 1000 * (NOW + start), "ended": 1000 * (NOW + end)}
    return run_record(key, **{**given, **fields})


def skipped(time, key="k", **fields):
    """A record of an occurrence that did not run."""
    return not_run(key, scheduled_time=NOW + time, ended=1000 * (NOW + time), **fields)


def lane(document, name):
    [found] = [each for each in document["lanes"] if each["name"] == name]
    return found


def read(site, **query):
    """The document of the timeline."""
    return get(site, "api/v1/timeline.json", **query).json


def shapes(page, name, kind):
    """The attributes of the shapes of a kind."""
    return [given for tag, given in page.tags if tag == name and given.get("class") == kind]


# --- the past ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "finished"),
        ({"outcome": "failed", "fate": None}, "retried"),
        ({"outcome": "lost", "fate": None}, "retried"),
        ({"outcome": "failed", "fate": "gave_up"}, "failed"),
        ({"outcome": "timed_out", "fate": "gave_up"}, "failed"),
        ({"outcome": "released", "fate": None}, "released"),
        ({"outcome": "cancelled", "fate": "stopped"}, "stopped"),
    ],
)
def test_a_run_is_a_bar_of_its_fate_that_leads_to_it(schedules, site, write, fields, kind):
    schedules.add("k", "t", cron="0 0 1 1 *")
    write(ran(-3 * HOUR, -2 * HOUR, **fields))
    page = get(site)
    [bar] = shapes(page, "rect", kind)
    assert (bar["x"], bar["width"]) == ("25.00%", "8.33%")
    assert len(shapes(page, "use", kind)) == (kind != "finished")
    assert page.links("occurrence") == [{"key": "k", "time": str(NOW - 3 * HOUR)}]
    [mark] = lane(read(site), "k")["marks"]
    assert (mark["kind"], mark["start"], mark["end"]) == (kind, NOW - 3 * HOUR, NOW - 2 * HOUR)
    assert "took 1.0 h" in mark["text"]


def test_a_run_that_took_no_time_is_drawn_nevertheless(schedules, site, write):
    schedules.add("k", "t", cron="0 1-11 * * *")
    write(ran(-HOUR, -HOUR))
    [bar] = shapes(get(site), "rect", "finished")
    assert bar["width"] == "0.01%"  # nothing with the width 0 is drawn


@pytest.mark.parametrize(
    "fate", ["skipped_catchup", "skipped_overlap", "coalesced", "skipped", "skipped_calendar"]
)
def test_what_did_not_run_is_hollow_and_tells_its_reason(schedules, site, write, fate):
    schedules.add("k", "t", cron="0 1-11 * * *")
    write(skipped(-3 * HOUR, fate=fate, reason="the reason of it"))
    page = get(site)
    [icon] = shapes(page, "use", "skipped")
    assert icon["x"] == "25.00%"
    assert f"{fate} Tue 01 09:00:00: the reason of it" in page.text
    assert page.links("occurrence") == [{"key": "k", "time": str(NOW - 3 * HOUR)}]


@pytest.mark.parametrize("fate", ["gave_up", "expired", "quarantined"])
def test_what_failed_without_a_run_is_shown_as_failed(schedules, site, write, fate):
    schedules.add("k", "t", cron="0 1-11 * * *")
    write(skipped(-HOUR, fate=fate))
    assert len(shapes(get(site), "use", "failed")) == 1


def test_each_occurrence_of_a_span_is_a_mark_if_the_trigger_has_so_many(schedules, site, write):
    schedules.add("k", "t", cron="0 1-11 * * *")
    span = {"count": 3, "until": NOW - 2 * HOUR, "reason": "was paused"}
    write(skipped(-4 * HOUR, fate="skipped_paused", **span))
    marks = lane(read(site), "k")["marks"]
    assert [mark["start"] - NOW for mark in marks] == [-4 * HOUR, -3 * HOUR, -2 * HOUR]
    assert [mark["time"] - NOW for mark in marks] == [-4 * HOUR, -3 * HOUR, -2 * HOUR]
    schedules["k"].modify(cron="30 * * * *")
    [mark] = lane(read(site), "k")["marks"]
    assert (mark["start"], mark["end"]) == (NOW - 4 * HOUR, NOW - 2 * HOUR)
    assert "3 of them" in mark["text"]


def test_a_span_that_did_not_run_leads_who_may_act_to_its_backfill(schedules, site, write):
    schedules.add("k", "t", cron="30 * * * *")
    write(skipped(-4 * HOUR, fate="skipped_paused", count=3, until=NOW - 2 * HOUR))
    own = ScheduleCollection(**schedules._parts())
    page = get(site_of(own, schedules._all_settings, access=lambda _: "operate"))
    span = {"from": str(NOW - 4 * HOUR), "to": str(NOW - 2 * HOUR)}
    assert page.links("act") == [{"do": "backfill", "key": "k", **span}]
    assert not get(site).links("act")


def test_spans_stay_whole_if_their_occurrences_are_many(schedules, site, write, monkeypatch):
    # Each occurrence is a question to a trigger, and 20,000 records can have 600,000 of them.
    monkeypatch.setattr(timeline, "_MOST_ONE_BY_ONE", 5)
    schedules.add("k", "t", cron="0 1-11 * * *")
    for first in -8 * HOUR, -4 * HOUR:
        write(skipped(first, fate="skipped_paused", count=3, until=NOW + first + 2 * HOUR))
    assert sorted(mark["number"] for mark in lane(read(site, span="2d"), "k")["marks"]) == [
        1,
        1,
        1,
        3,
    ]


def test_a_late_start_is_a_line_from_the_time_when_it_was_due(schedules, site, write):
    schedules.add("k", "t", cron="0 1-11 * * *")
    write(ran(-3 * HOUR, due=1000 * (NOW - 4 * HOUR)), ran(-2 * HOUR))
    page = get(site)
    [line] = shapes(page, "rect", "wait")
    assert (line["x"], line["width"]) == ("16.67%", "8.33%")
    assert "started 1.0 h late" in page.text


def test_what_runs_is_late_or_is_paused_is_shown_until_now(schedules, site):
    schedules.add("runs", "t", cron="0 * * * *", next_time=NOW - HOUR)
    schedules.add("late", "t", cron="1 * * * *")
    schedules.add("paused", "t", cron="30 * * * *")
    schedules["paused"].pause()
    schedules._store.claim("w.1", limit=1, alive_time=9000, shortest=6, horizon=0)
    schedules.clock.advance(1800)
    document = read(site)
    [running] = lane(document, "runs")["marks"]
    assert (running["kind"], running["start"]) == ("running", NOW)
    [late] = lane(document, "late")["marks"]
    assert (late["kind"], late["start"], late["end"]) == ("late", NOW + 60, NOW + 1800)
    assert not lane(document, "paused")["planned"]
    [pause] = lane(document, "paused")["pauses"]
    assert pause["end"] == NOW + 1800 + 6 * HOUR
    assert document["counts"] == {"running": 1, "late": 1, "paused": 1}
    page = get(site)
    [hatched] = shapes(page, "rect", "paused")
    assert hatched["fill"] == "url(#hatch)"
    assert (hatched["x"], hatched["width"]) == ("50.00%", "50.00%")
    assert "1 running, 1 late, 1 paused" in page.text


# --- the future --------------------------------------------------------------------------------


def test_planned_runs_are_in_order_and_take_as_long_as_usual(schedules, site, write):
    schedules.add("k", "t", cron="30 */2 * * *", timezone="UTC")
    write(*(ran(-HOUR * hours, -HOUR * hours + 600) for hours in (2, 3, 4)))
    planned = lane(read(site), "k")["planned"]
    assert [each["start"] - NOW for each in planned] == [1800, 1800 + 2 * HOUR, 1800 + 4 * HOUR]
    assert {each["end"] - each["start"] for each in planned} == {600}
    page = get(site)
    [bars], [ticks] = shapes(page, "path", "planned"), shapes(page, "path", "tick")
    # In hundredths of per cent: from each start, for ten minutes of the twelve hours.
    assert bars["d"] == "M5417 0V10H5556V0zM7083 0V10H7222V0zM8750 0V10H8889V0z"
    assert ticks["d"] == "M5417 0V10M7083 0V10M8750 0V10"
    assert "next Tue 01 12:30, Tue 01 14:30, Tue 01 16:30; usually takes 10.0 min" in page.text


def test_a_pause_with_an_end_hides_only_what_it_prevents(schedules, site):
    schedules.add("k", "t", cron="0 * * * *", timezone="UTC")
    schedules["k"].pause(until=NOW + 2 * HOUR + 60)
    planned = lane(read(site), "k")["planned"]
    assert min(each["start"] for each in planned) == NOW + 3 * HOUR
    [hatched] = shapes(get(site), "rect", "paused")
    assert hatched["width"] == "16.81%"


def test_clock_changes_are_marked():
    before = int(datetime(2030, 3, 31, 0, tzinfo=UTC).timestamp())
    with testing.Schedules(now=before) as schedules:
        schedules.add("k", "t", cron="30 2 * * *", timezone="Europe/Berlin")
        site = site_on(schedules)
        page = get(site)
        [change] = lane(read(site), "k")["clock_changes"]
    assert change["start"] == before + HOUR
    assert "02:30 does not exist in Europe/Berlin" in page.text
    assert [each["x"] for each in shapes(page, "use", "clock")] == ["58.33%"]


def test_the_axis_has_the_times_of_the_reader_also_at_a_clock_change(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    before = int(datetime(2030, 10, 27, 0, 30, tzinfo=UTC).timestamp())
    with testing.Schedules(now=before) as schedules:
        page = get(site_on(schedules), span="4h")
    assert re.findall(r'<text x="[0-9.]+%" y="14">(.*?)</text>', page.body) == [
        *("01:00", "02:00", "02:00", "03:00")
    ]


@pytest.mark.parametrize(
    ("minute", "shown"),
    [
        (60, ["02:30", "02:40", "02:50", "02:10", "02:20", "02:30"]),
        (90, ["02:00", "02:10", "02:20", "02:40", "02:50", "03:00"]),
    ],
)
def test_the_axis_has_each_time_once_where_a_clock_change_repeats_it(monkeypatch, minute, shown):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    now = int(datetime(2030, 10, 27, tzinfo=UTC).timestamp()) + 60 * minute
    with testing.Schedules(now=now) as schedules:
        page = get(site_on(schedules), span="1h")
    places = re.findall(r'<text x="([0-9.]+)%" y="14">(.+?)</text>', page.body)
    assert [text for _, text in places] == shown
    assert len({place for place, _ in places}) == len(shown)


# --- the strip ---------------------------------------------------------------------------------


def test_the_strip_shows_how_many_run_at_the_same_time_against_the_slots(schedules, site, write):
    for key in "a", "b", "c":
        schedules.add(key, "t", cron="0 14 * * *", timezone="UTC")
        write(ran(-2 * HOUR, -HOUR, key=key))
    schedules._store.history.beat(worker_record(slots=2))
    document = read(site)
    assert document["slots"] == 2
    peaks = {each["slots"] for each in document["busy"] if each["start"] < NOW}
    assert peaks == {0, 3}
    assert max(each["slots"] for each in document["busy"] if each["is_planned"]) == 3
    page = get(site)
    assert shapes(page, "rect", "past over")
    assert shapes(page, "rect", "planned over")
    assert len(shapes(page, "line", "slots")) == 1
    assert "2 slots, peak 3" in page.text


# --- which lanes -------------------------------------------------------------------------------


def test_tasks_that_run_once_share_a_lane_and_extra_runs_are_on_that_of_their_schedule(
    schedules, site, write
):
    schedules.add("k", "t", cron="0 0 1 1 *")
    schedules["k"].trigger()
    for number in range(3):
        schedules.push(f"m{number}", "mail")
    write(ran(-HOUR, key="gone", type="mail"))
    document = read(site)
    assert [(each["by"], each["name"], each["schedules"]) for each in document["lanes"]] == [
        ("schedule", "k", 2),
        ("tasks", "mail", 3),
    ]
    assert [mark["kind"] for mark in lane(document, "mail")["marks"]] == ["finished", *["late"] * 3]


@pytest.mark.parametrize(
    ("query", "number"),
    [
        *(("mail-", 2), ("*-1", 1), ("type:mail", 2), ("label:x", 1)),
        *(("type:t mail-", 0), ("state:finished", 0), ("nothing", 0)),
    ],
)
def test_a_search_finds_the_past_of_tasks_that_are_gone(schedules, site, write, query, number):
    schedules.add("k", "t", cron="0 0 1 1 *")
    write(ran(-HOUR, key="mail-1", type="mail", label="x"), ran(-HOUR, key="mail-2", type="mail"))
    assert read(site, q=query)["counts"].get("finished", 0) == number


def test_the_lanes_can_be_searched_grouped_and_ordered(schedules, site, write):
    for key, label in ("a", "x"), ("b", "y z"), ("c", "y z"):
        schedules.add(key, "t", cron="0 0 1 1 *", label=label)
    write(ran(-HOUR, key="c", outcome="failed", fate="gave_up"), ran(-HOUR, key="a"))

    def names(**query):
        return [each["name"] for each in read(site, **query)["lanes"]]

    assert names() == ["a", "b", "c"]
    assert names(sort="trouble")[0] == "c"
    assert names(q="label:x") == ["a"]
    assert names(q='label:"y z"') == ["b", "c"]
    assert names(q="state:failing") == ["c"]
    assert names(by="label") == ["x", "y z"]
    [group] = [each for each in get(site, by="label").links("./") if each.get("q") == 'label:"y z"']
    assert names(**group) == ["b", "c"]
    found = read(site, q="label:x")
    assert found["counts"] == {"finished": 1}


def test_a_search_keeps_the_other_choices(site):
    page = get(site, by="label", sort="trouble", span="1h")
    hidden = {
        given["name"]: given["value"]
        for tag, given in page.tags
        if tag == "input" and given.get("type") == "hidden"
    }
    assert hidden == {"by": "label", "sort": "trouble", "span": "1h"}


def test_too_many_schedules_are_grouped_and_the_page_says_so(schedules, site, write, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_LANES", 2)
    for number in range(4):
        schedules.add(f"k{number}", "t", cron="0 1-11 * * *", label=f"l{number % 2}")
        write(ran(-HOUR, key=f"k{number}", label=f"l{number % 2}"))
    document = read(site)
    assert document["by"] == "label"
    assert "grouped by label, because there are 4 schedules" in document["remarks"]
    assert [len(each["marks"]) for each in document["lanes"]] == [2, 2]
    assert "grouped by label" in get(site).text
    alone = read(site, by="schedule")
    assert len(alone["lanes"]) == 2
    assert "2 lanes more; search, or group them" in alone["remarks"]


def test_neighbouring_runs_of_a_kind_become_one_mark_if_they_are_many(
    schedules, site, write, monkeypatch
):
    monkeypatch.setattr(timeline, "_MOST_MARKS", 8)
    schedules.add("k", "t", cron="* * * * *", next_time=NOW + 60)
    runs = [ran(-60 * minutes, -60 * minutes + 5) for minutes in range(1, 300)]
    write(*runs, ran(-90, outcome="failed", fate="gave_up"))
    found = lane(read(site), "k")
    assert len(found["marks"]) <= 2 * 8
    assert sum(mark["number"] for mark in found["marks"]) == 300
    # What has failed is not hidden among what has not.
    assert [mark["number"] for mark in found["marks"] if mark["kind"] == "failed"] == [1]
    assert len(found["planned"]) == 8
    assert sum(each["number"] for each in found["planned"]) == 359
    # Where the planned runs are together, the next ones are named nevertheless.
    assert [time - NOW for time in found["next"]] == [60, 120, 180, 240]
    assert "finished, Tue 01" in get(site).text


def test_what_has_finished_is_one_shape_if_the_records_are_many(
    schedules, site, write, monkeypatch
):
    monkeypatch.setattr(timeline, "_MOST_TOLD", 3)
    schedules.add("k", "t", cron="0 1-11 * * *")
    write(ran(-HOUR), ran(-2 * HOUR), ran(-3 * HOUR, -3 * HOUR))
    write(ran(-4 * HOUR, outcome="failed", fate="gave_up", reason="no room"))
    page = get(site)
    [many] = shapes(page, "path", "finished")
    assert many["d"] == "M2500 0V10M3333 0V10H3347V0zM4167 0V10H4181V0z"
    assert "3 finished" in page.text
    # What has failed tells its reason, and leads to its page.
    assert len(shapes(page, "rect", "failed")) == 1
    assert page.links("occurrence") == [{"key": "k", "time": str(NOW - 4 * HOUR)}]
    texts = [mark["text"] for mark in lane(read(site), "k")["marks"] if mark["text"]]
    assert len(texts) == 1
    assert texts[0].endswith(": no room")


def test_tasks_that_are_late_are_one_mark_if_they_are_many(schedules, site):
    for number in range(20):
        schedules.push(f"k{number:02}", "t")
    schedules.clock.advance(60)
    [mark] = lane(read(site), "t")["marks"]
    assert (mark["kind"], mark["number"]) == ("late", 20)


def test_records_that_are_too_many_are_left_out_and_the_page_says_so(
    schedules, site, write, monkeypatch
):
    monkeypatch.setattr(timeline, "_MOST_RECORDS", 5)
    schedules.add("k", "t", cron="0 0 1 1 *")
    write(*(ran(-60 * minutes, -60 * minutes + 5) for minutes in range(9, 0, -1)))
    document = read(site)
    assert len(lane(document, "k")["marks"]) == 5
    assert (
        "only the newest 5 records were read, back to Tue 01 11:55; zoom in" in document["remarks"]
    )


def test_a_schedule_that_cannot_be_planned_is_named(schedules, site):
    schedules.add("k", "t", cron="0 * * * *")
    schedules._store._connector.run(
        lambda c: c.exec_driver_sql("UPDATE psched SET cron = 'x' WHERE id = 'k'")
    )
    page = get(site)
    assert page.status == 200
    assert "cannot be planned: k: cron: " in page.text


def test_without_a_history_the_timeline_shows_the_future():
    with testing.Schedules(now=NOW) as schedules:
        schedules.add("k", "t", cron="0 * * * *")
        schedules._store._connector.run(lambda c: c.exec_driver_sql("DROP TABLE psched_runs"))
        site = site_on(schedules)
        document = read(site)
        assert any(each.startswith("no run history: ") for each in document["remarks"])
        assert lane(document, "k")["planned"]
        # How many fail is not known.
        assert "0 running, 1 late" in (shown := get(site, "now").text)
        assert "failing" not in shown


@pytest.mark.parametrize("span", timeline.SPANS)
def test_every_span_has_now_in_the_middle_and_few_times(schedules, site, span):
    schedules.add("k", "t", cron="*/7 * * * *")
    page = get(site, span=span)
    assert page.status == 200
    [now] = shapes(page, "line", "now")
    assert now["x1"] == "50%"
    assert len([tag for tag, given in page.tags if tag == "text"]) <= 9
    document = read(site, span=span)
    assert document["end"] - document["start"] == timeline.SPANS[span]


# --- Now, schedules, a schedule, a run -----------------------------------------------------------


def test_now_tells_in_a_sentence_what_goes_on_and_lists_what_fails(schedules, site, write):
    for number in range(12):
        schedules.add(f"k{number:02}", "t", cron="5 12 * * *", timezone="UTC")
        write(ran(-600, key=f"k{number:02}", outcome="failed", fate="gave_up", reason="no room"))
    schedules.add("well", "t", cron="5 12 * * *", timezone="UTC")
    write(ran(-900, key="well", outcome="failed", fate="gave_up"), ran(-600, key="well"))
    write(ran(-900, key="gone", outcome="failed", fate="gave_up"))
    schedules._store.history.beat(worker_record(slots=4))
    page = get(site, "now")
    assert "0 of 4 slots busy, 0 late, 12 failing, next at 12:05:00" in page.text
    assert "Failing 10 of 12" in page.text
    assert page.links("schedules")[0] == {"q": "state:failing"}
    document = get(site, "api/v1/now.json").json
    assert {run["key"] for run in document["failing"]} == {f"k{number:02}" for number in range(12)}
    assert document["slots"] == 4


def test_now_says_when_nothing_needs_a_person(schedules, site):
    schedules.add("k", "t", cron="5 12 * * *", timezone="UTC")
    without_worker = get(site, "now").text
    assert "no worker is known to be alive" in without_worker
    assert "Nothing needs a person." not in without_worker
    schedules._store.history.beat(worker_record())
    assert "Nothing needs a person." in get(site, "now").text
    schedules.pause_type("other", until="+1h")
    assert "Nothing needs a person." not in get(site, "now").text


def test_schedules_have_a_strip_of_their_last_runs_the_newest_last(schedules, site, write):
    schedules.add("k", "t", cron="0 1-11 * * *")
    write(*(ran(-60 * number) for number in range(40, 2, -1)))
    write(ran(-60, outcome="failed", fate="gave_up"))
    page = get(site, "schedules")
    bars = [given for tag, given in page.tags if tag == "rect" and "%" in given["x"]]
    strip = [given["class"] for given in bars]
    assert strip == ["finished"] * 29 + ["failed"]
    assert len(page.links("occurrence")) == 30
    document = get(site, "api/v1/schedules.json").json
    assert [each["state"] for each in document["schedules"]] == ["failing"]
    assert document["schedules"][0]["last"]["fate"] == "gave_up"


def test_a_key_that_no_schedule_can_have_prevents_no_page(schedules, site):
    schedules.add("k", "t", cron="0 0 1 1 *")
    rename = "UPDATE psched SET id = 'odd' || char(0)"
    schedules._store._connector.run(lambda connection: connection.exec_driver_sql(rename))
    for page in "", "now", "schedules", "runs", "api/v1/schedules.json":
        assert get(site, page).status == 200


def test_of_many_schedules_only_the_first_have_a_strip(schedules, site, write, monkeypatch):
    monkeypatch.setattr(pages, "_STRIPS", 1)
    for key in "a", "b":
        schedules.add(key, "t", cron="0 0 1 1 *")
        write(ran(-60, key=key))
    assert len(get(site, "schedules").links("occurrence")) == 1


def test_a_schedule_shows_its_next_ten_runs_in_the_order_in_which_they_come(schedules, site, write):
    schedules.add("k", "t", cron="*/10 * * * *", timezone="UTC")
    write(*(ran(-60 * number, -60 * number + 10 * number) for number in range(5, 0, -1)))
    # A retry that comes after the next occurrence.
    schedules._store._connector.run(
        lambda c: c.exec_driver_sql("UPDATE psched SET next_run_time = ?", (NOW + 700,))
    )
    page = get(site, "schedule", key="k")
    table = page.body.partition('class="next"')[2].partition("</table>")[0]
    times = re.findall(r"2030-01-01 (\d\d:\d\d:\d\d)", table)
    assert len(times) == 10
    assert times == sorted(times)
    assert "p50 30.0 s" in page.text
    assert "p95 50.0 s" in page.text
    heights = [given["height"] for tag, given in page.tags if given.get("class") == "finished"]
    assert heights == ["100.0%", "80.0%", "60.0%", "40.0%", "20.0%"]
    document = get(site, "api/v1/schedule.json", key="k").json
    assert len(document["occurrences"]) == 10
    assert document["why"]["key"] == "k"


def test_a_run_goes_from_due_to_its_end_and_its_traceback_is_shown_once(schedules, site, write):
    schedules.add("k", "t", cron="0 * * * *")
    error = "Traceback (most recent call last):\n  File 'a'\nValueError: no <room>"
    about = {"outcome": "failed", "fate": "gave_up", "error": error}
    due = {"due": 1000 * (NOW - 3600), "scheduled_time": NOW - 3600}
    record = ran(-3000, -2100, **about, **due, reason="ValueError: no <room>")
    write(record)
    logged = error.replace("\n", "\n    ")  # as psched logs it
    printed = f"begun\nERROR the handler raised\n    {logged}\nended\n"
    schedules._store.output.write_output(
        [
            OutputRecord(
                key="k", scheduled_time=NOW - 3600, owner=record.owner, attempt=1,
                ended=record.ended, output=printed.encode(), dropped=0, is_live=False,
            )
        ]
    )  # fmt: skip
    page = get(site, "occurrence", key="k", time=NOW - 3600)
    assert page.text.count("Traceback (most recent call last)") == 1
    assert "begun ERROR the handler raised [the error above] ended" in page.text
    assert 'class="error"><summary>ValueError: no &lt;room&gt;</summary>' in page.body
    [wait] = shapes(page, "rect", "wait")
    [bar] = shapes(page, "rect", "failed")[:1]
    assert (wait["width"], bar["width"]) == ("40.00%", "60.00%")
    assert "started 2030-01-01 11:10:00 UTC, 10.0 min later" in page.text
    document = get(site, "api/v1/occurrence.json", key="k", time=NOW - 3600).json
    assert document["why"]["code"] == "gave_up"
    assert document["runs"][0]["error"] == error
    assert document["outputs"][0]["text"].startswith("begun\n")


# --- all pages -----------------------------------------------------------------------------------


def test_hostile_texts_are_shown_as_they_are_in_every_field_of_every_page(schedules, site, write):
    key, type_ = HOSTILE, HOSTILE[:100]
    schedules.add(
        key, type_, cron="0 * * * *", label=HOSTILE, note=HOSTILE, data={HOSTILE: HOSTILE}
    )
    schedules.push(f"{HOSTILE}2", type_)
    about = {"key": key, "type": type_, "label": HOSTILE, "reason": HOSTILE, "host": HOSTILE}
    write(
        ran(-HOUR, outcome="failed", fate="gave_up", error=HOSTILE, **about),
        ran(-2 * HOUR, outcome="failed", fate=None, **about),
        skipped(-3 * HOUR, **about),
    )
    with schedules.audited(HOSTILE):
        schedules.pause(key)
    query = {"key": key, "time": NOW - HOUR}
    for page, given in [
        *[(name, {}) for name in ("", "now", "schedules", "runs")],
        ("", {"by": "label"}),
        ("", {"by": "type"}),
        ("", {"q": f'label:"{HOSTILE}'}),
        ("", {"q": HOSTILE, "span": HOSTILE}),
        ("schedules", {"q": HOSTILE}),
        ("schedules", {"q": f"state:{HOSTILE}"}),
        ("runs", {"key": key, "type": type_, "since": HOSTILE}),
        ("schedule", {"key": key}),
        ("schedule", {"key": f"{HOSTILE}none"}),
        ("occurrence", query),
        ("occurrence", {"key": key, "time": HOSTILE}),
    ]:
        shown = get(site, page, **given)
        assert shown.status in {200, 400, 404}, page
        # The page's own scripts have an address, which is that of a file of these pages.
        own = {f"{name}.js" for name in ("htmx.min", "hx-sse.min", "live", "keys")}
        scripts = [each.get("src", "") for tag, each in shown.tags if tag == "script"]
        assert {each.partition("?")[0] for each in scripts} <= own, page
        assert not [tag for tag, _ in shown.tags if tag == "img"], page
        attributes = {name for _, found in shown.tags for name in found}
        assert not [name for name in attributes if name.startswith("on") or name == "style"], page


@pytest.mark.parametrize(
    ("page", "query", "status"),
    [
        ("timeline", {"span": "3h"}, 400),
        ("timeline", {"by": "host"}, 400),
        ("timeline", {"sort": "name"}, 400),
        ("schedules", {"q": "state:well"}, 400),
        ("schedule", {"key": "none"}, 404),
        ("none", {}, 404),
    ],
)
def test_a_document_that_there_is_not_is_told_as_json(site, page, query, status):
    refused = get(site, f"api/v1/{page}.json", **query)
    assert refused.status == status
    assert set(refused.json) == {"error"}


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_page_names_its_document(schedules, site, page):
    schedules.add("k", "t", cron="0 * * * *")
    schedules.access.store.history.beat(worker_record())
    path = "" if page == "timeline" else page
    shown = get(site, path, key="k")
    [given] = [given for tag, given in shown.tags if given.get("rel") == "alternate"]
    assert given["href"] == f"api/v1/{page}.json?key=k"
    assert get(site, f"api/v1/{page}.json", key="k").json


def test_the_timeline_is_read_again_after_a_part_of_its_span(site):
    assert get(site, span="20m").refresh == "10"
    assert get(site, span="12h").refresh == "60"


def test_a_search_has_words_and_qualifiers():
    found = parse_search('mail-* "two words" state:due state:failed type:t label:"a b" x:y')
    assert found.keys == ("mail-*", "two words*", "x:y*")
    assert found.states == ("due", "failed")
    assert (found.types, found.labels) == (("t",), ("a b",))
    assert not parse_search("  ")


def test_what_ended_long_ago_or_comes_later_is_not_on_the_axis(schedules, site, write):
    schedules.add("k", "t", cron="0 0 2 1 *", timezone="UTC")
    write(ran(-7 * HOUR))
    found = lane(read(site), "k")
    assert (found["marks"], found["planned"]) == ([], [])
    schedules.clock.advance(timedelta(hours=8).total_seconds())
    assert len(lane(read(site), "k")["planned"]) == 1
