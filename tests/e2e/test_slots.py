"""A slow task and the schedules beside it: the shipped defaults, and rows that wait for a slot."""

import json
import re

from support.processes import kill, title
from support.waiting import wait_until

HUNG = {"command": ["sleep", "600"]}


def asked(service):
    """The answer of the only master."""
    done = service.psched("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_with_the_shipped_settings_a_hung_task_stops_no_other_schedule(service):
    # These two settings are what their defaults are.
    service.configure(processors=None, concurrency=None)
    service.add("hung", "exec", data=HUNG)
    service.add("each second", cron="@every 1", next_time=None)
    master = service.start(generation=0)

    service.runs.wait("each second", lambda runs: len(runs) >= 3)

    def all_ready():
        told = asked(service)
        # A worker tells its slots after it is ready.
        are_ready = all(each["state"] == "ready" for each in told["workers"])
        return told if are_ready and told["slots"] == 5 * len(told["workers"]) else None

    # The first worker may have run all these before the second one is ready.
    told = wait_until(all_ready, what="ready workers")
    [task] = [
        task for worker in told["workers"] for task in worker["tasks"] if task["type"] == "exec"
    ]
    assert task["state"] == "running"
    assert (told["due"], told["late"]) == (0, 0)
    assert 0 < told["free"] < told["slots"]
    assert told["slots"] == sum(worker["slots"] for worker in told["workers"])
    assert "no free slot" not in master.text


def test_rows_that_wait_for_a_slot_are_told_until_the_task_is_killed(service):
    service.add("hung", "exec", data=HUNG, retry_wait=600)
    master = service.start()
    wait_until(lambda: asked(service)["workers"][0]["tasks"], what="the hung task")
    service.add("waits")

    master.wait_for_log(r"WARNING master 1 due, oldest \d+ s late, no free slot: raise concurrency")

    told = asked(service)
    [worker] = told["workers"]
    for each in told, worker:
        assert (each["slots"], each["free"], each["due"]) == (1, 0, 1)
        assert each["late"] > 5
    # All slots are busy, which is no fault unless rows wait for too long.
    assert service.psched("health").stdout == "ready\n"
    late = service.psched("health", "--late-within", "1s")
    assert late.returncode == 1
    assert late.stdout.startswith("not ready: a due task has waited for a free slot for ")
    shown = service.psched("status").stdout
    assert re.search(r"^0 of 1 slots free; 1 due, oldest \d+ s late$", shown, re.MULTILINE)
    assert re.search(r" ready, 1 tasks, 0 of 1 slots free, up ", shown)
    assert re.search(r"1 tasks, 0 of 1 slots free; 1 due, oldest \d+ s late$", title(master.pid))

    [task] = worker["tasks"]
    kill(task["pid"])
    log = master.wait_for_log(r"INFO    master no due row waits for a slot any more, after \d+ s;")

    service.wait_for_finish("waits")
    assert len(re.findall("no free slot", log)) == 1
    assert (asked(service)["due"], asked(service)["free"]) == (0, 1)
    assert master.stop() == 0
