"""kill -9 of a runner, a worker, the master: what they ran is gone, and runs again, elsewhere."""

import re
import signal

import pytest

from psched.base.clock import SystemClock
from support.processes import children, descendants, kill, server_of, title
from support.run_log import completed, never_two_at_once
from support.waiting import has_ended, wait_for_end, wait_until

pytestmark = pytest.mark.verified

CLOCK = SystemClock()

LIMIT = 6
"""Seconds of silence after which a process counts as hung: a busy machine lets none be so late."""


@pytest.fixture
def with_two_tasks(service):
    """A service with two workers, and a task on each that has a child and a daemon of its own."""
    service.configure(processors=2)
    add_two_tasks(service)
    return service


def add_two_tasks(service):
    for key in "one", "two":
        service.add(key, data={"until": "gate", "processes": ["child", "daemon"]})


def wait_for_trees(service, keys=("one", "two")):
    """Wait until the tasks and all their processes are there; the pids of each task's tree."""
    return {
        key: {
            note["pid"]
            for note in service.runs.wait(
                key, lambda runs: len({note["pid"] for note in runs[-1].notes}) == 3
            )[-1].notes
        }
        for key in keys
    }


def runner_of(service, key):
    return service.runs.runs(key)[-1].pid


def worker_of(master, service, key):
    """The worker that runs a task."""
    [worker] = [pid for pid in master.workers() if runner_of(service, key) in descendants(pid)]
    return worker


def finish_all(service, master):
    """Let all tasks run to their end, stop, and see that nothing is left or was doubled."""
    service.open_gate("gate")
    for key in "one", "two":
        service.wait_for_finish(key)
    assert master.stop() == 0
    master.wait_until_nothing_is_left()
    never_two_at_once(service.runs.runs())
    for key in "one", "two":
        *cut, last = service.runs.runs(key)
        assert last.completed
        assert not any(run.completed for run in cut)
        assert {run.scheduled_time for run in [*cut, last]} == {1_000_000_000}


def test_a_killed_runner_takes_its_tree_along_and_its_task_is_tried_again(with_two_tasks):
    service = with_two_tasks
    master = service.start()
    trees = wait_for_trees(service)

    kill(runner_of(service, "one"))

    again = service.runs.wait("one", lambda runs: len(runs) == 2)[1]
    assert all(has_ended(pid) for pid in trees["one"])
    assert not any(has_ended(pid) for pid in trees["two"])
    assert again.attempt == 2
    assert re.search(r"\[one\.1000000000\] failed .*its process was killed by SIGKILL", master.text)
    finish_all(service, master)


def test_a_killed_worker_takes_all_it_ran_along_which_is_released_at_once(with_two_tasks):
    service = with_two_tasks
    master = service.start()
    trees = wait_for_trees(service)

    kill(worker_of(master, service, "one"))

    # A lease lasts for 300 s: nobody has waited for its end.
    service.runs.wait("one", lambda runs: len(runs) == 2)
    assert all(has_ended(pid) for pid in trees["one"])
    assert not any(has_ended(pid) for pid in trees["two"])
    assert len(service.runs.runs("two")) == 1
    master.wait_for_log(r"one: released, its worker has died")
    finish_all(service, master)


def test_the_death_of_every_worker_at_once_is_survived(with_two_tasks):
    service = with_two_tasks
    master = service.start()
    trees = wait_for_trees(service)

    for worker in master.workers():
        kill(worker)

    for key in "one", "two":
        service.runs.wait(key, lambda runs: len(runs) == 2)
        assert all(has_ended(pid) for pid in trees[key])
    finish_all(service, master)


def test_nothing_survives_the_death_of_the_master_and_the_next_one_carries_on(with_two_tasks):
    service = with_two_tasks
    master = service.start()
    wait_for_trees(service)

    master.send(signal.SIGKILL)

    assert master.wait() == -signal.SIGKILL
    master.wait_until_nothing_is_left()
    # What its workers held they have released, each before its end.
    assert [service.row(key).row.owner for key in ("one", "two")] == [None, None]
    second = service.start()
    for key in "one", "two":
        service.runs.wait(key, lambda runs: len(runs) == 2)
    finish_all(service, second)


@pytest.mark.extended
def test_runners_do_not_outlive_master_and_workers_and_their_leases_run_out(service):
    service.configure(processors=2, alive_time=6)
    for key in "one", "two":
        service.add(key, data={"until": "gate"})
    master = service.start()
    for key in "one", "two":
        service.runs.wait(key)
    idle = [pid for worker in master.workers() for pid in descendants(worker)]

    for pid in [master.pid, *master.workers()]:
        kill(pid, signal.SIGSTOP)  # so that none has a moment to act for another
    for pid in [master.pid, *master.workers()]:
        kill(pid)

    for pid in idle:
        wait_for_end(pid)
    master.wait_until_nothing_is_left()
    second = service.start()
    for key in "one", "two":
        service.runs.wait(key, lambda runs: len(runs) == 2)
    assert second.text.count("taken over, its last lease ended without a settle") == 2
    finish_all(service, second)


@pytest.mark.extended
def test_the_next_master_kills_what_one_that_was_killed_with_its_workers_has_left(service):
    service.configure(alive_time=6)
    service.add("s", data={"until": "gate", "processes": ["child", "daemon"]})
    # As by whoever starts it again: orphans of the first are the child of one above the second.
    twice = ["/bin/sh", "-c", '"$@"; "$@"', "sh"]
    shell = service.start(*twice, *service.master_command, "-c", "psched.yml", generation=0)
    shell.wait_for_log("generation 1 serves")
    [first] = children(shell.pid)
    tree = wait_for_trees(service, ["s"])["s"]
    workers = children(first)
    for pid in workers:
        kill(pid, signal.SIGSTOP)  # so that none has a moment to act for another

    for pid in [first, *workers]:
        kill(pid)

    shell.wait_for_log("generation 1 serves", count=2)
    assert all(map(has_ended, tree))
    assert shell.text.count("left by a task of a master that is dead; killing it: ") >= 1
    service.runs.wait("s", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    service.wait_for_finish("s")
    never_two_at_once(service.runs.runs())
    [second] = children(shell.pid)
    kill(second, signal.SIGTERM)
    assert shell.wait() == 0
    shell.wait_until_nothing_is_left()


@pytest.mark.extended
def test_the_next_master_kills_what_a_worker_leaves_that_was_suspended_when_its_master_died(
    service,
):
    service.configure(alive_time=30)  # longer than the next master needs to start
    service.add("s", data={"until": "gate", "processes": ["child", "daemon"]})
    twice = ["/bin/sh", "-c", '"$@"; "$@"', "sh"]  # see above
    shell = service.start(*twice, *service.master_command, "-c", "psched.yml", generation=0)
    shell.wait_for_log("generation 1 serves")
    [first] = children(shell.pid)
    tree = wait_for_trees(service, ["s"])["s"]
    [suspended] = children(first)
    kill(suspended, signal.SIGSTOP)

    kill(first)

    shell.wait_for_log("generation 1 serves", count=2)
    for pid in [suspended, *tree]:
        wait_for_end(pid)
    assert shell.text.count("left by a task of a master that is dead; killing it: ") >= 1
    service.runs.wait("s", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    service.wait_for_finish("s")
    [second] = [pid for pid in children(shell.pid) if title(pid).startswith("psched master")]
    kill(second, signal.SIGTERM)
    assert shell.wait() == 0
    shell.wait_until_nothing_is_left()


def test_a_worker_that_is_stopped_is_killed_and_replaced(service):
    service.configure(child_heartbeat_limit=LIMIT, database_timeout=1)
    service.add("long", data={"until": "gate", "processes": ["child", "daemon"]})
    master = service.start()
    [worker] = master.workers()
    service.runs.wait("long")

    kill(worker, signal.SIGSTOP)

    master.wait_for_log(rf"worker 0 \(gen 1\), pid {worker}, is stopped by a signal: killed")
    service.runs.wait("long", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    service.wait_for_finish("long")
    never_two_at_once(service.runs.runs())
    assert master.stop() == 0
    assert master.descendants == []


def test_a_fork_server_that_is_killed_is_replaced_and_its_tasks_run_again_at_once(service):
    service.configure(retry_wait=300)
    service.add("long", data={"until": "gate", "processes": ["child", "daemon"]})
    master = service.start()
    [worker] = master.workers()
    tree = wait_for_trees(service, ["long"])["long"]

    kill(server_of(worker))

    # Its end is seen by its line, or by its parent, whichever is asked first.
    master.wait_for_log(
        "worker 0 the fork server died: it (was killed by SIGKILL|has ended), and all that"
    )
    master.wait_for_log(r"\[long\..*released after .*again at once: its fork server died")
    service.runs.wait("long", lambda runs: len(runs) == 2)
    assert all(map(has_ended, tree))
    service.open_gate("gate")
    service.wait_for_finish("long")
    never_two_at_once(service.runs.runs())
    assert master.workers() == [worker]
    assert master.stop() == 0
    assert master.descendants == []


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.extended
def test_a_fork_server_that_hangs_is_killed_and_replaced(service, concurrency):
    # There is room for the next task while the first is not known to have ended, or there is not.
    service.configure(child_heartbeat_limit=LIMIT, database_timeout=1, concurrency=concurrency)
    master = service.start()
    [worker] = master.workers()
    server = server_of(worker)

    kill(server, signal.SIGSTOP)
    for key in "one", "two":
        service.add(key)

    master.wait_for_log("the fork server hangs: killing it")
    wait_for_end(server)
    for key in "one", "two":
        service.wait_for_finish(key)
    assert [run.attempt for run in service.runs.runs()] == [1, 1]
    assert master.workers() == [worker]
    assert master.stop() == 0


@pytest.mark.extended
def test_a_worker_that_is_stopped_does_not_hold_up_a_shutdown(service):
    service.configure(child_heartbeat_limit=LIMIT, database_timeout=1)
    master = service.start()
    [worker] = master.workers()

    kill(worker, signal.SIGSTOP)

    assert master.stop() == 0
    assert f"pid {worker}, is stopped by a signal: killed" in master.text


@pytest.mark.extended
def test_a_service_that_has_stood_still_as_a_whole_kills_nobody_for_it(service):
    service.configure(child_heartbeat_limit=LIMIT, database_timeout=1, processors=2)
    service.add("long", data={"until": "gate"})
    master = service.start()
    master.wait_for_workers(2)
    service.runs.wait("long")

    # As a container that is paused, or a machine.
    master.send_all(signal.SIGSTOP)
    until = CLOCK.boottime() + LIMIT + 3
    wait_until(lambda: CLOCK.boottime() > until, what="a standstill of more than the limit")
    master.send(signal.SIGCONT)
    master.send_all(signal.SIGCONT)
    service.open_gate("gate")
    service.wait_for_finish("long")

    assert master.stop() == 0
    assert "silent" not in master.text
    assert len(service.runs.runs("long")) == 1


@pytest.mark.extended
def test_what_a_process_had_started_before_it_became_a_master_is_left_alone(service):
    service.write("start.sh", 'sleep 600 & echo $! >sidecar; exec "$@"\n')
    command = ["/bin/sh", "start.sh", *service.master_command, "-c", "psched.yml"]
    master = service.start(*command)
    sidecar = int((service.folder / "sidecar").read_text())

    for worker in master.workers():
        kill(worker)
    master.wait_for_log(r"worker 0 \(gen 1\) started", count=2)
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    assert master.stop() == 0

    assert not has_ended(sidecar)
    kill(sidecar)


@pytest.mark.parametrize("whom", ["worker", "server"])
def test_a_task_that_kills_its_worker_or_fork_server_twice_waits_for_its_third_try(service, whom):
    service.configure(retry_wait=600)
    service.add("poison", data={"kills": whom, "times": 2})
    master = service.start()

    # The first death may have been anybody's fault: there is a second try at once.
    service.runs.wait("poison", lambda runs: len(runs) == 2)
    waits = service.wait_for_row(
        "poison", lambda seen: seen.row.attempt == 2 and not seen.row.owner
    )
    assert waits.row.next_run_time > CLOCK.wall() + 300
    with service.sql() as database:
        database.execute("update psched set next_run_time = 1 where id = 'poison'")

    runs = service.runs.wait("poison", completed(1))
    assert [run.attempt for run in runs] == [1, 2, 3]
    service.wait_for_finish("poison")
    assert master.stop() == 0
    died = {
        "worker": "worker 0 .* was killed by SIGKILL",
        "server": "worker 0 .* its fork server died",
    }
    assert len(re.findall(died[whom], master.text)) == 2


def test_a_task_that_kills_its_own_process_is_a_failed_attempt(service):
    service.add("suicide", data={"kills": "runner", "times": 1})
    master = service.start()
    [worker] = master.workers()

    runs = service.runs.wait("suicide", completed(1))

    assert [run.attempt for run in runs] == [1, 2]
    assert master.workers() == [worker]
    service.wait_for_finish("suicide")
    assert master.stop() == 0


def test_titles_say_what_each_process_is_doing(service):
    service.add("s1", data={"until": "gate"})
    master = service.start()
    service.runs.wait("s1")
    [worker] = master.workers()

    wait_until(
        lambda: (
            title(master.pid)
            == "psched master: generation 1, 1 workers, 1 tasks, 0 of 1 slots free"
        ),
        what="the master's title",
    )
    wait_until(lambda: title(worker) == "psched worker 0 (gen 1): 1 tasks", what="its title")
    assert title(runner_of(service, "s1")) == "psched runner: recorder s1.1000000000 attempt 1"
    assert all(title(pid).startswith("psched ") for pid in descendants(master.pid))
    service.open_gate("gate")
    assert master.stop() == 0
