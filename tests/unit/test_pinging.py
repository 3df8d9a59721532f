"""How runs become pings, and how these are delivered to a real server."""

import logging
import threading
from contextlib import closing

import pytest

from psched.app import CLOCK
from psched.config.kinds import EVERYWHERE
from psched.monitor.ping_delivery import PingDelivery
from psched.monitor.pinging import Pinging, url_of
from psched.notify.http_client import HttpClient
from support.ping_server import ping_server
from support.waiting import wait_until

CHECK = "5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"
OTHER = "0b1a7d6e-94f2-4d4c-9d60-7d1c11c3a111"
URL = f"https://hc-ping.com/{CHECK}"
RUN = "11111111-1111-5111-8111-111111111111"
QUICK = (0.01, 0.01, 0.01)


def told(what, *, ping="backup", key="key", run=RUN, status=None, text="text", output=b""):
    """What the master tells the monitor of a run."""
    message = {"ping": ping, "key": key, "run": run, "what": what, "exit": status, "text": text}
    return {**message, "tail": True, "data": output} if output else message


@pytest.fixture
def server():
    with ping_server() as running:
        yield running


def client(allowed=EVERYWHERE):
    return HttpClient(allowed=allowed, clock=CLOCK)


@pytest.fixture
def pinging():
    """Makes the duty that pings, by default without long pauses between tries."""
    made = []

    def make(urls, *, waits=QUICK, allowed=EVERYWHERE, **hidden):
        delivery = PingDelivery(client(allowed), CLOCK, waits)
        made.append(Pinging(urls, lambda: delivery, clock=CLOCK, **hidden))
        return made[-1]

    yield make
    for each in made:
        each.close()


def errors(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def wait_for_error(caplog, text):
    wait_until(lambda: any(text in each for each in errors(caplog)), what=f"{text} in the log")


# --- the request ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message", "wanted"),
    [
        (URL, told("start"), f"{URL}/start?rid={RUN}"),
        (URL, told("success"), f"{URL}?rid={RUN}"),
        (URL, told("fail"), f"{URL}/fail?rid={RUN}"),
        (URL, told("fail", status=3), f"{URL}/3?rid={RUN}"),
        (URL, told("log"), f"{URL}/log?rid={RUN}"),
        (
            "https://hc-ping.com/pingkey/{key}?create=1",
            told("start", key="Backup"),
            f"https://hc-ping.com/pingkey/backup/start?create=1&rid={RUN}",
        ),
    ],
)
def test_the_url_says_what_has_happened_and_to_which_run_it_belongs(url, message, wanted):
    assert url_of(url, message) == wanted


def test_a_run_is_started_and_succeeds(server, pinging):
    pings = pinging({"backup": server.url(CHECK)})
    pings.note(told("start"))
    assert server.wait_for(CHECK, "start")[0].body == ""
    assert server.check(CHECK).started
    pings.note(told("success", text="finished", output=b"all well\n"))

    [start, success] = server.wait_for(CHECK, "start", "success")
    assert start.rid == success.rid == RUN
    assert success.duration is not None
    assert success.body == "all well\nfinished\n"
    assert (server.check(CHECK).status, server.check(CHECK).started) == ("up", False)


def test_a_failure_has_the_exit_status_and_the_end_of_the_output(server, pinging):
    pings = pinging({"backup": server.url(CHECK)})
    pings.note(told("start"))
    pings.note(told("fail", status=7, text="failed", output=b"no \xff line feed"))
    signal = server.wait_for(CHECK, "start", "7")[1]
    assert signal.body == "no \N{REPLACEMENT CHARACTER} line feed\nfailed\n"
    assert server.check(CHECK).status == "down"
    pings.note(told("fail"))
    server.wait_for(CHECK, "start", "7", "fail")


def test_a_slug_finds_or_creates_the_check_of_the_schedule(server, pinging):
    pings = pinging({"all": server.slug_url(more="?create=1")})
    pings.note(told("success", ping="all", key="one"))
    pings.note(told("success", ping="all", key="two"))
    server.wait_for("one", "success")
    server.wait_for("two", "success")


def test_a_secret_in_the_reason_is_masked(server, pinging):
    pings = pinging({"backup": server.url(CHECK)}, secrets=["hunter22"])
    pings.note(told("fail", text="ValueError: hunter22"))
    assert server.wait_for(CHECK, "fail")[0].body == "ValueError: ***\n"


def test_the_values_of_fields_that_are_redacted_are_hidden(server, pinging):
    pings = pinging({"backup": server.url(CHECK)}, redact=["*token*"])
    pings.note(told("fail", text="api_token=abc is wrong", output=b"token: secret\n"))
    body = server.wait_for(CHECK, "fail")[0].body
    assert body == "token: [redacted]\napi_token=[redacted] is wrong\n"


def test_the_output_is_cut_at_its_beginning_to_what_the_server_keeps(pinging):
    with ping_server(body_limit=1001) as server:
        pings = pinging({"backup": server.url(CHECK)})
        pings.note(told("start"))
        pings.note(told("fail", text="the reason", output="é".encode() * 2000))
        body = server.wait_for(CHECK, "start", "fail")[1].body
    assert body == "é" * 494 + "\nthe reason\n"


# --- what goes wrong -----------------------------------------------------------------


def test_a_ping_that_is_not_defined_is_told_once(pinging, caplog):
    pings = pinging({})
    for _ in range(3):
        pings.note(told("start", ping="gone", key="nightly"))
    assert errors(caplog) == [
        "nightly: names the ping gone, which is not in pings; so nobody is told of its runs"
    ]


def test_messages_that_were_dropped_on_the_way_are_told(pinging, caplog):
    pinging({}).note({"lost_pings": 3})
    assert errors(caplog) == [
        "pings are lost: 3 messages about runs could not be passed on to the monitor"
    ]


def test_a_server_that_is_away_and_comes_back_gets_what_was_not_delivered_in_order(
    server, pinging, caplog
):
    pings = pinging({"backup": server.url(CHECK)}, waits=[0.02] * 1000)
    server.stop()
    pings.note(told("start"))
    pings.note(told("success"))
    server.start()
    server.wait_for(CHECK, "start", "success")
    assert errors(caplog) == []


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_an_answer_that_may_change_is_followed_by_further_tries(server, pinging, status):
    server.status = status
    pings = pinging({"backup": server.url(CHECK)}, waits=[0.01] * 1000)
    pings.note(told("success"))
    wait_until(lambda: server.requests >= 3, what="further tries")
    server.status = None
    server.wait_for(CHECK, "success")


def test_after_the_last_try_the_ping_is_given_up_and_the_next_one_is_sent(server, pinging, caplog):
    server.status = 500
    pings = pinging({"backup": server.url(CHECK)})
    pings.note(told("start"))
    wait_for_error(caplog, "the ping backup is not delivered: the server has answered 500")
    assert server.requests == 1 + len(QUICK)
    server.status = None
    pings.note(told("success"))
    server.wait_for(CHECK, "success")


@pytest.mark.parametrize("status", [301, 400, 404, 409])
def test_an_answer_that_will_not_change_is_final(server, pinging, caplog, status):
    server.status = status
    pings = pinging({"backup": server.url(CHECK)})
    pings.note(told("start"))
    wait_for_error(caplog, f"answered {status}")
    assert server.requests == 1
    assert CHECK not in caplog.text


def test_a_check_that_the_server_does_not_know_is_told_although_it_answers_200(
    server, pinging, caplog
):
    pings = pinging({"backup": server.url(CHECK).replace(CHECK, OTHER)})
    pings.note(told("start"))
    wait_for_error(caplog, "the ping backup is not delivered: the server knows no such check")


def test_a_private_address_is_refused_unless_it_is_allowed(server, pinging, caplog):
    pings = pinging({"backup": server.url(CHECK)}, allowed=())
    pings.note(told("start"))
    wait_for_error(caplog, "allow_private_addresses")
    assert server.requests == 0


@pytest.mark.slow
def test_a_server_that_hangs_delays_no_other_and_not_the_one_who_notes(server, pinging):
    with ping_server() as slow:
        slow.hang()
        pings = pinging({"slow": slow.url(OTHER), "backup": server.url(CHECK)})
        # More than can wait: if one of these calls waited for the server, it would never return.
        for _ in range(3000):
            pings.note(told("start", ping="slow"))
        pings.note(told("success"))
        server.wait_for(CHECK, "success")
        wait_until(lambda: slow.requests == 1, what="the only request to the server that hangs")


@pytest.mark.slow
def test_what_waits_for_a_server_that_hangs_is_bounded_and_the_newest_stays(
    server, pinging, caplog
):
    server.hang()
    pings = pinging({"backup": server.url(CHECK)})
    for number in range(1100):
        pings.note(told("log", text=str(number)))
    server.go_on()
    wait_until(
        lambda: any(each.body == "1099\n" for each in server.check(CHECK).signals), what="the last"
    )
    bodies = [each.body for each in server.check(CHECK).signals]
    assert len(bodies) == 1000
    assert bodies[:2] == ["0\n", "101\n"]
    assert "too many pings wait for a slow server" in caplog.text


def test_large_outputs_that_wait_are_bounded_too(server, pinging):
    server.hang()
    pings = pinging({"backup": server.url(CHECK)})
    for _ in range(50):
        pings.note(told("log", output=b"x" * 60_000))
    server.go_on()
    pings.note(told("success"))
    wait_until(lambda: "success" in server.check(CHECK).kinds, what="the last one")
    assert len(server.check(CHECK).signals) == pytest.approx(2**20 / 60_000, abs=2)


# --- the end -------------------------------------------------------------------------


def test_at_the_end_what_waits_is_delivered(server, caplog):
    server.status = 503
    delivery = PingDelivery(client(), CLOCK, [100.0])
    pings = Pinging({"backup": server.url(CHECK)}, lambda: delivery, clock=CLOCK)
    pings.note(told("start"))
    pings.note(told("success"))
    wait_until(lambda: server.requests == 1, what="the first try")
    server.status = None

    pings.close()

    assert server.check(CHECK).kinds == ["start", "success"]
    assert errors(caplog) == []


def test_the_end_does_not_wait_long_for_a_server_that_hangs(server, caplog):
    server.hang()
    delivery = PingDelivery(client(), CLOCK)
    with closing(Pinging({"backup": server.url(CHECK)}, lambda: delivery, clock=CLOCK)) as pings:
        pings.note(told("start"))
        pings.note(told("success"))
    assert "the monitor ends, and 2 pings could not be delivered" in errors(caplog)


def test_at_the_end_what_fails_is_counted_although_it_waits_no_more(server, caplog):
    server.status = 503
    delivery = PingDelivery(client(), CLOCK, [100.0])
    with closing(Pinging({"backup": server.url(CHECK)}, lambda: delivery, clock=CLOCK)) as pings:
        pings.note(told("start"))
        pings.note(told("success"))
        wait_until(lambda: server.requests == 1, what="the first try")
    assert "the monitor ends, and 2 pings could not be delivered" in errors(caplog)


def test_without_a_run_there_is_no_thread(server, pinging):
    before = threading.active_count()
    pings = pinging({"backup": server.url(CHECK)})
    pings.step(0.0)
    pings.close()
    assert threading.active_count() == before
