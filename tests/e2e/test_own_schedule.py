"""A task that deletes or cancels its own schedule ends by itself; so does what it starts."""

import pytest

from support.waiting import wait_until

JOBS = """
    import subprocess
    import time
    from pathlib import Path

    import psched
    from psched.application import Dispatch as BaseDispatch


    def wait_for_gate():
        Path("asked").touch()
        while not Path("gate").exists():
            time.sleep(0.01)
        Path("rest").touch()


    def uses_its_task(task):
        assert not task.schedules["own"].delete()
        wait_for_gate()


    def opens_schedules(task):
        assert not psched.open("psched.yml")["own"].cancel()
        wait_for_gate()


    def runs_a_program(task):
        subprocess.run([*task.data["psched"], "delete", "own"], check=True)
        wait_for_gate()


    def clock(task):
        with Path("ticks").open("a") as file:
            file.write("tick\\n")


    class Dispatch(BaseDispatch):
        routes = {
            name: name for name in ("uses_its_task", "opens_schedules", "runs_a_program", "clock")
        }
"""

SHELL = """"$@" delete own && touch asked && until [ -e gate ]; do sleep 0.05; done && touch rest"""


@pytest.mark.parametrize(
    ("type_", "status"),
    [
        ("uses_its_task", None),
        ("opens_schedules", "cancelled"),
        ("runs_a_program", None),
        ("exec", None),
    ],
)
def test_a_task_that_ends_its_own_schedule_does_the_rest_of_its_work(service, type_, status):
    service.configure(dispatch="jobs:Dispatch", load_path=".", poll_interval=0.1, concurrency=2)
    service.write("jobs.py", JOBS)
    service.init()
    data = {"psched": service.psched_command}
    if type_ == "exec":
        data = {"command": ["sh", "-c", SHELL, "sh", *service.psched_command]}
    with service.schedules() as schedules:
        schedules.add("clock", "clock", every=1)
        schedules.add("own", type_, cron="0 0 1 1 *", next_time=1_000_000_000, data=data)
    service.start()
    ticks = service.folder / "ticks"
    wait_until((service.folder / "asked").exists, what="the request of the task")
    seen = len(ticks.read_text()) if ticks.exists() else 0

    # The worker reads the marks of running tasks before each claim.
    wait_until(
        lambda: ticks.exists() and len(ticks.read_text()) >= seen + 2 * len("tick\n"),
        what="two further tasks",
    )
    service.open_gate("gate")

    def ended():
        with service.schedules() as schedules:
            # One request: the row can be deleted between two.
            if (found := schedules.read_many(["own"]).get("own")) is None:
                return [None]
            return [found.row.status] if found.row.owner is None else []

    assert wait_until(ended, what="the end of the schedule") == [status]
    assert (service.folder / "rest").exists()
