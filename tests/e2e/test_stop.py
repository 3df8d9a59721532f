"""Stopping a master: what TERM, INT and QUIT do, and what they leave behind."""

import signal

import pytest

from psched.base.clock import SystemClock
from support.run_log import never_two_at_once
from support.waiting import wait_until

CLOCK = SystemClock()

TWICE = 1.2
"""Seconds: a second INT that comes later than one after the first is another key press."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_stop_waits_for_the_running_task_and_leaves_nothing(service, number):
    service.add("long", data={"until": "gate"})
    service.add("next", data={"until": "gate"}, next_time=1_000_000_001)
    master = service.start()
    service.runs.wait("long")

    master.send(number)
    master.wait_for_log("stopping: running tasks may finish")
    assert master.status is None
    service.open_gate("gate")

    assert master.wait() == 0
    assert master.descendants == []
    assert service.row("long").status == "finished"
    # Nothing was begun after the order to stop.
    assert service.row("next").row.fence == 0


def test_a_stop_with_nothing_to_do_waits_for_nothing(service):
    service.configure(processors=3, poll_interval=60, graceful_timeout=600)
    master = service.start()
    master.wait_for_workers(3)

    assert master.stop() == 0
    assert master.descendants == []


def test_a_task_that_outlasts_graceful_timeout_is_stopped_and_released(service):
    service.configure(graceful_timeout=1, graceful_kill_limit=60, retry_wait=600)
    service.add("long", data={"until": "gate"})
    service.add("done", data={"until": "gate"}, next_time=1_000_000_001)
    service.configure(processors=2)
    master = service.start()
    service.runs.wait("long")
    service.runs.wait("done")

    assert master.stop() == 0

    [run] = service.runs.runs("long")
    assert run.end == "ProcessStopError: shutdown"
    assert run.last_sign - run.started >= 1
    row = service.row("long").row
    # Free at once, and no attempt is counted: it was nobody's failure.
    assert (row.owner, row.attempt, row.status) == (None, 0, "waiting")
    service.open_gate("gate")
    service.start()
    service.wait_for_finish("long")
    service.wait_for_finish("done")
    never_two_at_once(service.runs.runs())


def test_a_task_that_minds_nothing_is_killed_at_the_end_of_the_ladder(service):
    service.configure(graceful_timeout=0.5, graceful_kill_limit=1)
    service.add(
        "stubborn",
        data={"until": "gate", "stubborn": True, "processes": ["child", "daemon"]},
    )
    master = service.start()
    service.runs.wait("stubborn", lambda runs: len({n["pid"] for n in runs[0].notes}) == 3)

    assert master.stop() == 0

    assert master.descendants == []
    assert service.row("stubborn").row.owner is None


def test_a_shutdown_that_gives_no_time_to_finish_still_gives_the_time_to_clean_up(service):
    service.configure(graceful_timeout=0, graceful_kill_limit=20, dispatch="jobs:Dispatch")
    service.write(
        "jobs.py",
        """
        import time
        from recorder import Recorder, Dispatch as Before

        class Tidy(Recorder):
            def stay(self, gate):
                try:
                    super().stay(gate)
                finally:
                    time.sleep(3)  # longer than what "at once" leaves
                    self.note("tidied")

        class Dispatch(Before):
            routes = {"tidy": Tidy}
        """,
    )
    service.add("s1", "tidy", data={"until": "gate"})
    master = service.start()
    service.runs.wait("s1")

    assert master.stop() == 0

    [run] = service.runs.runs("s1")
    assert "tidied" in [note["event"] for note in run.notes]


def test_a_second_int_stops_at_once(service):
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")

    master.send(signal.SIGINT)
    master.wait_for_log("running tasks may finish")
    service.psched("status")
    assert service.runs.runs("long")[0].end is None

    def hurried():
        if "stopping at once" in master.text:
            return True
        # It does not count before the first second is over.
        master.send(signal.SIGINT)
        return False

    wait_until(hurried, what="a stop at once")
    assert master.wait() == 0
    assert service.runs.runs("long")[0].end == "ProcessStopError: shutdown"
    assert service.row("long").row.owner is None


def test_int_twice_within_a_second_is_one_key_press(service):
    def is_one(key):
        """Press twice; whether the master has heard both within a second."""
        service.add(key, data={"until": key})
        master = service.start()
        service.runs.wait(key)
        master.send_to_group(signal.SIGINT)
        master.wait_for_log("running tasks may finish")
        master.send_to_group(signal.SIGINT)
        master.wait_for_log("within 1 s does not count|stopping at once")
        if "stopping at once" in master.text:
            assert master.wait() == 0
            return False
        # The worker answers after what it may have been told.
        service.psched("status")
        assert service.runs.runs(key)[0].end is None
        service.open_gate(key)
        assert master.wait() == 0
        assert service.row(key).status == "finished"
        return True

    # A busy machine may let more than a second pass in between, but not every time.
    assert any(is_one(f"long {number}") for number in range(20))


def test_quit_after_term_stops_at_once(service):
    service.configure(graceful_kill_limit=600)
    service.add("long", data={"until": "gate", "stubborn": True})
    master = service.start()
    service.runs.wait("long")

    master.send(signal.SIGTERM)
    master.wait_for_log("running tasks may finish")
    master.send(signal.SIGQUIT)
    master.wait_for_log("stopping at once")

    assert master.wait() == 0
    assert master.descendants == []
    assert service.row("long").row.owner is None


def test_term_again_and_again_is_no_more_than_term(service):
    service.add("long", data={"until": "gate"})
    master = service.start()
    service.runs.wait("long")

    master.send(signal.SIGTERM)
    master.wait_for_log("running tasks may finish")
    stopping = CLOCK.boottime()

    def outlives_it():
        master.send(signal.SIGTERM)
        return service.runs.runs("long")[0].last_sign > stopping + TWICE

    wait_until(outlives_it, what="a sign of life later than a second INT would count")
    # It answers after the last of them.
    service.psched("status")
    service.open_gate("gate")

    assert master.wait() == 0
    [run] = service.runs.runs("long")
    assert run.completed
    assert "stopping at once" not in master.text
    assert service.row("long").status == "finished"


def test_nothing_undoes_a_stop(service):
    others = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    others += [signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH]
    service.add("long", data={"until": "gate"})
    master = service.start()
    [worker] = master.workers()
    service.runs.wait("long")

    for number in signal.SIGTERM, *others:
        master.send(number)
    master.wait_for_log("stopping")
    for number in others:
        master.send(number)
    # It answers when it has acted on all of them.
    service.psched("status")
    assert master.workers() == [worker]
    service.open_gate("gate")

    assert master.wait() == 0
    assert "generation 2" not in master.text
    assert service.row("long").status == "finished"


def test_a_stop_while_workers_start_waits_for_nobody(service):
    service.configure(dispatch="slow:Dispatch", processors=2)
    service.write(
        "slow.py",
        """
        import time
        from recorder import Dispatch
        print("loading", flush=True)
        time.sleep(600)
        """,
    )
    master = service.start(generation=0)
    master.wait_for_log("loading")

    assert master.stop() == 0
    assert master.descendants == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_of_every_process_of_the_service_costs_no_running_task(service, number):
    service.configure(processors=2)
    for key in "one", "two":
        service.add(key, data={"until": "gate"})
    master = service.start()
    service.runs.wait("one")
    service.runs.wait("two")

    master.send_all(number)
    master.wait_for_log("stopping")
    since = CLOCK.boottime()
    wait_until(
        lambda: all(run.last_sign > since for run in service.runs.runs()),
        what="what shows that both tasks outlive the signal",
    )
    service.open_gate("gate")

    assert master.wait() == 0
    assert master.descendants == []
    for key in "one", "two":
        assert [run.end for run in service.runs.runs(key)] == ["returned"]
        assert service.row(key).status == "finished"


JOBS = """
    import atexit
    from pathlib import Path

    import psched

    app = psched.App()


    @app.before_exit
    def end():
        with Path("ended").open("a") as file:
            file.write("before_exit ")


    @app.task("leaves")
    def leaves():
        atexit.register(Path("left").touch)
"""


def test_exit_functions_of_waiting_processes_are_called_before_a_worker_exits(service):
    service.configure(dispatch="jobs:app", load_path=".", max_tasks_per_child=1000)
    service.write("jobs.py", JOBS)
    service.add("one", type="leaves")
    master = service.start()
    service.wait_for_finish("one")
    assert not (service.folder / "left").exists()

    assert master.stop() == 0

    assert (service.folder / "left").exists()
    assert (service.folder / "ended").read_text() == "before_exit "
