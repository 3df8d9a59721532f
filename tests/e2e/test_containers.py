"""psched-master as process 1 of a pid namespace, which it is in a container."""

import json
import os
import shutil
import signal

import pytest

from support.processes import children, kill, title
from support.waiting import wait_until

pytestmark = pytest.mark.extended

EXEC = {
    "command": "setsid sleep 1000 & sleep 1000 & exit 0",
    "shell": True,
}
"""A program that leaves two processes running."""


@pytest.fixture
def inside(service):
    """A function that runs a command as ``docker exec`` does; it has the master's pid."""
    unshare, nsenter = map(shutil.which, ["unshare", "nsenter"])
    if not (unshare and nsenter and os.geteuid() == 0):
        pytest.skip("only root can make a pid namespace, by util-linux's unshare and nsenter")
    service.init()
    space = [unshare, "--pid", "--fork", "--mount-proc", "--kill-child"]
    container = service.start(
        *space, *service.master_command, "-c", service.config.name, generation=0
    )
    container.wait_for_log("generation 1 serves")

    def run(*command):
        [master] = children(container.pid)
        return service.run(nsenter, f"--target={master}", "--pid", "--mount", *command)

    run.container = container
    [run.master] = children(container.pid)
    return run


def test_process_1_runs_tasks_says_that_it_is_ready_and_stops_at_term(service, inside):
    psched = [*service.psched_command, "-c", service.config]
    health = inside(*psched, "health", "--claims-within", "60")
    assert health.returncode == 0, health.stdout + health.stderr

    before = {title(pid) for pid in children(inside.master)}
    pushed = inside(*psched, "push", "leaves", "exec", json.dumps(EXEC), "--wait")
    assert pushed.stdout == "leaves: finished\n", pushed.stderr
    wait_until(
        lambda: not any("sleep" in title(pid) for pid in inside.container.descendants),
        what="the end of what the task has left",
    )
    assert len(children(inside.master)) == len(before)

    kill(inside.master, signal.SIGTERM)
    assert inside.container.wait() == 0
    assert "master stopped" in inside.container.text


def test_process_1_reaps_the_orphans_of_others(inside):
    inside("sh", "-c", "sleep 1 >/dev/null 2>&1 & exit 0")
    [orphan] = [pid for pid in children(inside.master) if "sleep" in title(pid)]
    wait_until(lambda: orphan not in children(inside.master), what="the end of the orphan")
