"""With ``read_url``, the web pages read a replica, and actions use the database itself."""

import json
import subprocess
import sys
from dataclasses import replace
from math import inf

import pytest

import psched
import psched.web
from psched.app import make_store
from psched.base.errors import StoreUnavailableError
from psched.config import from_mapping
from psched.web import gate
from support.waiting import wait_until
from support.web_pages import Browser, Unkept, get, site_of


@pytest.fixture
def replica(settings, schedules, tmp_path):
    """What lags behind: a database of its own, where one schedule has another label."""
    other = replace(settings, url=f"sqlite:///{tmp_path}/replica.db", type="rdb")
    make_store(other).init()
    schedules.add("k", "t", cron="0 3 * * *", timezone="UTC", label="of-url")
    with psched.open(other) as replica:
        replica.add("k", "t", cron="0 3 * * *", timezone="UTC", label="of-replica")
        yield replica


@pytest.fixture
def browser(schedules, settings, replica):
    secret = Unkept()
    return Browser(site_of(schedules, settings, secret=secret, replica=replica)).log_in(
        secret.token
    )


def test_pages_and_their_documents_are_those_of_the_replica(browser, replica, schedules):
    replica.add("lagging", "t", cron="0 3 * * *")
    schedules.add("new", "t", cron="0 3 * * *")
    found = json.loads(browser.get("api/v1/schedules.json").body)
    assert [each["key"] for each in found["schedules"]] == ["k", "lagging"]
    assert browser.get("schedule", key="new").status == 404
    assert "of-replica" in browser.get("schedule", key="k").body


def test_an_action_shows_and_does_what_is_true_of_the_database_itself(browser, replica, schedules):
    replica["k"].pause()
    page = browser.get("act", do="pause", key="k")
    assert "of-url" in browser.get("act", do="edit", key="k").body
    assert browser.send(page).status == 303
    assert schedules["k"].metadata().status == "paused"


def test_who_has_just_acted_sees_it_and_others_read_the_replica(browser, monkeypatch):
    other = Browser(browser.site).log_in(browser.site._gate._secret.token)
    browser.act("pause", key="k")
    for _ in range(2):  # also after it was told what was done
        assert "of-url" in browser.get("schedule", key="k").body
    assert "of-replica" in other.get("schedule", key="k").body
    live = {"HTTP_HX_REQUEST": "true"}
    browser.environ = other.environ = live
    assert "of-url" in browser.get("schedule", key="k").body
    assert "of-replica" in other.get("schedule", key="k").body  # they share no page
    monkeypatch.setattr(gate, "_ACTED_AGE", -1)
    assert "of-replica" in browser.get("schedule", key="k").body


def test_whose_action_has_failed_sees_why_in_the_database_itself(browser, schedules):
    page = browser.get("act", do="pause", key="k")
    schedules["k"].delete()
    assert browser.send(page).status == 404
    assert browser.get("schedule", key="k").status == 404


def test_without_a_replica_no_browser_is_told_that_it_has_acted(schedules, settings):
    schedules.add("k", "t", cron="0 3 * * *")
    secret = Unkept()
    browser = Browser(site_of(schedules, settings, secret=secret)).log_in(secret.token)
    browser.act("pause", key="k")
    assert not [name for name in browser.cookies if "acted" in name]


def test_a_replica_that_is_away_is_named_and_no_action_waits_for_it(
    browser, replica, schedules, monkeypatch
):
    def away(*_args, **_options):
        raise StoreUnavailableError("the database cannot be reached")

    monkeypatch.setattr(replica, "overview", away)
    monkeypatch.setattr(replica, "runs", away)
    for page in "runs", "api/v1/runs.json", "now":
        response = browser.get(page)
        assert "read_url: the database cannot be reached" in response.body
    assert browser.get("runs").status == 503
    browser.site._read.away_at = inf  # somebody before has found out
    assert "read_url: The store does not answer." in browser.get("runs").text
    browser.act("pause", key="k")
    assert schedules["k"].metadata().status == "paused"
    assert browser.get("runs").status == 200  # of this browser, as long as it reads url


# --- a server's replica ---------------------------------------------------------------


@pytest.mark.postgresql
def test_the_pages_read_a_replica_of_postgresql(start_postgresql, tmp_path):
    primary = start_postgresql()
    url = primary.url("postgres")
    make_store(from_mapping({"url": url})).init()
    replica = start_postgresql(primary=primary)
    place = replica.url("postgres").partition("@")[2]
    given = {"url": url, "read_url": f"postgresql://{place}", "dispatch": "tests:Dispatch"}
    settings = from_mapping(given)
    assert settings.of_replica.url == replica.url("postgres")
    pages = psched.web.app(settings, access=lambda _: "operate", token_file=tmp_path / "token")
    with psched.open(settings) as schedules:
        schedules.add("k", "t", cron="0 3 * * *")
        wait_until(lambda: get(pages, "schedule", key="k").status == 200, what="the replica")
        replica.query("SELECT pg_wal_replay_pause()")
        schedules.add("new", "t", cron="0 3 * * *")
        assert get(pages, "schedule", key="new").status == 404
        for page in "", "now", "schedules", "queue", "runs", "events", "hosts":
            assert get(pages, page).status == 200
        browser = Browser(pages)
        assert browser.act("pause", key="new").status == 303
        assert "new: paused" in browser.get("schedule", key="new").text
        assert get(pages, "schedule", key="new").status == 404
        config = tmp_path / "psched.yml"
        config.write_text(f"url: {url}\nread_url: postgresql://{place}\n")
        told = check(config)
        assert f"replica: {replica.url('postgres')}, which psched web reads: ok" in told.stdout
        assert told.returncode == 0
        replica.kill()
        response = get(pages, "schedules")
        assert response.status == 503
        assert "read_url: " in response.text
        told = check(config)
        assert "Error: read_url: " in told.stderr
        assert told.returncode == 1


def check(config):
    words = [sys.executable, "-m", "psched", "-c", str(config), "check"]
    return subprocess.run(words, capture_output=True, text=True, check=False)
