"""Tests of the master's loop, whose time, signals and workers the tests control."""

import re
import signal
from contextlib import closing
from signal import SIGABRT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGWINCH

import pytest

from psched.master.generation_spec import CLEANER, SpecError
from psched.master.reports.health import MOST_DUE, Load
from psched.process.link import Link
from psched.testing import ManualSpawner, MasterDriver

AT_ONCE = [{"stop": 0, "hurry": True}]


@pytest.fixture
def driven():
    """A function that creates a driver, which is closed at the end of the test."""
    made = []

    def make(**options):
        made.append(MasterDriver(**options))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def driver(driven):
    """A driver with two workers of the first generation."""
    made = driven(processors=2)
    made.boot()
    assert sorted(made.found()) == [(1, 0), (1, 1)]
    return made


def stops(child):
    return [message for message in child.received if "stop" in message]


def load(**fields):
    """The fields of a heartbeat that say how busy a worker is."""
    return Load(**fields)._asdict()


def restarted(driver):
    """Restart the master; the workers of the old generation do not exit."""
    driver.send(SIGHUP)
    driver.boot()


def stopped(driver):
    """The master's exit status; None if the master has not stopped."""
    return driver.master.close() if driver.master.has_stopped else None


# --- the start -----------------------------------------------------------------------


def test_a_generation_begins_with_one_worker_and_the_others_follow_when_it_is_ready(driven):
    driver = driven(processors=3)
    driver.tick()
    assert sorted(driver.found()) == [(1, 0)]
    assert "starting" in driver.title
    driver.ready(driver.worker(0))
    assert sorted(driver.found()) == [(1, 0), (1, 1), (1, 2)]
    assert driver.title == "generation 1, 3 workers, 0 tasks"


@pytest.mark.parametrize("status", [65, 78])
def test_a_canary_that_can_never_be_started_is_the_end_of_the_first_start(driven, status):
    driver = driven(processors=3)
    driver.tick()
    driver.worker(0).exits(status)
    driver.tick()
    assert stopped(driver) == status
    assert len(driver.spawner.born) == 1


def test_a_configuration_that_cannot_be_used_is_the_end_of_the_first_start(driven):
    driver = driven()
    driver.spec_error = SpecError("nonsense")
    driver.tick()
    assert stopped(driver) == 78
    assert driver.spawner.born == []


def test_a_canary_that_dies_is_tried_again_and_given_up_after_the_fifth_time(driven, caplog):
    driver = driven()
    for _ in range(5):
        driver.advance(20)
        driver.worker(0).dies()
    driver.tick()
    assert stopped(driver) == 70
    assert len(driver.spawner.born) == 5
    assert "every worker has died again and again" in caplog.text


def test_a_canary_that_is_not_ready_in_time_is_aborted(driven):
    driver = driven(start_timeout=30)
    driver.advance(29)
    canary = driver.worker(0)
    assert canary.signals == []
    driver.advance(2)
    assert canary.signals == [SIGABRT]


# --- a restart -----------------------------------------------------------------------


def test_a_restart_has_the_old_generation_drain_once_the_canary_is_ready(driver):
    old = driver.worker(0), driver.worker(1)
    driver.processors = 3
    driver.send(SIGHUP)
    assert driver.reopened == 1
    assert sorted(driver.found()) == [(1, 0), (1, 1), (2, 0)]
    assert not any(map(stops, old))
    driver.boot()
    assert [stops(child) for child in old] == [[{"stop": None, "hurry": False}]] * 2
    assert sorted(driver.found()) == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    for child in old:
        child.exits()
    driver.tick()
    assert sorted(driver.found()) == [(2, 0), (2, 1), (2, 2)]


def exits(driver):
    driver.worker(0, 2).exits(65)


def dies(driver):
    driver.worker(0, 2).dies()


def is_late(driver):
    driver.advance(61)
    assert driver.worker(0, 2).signals == [SIGABRT]
    driver.advance(2)


@pytest.mark.parametrize("fails", [exits, dies, is_late])
def test_a_canary_that_fails_leaves_the_old_generation_at_work(driver, fails):
    driver.send(SIGHUP)
    fails(driver)
    driver.advance(1)
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    assert not any(stops(child) for child in driver.spawner.living)
    assert "restart failed: its first worker" in driver.title
    # The master does not repeat the failed restart by itself.
    driver.advance(100)
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    restarted(driver)
    assert "failed" not in driver.title
    assert (2, 0) in driver.found()


def test_a_configuration_that_cannot_be_used_leaves_the_old_generation_at_work(driver):
    driver.spec_error = SpecError("nonsense")
    driver.send(SIGHUP)
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    assert driver.title.endswith("restart failed: nonsense")


def test_what_a_canary_reports_is_read_and_may_be_refused(driver):
    driver.send(SIGHUP)
    canary = driver.worker(0, 2)
    driver.spec_error = SpecError("its log cannot be written")
    driver.ready(canary, settings())
    assert {"go": False} in canary.received
    canary.exits()
    driver.tick()
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    assert driver.title.endswith("restart failed: its log cannot be written")


def settings():
    numbers = {"processors": 1, "start_timeout": 60, "child_heartbeat_limit": 60}
    numbers |= {"graceful_timeout": 1, "graceful_kill_limit": 1}
    more = {"log_level": "info", "log_format": "text", "cgroup": "off", "wake": "local"}
    about = {"url": "sqlite://", "table": "psched", "config": "", "programs": "", "triggers": ""}
    return {**numbers, **more, "log": None, "pid_file": None, "about": about}


def test_two_generations_may_drain_and_a_third_restart_waits_for_one_of_them(driver):
    restarted(driver)
    restarted(driver)
    assert {generation for generation, _ in driver.found()} == {1, 2, 3}
    driver.send(SIGHUP)
    driver.advance(100)
    assert {generation for generation, _ in driver.found()} == {1, 2, 3}
    for number in 0, 1:
        driver.worker(number, 1).exits()
    driver.boot()
    assert {generation for generation, _ in driver.found()} == {2, 3, 4}


def test_restarts_that_are_asked_for_while_one_is_under_way_are_one(driver):
    for _ in range(10):
        driver.send(SIGHUP)
    assert {generation for generation, _ in driver.found()} == {1, 2}
    driver.boot()
    assert {generation for generation, _ in driver.found()} == {1, 2, 3}
    assert driver.reopened == 10


# --- a pause and numbers -------------------------------------------------------------


def test_a_pause_replaces_nobody_and_ends_with_the_next_restart(driver):
    driver.send(SIGWINCH)
    assert "paused" in driver.title
    assert all({"pause": True} in child.received for child in driver.spawner.living)
    driver.worker(0).dies()
    driver.advance(100)
    assert sorted(driver.found()) == [(1, 1)]
    restarted(driver)
    assert "paused" not in driver.title
    assert {(2, 0), (2, 1)} <= driver.found().keys()


def test_a_pause_that_comes_while_a_canary_starts_is_the_new_generations_too(driver):
    driver.send(SIGHUP)
    driver.send(SIGWINCH)
    driver.boot()
    assert "paused" in driver.title
    assert sorted(driver.found()) == [(1, 0), (1, 1), (2, 0)]
    restarted(driver)
    assert "paused" not in driver.title


def test_one_worker_more_and_one_fewer(driver):
    driver.send(SIGTTIN)
    driver.boot()
    assert sorted(driver.found()) == [(1, 0), (1, 1), (1, 2)]
    for number in 2, 1, 0, None:
        before = driver.found()
        driver.send(SIGTTOU)
        assert [n for (_, n), child in before.items() if stops(child)] == [number] * bool(before)
        for child in driver.spawner.living:
            if stops(child):
                child.exits()
        driver.tick()
    # The number of workers is never negative, so one more worker is one worker.
    driver.send(SIGTTIN)
    driver.boot()
    assert sorted(driver.found()) == [(1, 0)]


# --- workers that die or hang --------------------------------------------------------


def test_a_worker_that_dies_is_replaced_at_once_and_the_next_time_later(driver):
    for pause in 0, 1, 2, 4:
        driver.worker(0).dies()
        driver.advance(pause * 0.79)
        assert pause == 0 or (1, 0) not in driver.found()
        driver.advance(pause * 0.42)
        driver.ready(driver.worker(0))


def test_when_every_worker_has_died_five_times_in_a_row_the_master_gives_up(driver):
    for _ in range(5):
        driver.advance(20)
        for number in 0, 1:
            driver.worker(number).dies()
    driver.tick()
    # A cleaner releases the leases of the first two workers, because they had been ready.
    driver.worker(CLEANER).exits()
    driver.tick()
    assert stopped(driver) == 70


def test_a_worker_that_has_worked_long_enough_is_replaced_while_it_drains(driver):
    old = driver.worker(0)
    for _ in range(3):
        old.say(tasks=1, away=None, enough="has run 7 tasks", **load(slots=2, free=1))
        driver.tick()
    assert stops(old) == [{"stop": None, "hurry": False}]
    driver.ready(driver.worker(0))
    assert driver.worker(0) is not old
    # The replacement does not drain while the old worker drains: a third worker would be too many.
    driver.worker(0).say(tasks=1, away=None, enough="has run 7 tasks", **load(slots=2, free=1))
    driver.tick()
    assert stops(driver.worker(0)) == []


def nonces_given_to(child):
    return [nonce for message in child.received for nonce in message.get("recover", ())]


def test_what_a_dead_worker_held_is_released_when_nothing_of_its_tree_is_left(driver, caplog):
    nonce = driver.record(driver.worker(0)).identity.nonce
    other = driver.worker(1)
    driver.spawner.orphans = {7}
    driver.worker(0).dies()
    driver.advance(10)
    assert nonces_given_to(other) == []
    assert "what it has started does not die: 7" in caplog.text
    driver.spawner.orphans.clear()
    driver.advance(1)
    assert nonces_given_to(other) == [nonce]
    # The dead worker's successor got no nonce, because it was not ready.
    assert nonces_given_to(driver.worker(0)) == []


def test_what_a_worker_had_to_release_that_dies_is_anothers_to_release(driver):
    first, second = driver.worker(0), driver.worker(1)
    nonces = [driver.record(child).identity.nonce for child in (first, second)]
    first.dies()
    driver.advance(0.1)
    assert nonces_given_to(second) == nonces[:1]
    successor = driver.worker(0)
    driver.ready(successor)
    second.dies()
    driver.advance(0.1)
    assert sorted(nonces_given_to(successor)) == nonces


def test_what_was_released_is_nobodys_to_release_any_more(driver):
    first, second = driver.worker(0), driver.worker(1)
    nonce = driver.record(first).identity.nonce
    first.dies()
    driver.advance(0.1)
    second.say(recovered=[nonce, "nobody's"])
    driver.advance(0.1)
    last = driver.record(second).identity.nonce
    driver.ready(driver.worker(0))
    second.dies()
    driver.advance(0.1)
    assert nonces_given_to(driver.worker(0)) == [last]


def test_a_worker_whose_report_arrives_with_its_death_is_neither_promoted_nor_on_file(driver):
    driver.send(SIGHUP)
    canary = driver.worker(0, 2)
    reap = driver.spawner.reap

    def report_and_die():
        if canary.lives:
            canary.say(ready=None)
            canary.dies()
        return reap()

    driver.spawner.reap = report_and_die
    driver.tick()
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    assert "restart failed" in driver.title
    assert not any(stops(child) for child in driver.spawner.living)
    assert sorted(driver.workers._nonce_file._in_own_cgroup) == ["nonce-1", "nonce-2"]


def test_where_no_worker_will_follow_a_cleaner_releases_what_the_dead_held(driver):
    nonces = [driver.record(driver.worker(number)).identity.nonce for number in (0, 1)]
    driver.send(SIGWINCH)
    for number in 0, 1:
        driver.worker(number).dies()
    driver.tick()
    cleaner = driver.worker(CLEANER)
    assert driver.record(cleaner).recovering == nonces
    cleaner.exits()
    driver.advance(10)
    assert driver.spawner.living == []


def test_a_cleaner_that_hangs_is_killed(driver):
    driver.send(SIGTERM)
    for child in driver.spawner.living:
        child.dies()
    driver.tick()
    cleaner = driver.worker(CLEANER)
    driver.advance(19)
    assert cleaner.signals == []
    assert stopped(driver) is None
    driver.advance(2)
    assert cleaner.signals == [SIGKILL]
    assert stopped(driver) == 0


def test_a_worker_that_is_silent_is_aborted_then_killed_and_replaced(driver):
    hung = driver.worker(0)
    driver.silence(hung)
    driver.advance(59)
    assert hung.signals == []
    driver.advance(2)
    assert hung.signals == [SIGABRT]
    driver.advance(2)
    assert hung.signals == [SIGABRT, SIGKILL]
    assert driver.worker(0) is not hung
    assert driver.worker(1).signals == []


def test_one_that_not_even_kill_ends_is_killed_again_and_waited_for(driver):
    hung = driver.worker(0)
    hung.stuck = True
    driver.silence(hung)
    driver.advance(70)
    assert hung.signals.count(SIGKILL) > 3
    assert driver.worker(0) is hung
    hung.stuck = False
    driver.advance(2)
    assert driver.worker(0) is not hung


def test_a_worker_that_sends_garbage_is_killed(driver, caplog):
    bad = driver.worker(0)
    bad.say(nonsense=True)
    driver.tick()
    assert bad.signals == [SIGKILL]
    assert "has sent a message of no known kind: killed" in caplog.text


def test_a_suspended_machine_does_not_look_like_a_hang(driver):
    driver.clock.suspend(3600)
    driver.advance(10)
    assert all(child.signals == [] for child in driver.spawner.living)


def test_a_master_that_has_stood_still_blames_nobody_for_it(driver):
    silent = driver.worker(0)
    driver.silence(silent)
    driver.advance(3)
    driver.clock.advance(3600)
    driver.advance(50)
    assert all(child.signals == [] for child in driver.spawner.living)
    # It has still to speak.
    driver.advance(20)
    assert SIGABRT in silent.signals


def test_a_worker_that_is_stopped_is_killed_before_it_counts_as_silent(driver, caplog):
    silent, continued = driver.worker(0), driver.worker(1)
    nonce = driver.record(silent).identity.nonce
    for each in silent, continued:
        driver.silence(each)
        each.stopped = True
    driver.advance(16)  # a quarter of the limit
    assert silent.signals == []
    continued.stopped = False
    driver.advance(4)
    assert silent.signals == [SIGKILL]
    assert continued.signals == []
    assert "is stopped by a signal: killed" in caplog.text
    driver.advance(0)
    assert nonces_given_to(continued) == [nonce]


def test_a_worker_that_hangs_is_found_though_each_turn_of_the_master_is_late(driver):
    silent = driver.worker(0)
    driver.silence(silent)
    until = driver.clock.monotonic() + 100
    while driver.clock.monotonic() < until:
        driver.advance(0)
        driver.clock.advance(driver.workers.due + 3 - driver.clock.monotonic())
    assert silent.signals[0] == SIGABRT
    assert driver.worker(1).signals == []


def test_where_the_system_has_no_process_it_is_tried_again_and_said_once(driver, caplog):
    driver.spawner.refusal = BlockingIOError(11, "Resource temporarily unavailable")
    driver.worker(0).dies()
    driver.advance(30)
    assert caplog.text.count("cannot fork") == 1
    assert (1, 0) not in driver.found()
    driver.spawner.refusal = None
    driver.advance(2)
    assert (1, 0) in driver.found()
    driver.advance(10)
    assert "cannot fork: over" in caplog.text


def test_a_first_worker_for_which_there_is_no_process_is_tried_again(driven):
    driver = driven()
    driver.spawner.refusal = BlockingIOError(11, "Resource temporarily unavailable")
    driver.advance(0.5)
    driver.spawner.refusal = None
    driver.advance(2)
    assert sorted(driver.found()) == [(1, 0)]


# --- the stop ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGQUIT])
def test_a_stop_lets_running_tasks_finish(driver, number):
    driver.send(number)
    assert "stopping" in driver.title
    for child in driver.spawner.living:
        assert stops(child) == [{"stop": 10, "hurry": False}]
    assert stopped(driver) is None
    for child in driver.spawner.living:
        child.exits()
    driver.tick()
    assert stopped(driver) == 0


def test_a_worker_that_does_not_stop_in_time_is_killed(driver):
    driver.send(SIGTERM)
    driver.advance(10 + 5 + 20 - 1)
    assert not any(child.signals for child in driver.spawner.living)
    driver.advance(2)
    assert [child.signals for child in driver.spawner.born[:2]] == [[SIGKILL]] * 2
    assert {"nonce-1", "nonce-2"} == {*driver.record(driver.worker(CLEANER)).recovering}


@pytest.mark.parametrize(
    ("first", "second", "after", "hurried"),
    [
        (SIGINT, SIGINT, 0.9, False),
        (SIGINT, SIGINT, 1.1, True),
        (SIGTERM, SIGINT, 1.1, True),
        (SIGINT, SIGQUIT, 0, True),
        (SIGTERM, SIGQUIT, 0, True),
        (SIGTERM, SIGTERM, 100, False),
    ],
)
def test_a_second_int_or_quit_hurries_a_stop(driven, first, second, after, hurried):
    driver = driven(graceful_timeout=1000)
    driver.boot()
    driver.send(first)
    driver.advance(after)
    driver.send(second)
    assert stops(driver.worker(0))[1:] == AT_ONCE * hurried


def test_a_closed_terminal_stops_and_a_hup_of_a_person_restarts(driver):
    driver.send(SIGHUP)
    driver.boot()
    assert max(driver.found()) == (2, 1)
    driver.terminal.closed = True
    driver.send(SIGHUP)
    assert "stopping" in driver.title
    assert stops(driver.worker(0, 2)) == [{"stop": 10, "hurry": False}]


def task(number):
    return {
        "occurrence": f"s{number}.60", "type": "t", "attempt": 1, "pid": 100, "running_for": 12.4,
        "lease_left": 50.0, "state": "running",
    }  # fmt: skip


def test_a_stop_says_what_runs_until_when_and_how_to_hurry(driver):
    driver.send(SIGINT)
    [first] = driver.terminal.said
    assert re.fullmatch(
        r"stopping: running tasks may finish until \d\d:\d\d:\d\d \S+ \(10 s\), then get TERM, and"
        r" KILL 5 s later; press Ctrl-C again to stop them at once",
        first,
    )
    assert {"report": True} in driver.worker(0).received
    driver.worker(0).say(report={"tasks": [task(1)], "errors": []})
    driver.tick()
    assert driver.terminal.said == [first]  # the other worker has not reported yet
    driver.worker(1).say(report={"tasks": [task(n) for n in range(2, 14)], "errors": []})
    driver.tick()
    names = ", ".join(f"s{n}.60 (t, 12 s)" for n in range(1, 11))
    assert driver.terminal.said[1:] == [f"running: {names} and 3 more"]
    driver.send(SIGINT)
    assert "a second Ctrl-C within 1 s does not count" in driver.terminal.said[2]
    driver.advance(1)
    driver.send(SIGINT)
    assert driver.terminal.said[3:] == ["stopping at once: running tasks are stopped and released"]


def test_a_stop_names_what_was_reported_if_a_worker_does_not_report(driver):
    driver.send(SIGTERM)
    driver.worker(1).say(report={"tasks": [task(1)], "errors": []})
    driver.advance(5)
    assert driver.terminal.said[1:] == ["running: s1.60 (t, 12 s)"]


def test_a_stop_without_a_time_for_tasks_says_so(driven):
    driver = driven(graceful_timeout=0)
    driver.boot()
    driver.send(SIGTERM)
    assert driver.terminal.said[0].startswith("stopping: running tasks get TERM now, and KILL 5 s")


@pytest.mark.parametrize("number", [SIGHUP, SIGTTIN, SIGTTOU, SIGWINCH, signal.SIGUSR2])
def test_nothing_undoes_a_stop(driver, number):
    driver.send(SIGTERM)
    driver.send(number)
    driver.advance(5)
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    for child in driver.spawner.living:
        assert len(stops(child)) == 1
        child.exits()
    driver.tick()
    assert stopped(driver) == 0


def test_a_stop_in_the_middle_of_a_start_waits_for_nobody(driven):
    driver = driven(processors=2)
    driver.tick()
    driver.ready(driver.worker(0))
    serving, loading = driver.worker(0), driver.worker(1)
    driver.send(SIGTERM)
    assert loading.signals == [SIGKILL]
    assert stops(serving)
    serving.exits()
    driver.tick()
    assert stopped(driver) == 0


def test_a_stop_while_a_canary_starts_ends_both_generations(driver):
    driver.send(SIGHUP)
    driver.send(SIGTERM)
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    for child in driver.spawner.living:
        child.exits()
    driver.tick()
    assert stopped(driver) == 0
    assert len(driver.spawner.born) == 3


# --- faults of psched's own ----------------------------------------------------------


class FaultyLink(Link):
    """A link that raises errors while the test has set ``faulty`` or ``deaf``."""

    faulty = deaf = False

    def send(self, message, data=b""):
        if self.deaf:
            raise RuntimeError("cannot send")
        super().send(message, data)

    def receive(self, **options):
        if self.faulty:
            raise RuntimeError("cannot receive")
        return super().receive(**options)


class Faulty(ManualSpawner):
    """A spawner that raises an unexpected error while the test clears ``reaps`` or ``forks``."""

    reaps = forks = True

    def reap(self):
        if not self.reaps:
            raise RuntimeError("cannot reap")
        return super().reap()

    def spawn(self, main, *, keep):
        if not self.forks:
            raise RuntimeError("cannot spawn")
        pid, link = super().spawn(main, keep=keep)
        return pid, FaultyLink(link._socket)


@pytest.fixture
def faulty(driven):
    driver = driven(processors=2, spawner=Faulty())
    driver.boot()
    return driver


def traces(caplog):
    """The log messages about faults in the master that contain a traceback."""
    return [r.message for r in caplog.records if r.exc_info and "fault in the master" in r.message]


def test_a_fault_costs_its_step_alone_and_is_logged_once(faulty, caplog):
    faulty.spawner.reaps = False
    before = len(caplog.records)
    faulty.advance(60)
    assert traces(caplog) == ["a fault in the master; it goes on: cannot reap"]
    assert len(caplog.records) == before + 1
    # The other steps are still executed: a restart, and the check for workers that hang.
    faulty.send(SIGHUP)
    faulty.silence(faulty.worker(1, 1))
    faulty.advance(61)
    assert (2, 0) in faulty.found()
    assert faulty.worker(1, 1).signals[:1] == [SIGABRT]
    faulty.spawner.reaps = True
    faulty.advance(10)
    assert "a fault in the master; it goes on: over" in caplog.text
    assert (1, 1) in faulty.found()


def test_a_fault_with_one_worker_is_none_with_the_others(faulty):
    bad, good = faulty.worker(0), faulty.worker(1)
    faulty.record(bad).link.faulty = True
    faulty.advance(70)
    # The master could not read the worker's signs of life, so the worker seemed to hang.
    assert bad.signals == [SIGABRT, SIGKILL]
    assert good.signals == []
    faulty.boot()
    assert faulty.worker(0) is not bad


def test_a_fault_at_every_tick_does_not_spin(faulty):
    faulty.spawner.reaps = False
    assert [faulty.tick() for _ in range(3)] == [1.0] * 3


def test_a_fault_does_not_keep_a_stop_from_completing(faulty):
    faulty.spawner.forks = False
    faulty.worker(0).dies()
    faulty.advance(5)
    faulty.send(SIGTERM)
    assert stops(faulty.worker(1))
    faulty.worker(1).exits()
    faulty.advance(30)
    assert stopped(faulty) == 0


def test_a_worker_that_cannot_be_told_to_stop_is_killed_in_time(faulty):
    deaf = faulty.worker(0)
    faulty.record(deaf).link.deaf = True
    faulty.send(SIGTERM)
    faulty.worker(1).exits()
    faulty.advance(36)
    assert deaf.signals == [SIGKILL]
    faulty.worker(CLEANER).exits()
    faulty.advance(1)
    assert stopped(faulty) == 0


def test_a_fault_with_one_worker_does_not_save_another_from_being_killed(faulty, monkeypatch):
    one, other = faulty.worker(0), faulty.worker(1)
    monkeypatch.setattr(faulty.record(one), "watch", lambda _now: 1 / 0)
    faulty.silence(other)
    faulty.advance(63)
    assert other.signals == [SIGABRT, SIGKILL]


@pytest.mark.parametrize(("number", "limit"), [(SIGTERM, 40), (SIGQUIT, 31)])
def test_a_stop_that_a_fault_keeps_from_completing_is_given_up(faulty, number, limit, caplog):
    faulty.spawner.reaps = False
    faulty.send(SIGTERM)
    faulty.send(number)
    faulty.advance(limit - 1)
    assert stopped(faulty) is None
    faulty.advance(2)
    assert stopped(faulty) == 70
    assert "a fault has kept the stop from completing" in caplog.text


def test_a_fault_at_the_first_start_ends_it(driven, caplog):
    driver = driven()
    driver.spec_error = RuntimeError("bug")
    driver.tick()
    assert stopped(driver) == 70
    assert len(traces(caplog)) == 1


def test_a_fault_at_a_restart_leaves_the_old_generation_at_work(driver, caplog):
    driver.spec_error = RuntimeError("bug")
    driver.send(SIGHUP)
    driver.advance(10)
    assert sorted(driver.found()) == [(1, 0), (1, 1)]
    assert driver.title.endswith("restart failed: RuntimeError('bug')")
    assert len(traces(caplog)) == 1
    driver.spec_error = None
    restarted(driver)
    assert (2, 0) in driver.found()


class Untitled(MasterDriver):
    def set_title(self, text):
        raise ValueError(text)


def test_a_fault_in_what_is_shown_costs_no_worker(caplog):
    with closing(Untitled(processors=2)) as driver:
        driver.boot()
        driver.advance(100)
        assert sorted(driver.found()) == [(1, 0), (1, 1)]
        # A fault with another text is logged again, but not without limit.
        assert 1 <= len(traces(caplog)) <= 5


# --- the load ------------------------------------------------------------------------


@pytest.fixture
def lines(caplog):
    """A function that returns the level and the text of each line about rows that wait."""
    caplog.set_level("INFO", "psched.master")

    def said():
        records = [record for record in caplog.records if "due" in record.getMessage()]
        return [(record.levelname, record.getMessage()) for record in records]

    return said


def report(driver, number, **fields):
    """Have a worker report its load."""
    driver.worker(number).say(tasks=1, away=None, enough="", **load(**fields))
    driver.tick()


def test_due_rows_that_wait_are_told_once_and_their_end_once(driver, lines):
    report(driver, 0, slots=5, free=0, due=7, late=42.9)
    report(driver, 1, slots=5, free=0, due=7, late=42.9)
    assert driver.title == (
        "generation 1, 2 workers, 2 tasks, 0 of 10 slots free; 7 due, oldest 42 s late"
    )
    driver.clock.advance(63)
    report(driver, 0, slots=5, free=0, due=9, late=105)
    waits = "7 due, oldest 42 s late, no free slot: raise concurrency or processors"
    assert lines() == [("WARNING", waits)]

    report(driver, 0, slots=5, free=3)
    assert lines() == [("WARNING", waits)]  # the other worker still sees rows that wait
    report(driver, 1, slots=5, free=1)
    ended = "no due row waits for a slot any more, after 63 s; the oldest was 105 s late"
    assert lines() == [("WARNING", waits), ("INFO", ended)]
    assert driver.title == "generation 1, 2 workers, 2 tasks, 4 of 10 slots free"

    report(driver, 0, slots=5, free=0)
    report(driver, 1, slots=5, free=0, due=MOST_DUE, late=6)
    again = f"{MOST_DUE} or more due, oldest 6 s late, no free slot: raise concurrency or"
    assert lines()[2:] == [("WARNING", f"{again} processors")]


def test_rows_wait_for_no_slot_while_another_worker_has_one(driver, lines):
    report(driver, 0, slots=5, free=1)
    report(driver, 1, slots=5, free=0, due=7, late=42)
    assert lines() == []


def test_a_worker_that_leaves_has_no_slots(driver, lines):
    report(driver, 0, slots=5, free=0)
    report(driver, 1, slots=5, free=0, due=7, late=42)
    assert len(lines()) == 1
    restarted(driver)
    for number in 0, 1:
        report(driver, number, slots=5, free=5)
    assert driver.title == "generation 2, 4 workers, 4 tasks, 10 of 10 slots free"
    assert len(lines()) == 2


def test_while_the_master_is_paused_rows_do_not_stop_waiting(driver, lines):
    report(driver, 0, slots=5, free=0)
    report(driver, 1, slots=5, free=0, due=7, late=42)
    driver.send(SIGWINCH)
    for number in 0, 1:
        report(driver, number, slots=5, free=0)
    assert len(lines()) == 1
