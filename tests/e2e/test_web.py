"""The command web: real runs in real pages, databases that are away, and where it listens."""

import html
import http.client
import json
import re
import signal
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from urllib.parse import urlencode

import pytest

import support
from psched.app import CLOCK, make_store
from psched.base.file_rights import user_name as service_user
from psched.config import from_mapping
from support.following import PRINTS, gated
from support.owned_process import OwnedProcess
from support.processes import kill
from support.proxy import Proxy
from support.run_records import not_run, run_record, worker_record
from support.waiting import PATIENCE, wait_until

LONG = 5
"""For so many seconds, the pages wait for an answer of the store."""

SCRIPT = Path(support.__file__).with_name("on_terminal.py")


class Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Web:
    """A process of psched web that listens on a Unix socket."""

    def __init__(self, service, more):
        self.path = service.folder / "web.sock"
        self.log = service.folder / "web.log"
        self.log.write_text("")
        where = ["--listen", f"unix:{self.path}", "--token-file", str(service.folder / "token")]
        command = [*service.psched_command, "web", "--utc", *where, *more]
        self.process = OwnedProcess(command, output=self.log, cwd=service.folder, env=service.env)
        wait_until(lambda: "psched web: " in self.log.read_text(), what="its start")

    def get(self, page="", **query):
        """The status of a page, and its text."""
        return self.send("GET", f"{page}?{urlencode(query)}")

    def send(self, method, page, body=None, **headers):
        """The status of a page, and its text."""
        connection = Connection(self.path)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/{page}", body, sent)
        response = connection.getresponse()
        self.cookie = response.headers.get("Set-Cookie", "").partition(";")[0]
        body = response.read().decode()
        connection.close()
        return response.status, html.unescape(re.sub(r"<[^>]*>", " ", body))


@pytest.fixture
def start_web(request):
    """Starts psched web, and ends it."""

    def start(service, *more):
        web = Web(service, more or ["--open"])
        request.addfinalizer(web.process.close)
        return web

    return start


def test_a_run_is_followed_from_its_start_to_its_end(service, start_web):
    service.write("prints.py", PRINTS)
    service.configure(dispatch="prints:Printing", output="both")
    service.add("k", "prints", data=gated("first", "second"))
    master, web = service.start(), start_web(service)

    busy = re.compile(r"\b1 of \d+ slots busy")
    wait_until(lambda: busy.search(web.get("now")[1]), what="the running task")
    service.open_gate("first")
    wait_until(
        lambda: "first is open" in web.get("occurrence", key="k")[1], what="what it has printed"
    )
    assert "second is open" not in web.get("occurrence", key="k")[1]
    service.open_gate("second")
    service.wait_for_finish("k")
    printed = "first is open\nsecond is open\n"

    def has_ended():
        text = web.get("occurrence", key="k")[1]
        return "finished" in text and printed in text and "running" not in text

    wait_until(has_ended, what="its end, and its output")
    assert master.stop() == 0
    assert has_ended()
    assert "no worker is known to be alive" in web.get("now")[1]


@pytest.mark.extended
def test_it_says_why_there_is_no_output(service, start_web):
    service.configure(output="service")
    service.add("k")
    service.start()
    service.wait_for_finish("k")
    web = start_web(service)
    text = wait_until(
        lambda: (seen := web.get("occurrence", key="k")[1]) and "WHEN" in seen and seen,
        what="the record of the run",
    )
    assert "No output: its output is not kept, because the setting output is service." in text


@pytest.mark.extended
@pytest.mark.redis
def test_while_the_store_is_away_the_pages_say_so(make_service, open_database, start_web):
    with open_database("redis") as database:
        service = make_service(database.url)
        service.init()
        service.add("k", next_time=4_000_000_000)
        web = start_web(service)
        assert web.get("schedule", key="k")[0] == 200
        database.server.kill()
        status, text = web.get("now")
        assert status == 200
        assert "the store does not answer" in text
        for page in "", "schedules":
            status, text = web.get(page)
            assert status == 503
            assert "cannot connect" in text
        database.server.start()
        wait_until(lambda: web.get("schedules")[0] == 200, what="the answer of the store")
        assert "the store does not answer" not in web.get("now")[1]
        assert web.process.status is None


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("redis", marks=pytest.mark.redis),
    ],
)
def test_a_store_that_hangs_makes_a_page_wait_a_few_seconds_and_nothing_else(
    make_service, open_database, start_web, kind
):
    with open_database(kind) as database, Proxy(database.server.port) as proxy:
        url = database.url.replace(f":{database.server.port}", f":{proxy.port}")
        service = make_service(url)
        service.init()
        web = start_web(service)
        assert web.get("schedules")[0] == 200

        def timed(page):
            begin = CLOCK.monotonic()
            status, text = Web.get(copy(web), page)
            return status, CLOCK.monotonic() - begin, text

        with proxy.black_hole(), ThreadPoolExecutor() as threads:
            pages = [threads.submit(timed, page) for page in ("", "schedules", "runs", "now")]
            status, took, _ = timed("style.css")
            assert status == 200
            assert took < LONG
            found = [page.result() for page in pages]
        hung = [text for _, _, text in found if re.search(r"has not answered for \d+ s\.", text)]
        for status, took, text in found:
            assert took < 3 * LONG
            assert status == 503 or "the store does not answer" in text
        assert hung or found[-1][0] == 200
        wait_until(lambda: web.get("schedules")[0] == 200, what="the answer of the store")


def test_the_documents_have_the_objects_of_the_commands(service, start_web):
    service.init()
    service.psched("add", "k", "t", "@daily", "-m", "why")
    store = make_store(from_mapping({"url": service.url}))
    store.history.beat(worker_record(host="db1", labels="eu", clock_offset=-1500))
    store.history.record([run_record(), not_run("other")])
    store.disconnect()
    web = start_web(service)

    def told(*words):
        return [json.loads(line) for line in service.psched(*words, "--json").stdout.splitlines()]

    def document(page, **query):
        return json.loads(web.get(f"api/v1/{page}.json", **query)[1])

    assert [document("hosts")] == told("hosts")
    events = document("events", to=1_900_000_000, **{"from": 1_700_000_000})["events"]
    assert [each["what"] for each in events] == ["change", "skip", "run"]
    change, *runs = [each[each["what"]] for each in events]
    assert [change] == told("audit")
    for run, other in zip(runs, told("history"), strict=True):
        assert run.items() <= other.items()


def test_a_client_that_sends_many_requests_and_reads_no_answer_holds_up_nobody(service, start_web):
    service.init()
    web = start_web(service)
    request = b"GET /runs HTTP/1.1\r\nHost: localhost\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(web.path))
        connection.sendall(request + b"\r\n" + request + b"Connection: close\r\n\r\n")
        with connection.makefile("rb") as answers:
            answer = answers.read()
    assert answer.count(b"HTTP/1.1 200 OK") == 1  # the others wait for nothing
    assert b"\r\nConnection: close\r\n" in answer


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, -15)])
def test_a_signal_ends_it(service, start_web, number, status):
    service.init()
    web = start_web(service)
    assert stat.S_IMODE(web.path.stat().st_mode) == 0o660
    web.get()
    kill(web.process.pid, number)
    assert wait_until(lambda: web.process.status is not None, what="its end")
    assert web.process.status == status
    assert "Traceback" not in web.log.read_text()
    assert start_web(service).get()[0] == 200  # also if the socket was left behind


@pytest.mark.extended
def test_a_place_where_it_cannot_listen_is_refused(service, start_web):
    service.init()
    web = start_web(service)
    taken = service.psched("web", "--listen", f"unix:{web.path}")
    assert (taken.returncode, taken.stdout) == (1, "")
    told = f"cannot listen on {web.path}: another process listens on {web.path}"
    assert taken.stderr == f"Error: {told}\n"
    for place in "0.0.0.0:8080", "192.0.2.1:80", "[::]:8080":
        refused = service.psched("web", "--listen", place)
        assert refused.returncode == 2
        assert "can be reached from other hosts, and the connection is" in refused.stderr
    for place in "8080", "localhost", "localhost:x", "example.org:80", "unix:web.sock", "[::1]:0":
        refused = service.psched("web", "--listen", place)
        assert refused.returncode == 2
        assert "is neither a loopback address" in refused.stderr.replace("\n", " ")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = service.psched("web", "--listen", f"127.0.0.1:{port}")
    assert taken.returncode == 1
    assert taken.stderr.startswith(f"Error: cannot listen on http://127.0.0.1:{port}/: ")


def test_requests_to_the_address_that_it_tells_are_answered(service, request):
    service.init()
    log = service.folder / "web.log"
    log.write_text("")
    with socket.create_server(("127.0.0.2", 0)) as free:
        place = "{}:{}".format(*free.getsockname())
    command = [*service.psched_command, "web", "--open", "--listen", place]
    process = OwnedProcess(command, output=log, cwd=service.folder, env=service.env)
    request.addfinalizer(process.close)
    wait_until(lambda: f"psched web: http://{place}/" in log.read_text(), what="its start")
    connection = http.client.HTTPConnection(place, timeout=PATIENCE)
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 200


@pytest.mark.extended
@pytest.mark.parametrize("package", ["jinja2", "waitress"])
def test_without_a_package_it_says_what_to_install(service, package):
    hides = f"import sys; sys.modules['{package}'] = None; "
    refused = service.run(
        sys.executable, "-c", f"{hides}from psched.cli import main; main()", "web"
    )
    assert refused.returncode == 1
    assert refused.stderr == f"Error: web: needs the package {package}: pip install psched[web]\n"


def test_the_triggers_of_users_are_asked_by_a_process_that_has_started_before_the_threads(
    service, start_web
):
    service.write(
        "tides.py",
        "class Tides:\n    def next_at(self, after):\n        return after // 600 * 600 + 600\n",
    )
    service.configure(load_path=[str(service.folder)])
    service.add("tide", "t", cron="@call tides:Tides")
    web = start_web(service)
    for page, query in ("", {}), ("schedule", {"key": "tide"}), ("occurrence", {"key": "tide"}):
        status, text = web.get(page, **query)
        assert status == 200
        assert "cannot be planned" not in text
    assert web.get("api/v1/timeline.json")[1].count('"planned": []') == 0


def test_a_link_that_a_terminal_shows_lets_its_user_in_once(service, start_web):
    service.init()
    service.add("k", cron="0 0 1 1 *")
    web = start_web(service, "--utc")
    assert web.get("now")[0] == 401
    where = ["--listen", f"unix:{web.path}", "--token-file", service.folder / "token"]
    refused = service.psched("web", "--login", *where)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "only on a terminal" in refused.stderr

    words = [sys.executable, "-I", "-S", SCRIPT, service.folder / "keys", *service.psched_command]
    terminal = service.start(*words, "web", "--login", *where, log="seen", generation=0)
    assert terminal.wait() == 0
    [code] = re.findall(r"login\?code=([0-9a-f]+)", terminal.text)
    assert f"Log in as {service_user()}" in web.get("login", code=code)[1]
    form = {"Content_Type": "application/x-www-form-urlencoded", "Origin": "http://localhost"}
    assert web.send("POST", "login", f"code={code}", **form)[0] == 303
    cookie = web.cookie
    status, text = web.send("GET", "schedules", Cookie=cookie)
    assert status == 200
    assert f"{service_user()}, admin" in text
    assert web.send("POST", "login", f"code={code}", **form)[0] == 403

    token = (service.folder / "token").read_text()
    bearer = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
    assert web.send("POST", "api/v1/pause", '{"key": "k"}', **bearer)[0] == 200
    assert service.row("k").status == "paused"
    process = Path(f"/proc/{web.process.pid}")
    told = web.log.read_text() + (process / "cmdline").read_text()
    for secret in token, code, cookie.partition("=")[2]:
        assert secret not in told
        assert secret.encode() not in (process / "environ").read_bytes()


def test_a_header_counts_only_on_a_socket(service):
    users = service.write("users", "* read -\n")
    refused = service.psched("web", "--user-header", "X-User", "--users", users)
    assert refused.returncode == 2
    assert "every user of this host could send that header" in refused.stderr.replace("\n", " ")
