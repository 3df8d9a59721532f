"""What can be done on the web pages: shown before it is done, done once, audited, and undone."""

import json
import re

import pytest

from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.testing.store_contract.alerts import alert, raised
from psched.web import actions
from support.run_records import not_run, worker_record
from support.web_pages import Browser, Unkept, ask, site_of

NASTY = "<script>alert(1)</script>\"'&"


@pytest.fixture
def secret():
    return Unkept()


@pytest.fixture
def browser(schedules, settings, secret):
    """Somebody who may do everything."""
    schedules.add("k", "t", cron="0 3 * * *", timezone="UTC", data={"a": 1})
    return Browser(site_of(schedules, settings, secret=secret)).log_in(secret.token)


def status(schedules, key="k"):
    return schedules[key].metadata().status


@pytest.mark.parametrize("name", actions.ACTIONS)
def test_looking_at_what_would_be_done_does_nothing(schedules, browser, name):
    before = schedules["k"].metadata()
    for query in {"key": "k"}, {"q": "k"}, {"keys": "k"}, {}:
        browser.get("act", do=name, stage="do", **query)
        browser.get(name, stage="do", **query)
        browser.get(f"api/v1/{name}", **query)
    assert schedules["k"].metadata() == before
    assert [each.action for each in schedules.audit("k")] == ["add"]


def test_each_action_is_done_audited_and_undone(schedules, browser):
    for name, after, inverse in (
        ("pause", "paused", "resume"),
        ("resume", "waiting", "pause"),
        ("cancel", "cancelled", "requeue"),
        ("requeue", "waiting", "cancel"),
    ):
        done = browser.act(name, key="k", note=f"because of {name}")
        assert (done.status, done.headers["Location"]) == (303, "schedule?key=k")
        assert status(schedules) == after
        [record] = schedules.audit("k", limit=1)
        assert (record.action, record.note) == (name, f"because of {name}")
        assert (record.user, record.program) == ("root", "psched web")
        page = browser.get("schedule", key="k")
        assert page.links("act")[0] == {"do": inverse, "key": "k"}
        assert 'class="done"' in page.body
        assert 'class="done"' not in browser.get("schedule", key="k").body  # told once


@pytest.mark.parametrize("query", [None, {"q": "state:cancelled"}])
def test_what_was_cancelled_together_is_requeued_together(schedules, browser, query):
    schedules.add("k2", "t", cron="0 3 * * *", timezone="UTC")
    browser.act("cancel", q="k")
    [undo] = [each for each in browser.get("schedules").links("act") if "keys" in each]
    assert undo.pop("do") == "requeue"
    assert browser.act("requeue", **(query or undo)).status == 303
    assert {status(schedules, key) for key in ("k", "k2")} == {"waiting"}


def test_only_the_definition_of_a_template_is_changed_and_only_the_rest_on_its_hosts(
    schedules, browser
):
    schedules.access.store.history.beat(worker_record(host="web1", labels="web1"))
    schedules.add("trim", "t", cron="0 3 * * *", timezone="UTC", each_host=True)

    def offered(key):
        return {each["do"] for each in browser.get("schedule", key=key).links("act")}

    assert offered("trim") == {"edit"}
    assert offered("trim@web1") >= {"trigger", "pause", "skip", "backfill", "cancel"}
    assert "edit" not in offered("trim@web1")
    for name in sorted(actions.ACTIONS.keys() - {"edit", "acknowledge"}):
        page = browser.get("act", do=name, key="trim", **{"from": "-1d"})
        assert page.status == 400
        assert "name one of them, as in 'trim@web1'" in page.text
    assert "2 schedules will be paused" in browser.get("act", do="pause", q="*").text
    assert browser.act("pause", q="trim").status == 303
    assert (status(schedules, "trim"), status(schedules, "trim@web1")) == ("waiting", "paused")


def test_a_pause_has_an_end_a_note_and_the_name_of_who_made_it(schedules, browser):
    browser.act("pause", key="k", until="+2h", note="the disk is full")
    page = browser.get("schedule", key="k")
    assert "by root@" in page.text
    assert "the disk is full" in page.text
    assert schedules.read("k").row.paused_until > schedules.now() + 7000


def test_a_value_that_is_wrong_is_told_beside_its_field(schedules, browser):
    refused = browser.act("pause", key="k", until="sometime")
    assert refused.status == 400
    assert "until: " in refused.text
    assert refused.form("do")["until"] == "sometime"
    assert browser.send(refused, until="+1h").status == 303
    assert status(schedules) == "paused"


def test_an_extra_run_is_triggered_and_cancelled(schedules, browser):
    page = browser.get("act", do="trigger", key="k")
    assert "The regular runs keep their times" in page.text
    assert browser.send(page).status == 303
    [undo] = [each for each in browser.get("schedule", key="k").links("act") if "!" in each["key"]]
    assert undo["do"] == "cancel"
    assert status(schedules, undo["key"]) == "waiting"
    browser.act(**{"name": undo.pop("do"), **undo})
    assert status(schedules, undo["key"]) == "cancelled"


def test_the_runs_that_are_left_out_are_shown_before(schedules, browser):
    page = browser.get("act", do="skip", key="k", n="2")
    assert "left out: " in page.text
    assert "and the next one" in page.text
    assert page.text.count("next was: ") == 1
    before = schedules["k"].metadata().next_time
    assert browser.send(page).status == 303
    assert schedules["k"].metadata().next_time == before + 2 * 86_400
    assert browser.get("act", do="skip", key="k", n="0").status == 400


def test_a_run_is_stopped_but_not_a_later_one(schedules, browser):
    schedules.add("now", "t", next_time=1_000_000_000, cron="0 0 1 1 *", timezone="UTC")
    [row] = schedules._store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0).rows
    [link] = [
        each for each in browser.get("schedule", key="now").links("act") if each["do"] == "stop"
    ]
    page = browser.get("act", **link)
    assert page.form("do")["run"] == str(row.fence)
    refused = browser.send(page, run="12345")
    assert refused.status == 409
    assert schedules.read("now").row.status != "stopping"
    assert browser.send(page).status == 303
    assert schedules.read("now").row.status == "stopping"


def test_other_runs_than_those_that_were_shown_are_not_left_out(schedules, browser):
    page = browser.get("act", do="skip", key="k", n="1")
    schedules["k"].skip()
    before = schedules["k"].metadata().next_time
    refused = browser.send(page)
    assert refused.status == 409
    assert schedules["k"].metadata().next_time == before
    assert browser.send(refused).status == 303


def test_a_run_that_began_since_cancelling_was_shown_is_not_stopped_by_it(schedules, browser):
    schedules.add("now", "t", next_time=1_000_000_000, cron="0 0 1 1 *", timezone="UTC")
    page = browser.get("act", do="cancel", key="now")
    assert "Its run is stopped" not in page.text
    schedules._store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0)
    refused = browser.send(page)
    assert refused.status == 409
    assert "Its run is stopped" in refused.text
    assert status(schedules, "now") == "running"
    assert browser.send(refused).status == 303


def test_an_alert_that_nobody_has_seen_is_not_acknowledged(schedules, browser):
    raised(schedules._store, alert("k"))
    page = browser.get("act", do="acknowledge", key="k")
    raised(schedules._store, alert("k", rule="failed", text="it fails"))
    refused = browser.send(page)
    assert refused.status == 409
    assert "it fails" in refused.text
    assert len([*schedules.alerts("k")]) == 2
    assert browser.send(refused).status == 303


def test_what_is_not_possible_now_is_told(schedules, browser):
    for name, told in (
        ("resume", "cannot be resumed: it is waiting"),
        ("requeue", "cannot be requeued: it is waiting"),
        ("stop", "cannot be stopped: it is waiting"),
        ("acknowledge", "no open alert"),
    ):
        page = browser.get("act", do=name, key="k")
        assert page.status == 409
        assert told in page.text
    assert browser.get("act", do="pause", key="none").status == 404
    assert browser.get("act", do="explode", key="k").status == 400
    page = browser.get("act", do="pause", key="k")
    schedules["k"].cancel()
    assert browser.send(page).status == 409


def test_the_open_alerts_about_a_schedule_are_acknowledged(schedules, browser):
    assert "Acknowledge" not in browser.get("schedule", key="k").text
    raised(schedules._store, alert("k", text=f"it is late: {NASTY}"), alert("other"))
    assert "Acknowledge" in browser.get("schedule", key="k").text
    page = browser.get("act", do="acknowledge", key="k")
    assert "it is late" in page.text
    assert "<script" not in page.main
    assert browser.send(page, note="known").status == 303
    assert [each.key for each in schedules.alerts()] == ["other"]
    [closed] = schedules.alerts("k", only_open=False)
    assert closed.closed_text.startswith("closed by root@")
    assert closed.closed_text.endswith(": known")
    [record] = schedules.audit("k", limit=1)
    assert (record.action, record.user, record.note) == ("acknowledge", "root", "known")


# --- backfill -------------------------------------------------------------------------------


def test_a_backfill_shows_its_runs_first_and_adds_just_them(schedules, browser):
    form = browser.get("act", do="backfill", key="k")
    assert not form.form("do")
    query = {"from": "2026-01-01T00:00", "to": "2026-01-03T00:00"}
    page = browser.get("act", do="backfill", key="k", **query)
    assert "2 runs would be added" in page.text
    assert not [*schedules.list(prefix="k!")]
    assert browser.send(page, count="3").status == 409
    assert browser.send(page).status == 303
    added = [each.key for each in schedules.list(prefix="k!")]
    assert len(added) == 2
    [undo] = [each for each in browser.get("schedule", key="k").links("act") if "keys" in each]
    assert sorted(undo["keys"].splitlines()) == sorted(added)
    page = browser.get("act", **undo)
    assert "2 schedules will be cancelled" in page.text
    browser.send(page)
    assert {status(schedules, key) for key in added} == {"cancelled"}


@pytest.mark.parametrize("end", ["", "now"])
def test_a_backfill_goes_up_to_now_unless_it_is_told_otherwise(schedules, browser, end):
    page = browser.get("act", **{"do": "backfill", "key": "k", "from": "-2d", "to": end})
    assert page.status == 200, page.text
    assert abs(int(page.form("do")["to"]) - schedules.now()) < 60


def test_an_occurrence_that_did_not_run_offers_to_run_it(schedules, browser):
    record = not_run("k")
    schedules._store.history.record([record])
    page = browser.get("occurrence", key="k", time=record.scheduled_time)
    time = str(record.scheduled_time)
    assert page.links("act") == [{"do": "backfill", "key": "k", "from": time, "to": time}]


# --- several --------------------------------------------------------------------------------


def test_all_that_a_search_finds_is_counted_changed_and_changed_back(schedules, browser):
    for number in range(7):
        schedules.add(f"mail-{number}", "mail", cron="0 4 * * *", timezone="UTC")
    links = browser.get("schedules", q="type:mail").links("act")
    [link] = [each for each in links if each["do"] == "pause"]
    page = browser.get("act", **link)
    assert "7 schedules will be paused: mail-0, mail-1, mail-2, mail-3, mail-4, …" in page.text
    done = browser.send(page, note="move")
    assert done.headers["Location"] == "schedules?q=type%3Amail"
    assert {status(schedules, f"mail-{number}") for number in range(7)} == {"paused"}
    assert status(schedules) == "waiting"
    shown = browser.get("schedules", q="type:mail")
    assert "7 schedules paused" in shown.text
    [undo] = [each for each in shown.links("act") if "keys" in each]
    browser.send(browser.get("act", **undo))
    assert {status(schedules, f"mail-{number}") for number in range(7)} == {"waiting"}


def test_what_a_search_finds_since_it_was_counted_is_not_changed(schedules, browser):
    schedules.add("mail-1", "mail", cron="0 4 * * *")
    page = browser.get("act", do="pause", q="type:mail")
    schedules.add("mail-2", "mail", cron="0 4 * * *")
    refused = browser.send(page)
    assert refused.status == 409
    assert "has changed meanwhile" in refused.text
    assert {status(schedules, key) for key in ("mail-1", "mail-2")} == {"waiting"}
    assert "2 schedules will be paused" in refused.text
    assert browser.send(refused).status == 303


def test_if_the_store_fails_among_several_it_is_told_that_some_were_changed(
    schedules, browser, monkeypatch
):
    """Otherwise they would be triggered again with the others."""
    schedules.add("l", "t", cron="0 3 * * *")
    page, add, left = browser.get("act", do="trigger", q="*"), schedules._store.add, [1]

    def add_once(*args, **more):
        if not left:
            raise StoreUnavailableError("away")
        left.pop()
        return add(*args, **more)

    monkeypatch.setattr(schedules._store, "add", add_once)
    told = browser.send(page)
    assert told.status == 503
    assert "1 of 2 schedules were dealt with before" in told.text
    assert "look what was triggered before you do it again" in told.text
    assert "Refresh" not in told.headers


def test_while_a_schedule_is_locked_its_form_is_shown_with_the_reason(
    schedules, browser, monkeypatch
):
    """The store has answered: nobody who waits is told that it does not."""

    def fail(*_args, **_more):
        raise StoreBusyError("it is locked")

    page = browser.get("act", do="cancel", key="k")
    monkeypatch.setattr(schedules._store, "replace", fail)
    told = browser.send(page)
    assert told.status == 503
    assert "it is locked" in told.text
    assert told.form("do")["key"] == "k"


def test_what_waits_for_others_is_not_done_after_its_browser_has_hung_up(schedules, browser):
    """Who is tired of waiting sends the form again: one of the two must do it."""

    class Taken:
        """A lock that others always have first."""

        def acquire(self, *, blocking=True, timeout=-1):
            return blocking and timeout

        def release(self):
            pass

    page, browser.site._store._lock = browser.get("act", do="trigger", key="k"), Taken()
    browser.environ["waitress.client_disconnected"] = lambda: True
    refused = browser.send(page)
    assert (refused.status, refused.headers.get("Refresh")) == (503, None)
    assert "nothing was done" in refused.text
    browser.environ["waitress.client_disconnected"] = lambda: False
    assert browser.send(page).status == 303
    assert [each.action for each in schedules.audit("k")] == ["trigger", "add"]


def test_a_key_like_a_pattern_chooses_nothing_else(schedules, browser):
    schedules.add("ka*", "t", cron="0 4 * * *")
    schedules.add("kab", "t", cron="0 4 * * *")
    page = browser.get("act", do="pause", keys="ka*")
    schedules["ka*"].delete()
    assert browser.send(page).status in {400, 409}
    assert status(schedules, "kab") == "waiting"


@pytest.mark.parametrize("name", actions.ACTIONS)
def test_nothing_is_chosen_by_naming_nothing(schedules, browser, name):
    for query in {}, {"key": ""}, {"keys": ""}, {"q": ""}:
        refused = browser.get("act", do=name, **query)
        assert refused.status == 400
        assert "key: is missing" in refused.text
        csrf = browser.get("act", do="pause", key="k").form("do")["csrf"]
        sent = browser.post("act", csrf=csrf, do=name, stage="do", **query)
        assert sent.status == 400
    if not actions.ACTIONS[name].takes_many:
        assert browser.get("act", do=name, q="*").status == 400
    assert [each.action for each in schedules.audit("k")] == ["add"]


def test_too_many_are_refused(schedules, browser, monkeypatch):
    monkeypatch.setattr(actions, "MOST", 2)
    for number in range(3):
        schedules.add(f"m{number}", "mail", cron="0 4 * * *")
    page = browser.get("act", do="trigger", q="type:mail")
    assert page.status == 400
    assert "more than 2 schedules" in page.text
    assert "Nothing is found" in browser.get("act", do="resume", q="type:mail m0").text


def test_what_a_search_finds_is_read_at_once(schedules, browser, monkeypatch):
    for number in range(9):
        schedules.add(f"m{number}", "mail", cron="0 4 * * *")
    read, calls = schedules.read_many, []
    monkeypatch.setattr(schedules, "read_many", lambda keys: calls.append(keys) or read(keys))
    assert "9 schedules" in browser.get("act", do="trigger", q="type:mail").text
    assert len(calls) <= 2


# --- edit -----------------------------------------------------------------------------------


def edited(page, *pair):
    return {**page.form(None), "text": page.area.replace(*pair)}


def test_a_definition_is_edited_after_its_next_runs_were_shown_and_changed_back(schedules, browser):
    page = browser.get("act", do="edit", key="k")
    assert "cron: 0 3 * * *" in page.area
    shown = browser.post("act", **edited(page, "0 3 * * *", "30 4 * * *"))
    assert shown.status == 200
    assert re.search(r"cron: .?0 3 \* \* \*.? -> .?30 4 \* \* \*", shown.text)
    assert "next was: " in shown.text
    assert schedules["k"].metadata().cron == "0 3 * * *"
    assert browser.send(shown).status == 303
    assert schedules["k"].metadata().cron == "30 4 * * *"
    [undo] = [each for each in browser.get("schedule", key="k").links("act") if "undo" in each]
    page = browser.get("act", **undo)
    browser.send(browser.post("act", **edited(page, "", "")))
    assert schedules["k"].metadata().cron == "0 3 * * *"
    assert [each.action for each in schedules.audit("k")] == ["edit", "edit", "add"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("0 3 * * *", "0 3 * *"), "cron"),
        (("k:", "other:"), "must contain k alone"),
        (("type: t", "colour: red"), "colour"),
        (("schedules", "{"), "line "),
    ],
)
def test_a_wrong_text_changes_nothing_and_stays(schedules, browser, change, told):
    page = browser.get("act", do="edit", key="k")
    fields = edited(page, *change)
    refused = browser.post("act", **fields)
    assert refused.status == 400
    assert told in refused.text
    assert refused.area.strip() == fields["text"].strip()
    assert browser.post("act", **fields, stage="do").status == 400
    assert [each.action for each in schedules.audit("k")] == ["add"]


def test_an_edit_of_what_was_changed_meanwhile_is_refused(schedules, browser):
    page = browser.get("act", do="edit", key="k")
    shown = browser.post("act", **edited(page, "0 3 * * *", "30 4 * * *"))
    schedules.modify("k", data={"a": 2})
    assert browser.send(shown).status == 409
    assert schedules["k"].metadata().cron == "0 3 * * *"


def test_hidden_values_are_not_shown_in_a_definition_and_stay(schedules, settings, secret):
    schedules.add("s", "t", cron="0 3 * * *", data={"password": "secret1", "n": {"token": "x9"}})
    site = site_of(schedules, settings.with_settings(redact=["password", "token"]), secret=secret)
    browser = Browser(site).log_in(secret.token)
    page = browser.get("act", do="edit", key="s")
    assert "secret1" not in page.body
    assert "x9" not in page.body
    shown = browser.post("act", **edited(page, "0 3 * * *", "0 4 * * *"))
    assert "secret1" not in shown.body
    assert browser.send(shown).status == 303
    assert schedules["s"].metadata().data == {"password": "secret1", "n": {"token": "x9"}}
    assert schedules["s"].metadata().cron == "0 4 * * *"
    moved = browser.get("act", do="edit", key="s")
    refused = browser.post("act", **edited(moved, "password", "other"))
    assert refused.status == 400


class Polled:
    """A custom trigger with a secret."""

    def __init__(self, password, gap):
        self.gap, self.password = gap, password

    def next_at(self, after):
        return (after // self.gap + 1) * self.gap


def test_what_stands_for_a_hidden_value_is_never_stored_in_its_place(schedules, settings, secret):
    schedules.add("s", "t", trigger=(Polled, {"gap": 70, "password": "hunter2"}))
    site = site_of(schedules, settings.with_settings(redact=["password"]), secret=secret)
    browser = Browser(site).log_in(secret.token)
    page = browser.get("act", do="edit", key="s")
    assert "hunter2" not in page.body
    shown = browser.post("act", **edited(page, "label: null", "label: x"))
    assert browser.send(shown).status == 303
    assert '"hunter2"' in schedules.read("s").row.cron
    page = browser.get("act", do="edit", key="s")
    refused = browser.post("act", **edited(page, "70", "80"))
    assert not refused.form("do")
    assert "hunter2" not in refused.body
    assert "[redacted]" in refused.text


# --- texts of strangers ---------------------------------------------------------------------


def test_texts_of_strangers_are_texts_on_every_page_of_an_action(schedules, browser):
    schedules.add(NASTY, NASTY, cron="0 3 * * *", data={NASTY: NASTY}, label=NASTY, note=NASTY)
    for name in "trigger", "pause", "skip", "backfill", "edit", "cancel":
        page = browser.get("act", do=name, key=NASTY)
        assert page.status == 200
        assert "<script" not in page.main
    browser.act("pause", key=NASTY, note=NASTY)
    for page in ("schedule", {"key": NASTY}), ("now", {}), ("", {}), ("schedules", {}):
        shown = browser.get(page[0], **page[1])
        assert shown.status == 200
        assert "<script" not in shown.main
    assert "<script>" not in browser.get("act", do=NASTY, key=NASTY, note=NASTY).body
    assert "<script>" not in browser.get("act", do="pause", q=NASTY, until=NASTY).body


# --- programs -------------------------------------------------------------------------------


def post(browser, secret, name, body, **headers):
    sent = {
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {secret.token}",
        **headers,
    }
    given = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(browser.site, f"api/v1/{name}", "POST", headers=sent, body=given)


def test_a_program_does_the_same_with_a_token(schedules, browser, secret):
    would = post(browser, secret, "pause", {"key": "k", "dry_run": True})
    assert would.status == 200
    assert "It does not run until the pause ends" in would.json["would"][0]
    assert status(schedules) == "waiting"
    done = post(browser, secret, "pause", {"key": "k", "until": "+1h", "note": "api"})
    assert done.json == {"key": "k", "done": "k: paused", "extra_runs": []}
    [record] = schedules.audit("k", limit=1)
    assert (record.action, record.note, record.program) == ("pause", "api", "psched web")
    post(browser, secret, "resume", {"key": "k"})
    triggered = post(browser, secret, "trigger", {"key": "k"}).json
    assert status(schedules, triggered["extra_runs"][0]) == "waiting"


@pytest.mark.parametrize(
    ("body", "headers", "answer"),
    [
        (b"{", {}, (400, "is no JSON")),
        (b"[]", {}, (400, "must be a JSON object")),
        ({}, {}, (400, "key: is missing")),
        ({"key": "none"}, {}, (404, "no schedule")),
        ({"key": "k", "until": "never"}, {}, (400, "until: ")),
        ({"key": "k", "until": [1]}, {}, (400, "until: ")),
        ({"key": "k", "dry-run": True}, {}, (400, "dry-run: is no field of pause; there are key,")),
        ({"key": "k", "untill": "+1h"}, {}, (400, "untill: is no field of pause")),
        ({"key": "k"}, {"CONTENT_TYPE": "text/plain"}, (400, "must be a JSON object")),
        ({"key": "k"}, {"HTTP_AUTHORIZATION": "Bearer x"}, (401, "Log in first")),
        ({"key": "k"}, {"HTTP_AUTHORIZATION": ""}, (401, "Log in first")),
    ],
)
def test_a_wrong_request_of_a_program_is_told(browser, secret, body, headers, answer):
    refused, (code, told) = post(browser, secret, "pause", body, **headers), answer
    assert refused.status == code
    assert told in refused.json["error"]
    assert "waiting" in browser.get("schedule", key="k").text


def test_a_cookie_is_no_token_for_programs(schedules, browser, secret):
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    headers = {"HTTP_AUTHORIZATION": "", "HTTP_COOKIE": cookies}
    refused = post(browser, secret, "pause", {"key": "k"}, **headers)
    assert refused.status == 403
    assert status(schedules) == "waiting"
