"""A worker's first words with its master."""

import select
from pathlib import Path

from psched.app import make_store, read_config
from psched.base import log
from psched.base.clock import SystemClock
from psched.master.generation_spec import WorkerIdentity
from psched.process.spawn import spawn
from psched.service.generation import ConfigSource
from support.isolated import isolated
from support.processes import kill, runners
from support.waiting import PATIENCE, wait_for_end, wait_until

CLOCK = SystemClock()


def cpu(pid):
    """The seconds that a process has worked."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def spawn_worker():
    """A worker that waits for its admission; its pid, and the link to it."""
    given = {"url": "sqlite:///psched.db"}
    make_store(read_config(given)).init()
    spec = ConfigSource(given, None, {}, log.start(None, "info", "master")).read_spec(None)
    return spawn(lambda link: spec.work(link, WorkerIdentity(0, 1, "nonce")))


def admitted_with_more_to_say():
    _, link = spawn_worker()
    # Both are there before it looks.
    link.send({"go": True})
    link.send({"recover": ["of a dead worker"]})
    said = [link.wait()]
    while not any("recovered" in message for message in said):
        if not select.select([link], [], [], PATIENCE)[0]:
            return said
        said += link.receive()
    link.send({"stop": None, "hurry": False})
    [recovered] = [message["recovered"] for message in said if "recovered" in message]
    return recovered


def test_an_order_that_comes_with_its_admission_is_obeyed():
    assert isolated(admitted_with_more_to_say) == ["of a dead worker"]


def not_admitted_for_a_while():
    worker, link = spawn_worker()
    assert "ready" in link.wait()
    wait_until(lambda: runners(worker), what="a runner")
    for runner in runners(worker):
        kill(runner)
    wait_until(lambda: not runners(worker), what="the runner's end")
    before, end = cpu(worker), CLOCK.monotonic() + 1
    wait_until(lambda: CLOCK.monotonic() > end, what="time")
    took = cpu(worker) - before
    link.send({"go": False})
    wait_for_end(worker)
    return took


def test_a_worker_that_waits_for_its_admission_sleeps_though_its_runner_has_died():
    assert isolated(not_admitted_for_a_while) < 0.3
