"""The monitor as a process: killed, stopped, restarted; it never matters to workers and tasks."""

import json
import signal

from support.processes import kill, title
from support.waiting import has_ended, wait_for_end, wait_until


def status(service):
    [line] = service.psched("status", "--json").stdout.splitlines()
    return json.loads(line)


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

    assert master.workers() == workers
    assert status(service)["worker_deaths"] == 0
    service.open_gate("gate")
    service.wait_for_finish("key")
    assert len(service.runs.runs("key")) == 1
    assert master.stop() == 0
    assert has_ended(monitor)
    master.wait_until_nothing_is_left()


def test_a_monitor_that_hangs_is_killed_and_replaced(service):
    service.configure(child_heartbeat_limit=3, database_timeout=0.4)
    master = service.start()
    workers, hung = master.workers(), master.wait_for_monitor()

    kill(hung, signal.SIGSTOP)
    master.wait_for_log("the monitor, pid .* is silent")

    assert master.wait_for_monitor(other_than=hung) != hung
    assert master.workers() == workers
    assert master.stop() == 0


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
