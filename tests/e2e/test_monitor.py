"""The monitor as a process: killed, stopped, restarted; it never matters to workers and tasks."""

import json
import signal
import socket
import sys

import pytest

from support.processes import kill, title
from support.waiting import HANG_TIMEOUT, has_ended, wait_for_end, wait_until

pytestmark = [pytest.mark.monitor, pytest.mark.extended]


def status(service):
    [line] = service.psched("status", "--json").stdout.splitlines()
    return json.loads(line)


@pytest.mark.landing
def test_a_killed_monitor_is_replaced_and_nothing_else_changes(service):
    master = service.start()
    workers, killed = master.workers(), master.wait_for_monitor()
    service.add("key", data={"until": "gate"})
    service.runs.wait("key", bool)

    kill(killed)
    monitor = master.wait_for_monitor(other_than=killed)
    wait_until(
        lambda: status(service)["monitor"] == {"pid": monitor, "state": "ready"},
        what="a ready monitor in the status",
    )
    assert f"\nmonitor pid {monitor} ready\n" in service.psched("status").stdout

    assert master.workers() == workers
    assert status(service)["worker_deaths"] == 0
    service.open_gate("gate")
    service.wait_for_finish("key")
    assert len(service.runs.runs("key")) == 1
    assert master.stop() == 0
    assert has_ended(monitor)
    master.wait_until_nothing_is_left()


def test_a_monitor_that_hangs_is_killed_and_replaced(service):
    service.configure(child_heartbeat_limit=6, database_timeout=1)
    master = service.start()
    workers, hung = master.workers(), master.wait_for_monitor()

    kill(hung, signal.SIGSTOP)
    master.wait_for_log("the monitor, pid .*, is stopped by a signal: killed")

    assert master.wait_for_monitor(other_than=hung) != hung
    assert master.workers() == workers
    assert master.stop() == 0


@pytest.mark.landing
def test_a_stop_of_all_processes_at_once_ends_the_monitor_after_the_workers(service):
    service.configure(processors=2)
    master = service.start()
    monitor = master.wait_for_monitor()

    master.send_all(signal.SIGTERM)

    assert master.wait() == 0
    assert has_ended(monitor)
    log = master.text
    assert log.rindex("worker 0 (gen 1), pid") < log.rindex("the monitor, pid")
    assert log.rindex("worker 1 (gen 1), pid") < log.rindex("the monitor, pid")


def test_a_stop_does_not_wait_for_a_monitor_that_hangs(service):
    master = service.start()
    kill(master.wait_for_monitor(), signal.SIGSTOP)

    assert master.stop() == 0
    master.wait_until_nothing_is_left()


@pytest.mark.landing
def test_a_restart_replaces_the_monitor_or_ends_it_if_the_new_settings_say_so(service):
    master = service.start()
    first = master.wait_for_monitor()

    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    second = master.wait_for_monitor(other_than=first)
    wait_for_end(first)

    service.configure(monitor=False)
    master.send(signal.SIGHUP)
    master.wait_for_generation(3)
    wait_for_end(second)
    assert status(service)["monitor"] is None
    assert master.stop() == 0


def test_a_monitor_dies_with_its_master_even_if_it_hangs(service):
    master = service.start()
    monitor = master.wait_for_monitor()
    assert title(monitor) == "psched monitor"
    kill(monitor, signal.SIGSTOP)

    master.kill()

    wait_for_end(monitor)


# --- metrics and health --------------------------------------------------------------


def asked(path, what):
    """The status and the body of an answer on a Unix socket; (0, "") if nobody listens."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(HANG_TIMEOUT)
            connection.connect(str(path))
            connection.sendall(f"GET {what} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    except (FileNotFoundError, ConnectionError):
        return 0, ""
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), body


def value(path, metric):
    """The value of a metric; 0 if it is not shown."""
    lines = asked(path, "/metrics")[1].splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{metric} ")), 0)


def wait_for_value(path, metric, wanted):
    wait_until(lambda: value(path, metric) == wanted, what=f"{metric} {wanted}")


def test_metrics_go_on_when_workers_generations_and_monitors_are_replaced(service, tmp_path):
    path = tmp_path / "metrics.sock"
    service.configure(metrics=f"unix:{path}", history="none")
    master = service.start()
    finished = 'psched_runs_total{fate="finished",type="recorder"}'
    wait_until(lambda: asked(path, "/readyz") == (200, "ready\n"), what="a ready host")
    assert asked(path, "/livez") == (200, "alive\n")

    service.add("one")
    wait_for_value(path, finished, 1)
    wait_for_value(path, "psched_run_duration_seconds_count", 1)
    wait_for_value(path, "psched_start_lateness_seconds_count", 1)
    assert value(path, 'psched_claims_total{result="rows"}') >= 1
    assert value(path, "psched_store_seconds_count") > 0
    assert 'key="' not in asked(path, "/metrics")[1]

    service.add("held", data={"until": "gate"})
    wait_for_value(path, "psched_leases", 1)
    wait_for_value(path, 'psched_slots{state="free"}', 0)
    service.add("waits")
    wait_for_value(path, "psched_due", 1)
    service.open_gate("gate")
    wait_for_value(path, finished, 3)

    service.add("cut", data={"until": "second gate"})
    service.runs.wait("cut")
    [worker] = master.workers()
    kill(worker)
    wait_for_value(path, "psched_worker_deaths_total", 1)
    wait_for_value(path, 'psched_attempts_total{outcome="lost",type="recorder"}', 1)
    service.open_gate("second gate")
    service.wait_for_finish("cut")
    wait_for_value(path, finished, 4)
    kill(master.wait_for_monitor())
    wait_for_value(path, finished, 4)
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    service.add("two")
    wait_for_value(path, finished, 5)

    assert master.stop() == 0
    assert not path.exists()


@pytest.mark.landing
def test_a_host_whose_database_is_away_is_alive_but_not_ready(service, tmp_path):
    path = tmp_path / "metrics.sock"
    service.configure(metrics=f"unix:{path}", table="missing")
    master = service.start()

    def says_why():
        status, why = asked(path, "/readyz")
        return status == 503 and "the table 'missing' does not exist" in why

    wait_until(says_why, what="why the host is not ready")
    assert asked(path, "/livez")[0] == 200
    wait_until(lambda: value(path, 'psched_store_errors_total{kind="schema"}'), what="errors")
    assert value(path, "psched_due") == 0
    assert master.stop() == 0


def test_metrics_are_refused_without_the_package_and_without_a_monitor(service):
    service.configure(metrics="127.0.0.1:9464", monitor=False)
    refused = service.run(*service.master_command, "-c", service.config.name)
    assert refused.returncode == 78
    assert "metrics: are shown by the monitor; set monitor to on" in refused.stderr

    service.configure(monitor=None)
    hides = "import sys; sys.modules['prometheus_client'] = None; "
    starts = "from psched.cli.daemon.master import master; master()"
    refused = service.run(sys.executable, "-c", hides + starts, "-c", service.config.name)
    assert refused.returncode == 78
    assert "pip install psched[metrics]" in refused.stderr

    service.configure(metrics="127.0.0.1:99999")
    refused = service.psched("check")
    assert refused.returncode == 1
    assert "metrics: there is no port 99999" in refused.stderr


def test_the_last_success_is_shown_of_keys_that_are_listed(each_service, tmp_path):
    service, path = each_service, tmp_path / "metrics.sock"
    service.configure(metrics=f"unix:{path}", metrics_keys=["one", "fails", "never"])
    service.add("one")
    service.add("fails", data={"fail": 1000})
    service.add("two")
    master = service.start()
    for key in "one", "two":
        service.wait_for_finish(key)

    shown = 'psched_last_success_timestamp_seconds{key="one"}'
    with service.schedules() as schedules:
        [run] = schedules.runs("one")
    wait_for_value(path, shown, run.ended)
    [line] = [each for each in asked(path, "/metrics")[1].splitlines() if 'key="' in each]
    assert line.startswith(shown)
    # Each answer is read in a thread of its own, over one connection.
    assert "the store does not answer the monitor" not in master.text
    assert master.stop() == 0


def test_a_program_has_no_monitor_and_says_what_it_does_not_do(service):
    pings = {"check": "https://hc-ping.com/x"}
    service.configure(
        metrics="127.0.0.1:9464",
        pings=pings,
        ping="check",
        hooks={"ops": {"command": ["/bin/true"]}},
        expect={"late": "5m"},
        dispatch=None,
    )
    service.write(
        "program.py",
        """
        import psched, recorder

        if __name__ == "__main__":
            psched.Worker.run(recorder.Dispatch, "psched.yml")
        """,
    )
    master = service.start(sys.executable, "program.py")

    assert master.text.count("metrics are not shown") == 1
    assert master.text.count("pings are not sent") == 1
    assert master.text.count("hooks are not told") == 1
    assert master.text.count("nothing that is expected is judged") == 1
    assert status(service)["monitor"] is None
    service.add("one")
    service.wait_for_finish("one")
    assert master.stop() == 0
