"""The pages Hosts and Queue of psched web."""

import pytest

from support.run_records import worker_record
from support.web_pages import get, site_of

ODD = "<b>a</b>&?key=x#/../%41 'é\""
"""A text with characters that mean something in HTML and in an address."""

FAR = 4_000_000_000
PAGES = "hosts", "queue"


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
    assert page.headers["Refresh"] == "5"


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


@pytest.mark.usefixtures("queued")
def test_what_the_queue_counts_can_be_requeued_or_cancelled(schedules, settings, site):
    assert get(site, "queue").links("act") == []  # who may only read
    everybody = site_of(schedules, settings, access=lambda _: "operate")
    links = get(everybody, "queue", q="type:x").links("act")
    assert links == [{"do": "requeue", "q": "type:x"}, {"do": "cancel", "q": "type:x"}]
    assert "4 schedules will be cancelled" in get(everybody, "act", **links[1]).text
