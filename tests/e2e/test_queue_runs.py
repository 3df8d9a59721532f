"""What becomes of tasks that run once, and of schedules that submit them."""

import re

import pytest

from psched.base.clock import SystemClock
from support.programs import lines, run_work, with_work
from support.waiting import HANG_TIMEOUT, wait_until


@pytest.fixture
def queue(service):
    """A service with a program for its tasks."""
    return with_work(service)


CLOCK = SystemClock()
HOUR = 3600


def test_a_schedule_submits_each_occurrence_once_as_a_task_of_its_own(queue):
    submit = {"type": "mail", "data": {"to": "ann"}, "options": {"max_attempts": 2}}
    queue.add(
        "tick", "push", data=submit, cron=f"@every {HOUR}", next_time=int(CLOCK.wall()) - 2 * HOUR
    )
    queue.add("again", "push", data=submit)
    # As if an earlier try of this occurrence had come no further than this.
    queue.invoke("push", "again.1000000000", "mail", '{"to": "bob"}')
    queue.add("bad", "push", data={"data": {}}, max_attempts=1)
    master = run_work(queue)

    queue.wait_for_finish("again")
    failed = queue.wait_for_row("bad", lambda seen: seen.status == "failed")
    tick = queue.wait_for_row("tick", lambda seen: seen.next_time > CLOCK.wall())
    wait_until(lambda: len(lines(queue, "done")) >= 3, what="the tasks")

    times = [tick.next_time - 2 * HOUR, tick.next_time - HOUR]
    ran = {"again.1000000000": "bob"} | {f"tick.{moment}": "ann" for moment in times}
    assert sorted(lines(queue, "ran")) == sorted(
        f'{key} {{"to":"{to}"}}' for key, to in ran.items()
    )
    for key in ran:
        assert queue.wait_for_finish(key).type == "mail"
    assert queue.row(f"tick.{times[0]}").row.options == b'{"max_attempts":2}'
    assert 'data: "type" must name the type of the task to submit' in failed.reason
    assert master.stop() == 0


def test_a_task_that_fails_waits_ever_longer_is_given_up_kept_and_can_be_run_again(queue):
    (queue.folder / "fail").touch()
    with queue.schedules() as schedules:
        task = schedules.push(
            "t", "mail", {"k": 1}, max_attempts=3, retry_wait=1, retry_backoff="exponential"
        )
        master = run_work(queue)
        assert task.wait(timeout=HANG_TIMEOUT) == "failed"

        waits = [
            float(wait) for wait in re.findall(r"\[t\.\d+\].* again in ([\d.]+) s", master.text)
        ]
        assert len(waits) == 2, master.text
        assert 0.5 <= waits[0] <= 1 <= waits[1] <= 2
        assert lines(queue, "ran") == ['t {"k":1}'] * 3
        listed = queue.invoke("list", "--legacy", "--status", "failed").stdout
        assert listed.endswith("1 entries.\n")
        assert re.search(r"\bt +mail\b", listed)
        assert "for the last time (attempt 3): " in master.text
        assert "work.sh exited with status 3" in task.metadata().reason

        (queue.folder / "fail").unlink()
        assert queue.invoke("requeue", "t").output == "t: requeued\n"
        assert task.wait(timeout=HANG_TIMEOUT) == "finished"
    assert lines(queue, "done") == ["t"]
    assert master.stop() == 0


LISTENS = """
    import time

    class Run:
        def __init__(self, task):
            self.task = task
            self.kills = 0

        def run(self):
            print("runs", self.task.key, flush=True)
            while self.kills < self.task.data["kills"]:
                time.sleep(0.01)

        def kill(self, reason):
            self.kills += 1
            print("kill", self.task.key, self.kills, time.monotonic(), flush=True)
"""


@pytest.mark.extended
def test_limits_are_the_installations_or_the_types_or_the_tasks_own(queue):
    queue.configure(
        types={"brief": {"kill_timeout": 5}}, kill_timeout=10, kill_interval=1, concurrency=3
    )
    queue.write("job.py", LISTENS)
    with queue.schedules() as schedules:
        for key, type_, own in (
            ("all", "plain", {}),
            ("type", "brief", {}),
            ("own", "brief", {"kill_timeout": 0.1, "kill_interval": 2}),
        ):
            schedules.push(key, type_, {"kills": 3}, max_attempts=1, **own)
        master = queue.start(*queue.psched_command, "run", "--script", "job.py")
        for key in "all", "type", "own":
            # Who has a kill() of its own and returns in its own time has finished.
            assert schedules[key].wait(timeout=HANG_TIMEOUT) == "finished"

    stopping = re.findall(r"\[(\w+)\.\d+\] stopping it: timeout", master.text)
    assert stopping == ["own", "type", "all"]
    for key, interval in ("all", 1), ("type", 1), ("own", 2):
        kills = [float(at) for at in re.findall(rf"kill {key} \d ([\d.]+)", master.text)]
        assert len(kills) == 3
        # The first may have been heard late.
        assert kills[2] - kills[0] > 2 * interval - 1
    assert master.stop() == 0


@pytest.mark.extended
def test_workers_may_be_for_some_types_alone(queue):
    with queue.schedules() as schedules:
        schedules.push_many(
            {"key": f"{type_}1", "type": type_, "data": data}
            for type_, data in (("a", {}), ("b", {}), ("c", {}), ("exec", {"command": ["true"]}))
        )
    some = run_work(queue, "--only", "a", "--only", "c")
    queue.wait_for_finish("a1")
    queue.wait_for_finish("c1")
    assert some.stop() == 0
    assert sorted(lines(queue, "ran")) == ["a1 {}", "c1 {}"]
    queue.configure(only="b")
    others = run_work(queue)
    queue.wait_for_finish("b1")
    assert others.stop() == 0
    assert queue.row("exec1").row.fence == 0


GROWS = """
    from psched.base.errors import InvalidError

    class Run:
        def __init__(self, task):
            self.task = task

        def run(self):
            try:
                self.task.update_data({"text": "x" * 2_000_000})
            except InvalidError as error:
                self.task.update_data({"error": str(error)})
"""


@pytest.mark.extended
@pytest.mark.mariadb
def test_data_that_the_database_cannot_take_are_the_tasks_affair_alone(make_service, start_mariadb):
    server = start_mariadb("--max-allowed-packet=1M")
    queue = make_service(server.url(server.create_database()), compress_above=0)
    queue.configure(dispatch=None, load_path=None)
    queue.init()
    queue.write("job.py", GROWS)
    master = queue.start(*queue.psched_command, "run", "--script", "job.py")
    queue.invoke("push", "grows", "{}")

    told = queue.wait_for_finish("grows").data["error"]

    assert told.startswith("data: the database refused: (1153, 'the statement has 2,000,")
    assert "ERROR" not in master.text
    assert master.stop() == 0
    queue.close()
