"""Pings, from the task to the ping server: real masters, workers, monitors and requests."""

import json
import re
import signal
import sys

import pytest

from support.ping_server import ping_server
from support.processes import kill
from support.waiting import has_ended, wait_until

pytestmark = [pytest.mark.monitor, pytest.mark.extended]

CHECK = "5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"
OTHER = "0b1a7d6e-94f2-4d4c-9d60-7d1c11c3a111"


@pytest.fixture
def server():
    with ping_server() as running:
        yield running


@pytest.fixture
def pinged(service, server):
    """A service whose runs are told to a check."""
    service.configure(
        pings={"check": server.url(CHECK)}, ping="check", allow_private_addresses=["127.0.0.0/8"]
    )
    return service


def add_program(service, key, code, **fields):
    """Add a task that runs a Python program."""
    service.add(key, "exec", data={"command": [sys.executable, "-c", code]}, **fields)


@pytest.mark.landing
def test_a_success_is_told_from_start_to_end(pinged, server):
    master = pinged.start()
    pinged.add("job", data={"until": "gate"})
    [start] = server.wait_for(CHECK, "start")
    assert (server.check(CHECK).status, server.check(CHECK).started) == ("new", True)

    pinged.open_gate("gate")

    end = server.wait_for(CHECK, "start", "success")[1]
    assert start.rid == end.rid
    assert end.duration is not None
    assert "job." in end.body
    assert "finished after" in end.body
    assert (server.check(CHECK).status, server.check(CHECK).started) == ("up", False)
    assert pinged.row("job").status == "finished"
    assert master.stop() == 0
    assert CHECK not in master.text


@pytest.mark.landing
def test_a_failure_is_told_with_exit_status_and_output_and_the_next_attempt_by_its_own_id(
    pinged, server
):
    pinged.configure(ping_output=200)
    code = (
        "import os, sys; print('x' * 1000 + 'the end'); sys.exit(3 * (not os.path.exists('gate')))"
    )
    master = pinged.start()
    add_program(pinged, "job", code)
    first, end = server.wait_for(CHECK, "start", "3")[:2]
    assert end.rid == first.rid
    assert re.match(r"x{50,199}the end\n.*\njob\.\d+: failed after .* status 3\n", end.body)
    assert server.check(CHECK).status == "down"

    pinged.open_gate("gate")
    wait_until(lambda: server.check(CHECK).status == "up", what="a success")
    signals = server.check(CHECK).signals
    assert signals[-1].rid == signals[-2].rid != first.rid
    assert master.stop() == 0


def test_secrets_in_the_output_and_in_the_reason_are_masked(pinged, server, monkeypatch):
    monkeypatch.setenv("TOKEN", "h4rd-to-guess")  # for this process, which adds the schedule
    pinged.env["TOKEN"] = "h4rd-to-guess"
    pinged.configure(
        pings={"check": server.url(CHECK), "other": "https://hc-ping.com/${TOKEN}"},
    )
    pinged.write(
        "leaky.py",
        """
        from psched.application import Base, Dispatch as BaseDispatch

        class Leaky(Base):
            def run(self):
                print("printed: h4rd-to-" + "guess")
                raise ValueError("raised: h4rd-to-" + "guess")

        class Dispatch(BaseDispatch):
            routes = {"leaky": Leaky}
        """,
    )
    pinged.configure(dispatch="leaky:Dispatch", max_attempts=1)
    master = pinged.start()
    pinged.add("job", "leaky")
    body = server.wait_for(CHECK, "start", "fail")[1].body
    assert "printed: ***" in body
    assert "raised: ***" in body
    assert "h4rd-to-guess" not in body
    assert master.stop() == 0


def test_a_task_at_its_time_limit_has_failed(pinged, server):
    pinged.configure(kill_timeout=0.5, graceful_kill_limit=0.5, max_attempts=1)
    master = pinged.start()
    pinged.add("job", data={"until": "never", "stubborn": True})
    end = server.wait_for(CHECK, "start", "fail")[1]
    assert "stopped at its time limit" in end.body
    assert master.stop() == 0


def test_a_task_whose_process_is_killed_has_failed_and_the_next_attempt_succeeds(pinged, server):
    master = pinged.start()
    pinged.add("job", data={"kills": "runner", "times": 1})
    failed = server.wait_for(CHECK, "start", "fail", "start", "success")[1]
    assert "SIGKILL" in failed.body
    assert master.stop() == 0


@pytest.mark.landing
def test_a_stop_of_the_service_is_no_failure(pinged, server):
    pinged.configure(graceful_timeout=0)
    master = pinged.start()
    pinged.add("job", data={"until": "never"})
    server.wait_for(CHECK, "start")
    pinged.runs.wait("job", bool)
    assert master.stop() == 0
    server.wait_for(CHECK, "start", "log")
    assert server.check(CHECK).status == "new"


def test_the_run_of_a_worker_that_is_killed_has_failed_and_the_next_one_succeeds(pinged, server):
    master = pinged.start()
    pinged.add("job", data={"until": "gate"})
    server.wait_for(CHECK, "start")
    pinged.runs.wait("job", bool)
    [worker] = master.workers()

    kill(worker)

    wait_until(lambda: "fail" in server.check(CHECK).kinds, what="the failure")
    failed = next(each for each in server.check(CHECK).signals if each.kind == "fail")
    assert failed.rid == server.check(CHECK).signals[0].rid
    assert "its worker has died" in failed.body
    pinged.open_gate("gate")
    wait_until(lambda: server.check(CHECK).status == "up", what="the success of the next attempt")
    assert server.check(CHECK).signals[-1].rid != failed.rid
    assert master.stop() == 0


def test_one_url_serves_all_schedules_also_their_extra_runs(pinged, server):
    pinged.configure(pings={"check": server.slug_url(more="?create=1")})
    master = pinged.start()
    pinged.add("one")
    pinged.add("two")
    server.wait_for("one", "start", "success")
    server.wait_for("two", "start", "success")
    pinged.add("later", cron="0 0 1 1 *", next_time=None)
    assert pinged.psched("trigger", "later").returncode == 0
    server.wait_for("later", "start", "success")
    assert master.stop() == 0


def test_a_schedule_can_name_a_ping_that_is_not_defined_and_runs(pinged, server):
    master = pinged.start()
    pinged.add("job", ping="gone")
    pinged.add("silent", ping="none")
    pinged.wait_for_finish("job")
    pinged.wait_for_finish("silent")
    master.wait_for_log("job: names the ping gone, which is not in pings")
    assert master.stop() == 0
    assert server.requests == 0


def test_a_private_address_is_refused_and_the_task_runs(pinged, server):
    pinged.configure(allow_private_addresses=None)
    master = pinged.start()
    pinged.add("job")
    pinged.wait_for_finish("job")
    log = master.wait_for_log("the ping check is not delivered: .*allow_private_addresses")
    assert CHECK not in log
    assert master.stop() == 0
    assert server.requests == 0


def test_a_server_that_is_away_and_comes_back_is_told(pinged, server):
    server.stop()
    master = pinged.start()
    pinged.add("job")
    pinged.wait_for_finish("job")

    server.start()

    server.wait_for(CHECK, "start", "success")
    assert master.stop() == 0


def test_a_server_that_never_answers_delays_no_task_and_not_the_shutdown(pinged, server):
    server.hang()
    master = pinged.start()
    for number in range(5):
        pinged.add(f"job{number}")
    for number in range(5):
        pinged.wait_for_finish(f"job{number}")
    wait_until(lambda: server.requests, what="a ping")
    monitor = master.wait_for_monitor()
    assert master.stop() == 0
    # It has never answered: what is left was given up.
    assert server.check(CHECK).kinds == []
    assert "could not be delivered" in master.text
    assert "SIGKILL" not in master.text
    assert has_ended(monitor)


def test_the_last_pings_are_sent_before_the_end(pinged, server):
    pinged.configure(graceful_timeout=60)
    master = pinged.start()
    pinged.add("job", data={"until": "gate"})
    server.wait_for(CHECK, "start")
    master.send(signal.SIGTERM)
    master.wait_for_log("stop")
    pinged.open_gate("gate")
    assert master.wait() == 0
    assert server.check(CHECK).kinds == ["start", "success"]


def test_a_monitor_that_is_killed_while_a_task_runs_is_replaced_and_the_end_is_told(pinged, server):
    master = pinged.start()
    killed = master.wait_for_monitor()
    pinged.add("job", data={"until": "gate"})
    server.wait_for(CHECK, "start")

    kill(killed)
    # What is passed on to a monitor that was just killed is lost with it.
    master.wait_for_monitor(other_than=killed)
    pinged.open_gate("gate")

    pinged.wait_for_finish("job")
    [start, end] = server.wait_for(CHECK, "start", "success")
    assert start.rid == end.rid
    assert master.stop() == 0


@pytest.mark.landing
def test_a_monitor_that_hangs_delays_no_task(pinged):
    pinged.configure(child_heartbeat_limit=6, database_timeout=1)
    master = pinged.start()
    hung = master.wait_for_monitor()
    kill(hung, signal.SIGSTOP)
    for number in range(3):
        pinged.add(f"job{number}")
        pinged.wait_for_finish(f"job{number}")
    master.wait_for_monitor(other_than=hung)
    # What the monitor had not read is lost, and what comes now is told.
    pinged.add("next", ping="next")
    pinged.wait_for_finish("next")
    master.wait_for_log("next: names the ping next, which is not in pings")
    assert master.stop() == 0


def test_a_restart_reads_the_pings_anew(pinged, server):
    master = pinged.start()
    pinged.add("job", data={"until": "gate"})
    server.wait_for(CHECK, "start")
    pinged.configure(pings={"check": server.url(OTHER)})
    master.send(signal.SIGHUP)
    master.wait_for_log("generation 2 serves")
    master.wait_for_log(r"monitor \(gen 2\) started")
    pinged.open_gate("gate")
    server.wait_for(OTHER, "success")
    assert master.stop() == 0


# --- commands ------------------------------------------------------------------------


def test_show_says_which_ping_is_told(pinged):
    pinged.add("job")
    pinged.add("silent", ping="none")
    shown = pinged.invoke("show", "job").output
    assert re.search("^ping: +check$", shown, re.MULTILINE)
    assert "ping:" not in pinged.invoke("show", "silent").output
    assert json.loads(pinged.invoke("show", "job", "--json").output)["ping"] == "check"
    assert json.loads(pinged.invoke("show", "silent", "--json").output)["ping"] is None


def test_check_says_where_pings_are_sent_but_not_their_urls(pinged, server):
    found = pinged.psched("check")
    assert found.returncode == 0, found.stderr
    assert f"ping check: to 127.0.0.1:{server.port}: ok\n" in found.stdout
    assert CHECK not in found.stdout + found.stderr


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"allow_private_addresses": ["10.0.0.0/8"]},
            "pings.check: leads to the loopback address 127.0.0.1; name it in allow_private",
        ),
        (
            {"allow_private_addresses": None, "pings": {"check": f"http://localhost/{CHECK}"}},
            "pings.check: leads to the loopback address 127.0.0.1; name it in allow_private",
        ),
        ({"pings": {"check": f"hc-ping.com/{CHECK}"}}, "pings.check: must begin with https://"),
        ({"pings": {"other": "https://hc-ping.com/x"}}, "ping: names the ping check, which is not"),
    ],
)
def test_check_finds_a_ping_that_cannot_work(pinged, settings, reason):
    pinged.configure(**settings)
    found = pinged.psched("check")
    assert found.returncode == 1
    assert reason in found.stderr
    assert CHECK not in found.stdout + found.stderr


def test_no_command_shows_a_url(pinged):
    pinged.add("job")
    for command in ["show", "job"], ["list"], ["config"], ["status"], ["check"], ["export"]:
        found = pinged.psched(*command)
        assert CHECK not in found.stdout + found.stderr
