"""Which workers a master has look for due rows, and how often."""

from contextlib import closing

import pytest

from psched.testing import MasterDriver

INTERVAL = 0.02


@pytest.fixture
def driver():
    """A driver with three workers that serve, each with one free slot."""
    with closing(MasterDriver(processors=3)) as made:
        made.boot()
        made.advance(1)
        yield made


def workers(driver):
    return [driver.worker(number) for number in range(3)]


def told(driver):
    """How often each worker was told to look."""
    return [child.received.count({"look": True}) for child in workers(driver)]


def hint(driver):
    driver.looks.hint()
    driver.tick()


def test_one_hint_has_one_worker_look(driver):
    hint(driver)
    driver.advance(10)
    assert told(driver) == [1, 0, 0]


def test_rows_that_were_given_back_have_a_worker_look(driver):
    [one, *_] = workers(driver)
    one.say(gave_back=True)
    driver.advance(1)
    assert sum(told(driver)) == 1


def test_hints_in_quick_succession_have_two_workers_look_at_first_and_at_last(driver):
    for _ in range(5):
        hint(driver)
    assert sum(told(driver)) == 1
    assert driver.tick() <= INTERVAL

    driver.advance(INTERVAL)

    assert sum(told(driver)) == 2
    driver.advance(10)
    assert sum(told(driver)) == 2


def test_workers_take_turns_if_they_have_equally_many_free_slots(driver):
    for _ in range(6):
        hint(driver)
        driver.advance(1)
    assert told(driver) == [2, 2, 2]


def test_the_worker_with_the_most_free_slots_looks(driver):
    driver.silence(driver.worker(2))
    driver.worker(2).say(tasks=1, away=None, enough="", slots=4, free=3, due=0, late=0.0)
    driver.tick()
    for _ in range(3):
        hint(driver)
        driver.advance(1)
    assert told(driver) == [0, 0, 3]


def test_a_worker_whose_store_does_not_answer_is_told_last(driver):
    driver.silence(driver.worker(0))
    driver.worker(0).say(tasks=0, away="gone", enough="", slots=9, free=9, due=0, late=0.0)
    driver.tick()
    hint(driver)
    assert told(driver) == [0, 1, 0]


def test_a_worker_that_has_no_free_slot_passes_the_look_on_and_the_last_one_to_nobody(driver):
    hint(driver)
    for turn, expected in enumerate([[1, 1, 0], [1, 1, 1], [1, 1, 1]]):
        driver.worker(turn).say(full=True)
        driver.tick()
        assert told(driver) == expected


def test_a_worker_that_leaves_is_not_told(driver):
    first = driver.worker(0)
    driver.processors = 2
    first.say(tasks=0, away=None, enough="too old", slots=1, free=1, due=0, late=0.0)
    driver.tick()
    hint(driver)
    assert {"look": True} not in first.received


def test_a_worker_that_dies_meanwhile_is_passed_over(driver):
    hint(driver)
    driver.worker(1).dies()
    driver.worker(0).say(full=True)
    driver.tick()
    assert driver.worker(2).received.count({"look": True}) == 1


def test_a_worker_that_is_not_admitted_is_not_told():
    with closing(MasterDriver()) as driver:
        driver.tick()
        hint(driver)
        assert driver.worker(0).received == []
        driver.boot()
        assert {"look": True} not in driver.worker(0).received
