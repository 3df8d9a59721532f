"""Captured output of a whole service: its own output, its starts and its ends."""

import signal
from pathlib import Path

from support.processes import children, kill, title
from support.waiting import has_ended, wait_until


def collectors(master):
    return [
        pid
        for worker in master.workers()
        for pid in children(worker)
        if title(pid) == "psched collector"
    ]


def add_program(service, key, script, **fields):
    service.add(key, "exec", data={"command": ["sh", "-c", script]}, **fields)


def test_what_a_task_had_printed_is_in_the_services_output_though_its_worker_was_killed(service):
    service.configure(output="both")
    master = service.start()
    add_program(service, "key", "echo printed; exec sleep 1000")
    master.wait_for_log("key: printed")
    [worker] = master.workers()
    [collector] = collectors(master)
    kill(worker)
    wait_until(lambda: has_ended(collector), what="the end of its collector")
    master.wait_for_log("key: printed", count=2)


def test_a_collector_outlives_all_signals_and_ends_with_its_worker(service):
    service.configure(output="both", graceful_timeout=30)
    master = service.start()
    add_program(service, "key", "echo begun; while ! [ -e gate ]; do sleep 0.1; done; echo ended")
    master.wait_for_log("key: begun")
    [collector] = collectors(master)
    scores = [Path(f"/proc/{each}/oom_score_adj").read_text() for each in (collector, master.pid)]
    assert int(scores[0]) == int(scores[1]) + 250  # it is killed before others
    for number in signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM:
        kill(collector, number)
    master.send(signal.SIGTERM)
    service.open_gate("gate")
    assert master.wait() == 0
    assert "key: ended" in master.text
    assert has_ended(collector)
