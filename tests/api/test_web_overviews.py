"""The pages Hosts, Queue and Events of psched web."""

import pytest

from psched.testing.store_contract.alerts import alert, raised
from support.run_records import not_run, run_record, worker_record
from support.waiting import wait_until
from support.web_pages import get, site_of

ODD = "<b>a</b>&?key=x#/../%41 'é\""
"""A text with characters that mean something in HTML and in an address."""

FAR = 4_000_000_000
PAGES = "hosts", "queue", "events"


@pytest.fixture
def site(schedules, settings):
    return site_of(schedules, settings)


@pytest.fixture
def history(schedules):
    return schedules._store.history


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store_has_an_empty_page(site, page):
    shown = get(site, page)
    assert shown.status == 200
    assert "<tr" not in shown.body
    assert get(site, f"api/v1/{page}.json").status == 200


@pytest.mark.parametrize("page", PAGES)
def test_strangers_see_no_page(schedules, settings, page):
    site = site_of(schedules, settings, is_open=False)
    assert get(site, page).status == 401
    assert get(site, f"api/v1/{page}.json").status == 401


# --- hosts -------------------------------------------------------------------------------


def test_the_page_of_hosts_shows_those_that_run_tasks(site, history):
    told = {"labels": "db eu", "version": "9.9.9", "python": "3.13.0", "zone_data": "2026b"}
    history.beat(worker_record(host="db1", slots=8, busy=2, clock_offset=-1500, **told))
    history.beat(worker_record(nonce="o", host=ODD, ended=0))
    page = get(site, "hosts")
    assert "<b>a" not in page.body
    for text in ("db1", "2 of 8", "db eu", "9.9.9", "3.13.0", "2026b", "-1.5", "gone", ODD):
        assert text in page.text
    assert "No task is under way." in page.text
    assert page.refresh == "5"


def test_the_page_of_hosts_shows_what_runs_on_which(schedules, site, history):
    schedules.add(ODD, "t", next_time=1_000_000_000)
    history.beat(worker_record(nonce="n1", host="db1"))
    claimed = schedules._store.claim("n1.1", limit=1, alive_time=60, shortest=6, horizon=0)
    assert len(claimed.rows) == 1
    page = get(site, "hosts")
    assert "Tasks under way 1" in page.text
    assert page.links("schedule") == [{"key": ODD}]
    assert page.links("occurrence") == [{"key": ODD, "time": "1000000000"}]


# --- queue -------------------------------------------------------------------------------


@pytest.fixture
def queued(schedules):
    for number in range(3):
        schedules.add(f"a{number}", "x", next_time=FAR, label="l")
    schedules.add("late", "x", next_time=1_000_000_000)
    schedules.add("b", ODD, cron="0 0 1 1 *")
    schedules.add("c", "two words", cron="0 0 1 1 *")
    schedules["b"].pause()


@pytest.mark.usefixtures("queued")
def test_the_queue_counts_each_status_of_each_type(site):
    document = get(site, "api/v1/queue.json").json
    assert document["types"] == {
        "x": {"waiting": 4, "due": 1},
        ODD: {"paused": 1},
        "two words": {"waiting": 1},
    }
    assert next(iter(document["types"])) == "x"  # the most first
    page = get(site, "queue")
    assert "<b>a" not in page.body
    assert "all types 5 1 1 6" in page.text


@pytest.mark.usefixtures("queued")
def test_a_number_of_the_queue_leads_to_what_it_counts(site):
    page = get(site, "queue", q="label:l type:x state:paused a*")
    assert page.status == 200
    for q in "", "late", "label:l", "type:x state:due", 'type:"two words"':
        page = get(site, "queue", q=q)
        cells = page.cells()
        assert cells
        for text, query in cells:
            assert "<b>" not in query.get("q", "")  # no search finds a type with a quote and blanks
            found = get(site, "api/v1/schedules.json", **query).json["schedules"]
            assert len(found) == int(text)


def test_the_queue_counts_what_is_stopping_or_has_lost_its_lease_as_a_search_does(schedules, site):
    for key in "stops", "lost":
        schedules.add(key, "t", cron="* * * * *", next_run_time=1_000_000_000)
        claimed = schedules._store.claim("n1.1", limit=1, alive_time=1, shortest=1, horizon=0)
        assert len(claimed.rows) == 1
        if key == "stops":
            schedules[key].stop()
    found = {}

    def is_lost():
        return any("state:due" in query["q"] for _, query in get(site, "queue").cells())

    wait_until(is_lost, what="the end of the lease")
    for text, query in get(site, "queue").cells():
        listed = get(site, "api/v1/schedules.json", **query).json["schedules"]
        assert len(listed) == int(text), query
        found |= {query["q"]: int(text)}
    assert found["type:t state:stopping"] == found["type:t state:due"] == 1


@pytest.mark.parametrize("key", ["state:due", "type:x", "label:l", "state:odd"])
def test_the_queue_of_a_key_like_a_qualifier_leads_to_this_key(schedules, site, key):
    schedules.add(key, "t", next_time=FAR)
    schedules.add("other", "x", next_time=FAR, label="l")
    page = get(site, "queue", q=f'"{key}"')
    assert page.status == 200
    assert page.cells()
    for _, query in page.cells():
        listed = get(site, "api/v1/schedules.json", **query).json["schedules"]
        assert [each["key"] for each in listed] == [key]


@pytest.mark.usefixtures("queued")
def test_what_the_queue_counts_can_be_requeued_or_cancelled(schedules, settings, site):
    assert get(site, "queue").links("act") == []  # who may only read
    everybody = site_of(schedules, settings, access=lambda _: "operate")
    links = get(everybody, "queue", q="type:x").links("act")
    assert links == [{"do": "requeue", "q": "type:x"}, {"do": "cancel", "q": "type:x"}]
    assert "4 schedules will be cancelled" in get(everybody, "act", **links[1]).text


# --- events ------------------------------------------------------------------------------


def test_what_happened_is_in_the_order_of_time(schedules, site, history):
    schedules.add(ODD, "t", cron="0 0 1 1 *", note="<script>n</script>")
    first = run_record(ODD, outcome="failed", reason="<script>r</script>")
    history.record([first, not_run("other"), run_record("third")])
    span = {"from": 1_700_000_000, "to": 1_900_000_000}
    document = get(site, "api/v1/events.json", **span).json
    times = [each["time"] for each in document["events"]]
    assert times == sorted(times)
    kinds = {each["what"]: each for each in document["events"]}
    assert {*kinds} == {"run", "skip"} | ({"change"} & {*kinds})
    page = get(site, "events", **span)
    assert "<script" not in page.main
    assert "<b>a" not in page.body
    links = page.links("occurrence")
    assert {"key": ODD, "time": str(first.scheduled_time)} in links
    assert {"key": "other"} in [{"key": each["key"]} for each in page.links("schedule")]


def test_changes_and_their_authors_are_among_what_happened(schedules, site):
    schedules.add("k", "t", cron="0 0 1 1 *")
    with schedules.audited("<i>why</i>"):
        schedules["k"].pause()
    page = get(site, "events")
    assert "pause by " in page.text
    assert "<i>why</i>" in page.text
    assert "<i>" not in page.body
    document = get(site, "api/v1/events.json").json
    assert [each["change"]["action"] for each in document["events"]] == ["add", "pause"]
    assert document["more"] is False


def test_what_happened_within_a_millisecond_is_in_its_order(site, history):
    time = 1_700_000_000
    told = {"scheduled_time": time, "started": 1000 * time, "ended": 1000 * time}
    history.record([run_record(key, **told) for key in ("a", "b", "c")])
    page = get(site, "api/v1/events.json", **{"from": time}).json
    assert [each["run"]["key"] for each in page["events"]] == ["a", "b", "c"]


def test_only_what_happened_in_the_span_is_shown_and_the_rest_is_counted(site, history):
    times = [1_800_000_000 + 60 * number for number in range(5)]
    history.record(
        [run_record(scheduled_time=time, started=time * 1000, ended=time * 1000) for time in times]
    )
    page = get(site, "api/v1/events.json", to=times[3], limit=2, **{"from": times[1]}).json
    assert [each["time"] for each in page["events"]] == times[1:3]
    assert (page["number"], page["more"]) == (3, True)
    shown = get(site, "events", to=times[3], limit=2, **{"from": times[1]})
    assert "the first 2 of 3 runs" in shown.text
    [more] = shown.links("events")
    assert more["limit"] == "20"


def test_alerts_about_schedules_and_hosts_are_among_what_happened(schedules, site):
    schedules.add(ODD, "t", cron="0 0 1 1 *")
    told = {"text": "<script>late</script>", "scheduled_time": 1_000_000_000}
    # One is over. That of a host is about no schedule.
    schedules.close_alerts(raised(schedules._store, alert(ODD, **told)), "<i>over</i>")
    raised(schedules._store, alert("", host="<i>h</i>", rule="worker_died", text="silent"))
    page = get(site, "events")
    assert "late: <script>late</script>" in page.text
    assert "worker_died: silent" in page.text
    assert "<i>" not in page.body
    assert "<script" not in page.main
    assert page.links("occurrence") == [{"key": ODD, "time": "1000000000"}]
    # Its schedule was added, and the alert was closed by hand.
    assert page.links("schedule") == [{"key": ODD}] * 3
    document = get(site, "api/v1/events.json").json
    kinds = [each["what"] for each in document["events"]]
    assert sorted(kinds) == ["alert", "alert", "change", "change"]
    found = [each["alert"] for each in document["events"] if each["what"] == "alert"]
    assert {each["rule"] for each in found} == {"late", "worker_died"}
    only = get(site, "api/v1/events.json", key=ODD).json["events"]
    assert sorted(each["what"] for each in only) == ["alert", "change", "change"]
    assert only[0]["what"] == "change"


@pytest.mark.parametrize(
    ("query", "field"),
    [({"from": "x"}, "from"), ({"to": "soon"}, "to"), ({"from": "-1h", "to": "-2h"}, "to")],
)
def test_a_span_that_is_none_is_refused(site, query, field):
    refused = get(site, "events", **query)
    assert refused.status == 400
    assert f"{field}: " in refused.text


def test_what_is_hidden_is_hidden_from_what_happened(schedules, settings, history):
    history.record([run_record(outcome="failed", reason="password=secret1")])
    site = site_of(schedules, settings.with_settings(redact=["password"]))
    for page in "events", "api/v1/events.json":
        shown = get(site, page, to=1_900_000_000, **{"from": 1_700_000_000})
        assert "[redacted]" in shown.body
        assert "secret1" not in shown.body
