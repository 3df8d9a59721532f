"""The web pages in a browser, as people see and use them: psched web, with 300 schedules."""

import re
import runpy
import socket
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from psched.core.alerts.alert import Rule
from psched.core.output import OutputRecord
from psched.testing.store_contract.alerts import alert, raised
from support.browsing import Tab
from support.owned_process import OwnedProcess
from support.run_records import not_run, run_record, worker_record
from support.service import services
from support.waiting import wait_until

pytestmark = pytest.mark.once

PAST = Path(__file__).resolve().parents[2] / "bench/past.py"

SCHEDULES = 300

WIDTHS = 400, 1600

PAGES = (
    "",
    "now",
    "schedules",
    "queue",
    "runs",
    "events",
    "hosts",
    "schedule?key=inventory.count",
    "schedule?key=quarantined",
    "schedule?key=crm.sync",
    "occurrence?key=partners.push&time={failed}",
    "occurrence?key=sitemap.build&time={skipped}",
    "occurrence?key=backup.database",
    "act?do=pause&key=mail.digest",
    "act?do=skip&key=mail.digest",
    "act?do=edit&key=mail.digest",
    "act?do=cancel&q=label:shop",
    "?span=20m",
    "?by=label",
    "events?key=billing.collect&from=-6h",
    "schedules?q=state:well",
    "schedule?key=none",
    "login",
)
"""Every page, also with refusals; ``{failed}`` and ``{skipped}`` are times of such occurrences."""

REASONS: dict[str, str] = {}
"""The rules of axe-core that are not asked for, and why."""


class Site:
    """psched web for a service, and tabs of a browser in which somebody has logged in.

    Attributes:
        times: the names of `PAGES` in braces, and what they stand for.
    """

    def __init__(self, service, browser):
        self.service = service
        self.times = {}
        self._browser = browser
        self._token = service.folder / "token"
        log = service.folder / "web.log"
        log.write_text("")
        with socket.create_server(("127.0.0.3", 0)) as free:
            place = "{}:{}".format(*free.getsockname())
        self.address = f"http://{place}/"
        where = ["--listen", place, "--token-file", str(self._token)]
        self.process = OwnedProcess(
            [*service.psched_command, "web", "--utc", *where],
            output=log,
            cwd=service.folder,
            env=service.env,
            forked=False,
        )
        self._state = None
        self._log = log

    def wait_for_start(self):
        wait_until(lambda: "psched web: " in self._log.read_text(), what="its start")

    @contextmanager
    def tab(self, *, width=1280, scripts=True, scheme="light", logged_in=True):
        """A tab of somebody who has logged in."""
        context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            java_script_enabled=scripts,
            color_scheme=scheme,
            storage_state=self._logged_in() if logged_in else None,
        )
        with closing(context):
            yield Tab(context.new_page(), self.address)

    def _logged_in(self):
        if self._state is None:
            with closing(self._browser.new_context()) as context:
                tab = Tab(context.new_page(), self.address)
                tab.open("login")
                tab.page.get_by_label("Token").fill(self._token.read_text())
                tab.press("Log in")
                self._state = context.storage_state()
        return self._state


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    """300 schedules with a made-up past of all fates, and what needs a person."""
    folder = tmp_path_factory.mktemp("browser")
    with services(folder) as make:
        service = make(f"sqlite:///{folder}/psched.db", exec_type=True)
        runpy.run_path(str(PAST))["fill"](service.url, SCHEDULES - 6)
        site = Site(service, browser)
        with closing(site.process), service.schedules() as schedules:
            add_others(service, schedules)
            site.wait_for_start()
            for name, key, wanted in (
                ("failed", "partners.push", {"failed": True}),
                ("skipped", "sitemap.build", {"fate": "skipped"}),
            ):
                [run] = schedules.runs(key, limit=1, **wanted)
                site.times[name] = run.scheduled_time
            yield site


def add_others(service, schedules):
    """Six more schedules, of states that the made-up past lacks, and an open alert."""
    schedules.add("quarantined", "sync", cron="0 3 * * *")
    with service.sql() as database:
        change = "update psched set status = 'quarantined', reason = 'cron: is wrong' where id = ?"
        database.execute(change, ["quarantined"])
    schedules.add("task.waits", "mail", next_time=4_000_000_000)
    schedules.add("task.cancelled", "mail", next_time=4_000_000_000)
    schedules.add("task.cancelled-too", "mail", next_time=4_000_000_000)
    schedules.add("task.failed", "mail", next_time=1_000_000_000)
    schedules.add("a key that is " + "very " * 40 + "long", "x" * 60, cron="0 0 1 1 *")
    for key in "task.cancelled", "task.cancelled-too":
        schedules.cancel(key)
    schedules.access.store.history.beat(worker_record(nonce="m", host="a-host.example.org"))
    raised(schedules.access.store, alert("crm.sync", text="it is late by an hour"))


# --- looking ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "no scripts"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_shown_without_a_fault_and_fits_into_the_window(site, width, scripts):
    with site.tab(width=width, scripts=scripts) as tab:
        for path in PAGES:
            answer = tab.open(path.format(**site.times))
            is_refused = path.endswith(("=none", "state:well"))
            assert answer.ok != is_refused, path
            assert tab.page.title().endswith(" - psched"), path
            assert tab.too_wide() == [], path
            # A browser tells of the status of a page that is refused.
            wrong = [each for each in tab.faults if not (is_refused and "status of 40" in each)]
            assert wrong == [], path
            tab.faults.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_people_out(site, axe, scheme):
    found = []
    with site.tab(scheme=scheme) as tab:
        for path in PAGES:
            tab.open(path.format(**site.times))
            found += [f"{path}: {each}" for each in tab.barriers(axe, without=REASONS)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_link_of_each_page_leads_on_and_the_marks_of_the_timeline_to_their_runs(site, width):
    with site.tab(width=width) as tab:
        tab.open()
        for name in "Now", "Schedules", "Queue", "Runs", "Events", "Hosts", "Timeline":
            tab.press(name, role="link")
            assert tab.page.locator("[aria-current=page]").first.inner_text() == name
        tab.page.locator(".lane a[href^='occurrence']").first.focus()
        with tab.page.expect_navigation():
            tab.page.keyboard.press("Enter")
        assert tab.place == "occurrence"
        assert tab.faults == []


# --- acting -----------------------------------------------------------------------------------


def test_the_keys_can_be_switched_off_and_the_browser_remembers_it(site):
    with site.tab() as tab:
        tab.open("schedules")
        pressed = lambda: tab.page.keyboard.press("j") or focus(tab)  # noqa: E731
        assert pressed() == "A"
        tab.page.keyboard.press("?")
        tab.page.get_by_label("Use these keys").uncheck()
        tab.page.get_by_role("button", name="Close").click()
        tab.page.reload()
        assert pressed() == "BODY"
        tab.page.keyboard.press("?")
        assert not tab.page.get_by_role("dialog").is_visible()
        tab.page.get_by_role("button", name="Keys: off").click()
        tab.page.get_by_label("Use these keys").check()
        tab.page.get_by_role("button", name="Close").click()
        tab.page.locator("body").click(position={"x": 1, "y": 1})
        assert pressed() == "A"


def focus(tab):
    return tab.page.evaluate("document.activeElement.tagName")


class Acting:
    """Somebody who acts on the pages of a schedule."""

    def __init__(self, site, tab):
        self.site = site
        self.tab = tab

    def status(self, key):
        return self.site.service.row(key).status

    def extra_runs(self, key):
        """The keys of the extra runs of a schedule that wait."""
        return self.keys(f"id like '{key}!%' and status = 'waiting'")

    def keys(self, condition):
        with self.site.service.sql() as database:
            found = database.execute(f"select id from psched where {condition}")  # noqa: S608
            return [key for (key,) in found]

    def begin(self, key, title):
        """Open the page of a schedule, and follow the link of an action."""
        self.tab.open("schedule", key=key)
        self.tab.press(title, role="link")
        assert self.tab.place == "act"

    @property
    def effect(self):
        """What the page says that the action will do."""
        return self.tab.page.inner_text(".effect")

    def do(self, title, **fields):
        """Fill in the form, and press its button; the page then says what was done."""
        for label, text in fields.items():
            self.tab.page.get_by_label(LABELS[label]).fill(text)
        self.tab.press(title)
        told = self.tab.page.get_by_role("status").inner_text()
        assert self.tab.faults == []
        return told

    def undo(self, title):
        """Follow the link to the inverse, which says what it will do, and do that."""
        self.tab.page.get_by_role("status").get_by_role("link", name=title, exact=True).click()
        self.tab.page.wait_for_url("**/act?*")
        assert self.effect
        self.tab.page.locator("form.act button").click()
        self.tab.page.wait_for_url(lambda url: "/act" not in url)
        assert self.tab.page.get_by_role("status").is_visible()
        assert self.tab.faults == []


LABELS = {"note": "Why", "until": re.compile("^Until"), "number": "Runs to leave out"}


@pytest.fixture(params=[True, False], ids=["scripts", "no scripts"])
def acting(site, request):
    """Somebody who acts, with JavaScript and without it."""
    with site.tab(scripts=request.param, width=400 if request.param else 1280) as tab:
        yield Acting(site, tab)


def test_a_schedule_is_paused_until_a_time_with_a_note_and_resumed(acting):
    key = "billing.collect"
    acting.begin(key, "Pause")
    assert "Its next runs are now: " in acting.effect
    assert acting.status(key) == "waiting"
    acting.do("Pause", until="+3h", note="the <i>disk</i> is full")
    assert acting.status(key) == "paused"
    assert "the <i>disk</i> is full" in acting.tab.text
    acting.undo("Resume")
    assert acting.status(key) == "waiting"


def test_an_extra_run_is_triggered_and_cancelled(acting):
    acting.begin("billing.export", "Trigger")
    assert "The regular runs keep their times: " in acting.effect
    acting.do("Trigger")
    [extra] = acting.extra_runs("billing.export")
    acting.undo("Cancel")
    assert acting.status(extra) == "cancelled"


def test_a_run_is_stopped_and_another_one_triggered(acting):
    key = "search.index" if acting.tab.page.viewport_size["width"] == 400 else "recommend.train"
    acting.begin(key, "Stop this run")
    assert "The run is stopped with TERM" in acting.effect
    assert acting.status(key) == "running"
    acting.do("Stop this run", note="it hangs")
    assert acting.status(key) == "stopping"
    acting.undo("Trigger")


def test_runs_are_left_out(acting):
    key = "billing.dunning"
    before = acting.site.service.row(key).next_time
    acting.begin(key, "Skip")
    acting.tab.page.get_by_label(LABELS["number"]).fill("3")
    acting.tab.press("Show what it does")
    assert "left out: " in acting.effect
    assert acting.site.service.row(key).next_time == before
    acting.do("Skip", note="a holiday")
    assert acting.site.service.row(key).next_time == before + 3 * 3600


def test_a_definition_is_edited_and_changed_back(acting):
    key = "billing.invoices"
    acting.begin(key, "Edit")
    area = acting.tab.page.get_by_label("Definition")
    area.fill(area.input_value().replace("0 * * * *", "30 6 * * *"))
    acting.tab.press("Show what it does")
    assert acting.effect.count("30 6 * * *")
    assert acting.site.service.row(key).cron == "0 * * * *"
    acting.do("Edit", note="once a day")
    assert acting.site.service.row(key).cron == "30 6 * * *"
    acting.tab.press("Undo", role="link")
    acting.tab.press("Show what it does")
    assert "0 * * * *" in acting.effect
    acting.do("Edit")
    assert acting.site.service.row(key).cron == "0 * * * *"


def test_hollow_marks_of_the_timeline_lead_to_a_backfill_whose_runs_are_cancelled(acting):
    # Runs that were added once are not added again.
    key = "sitemap.build" if acting.tab.page.viewport_size["width"] == 400 else "sitemap.build.1"
    acting.begin(key, "Backfill")
    acting.tab.page.get_by_label("From").fill("-9h")
    acting.tab.page.get_by_label(re.compile("^To ")).fill("-1h")
    acting.tab.press("Show what it does")
    assert re.search(r"\b[1-9]\d* .*runs?", acting.effect)
    acting.do("Backfill")
    extra = acting.extra_runs(key)
    assert extra
    acting.undo("Cancel")
    assert {acting.status(each) for each in extra} == {"cancelled"}


def test_a_task_is_requeued_and_cancelled(acting):
    key = "task.cancelled"
    acting.begin(key, "Requeue")
    assert "It runs again, now." in acting.effect
    acting.do("Requeue")
    assert acting.status(key) == "waiting"
    acting.undo("Cancel")
    assert acting.status(key) == "cancelled"


def test_all_that_match_a_search_are_cancelled_and_requeued(acting):
    acting.tab.open("queue", q="quota.reset")
    acting.tab.press("Cancel", role="link")
    counted = int(re.match(r"(\d+) schedules will be cancelled", acting.effect)[1])
    assert counted > 5
    assert f"{counted} schedules cancelled" in acting.do(f"Cancel {counted}")
    cancelled = acting.keys("id like 'quota.reset%' and status = 'cancelled'")
    assert len(cancelled) == counted
    acting.undo("Requeue")
    assert {acting.status(key) for key in cancelled} == {"waiting"}


def test_an_alert_is_acknowledged(acting):
    key = "feeds.import"
    with acting.site.service.schedules() as schedules:
        since = 1000 * round(schedules.now()) - len([*schedules.alerts(key, only_open=False)])
        raised(schedules.access.store, alert(key, since=since, text="late by an hour"))
        acting.begin(key, "Acknowledge")
        assert "late by an hour" in acting.effect
        assert [*schedules.alerts(key)]
        acting.do("Acknowledge", note="it is known")
        assert not [*schedules.alerts(key)]


def test_what_was_shown_is_not_done_if_it_would_now_be_something_else(acting):
    key = "billing.dunning"
    acting.begin(key, "Skip")
    with acting.site.service.schedules() as schedules:
        schedules[key].skip()
        before = schedules[key].metadata().next_time
    acting.tab.press("Skip")
    assert "has changed meanwhile" in acting.tab.page.get_by_role("alert").inner_text()
    assert acting.site.service.row(key).next_time == before


# --- texts of strangers -----------------------------------------------------------------------

MARK = "planted"

PAYLOADS = (
    f"<script class={MARK}>planted()</script>",
    f"<img src=x class={MARK} onerror=planted()>",
    f"'\"><svg class={MARK} onload=planted()>",
    f'" autofocus onfocus=planted() class={MARK} x="',
    f"' onmouseover='planted()' class='{MARK}",
    f"</title></textarea></style><b class={MARK}>",
    f"--><!--><b class={MARK}>",
    "javascript:planted()//",
    "{{ 7*7 }}{% raw %}${7*7}",
    f"&lt;b class={MARK}&gt;&#60;b&#62;",
    f"\u2028<\u200bscript>\x1b[31m\x07<b class={MARK}>",
)
"""Texts that would be markup, or scripts, where a page forgets that they are texts."""

FOUND = """mark => [
    ...[...document.querySelectorAll('.' + mark + ', script:not([src])')].map(e => e.outerHTML),
    ...[...document.querySelectorAll('*')].flatMap(e => [...e.attributes]
        .filter(a => a.name.startsWith('on') || a.name === 'style'
            || (/^(href|src|action|xlink:href)$/.test(a.name)
                && /^\\s*(javascript|data):/i.test(a.value)))
        .map(a => e.tagName + ' ' + a.name + '=' + a.value))]"""


@pytest.fixture(scope="module")
def hostile_site(browser, tmp_path_factory):
    """A service in which every text that anybody can give is a payload."""
    folder = tmp_path_factory.mktemp("hostile")
    with services(folder) as make:
        service = make(f"sqlite:///{folder}/psched.db")
        service.init()
        with service.schedules() as schedules:
            for number, text in enumerate(PAYLOADS):
                fill_with(schedules, key_of(number, text), text)
        site = Site(service, browser)
        with closing(site.process):
            site.wait_for_start()
            yield site


def key_of(number, text):
    """A key, which can be any text without invisible characters."""
    return f"{number}{text}" if text.isprintable() else str(number)


def fill_with(schedules, key, text):
    """A schedule, its runs, what they printed, alerts, workers and changes, all with one text."""
    name = text if text.isprintable() else "none"
    with schedules.audited(name):
        schedules.add(key, name, cron="0 3 * * *", data={text: text}, label=name, note=name)
        schedules.pause(key)
    now = int(schedules.now())
    store = schedules.access.store
    common = {"type": text, "label": text, "host": text, "reason": text, "error": f"{text}\n{text}"}
    records = [
        run_record(key, outcome="failed", fate="gave_up", scheduled_time=now - 900,
                   ended=1000 * now - 5000, **common),
        not_run(key, scheduled_time=now - 600, ended=1000 * now - 4000, reason=text),
    ]  # fmt: skip
    store.history.record(records)
    printed = OutputRecord(
        key=key, scheduled_time=now - 900, owner=records[0].owner, attempt=1,
        ended=1000 * now - 5000, output=text.encode(), dropped=0,
    )  # fmt: skip
    store.output.write_output([printed])
    store.history.beat(worker_record(nonce=key[0], host=text, labels=text, seen=1000 * now))
    raised(store, alert(key, text=text), alert("", rule=Rule.WORKER_DIED, host=text, text=text))


def test_no_text_of_anybody_becomes_markup_or_a_script(hostile_site):
    with hostile_site.tab() as tab:
        tab.page.add_init_script("window.ran = []; window.planted = () => window.ran.push(1)")
        for number, text in enumerate(PAYLOADS):
            key = key_of(number, text)
            for path, query in hostile_pages(key, text):
                tab.open(path, **query)
                assert tab.page.evaluate(FOUND, MARK) == [], (path, query)
                assert tab.page.evaluate("() => window.ran") == [], (path, query)
            tab.faults = [each for each in tab.faults if "status of 40" not in each]
            assert tab.faults == [], text


def hostile_pages(key, text):
    """The pages that show the text, and refusals that repeat it."""
    if key.startswith("0"):
        for path in "", "now", "schedules", "queue", "runs", "events", "hosts":
            yield path, {}
        for by in "label", "type":
            yield "", {"by": by}
    yield "", {"q": f'"{text}', "by": text}
    yield "schedules", {"q": text}
    yield "runs", {"key": key, "type": text, "since": text}
    yield "schedule", {"key": key}
    yield "schedule", {"key": f"no{text}"}
    yield "occurrence", {"key": key}
    yield "occurrence", {"key": key, "time": text}
    for do in "pause", "resume", "edit", "cancel", "acknowledge", text:
        yield "act", {"do": do, "key": key, "until": text, "note": text}
    yield "login", {"code": text}
