"""Tests of what the monitor shows: metrics and health, and nothing else."""

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import psched
from psched.base.clock import SystemClock
from psched.base.errors import StoreUnavailableError
from psched.base.fault_log import FaultLog
from psched.core.history import counts as counting
from psched.master.totals import Host
from psched.monitor.address import Place, listen, place_of
from psched.monitor.metrics import HostCollector, text_of
from psched.monitor.monitor import Observed
from psched.monitor.server import HttpServer
from psched.monitor.showing import ServesMetrics, WritesMetrics
from psched.monitor.store_view import Backlog, Seen, StoreView
from psched.testing import ManualClock
from support.stores import make_store
from support.waiting import HANG_TIMEOUT, wait_until

HOST = Host(slots=10, free=7, tasks=3, deaths=1)


def observed(*totals, host=HOST, clock=None):
    made = Observed(clock or ManualClock())
    made.note({"totals": totals, "host": host._asdict()})
    return made


def samples(text):
    """The values by name and labels, which are sorted by their names."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counts_become_metrics():
    seen = observed(
        ["runs", "mail", "finished", 5],
        ["attempts", "mail", "failed", 2],
        ["claims", "empty", "", 9],
        ["store_errors", "busy", "", 1],
        ["skips", "coalesced", "", 4],
        ["lateness", "0", "", 3],
        ["lateness", "2", "", 1],
        ["lateness", "13", "", 1],
        ["lateness", "sum", "", 2_500_000],
    )

    found = samples(text_of(HostCollector(seen, lambda: Seen(Backlog(12, 3.5), {"nightly": 17.5}))))

    assert found["psched_runs_total", "finished", "mail"] == 5
    assert found["psched_attempts_total", "failed", "mail"] == 2
    assert found["psched_claims_total", "empty"] == 9
    assert found["psched_store_errors_total", "busy"] == 1
    assert found["psched_skipped_total", "coalesced"] == 4
    assert found["psched_slots", "free"] == 7
    assert found["psched_slots", "busy"] == 3
    assert found["psched_leases",] == 3
    assert found["psched_worker_deaths_total",] == 1
    assert found["psched_due",] == 12
    assert found["psched_oldest_due_seconds",] == 3.5
    assert found["psched_last_success_timestamp_seconds", "nightly"] == 17.5
    buckets = [v for k, v in found.items() if k[0] == "psched_start_lateness_seconds_bucket"]
    assert buckets == [3, 3, *[4] * 11, 5]
    assert found["psched_start_lateness_seconds_count",] == 5
    assert found["psched_start_lateness_seconds_sum",] == 2.5
    assert len(buckets) == len(counting.BUCKETS[counting.LATENESS]) + 1


def test_what_is_not_known_is_left_out():
    found = samples(text_of(HostCollector(Observed(ManualClock()), Seen)))

    assert not any(name.startswith(("psched_due", "psched_slots")) for name, *_ in found)
    assert found["psched_store_seconds_count",] == 0


def test_a_type_with_any_characters_does_not_break_the_text():
    seen = observed(["runs", 'a"b\\c\nd', "finished", 5])

    found = samples(text_of(HostCollector(seen, Seen)))

    assert found["psched_runs_total", "finished", 'a"b\\c\nd'] == 5


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:9464", Place(tcp=("127.0.0.1", 9464))),
        ("[::1]:80", Place(tcp=("::1", 80))),
        ("unix:/run/a b.sock", Place(socket=Path("/run/a b.sock"))),
        ("textfile:/var/x.prom", Place(textfile=Path("/var/x.prom"))),
    ],
)
def test_the_place_is_read_from_the_setting(text, place):
    assert place_of(text) == place


# --- the server ----------------------------------------------------------------------


@contextlib.contextmanager
def served(place, read=lambda: b"some 1\n", seen=None, clock=None):
    """The duty that serves metrics."""
    seen = seen or Observed(ManualClock())
    duty = ServesMetrics(place, read, seen, clock or SystemClock())
    with contextlib.closing(duty):
        duty.step(0.0)
        yield


@pytest.fixture
def server(tmp_path):
    """A server on a Unix socket; its path."""
    path = tmp_path / "metrics.sock"
    with served(Place(socket=path)):
        yield path


def test_a_server_closes_although_an_answer_has_woken_its_loop_first():
    server = HttpServer(
        lambda *_: [], socket.create_server(("127.0.0.1", 0)), SystemClock(), threads=1
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    trigger = server._server.trigger
    pull = trigger._physical_pull

    def woken_first():
        pull()
        thread.join(HANG_TIMEOUT)
        pull()

    trigger._physical_pull = woken_first
    server.close()
    assert not thread.is_alive()


def connected(path):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(HANG_TIMEOUT)
    connection.connect(str(path))
    return connection


def asked(path, request):
    with connected(path) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(4096):
                answer += chunk
    return answer


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1", 200, b"some 1\n"),
        (b"GET /metrics?name[]=x HTTP/1.0", 200, b"some 1\n"),
        (b"HEAD /metrics HTTP/1.1", 200, b""),
        (b"GET /livez HTTP/1.1", 200, b"alive\n"),
        (b"GET /readyz HTTP/1.1", 503, b"the master has not said anything yet\n"),
        (b"POST /metrics HTTP/1.1", 405, b"only GET and HEAD\n"),
        (b"GET / HTTP/1.1", 404, b"/metrics, /livez and /readyz are here\n"),
        (b"GET /metrics/../metrics HTTP/1.1", 404, b"/metrics, /livez and /readyz are here\n"),
    ],
)
def test_three_paths_are_served_and_nothing_else(server, request_line, status, body):
    head, _, sent = asked(server, request_line + b"\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")

    assert re.match(rb"HTTP/1\.[01] %d " % status, head)
    assert sent == body


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 70000\r\n\r\n", 413),
        (b"\xff\x00 \x16\x03 x\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_or_too_long_is_refused(server, request_bytes, status):
    assert b" %d " % status in asked(server, request_bytes).partition(b"\r\n")[0]


def test_a_request_that_is_cut_short_has_no_answer(server):
    assert asked(server, b"GET /met") == b""


@pytest.mark.parametrize("half", [b"", b"GET /readyz HTTP/1.1\r\n"])
def test_a_probe_is_answered_however_many_clients_send_half_a_request(server, half):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(server)) for _ in range(100)]
        for number in range(100):  # the first ones are dropped
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                slow[number].sendall(half)
            slow.append(stack.enter_context(connected(server)))
            if number % 5 == 0:
                assert asked(server, b"GET /livez HTTP/1.1\r\n\r\n").endswith(b"alive\n")
        assert slow[0].recv(4096) == b""
        # The last ones have the time that everybody has.
        slow[-1].sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
        assert slow[-1].recv(4096).startswith(b"HTTP/1.1 503 ")


def test_a_request_must_arrive_in_time_however_it_drips(tmp_path):
    path, clock = tmp_path / "sock", ManualClock()
    with served(Place(socket=path), clock=clock), connected(path) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\n")
        assert asked(path, b"GET /livez HTTP/1.1\r\n\r\n").endswith(b"alive\n")
        clock.advance(29)
        connection.sendall(b"X: y\r\n")
        assert asked(path, b"GET /livez HTTP/1.1\r\n\r\n").endswith(b"alive\n")
        clock.advance(2)
        assert connection.recv(4096) == b""


def test_probes_are_answered_while_all_others_ask_for_the_metrics(tmp_path):
    path, goes_on = tmp_path / "sock", threading.Event()

    def metrics():
        goes_on.wait(HANG_TIMEOUT)
        return b"some 1\n" * 1_000_000  # more than a kernel takes at once

    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    with served(Place(socket=path), metrics), contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(path)) for _ in range(4)]
        for each in slow:
            each.sendall(request)
        wait_until(lambda: b" 503 " in asked(path, request), what="the refusal of a fifth")
        assert asked(path, b"GET /livez HTTP/1.1\r\n\r\n").endswith(b"alive\n")
        goes_on.set()
        assert asked(path, b"GET /livez HTTP/1.1\r\n\r\n").endswith(b"alive\n")
        with slow[0].makefile("rb") as answer:
            assert answer.read().endswith(b"some 1\n" * 1_000_000)


def long_answers():
    """How many files without a name this process has open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(descriptor.readlink()).endswith("(deleted)")
    return found


def test_an_end_while_clients_read_their_answers_leaves_no_file_open(tmp_path):
    path, before = tmp_path / "sock", long_answers()
    with contextlib.ExitStack() as stack:
        with served(Place(socket=path), lambda: b"some 1\n" * 1_000_000):
            for _ in range(3):
                client = stack.enter_context(connected(path))
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            wait_until(lambda: long_answers() == before + 3, what="three answers")
        assert long_answers() == before


def test_a_fault_in_an_answer_is_told_to_nobody_but_the_log(tmp_path, caplog):
    def fail():
        raise ValueError("secret")

    path = tmp_path / "sock"
    with served(Place(socket=path), fail):
        # The next ones find that no scrape is counted as going on.
        answers = [asked(path, b"GET /metrics HTTP/1.1\r\n\r\n") for _ in range(6)]

    assert all(b" 500 " in answer for answer in answers)
    assert all(b"secret" not in answer for answer in answers)
    assert "secret" in caplog.text


def test_the_socket_of_a_killed_monitor_is_replaced_but_not_one_that_is_used(tmp_path):
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with served(Place(socket=path)):
        assert path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(OSError, match="another process listens"):
            listen(Place(socket=path))
    assert not path.exists()

    path.write_text("a file of somebody's")
    with pytest.raises(OSError, match="is no socket"):
        listen(Place(socket=path))
    assert path.read_text() == "a file of somebody's"


def test_an_address_in_use_is_a_fault_of_the_duty_which_later_succeeds():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = Place(tcp=taken.getsockname()[:2])
        duty = ServesMetrics(place, lambda: b"", Observed(ManualClock()), SystemClock())
        with pytest.raises(OSError, match="in use"):
            duty.step(0.0)
    duty.step(0.0)
    with socket.create_connection(place.tcp) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    duty.close()


def test_a_host_whose_master_hangs_is_not_ready(tmp_path):
    clock, path = ManualClock(), tmp_path / "sock"
    seen = observed(clock=clock)
    with served(Place(socket=path), seen=seen):
        for seconds, status, body in (
            (29, 200, b"ready\n"),
            (16, 503, b"the master has said nothing for 45 s\n"),
        ):
            clock.advance(seconds)
            head, _, sent = asked(path, b"GET /readyz HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % status)
            assert sent == body
        seen.note({"totals": [], "host": HOST._asdict()})
        assert b" 200 " in asked(path, b"GET /readyz HTTP/1.1\r\n\r\n")


# --- the file ------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_and_removed_at_the_end(tmp_path):
    path, texts = tmp_path / "psched.prom", iter([b"some 1\n", b"some 2\n"])
    duty = WritesMetrics(path, lambda: next(texts))
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "psched.prom.new").symlink_to(victim)

    assert duty.step(0.0) > 0
    with path.open() as first:
        duty.step(15.0)
        assert first.read() == "some 1\n"

    assert path.read_text() == "some 2\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert victim.read_text() == "untouched"
    assert [*tmp_path.glob("*.new")] == []
    duty.close()
    assert not path.exists()


@pytest.mark.slow
def test_master_and_workers_do_not_load_the_client_of_prometheus():
    code = "import sys, psched.service.run; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- what is shipped for Prometheus and Grafana --------------------------------------

ROOT = Path(__file__).parents[2]
RULES = ROOT / "etc/prometheus/psched.rules.yml"
DASHBOARD = ROOT / "etc/grafana/psched.json"


def exported():
    """The names of all samples that can be shown."""
    everything = HostCollector(
        observed(), lambda: Seen(Backlog(0, 0.0), {"nightly": 17.5})
    ).collect()
    names = set()
    for family in everything:
        ends = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}
        names |= {family.name + end for end in ends.get(family.type, ("",))}
    return names


def named_in(text):
    return set(re.findall(r"psched_\w+", text))


def test_rules_and_dashboard_name_only_metrics_that_are_exported():
    rules = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    wanted = {name for rule in rules for name in named_in(rule["expr"])}
    shown = {
        name for panel in panels for each in panel["targets"] for name in named_in(each["expr"])
    }

    assert wanted <= exported()
    assert shown <= exported()
    # The dashboard shows everything, except what is off unless somebody sets it.
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exported()}
    families.remove("psched_last_success_timestamp_seconds")
    assert families == {re.sub("_bucket$", "", name) for name in shown}


def test_the_page_of_metrics_names_each_of_them():
    page = (ROOT / "docs/alerts.md").read_text()
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in exported()}

    assert families == set(re.findall(r"^\| `(psched_\w+)", page, re.MULTILINE))


PROMTOOL = shutil.which(
    "promtool", path=f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
)
"""bin/test puts it beside Python if it is not installed."""


@pytest.mark.slow  # bin/test --quick does not fetch the program
@pytest.mark.skipif(PROMTOOL is None, reason="install promtool (Debian: the package prometheus)")
def test_promtool_accepts_the_rules_and_the_metrics():
    subprocess.run([PROMTOOL, "check", "rules", RULES], check=True)
    seen = observed(["runs", "mail", "finished", 1], ["attempts", "mail", "failed", 1])
    text = text_of(HostCollector(seen, lambda: Seen(Backlog(1, 2.0), {})))
    subprocess.run([PROMTOOL, "check", "metrics"], input=text, check=True)


# --- what the store says -------------------------------------------------------------


def test_the_store_is_asked_only_by_those_who_want_to_know_and_not_too_often(tmp_path):
    url, clock, made = f"sqlite:///{tmp_path}/psched.db", ManualClock(), []

    def open_store():
        made.append(make_store(url))
        return made[-1]

    faults = FaultLog("the store does not answer", logging.getLogger("psched"), clock)
    view = StoreView(open_store, ["one"], clock=clock, faults=faults)
    assert made == []

    make_store(url).init()
    assert view.read() == Seen(Backlog(0, 0.0), {})
    with psched.open({"url": url}) as schedules:
        schedules.add("one", "mail", next_time=1_000_000_000)
    assert view.read().backlog.due == 0

    clock.advance(5)
    assert view.read().backlog.due == 1
    assert view.read().backlog.late > 1e8
    made[0].disconnect()
    assert len(made) == 1


def test_a_store_that_does_not_answer_is_logged_and_asked_again_later(caplog):
    answers = []

    def open_store():
        answers.append("asked")
        raise StoreUnavailableError("gone")

    clock = ManualClock()
    faults = FaultLog("the store does not answer", logging.getLogger("psched"), clock)
    view = StoreView(open_store, [], clock=clock, faults=faults)

    assert view.read() == view.read() == Seen()
    clock.advance(5)
    view.read()

    assert len(answers) == 2
    assert caplog.text.count("gone") == 1
