"""The pages of psched web: what they show, where their links lead, and what they refuse."""

import re
import shutil
from hashlib import sha256

import pytest

from psched.cli.history.live_output import LiveHere
from psched.web import occurrence, pages, search
from psched.web import site as site_module
from support.run_records import not_run, run_record, worker_record
from support.web_pages import ask, get, site_of

ODD = "<b>a</b>&?key=x#/../%41 'é\""
"""A key with characters that mean something in HTML and in an address."""


@pytest.fixture
def site(schedules, settings):
    return site_of(schedules, settings)


@pytest.fixture
def write(schedules):
    """Writes records to the run history."""
    return lambda *records: schedules._store.history.record(records)


def test_the_page_now_shows_what_is_late_next_and_paused_and_leads_to_it(schedules, site):
    schedules.add("late", "t", next_time=1_000_000_000)
    schedules.add("next", "t", cron="0 0 1 1 *")
    schedules.add("paused", "t", cron="* * * * *")
    schedules["paused"].pause()
    page = get(site, "now")
    assert page.status == 200
    assert "1 late" in page.text
    assert "no worker is known to be alive" in page.text
    # What needs a person comes first.
    assert [each["key"] for each in page.links("schedule")] == ["late", "paused", "next"]
    assert page.refresh == "5"


def test_the_page_of_what_each_host_runs_leads_to_the_rows_of_the_hosts(
    schedules, site, monkeypatch
):
    trim = {"type": "t", "cron": "0 3 * * *", "timezone": "UTC", "each_host": True}
    schedules.add("trim", **trim, hosts="db*")
    page = get(site, "schedule", key="trim")
    assert "No host that it names is known." in page.text
    for nonce, host in ("n1", "db1"), ("n2", "db2"), ("n3", "web1"):
        record = worker_record(nonce=nonce, host=host, labels=host, started=1)
        schedules.access.store.history.beat(record)
    schedules["trim"].modify(note="again")
    schedules.add("trim@other", "t", cron="0 3 * * *")
    page = get(site, "schedule", key="trim")
    assert page.links("schedule") == [{"key": "trim@db1"}, {"key": "trim@db2"}]
    assert "Next runs" not in page.text
    assert "Next runs" in get(site, "schedule", key="trim@db1").text
    assert page.links("schedules") == []
    monkeypatch.setattr(pages, "_MOST_HOSTS", 1)
    page = get(site, "schedule", key="trim")
    assert page.links("schedule") == [{"key": "trim@db1"}]
    assert page.links("schedules") == [{"q": "trim@*"}]


def test_what_is_folded_is_recognised_when_an_open_page_is_replaced(schedules, site, write):
    schedules.add("k", "t", cron="0 0 1 1 *", timezone="UTC")
    failed = run_record(outcome="failed", fate=None, error="Traceback of it")
    time = failed.scheduled_time
    again = run_record(
        outcome="failed", scheduled_time=time, attempt=2, owner="w.2", error="Another"
    )
    write(failed, again)
    for page, least in (
        (get(site, "now"), 1),
        (get(site, "schedule", key="k"), 2),
        (get(site, "occurrence", key="k", time=time), 3),
    ):
        found = re.findall(r'<details( id="[\w-]+")?', page.body)
        assert len(set(found)) == len(found) >= least
        assert all(found)


def test_the_pages_lead_from_a_schedule_to_its_runs_and_to_why_it_did_not_run(
    schedules, site, write
):
    schedules.add("k", "t", cron="0 0 1 1 *", timezone="UTC", note="the yearly one")
    failed = run_record(outcome="failed", fate=None, reason="no room", error="Traceback of it")
    write(failed, run_record(scheduled_time=failed.scheduled_time, attempt=2), not_run("other"))

    [link] = get(site, "schedules").links("schedule")
    page = get(site, "schedule", **link)
    assert "the yearly one" in page.text
    assert "no room" in page.text
    assert page.links("runs") == [{"key": "k"}]
    runs = get(site, "runs", **page.links("runs")[0])
    assert runs.links("occurrence") == [{"key": "k", "time": str(failed.scheduled_time)}] * 2
    of_all = get(site, "runs")
    assert {each["key"] for each in of_all.links("occurrence")} == {"k", "other"}

    shown = get(site, "occurrence", **runs.links("occurrence")[0])
    assert shown.status == 200
    assert "no room" in shown.text
    assert "Traceback of it" in shown.text
    assert shown.links("schedule") == [{"key": "k"}]
    [other] = [each for each in of_all.links("occurrence") if each["key"] == "other"]
    skipped = get(site, "occurrence", **other)
    assert skipped.status == 200
    assert "skipped" in skipped.text
    assert "No output" not in skipped.text


def test_any_key_is_shown_as_it_is_and_its_links_lead_to_it(schedules, site, write):
    schedules.add(ODD, "t", next_time=4_000_000_000, data={"html": "<script>x</script>"})
    write(run_record(ODD, outcome="failed", reason="<script>y</script>", error="<script>z"))
    for page in "", "now", "schedules", "runs":
        shown = get(site, page)
        assert "<b>a" not in shown.body
        assert "<script" not in shown.main
    [link] = get(site, "schedules").links("schedule")
    assert link == {"key": ODD}
    shown = get(site, "schedule", **link)
    assert shown.status == 200
    assert ODD in shown.text
    assert "<script>x</script>" in shown.text
    assert "<script" not in shown.main
    [link] = get(site, "runs", key=ODD).links("occurrence")
    shown = get(site, "occurrence", **link)
    assert "<script>z" in shown.text
    assert "<script" not in shown.main


def test_a_list_is_narrowed_and_says_that_there_is_more(schedules, site):
    for number in range(12):
        schedules.add(f"mail-{number:02}", "mail", cron="0 0 1 1 *")
    schedules.add("report", "report", cron="0 0 1 1 *")
    schedules["report"].pause()

    def keys(**query):
        return [each["key"] for each in get(site, "schedules", **query).links("schedule")]

    assert len(keys()) == 13
    assert keys(q="mail-0") == [f"mail-{number:02}" for number in range(10)]
    assert keys(q="*-?1") == ["mail-01", "mail-11"]
    assert keys(q="state:paused") == ["report"]
    assert keys(q="type:report") == ["report"]
    assert "There are none" in get(site, "schedules", q="nothing").text
    few = get(site, "schedules", q="type:mail", limit=5)
    assert len(few.links("schedule")) == 5
    assert few.links("schedules") == [{"q": "type:mail", "limit": "50"}]
    assert not get(site, "schedules", **few.links("schedules")[0]).links("schedules")


def test_a_search_ends_after_many_rows_and_when_its_client_has_hung_up(
    schedules, site, monkeypatch
):
    monkeypatch.setattr(search, "MOST_READ", 3)
    monkeypatch.setattr(pages, "MOST_READ", 3)
    for number in range(5):
        schedules.add(f"k{number}", "t", next_time=4_000_000_000 + number)
    page = get(site, "schedules", q="*2")
    assert [each["key"] for each in page.links("schedule")] == ["k2"]
    cut = get(site, "schedules", q="*4")
    assert "Only the first 3 were searched" in cut.text
    assert "There are none" not in cut.text
    assert "searched" not in get(site, "schedules", q="k4").text
    asked = []
    get(site, "schedules", q="*", is_gone=lambda: not asked.append(None))
    assert len(asked) == 1


def test_runs_are_narrowed(site, write):
    write(run_record("a"), run_record("b", outcome="failed", type="other"), run_record("c"))

    def keys(**query):
        return sorted(each["key"] for each in get(site, "runs", **query).links("schedule"))

    assert keys() == ["a", "b", "c"]
    assert keys(failed="1") == ["b"]
    assert keys(type="other") == ["b"]
    assert len(get(site, "runs", key="a").links("occurrence")) == 1
    assert len(get(site, "runs", limit=2).links("occurrence")) == 2
    assert get(site, "runs", limit=2).links("runs") == [{"limit": "20"}]
    assert keys(since="2099-01-01T00:00") == []


@pytest.mark.parametrize(
    ("page", "query", "told"),
    [
        ("runs", {"since": "soon"}, "since: 'soon' is neither an age"),
        ("runs", {"limit": "0"}, "limit: '0' is no number from 1 to 5000"),
        ("schedules", {"limit": "9" * 5000}, "limit: "),
        ("schedules", {"q": "state:late"}, "state: 'late' is unknown; choose from waiting"),
        ("schedule", {}, "key: is missing"),
        ("occurrence", {"key": "k", "time": "later"}, "time: 'later' is no time"),
        ("runs", {str(number): "x" for number in range(100)}, "too many fields"),
    ],
)
def test_a_wrong_value_is_told_by_its_name(site, page, query, told):
    shown = get(site, page, **query)
    assert shown.status == 400
    assert told in shown.text


@pytest.mark.parametrize("time", [2**63 - 1, 0, -(2**63)])
@pytest.mark.parametrize("column", ["next_time", "next_run_time", "created_at", "claimed_at"])
def test_a_time_that_no_date_has_prevents_no_page(schedules, site, sql, column, time):
    schedules.add("k", "t", cron="0 3 * * *", next_time=1_900_000_000)
    sql(f"UPDATE {{table}} SET {column} = {time}")  # noqa: S608  # ours
    for page in "", "now", "schedules", "runs":
        assert get(site, page).status == 200
    for query in {"key": "k"}, {"key": "k", "time": "1900000000"}:
        assert get(site, "occurrence", **query).status == 200
    assert get(site, "schedule", key="k").status == 200


def test_of_a_schedule_that_is_gone_the_runs_are_still_found(site, write):
    record = run_record("gone")
    write(record)
    page = get(site, "schedule", key="gone")
    assert page.status == 404
    assert page.links("runs") == [{"key": "gone"}]
    [link] = get(site, "runs", key="gone").links("occurrence")
    assert "finished" in get(site, "occurrence", **link).text


@pytest.mark.parametrize("page", ["schedule", "occurrence", "runs"])
def test_a_key_that_no_store_has_is_told_without_harm(site, page):
    shown = get(site, page, key="a\u202eb\0c", type="a\0b")
    assert shown.status in {200, 404}
    assert "\0" not in shown.body
    assert not re.search(r">[^<]*\u202e", shown.body)


def test_a_master_that_hangs_up_while_it_is_asked_does_not_take_the_page_with_it(
    schedules, site, monkeypatch
):
    def messages():
        yield {"dropped": 0, "waiting": 10, "data": b"begun"}
        raise ConnectionResetError("the master has hung up")

    schedules.add("k", "t", next_time=1_000_000_000)
    [row] = schedules._store.claim("w.1", limit=1, alive_time=60, shortest=6, horizon=0).rows
    first = {"scheduled_time": row.next_time, "owner": row.owner, "attempt": 1, "collected": 1}
    live = LiveHere("k", first, messages())
    monkeypatch.setattr(occurrence, "find_live", lambda *_: (live, 0, []))
    page = get(site, "occurrence", key="k")
    assert page.status == 200
    assert "running; psched logs -f k shows what it prints" in page.text


def test_hidden_values_are_hidden_on_every_page(schedules, settings, write):
    hiding = settings.with_settings(redact=["password"])
    schedules.add("k", "t", next_time=4_000_000_000, data={"password": "secret1"})
    write(run_record(outcome="failed", reason="password=secret1", error="password: secret1"))
    site = site_of(schedules, hiding)
    [link] = get(site, "runs").links("occurrence")
    shown = [get(site, page) for page in ("", "now", "schedules", "runs")]
    shown += [get(site, page, key="k") for page in ("schedule", "api/v1/schedule.json")]
    shown += [get(site, f"api/v1/{page}.json") for page in ("timeline", "now", "runs")]
    shown.append(get(site, "api/v1/occurrence.json", **link))
    for page in *shown, get(site, "occurrence", **link):
        assert page.status == 200
        assert "secret1" not in page.body


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("psched.example", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("evil.example:localhost", 403),
        ("[::1]:8080", 403),
        ("", 403),
    ],
)
def test_only_requests_to_allowed_hosts_are_answered(schedules, settings, host, status):
    site = site_of(schedules, settings, ("localhost", "psched.example"))
    assert get(site, host=host).status == status


def test_an_upgrade_changes_no_page_of_a_process_that_runs(
    schedules, settings, monkeypatch, tmp_path
):
    installed = tmp_path / "templates"
    shutil.copytree(site_module._FILES, installed)
    monkeypatch.setattr(site_module, "_FILES", installed)
    site = site_of(schedules, settings)
    shutil.rmtree(installed)
    assert get(site).status == 200
    assert get(site, "schedules").status == 200


def test_nothing_but_reading_is_possible(schedules, site):
    schedules.add("k", "t", cron="0 0 1 1 *")
    before = schedules["k"].metadata()
    for method in "POST", "PUT", "DELETE", "OPTIONS":
        refused = get(site, "schedule", method, key="k")
        assert refused.status == 405
        assert refused.headers["Allow"] == "GET, HEAD"
    assert schedules["k"].metadata() == before
    head = get(site, "schedule", "HEAD", key="k")
    assert (head.status, head.body) == (200, "")
    assert int(head.headers["Content-Length"]) > 0


def test_a_file_is_kept_under_the_address_that_the_pages_give_it(site):
    found = re.findall(r' (?:src|href)="([\w.-]+\.(?:js|css))\?(v=\w+)"', get(site).body)
    assert [name for name, _ in found] == [
        "style.css",
        "htmx.min.js",
        "hx-sse.min.js",
        "live.js",
        "keys.js",
    ]
    for name, version in found:
        file = ask(site, name, "GET", query=version)
        assert file.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert get(site, name, v="older").headers["Cache-Control"] == "no-store"
        kind = "css" if name.endswith("css") else "javascript"
        assert file.headers["Content-Type"] == f"text/{kind}; charset=utf-8"


def test_what_others_have_written_is_what_they_have_published():
    folder = site_module._STATIC
    sums = re.findall(r"`(\S+)`.*`([0-9a-f]{64})`", (folder / "README.md").read_text())
    assert {name for name, _ in sums} == {each.name for each in folder.glob("*.min.js")}
    for name, published in sums:
        assert sha256((folder / name).read_bytes()).hexdigest() == published


def test_a_page_is_kept_by_nobody_and_runs_no_script_of_its_own(site):
    style = get(site, "style.css")
    for page in get(site), get(site, "none"), style:
        assert "script-src 'self'; " in page.headers["Content-Security-Policy"]
        assert "<script>" not in page.body
        assert page.headers["Cache-Control"] == "no-store"
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert "style=" not in page.body


def test_why_there_is_no_output_hides_what_is_hidden(schedules, settings, write):
    schedules.add("k", "t", cron="0 3 * * *", next_time=1_900_000_000)
    record = run_record(outcome="lost", fate=None, reason="its worker died: password=secret1")
    write(record)
    site = site_of(schedules, settings.with_settings(redact=["password"]))
    page = get(site, "occurrence", key="k", time=record.scheduled_time)
    assert (
        "No output: its output is lost, because its worker died: password=[redacted]" in page.text
    )
    assert "secret1" not in page.body


def test_a_query_can_have_any_names(schedules, site):
    for key in "a", "b":
        schedules.add(key, "t", next_time=4_000_000_000)
    page = get(site, "schedules", page="2", limit=1)
    assert page.status == 200
    assert page.links("schedules") == [{"page": "2", "limit": "10"}]
