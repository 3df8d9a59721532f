"""Open pages are told of changes, by events or so that they poll, and share one look."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import sys
import threading

import pytest

import psched
from psched.base.clock import SystemClock
from psched.base.errors import StoreUnavailableError
from psched.monitor import server as server_module
from psched.monitor.server import HttpServer
from psched.web import asgi, live
from psched.web.live import Live
from support.owned_process import OwnedProcess
from support.processes import kill
from support.waiting import HANG_TIMEOUT, wait_until
from support.web_pages import Browser, get, site_of

AGAIN = {"HTTP_HX_REQUEST": "true"}
"""The header of a page that reads itself again."""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Look often, so that no test waits."""
    monkeypatch.setattr(live, "LOOK", 0.05)
    monkeypatch.setattr(live, "_BEAT", 0.1)
    monkeypatch.setattr(asgi, "_STEP", 0.05)


@pytest.fixture
def serve(settings, schedules):  # noqa: ARG001  # the table is there
    """Serves the pages at an address, and ends that."""
    with contextlib.ExitStack() as stack:

        def serve(**rules):
            pages = site_of(stack.enter_context(psched.open(settings)), settings, None, **rules)
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server = HttpServer(pages, listener, SystemClock(), threads=2, notices_hangups=True)
            thread = threading.Thread(target=server.run)
            thread.start()
            for end in thread.join, server.close, pages.close:  # the last one comes first
                stack.callback(end)
            return Served(pages, listener.getsockname(), stack)

        yield serve


class Served:
    def __init__(self, pages, address, stack):
        self.pages = pages
        self.address = address
        self._stack = stack

    def follow(self, *headers):
        connection = socket.create_connection(self.address, timeout=HANG_TIMEOUT)
        self._stack.callback(connection.close)
        return Events(connection, *headers)


class Events:
    """What a page is told: ``status`` and the lines after it."""

    def __init__(self, connection, *headers):
        lines = ["GET /live HTTP/1.1", "Host: localhost", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode())
        self._file = connection.makefile("rb")
        self.status = int(self._file.readline().split()[1])

    def next(self, pattern=rb"id: (\w+)"):
        """The next id, or other text, that is told; None at the end."""
        for line in self._file:
            if found := re.match(pattern, line):
                return found[found.re.groups].decode()
        return None


def test_an_open_page_is_told_of_each_change(serve, schedules):
    events = serve().follow()
    assert events.status == 200
    seen = [events.next()]  # what has happened since the page was made
    schedules.add("k", "t", cron="0 3 * * *")
    seen.append(events.next())
    schedules["k"].pause()
    seen.append(events.next())
    schedules["k"].resume()
    seen.append(events.next())
    assert None not in seen
    assert len({*seen}) == 4


def test_a_page_that_connects_again_is_told_only_what_is_new(serve, schedules):
    served = serve()
    first = served.follow().next()
    again = served.follow(f"Last-Event-ID: {first}")
    assert again.next(rb"\w*(:|id: \w+)\r?\n").startswith(":")  # connected, and nothing to tell
    schedules.add("k", "t", cron="0 3 * * *")
    assert again.next() != first


def test_all_open_pages_share_one_look_and_their_connections_end_at_once(serve, monkeypatch):
    served, looks = serve(), []
    look = served.pages._live._look
    monkeypatch.setattr(served.pages._live, "_look", lambda: looks.append(None) or look())
    monkeypatch.setattr(live, "LOOK", HANG_TIMEOUT)
    pages = [served.follow() for _ in range(5)]
    assert pages[0].next()
    wait_until(lambda: len(looks) == 1, what="the look")
    served.pages._live.close()
    for page in pages:
        assert page.next(rb"none") is None
    assert len(looks) == 1


def test_of_too_many_pages_the_last_ones_poll(serve, monkeypatch):
    monkeypatch.setattr(live, "_MOST", 2)
    served = serve()
    pages = [served.follow() for _ in range(2)]
    assert all(page.next() for page in pages)
    assert served.follow().status == 503


def test_who_may_no_longer_read_is_told_nothing_more(serve):
    rights = ["read"]
    events = serve(access=lambda _: rights[0]).follow()
    assert events.next()
    rights[0] = None
    assert events.next(rb"none") is None


def test_a_logout_ends_the_connections_of_its_other_tabs_and_of_no_other_browser(
    serve, monkeypatch
):
    monkeypatch.setattr(live, "LOOK", HANG_TIMEOUT)
    served = serve()
    secret, port = served.pages._gate._secret, served.address[1]
    leaves, stays = (
        Browser(served.pages, SERVER_PORT=str(port)).log_in(secret.token) for _ in range(2)
    )
    followed, look = served.pages._live, served.pages._live._look

    def look_when_all_follow():
        # It is the only one: who came later would be told nothing.
        wait_until(lambda: len(followed._followers) == 3, what="all of them")
        return look()

    monkeypatch.setattr(followed, "_look", look_when_all_follow)
    tabs, other = [served.follow(cookies(leaves)) for _ in range(2)], served.follow(cookies(stays))
    assert all(each.next() for each in (*tabs, other))
    assert leaves.post("logout").status == 303
    for each in tabs:
        assert each.next(rb"none") is None
    assert [each.kept.is_open() for each in followed._followers].count(True) == 1


def cookies(browser):
    return "Cookie: " + "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def test_who_may_not_read_is_told_nothing(serve):
    assert serve(access=lambda _: None).follow().status == 403


def test_if_the_store_does_not_answer_pages_are_told_and_told_again_when_it_does():
    answers = ["one", None, None, "two"]

    def look():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise StoreUnavailableError("away")
        return answer

    page = Page()
    Live(look, SystemClock()).follow(page, "", lambda: True, "")
    wait_until(lambda: page.told()[:3] == ["one", "away", "two"], what="the answer of the store")
    page.is_there = False


def test_whatever_error_a_look_ends_with_pages_are_told_of_later_changes(caplog):
    answers = [ValueError("a bug"), "two"]

    def look():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, ValueError):
            raise answer
        return answer

    page = Page()
    Live(look, SystemClock()).follow(page, "", lambda: True, "")
    wait_until(lambda: page.told()[:2] == ["away", "two"], what="the next look")
    page.is_there = False
    assert "a bug" in caplog.text


def test_one_browser_keeps_connections_for_its_other_pages(monkeypatch):
    monkeypatch.setattr(live, "_MOST_OF_ONE", 2)
    followed = Live(lambda: "same", SystemClock())
    pages = [Page() for _ in range(4)]
    for page, browser in zip(pages, ["one", "one", "one", "other"], strict=True):
        followed.follow(page, browser, lambda: True, "")
    assert [page.is_there for page in pages] == [True, True, False, True]
    assert not followed.has_room("one")
    pages[0].is_there = False
    assert followed.has_room("one")
    followed.close()


class Page:
    """A connection that keeps what it is told."""

    def __init__(self):
        self.sent = []
        self.is_there = True

    def is_open(self):
        return self.is_there

    def send(self, data):
        self.sent.append(data.decode())

    def close(self):
        self.is_there = False

    def told(self):
        return re.findall(r"id: (\w+)", "".join(self.sent))


def test_what_is_sent_while_the_server_writes_arrives_once_and_in_order(request, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_UNREAD", 1 << 30)  # whoever is the faster one

    def tell(kept):
        def run():
            for number in range(20_000):
                kept.send(b"%d\n" % number)
            kept.send(b"end\n")

        sender = threading.Thread(target=run)
        sender.start()
        request.addfinalizer(sender.join)

    def application(environ, start_response):
        environ["psched.keep_open"](tell)
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        return iter([b"\n"])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(application, listener, SystemClock(), threads=2)
        thread = threading.Thread(target=server.run)
        thread.start()
        for end in thread.join, server.close:
            request.addfinalizer(end)
        with socket.create_connection(listener.getsockname(), HANG_TIMEOUT) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            with connection.makefile("rb") as file:
                lines = [*itertools.takewhile(lambda line: line != b"end\n", file)]
    assert lines[-20_000:] == [b"%d\n" % number for number in range(20_000)]


def test_a_client_that_reads_nothing_is_disconnected(serve, monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_UNREAD", 1 << 16)
    monkeypatch.setattr(live, "_ALIVE", b":" * (1 << 20))
    served = serve()
    served.follow()
    wait_until(lambda: served.pages._live._followers, what="its connection")
    wait_until(lambda: not served.pages._live._followers, what="its end")


def test_without_a_server_that_keeps_answers_open_a_page_polls(schedules, settings):
    pages = site_of(schedules, settings)
    assert get(pages, "live").status == 404
    for name, poll in ("now", "5"), ("schedules", "10"):
        [again] = [each for _, each in get(pages, name).tags if each.get("id") == "again"]
        assert (again["hx-trigger"], again["data-poll"]) == ("look", poll)
        assert 'id="stream"' not in get(pages, name).body


def test_a_page_follows_when_its_script_has_seen_that_it_is_shown(schedules, settings):
    # In a tab that was opened in the background, it would hold a connection of the browser.
    pages = site_of(schedules, settings)
    page = get(pages, "now", headers={"psched.keep_open": print})
    [stream] = [each for _, each in page.tags if each.get("id") == "stream"]
    assert (stream["hx-sse:connect"], stream["hx-trigger"]) == ("live", "follow")
    assert '"follow"' in get(pages, "live.js").body


def test_open_pages_share_what_is_read_and_others_read_anew(schedules, settings, monkeypatch):
    monkeypatch.setattr(live, "LOOK", HANG_TIMEOUT)
    pages = site_of(schedules, settings)
    schedules.add("a", "t", cron="0 3 * * *")
    assert get(pages, "schedules", headers=AGAIN).links("schedule") == [{"key": "a"}]
    schedules.add("b", "t", cron="0 3 * * *")
    assert len(get(pages, "schedules", headers=AGAIN).links("schedule")) == 1
    assert len(get(pages, "schedules").links("schedule")) == 2
    assert len(get(pages, "schedules", headers=AGAIN, q="b").links("schedule")) == 1
    assert len(pages._live._shared) == 2
    monkeypatch.setattr(live, "LOOK", 0.0)
    assert len(get(pages, "schedules", headers=AGAIN).links("schedule")) == 2
    assert len(pages._live._shared) == 1  # nobody will ask for the old ones
    monkeypatch.setattr(live, "LOOK", HANG_TIMEOUT)
    pages._live.digest = "changed"
    assert len(get(pages, "schedules", headers=AGAIN).links("schedule")) == 2


def test_what_one_thread_reads_of_the_shared_pages_no_other_changes():
    # Those who read the store and those who read its replica share pages at the same time.
    pages, read = Live(str, SystemClock()), []

    class Name:
        def __hash__(self):
            read.append((pages._shared, len(pages._shared)))
            return 1

    for name in Name(), Name():
        pages.share(name, None, SystemClock().monotonic() + HANG_TIMEOUT)
    assert len(pages._shared) == 2
    assert all(len(found) == number for found, number in read)


def test_under_asgi_an_open_page_is_told_of_changes_until_it_hangs_up(settings, schedules):
    told = asyncio.run(followed(settings, schedules))
    assert told[0]["status"] == 200
    headers = dict(told[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    ids = re.findall(rb"id: (\w+)", b"".join(each.get("body", b"") for each in told))
    assert len({*ids}) == len(ids) == 2


async def followed(settings, schedules):
    told, gone = [], asyncio.Event()
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if requests:
            return requests.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        told.append(message)
        number = sum(b"event: changed" in each.get("body", b"") for each in told)
        if b"event: changed" not in message.get("body", b""):
            return
        if number == 1:
            await asyncio.to_thread(schedules.add, "k", "t", cron="0 3 * * *")
        else:
            gone.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/psched/live",
        "root_path": "/psched",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    with psched.open(settings) as own:
        pages = site_of(own, settings)
        async with asyncio.timeout(HANG_TIMEOUT):
            await pages.asgi(scope, receive, send)
        live_pages = pages._live
        await asyncio.to_thread(wait_until, lambda: live_pages._thread is None, what="its end")
    return told


APPLICATION = """
import psched.web
application = psched.web.app({config!r}, access=lambda _: "read", token_file={token!r}).asgi
"""


def test_an_asgi_server_that_is_told_to_end_waits_for_no_open_page(settings, schedules, tmp_path):
    schedules.close()
    config = {"url": settings.url}
    (tmp_path / "served.py").write_text(
        APPLICATION.format(config=config, token=str(tmp_path / "token"))
    )
    log, path = tmp_path / "log", tmp_path / "socket"
    command = [sys.executable, "-m", "uvicorn", "served:application", "--uds", str(path)]
    process = OwnedProcess(command, output=log, cwd=tmp_path, env=os.environ)
    try:
        wait_until(lambda: "running on" in log.read_text(), what="the socket")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(HANG_TIMEOUT)
            connection.connect(str(path))
            events = Events(connection)
            assert events.next()
            kill(process.pid, signal.SIGTERM)
            assert events.next(rb"none") is None
        wait_until(lambda: process.status is not None, what="its end")
    finally:
        process.close()
