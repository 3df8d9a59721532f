"""Tests that a write without an answer is recognised by the rows that it has written."""

from dataclasses import replace as changed
from functools import partial
from math import inf

import pytest

from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.client.access import (
    LostAnswers,
    retry_while_unavailable,
    was_replaced,
    was_requeued,
    were_inserted,
)
from psched.core.model import Row
from psched.testing import ManualClock

WANTED = Row(key="k", type="t", data='{"n":1}', next_time=60, next_run_time=60)
ADDED = changed(WANTED, settled_by="mine", created_at=1000)
RUN = changed(ADDED, settled_by="worker.1#1", fence=1, next_time=None, status="finished")


def fail_with(error):
    def request():
        raise error

    return request


def test_only_writes_of_unknown_outcome_are_remembered():
    lost = LostAnswers[str]()
    assert lost.send("one", lambda: "answer") == "answer"
    with pytest.raises(StoreUnavailableError):
        lost.send("two", fail_with(StoreUnavailableError("away")))
    assert not lost
    with pytest.raises(UnknownOutcomeError):
        lost.send("three", fail_with(UnknownOutcomeError("broke")))
    assert lost
    assert lost.last == "three"
    assert lost.applied(lambda write: write == "three") == "three"
    assert lost.applied(lambda write: write in {"one", "two"}) is None


@pytest.mark.parametrize(
    ("found", "ours"),
    [
        (ADDED, True),
        (changed(ADDED, settled_by="another's"), False),
        (RUN, True),
        (changed(RUN, created_at=998), False),
        (changed(RUN, created_at=None), False),
        (changed(RUN, data='{"n":2}'), False),
        (changed(RUN, data=b'{"n":1}'), True),
    ],
)
def test_an_insert_is_recognised_by_its_nonce_or_by_what_has_run(found, ours):
    assert were_inserted({"k": found}, [WANTED], "mine", since=999.5) is ours


def test_of_several_rows_one_nonce_is_enough_but_a_missing_row_is_not_explained():
    other = changed(WANTED, key="other")
    assert were_inserted({"k": ADDED}, [WANTED, other], "mine", since=999.5)
    assert not were_inserted({"k": RUN}, [WANTED, other], "mine", since=999.5)
    assert not were_inserted({}, [WANTED], "mine", since=999.5)


@pytest.mark.parametrize(
    ("change", "ours"),
    [
        ({"version": 2}, True),
        ({"version": 2, "type": "old"}, False),  # another client has changed the row
        ({"version": 2, "next_time": 120, "fence": 1}, True),  # it has run since the write
        ({"version": 1, "next_time": 120, "fence": 1}, False),
        ({"version": 1}, True),  # if the version excludes the times
        ({"version": 1, "next_run_time": 0}, False),
    ],
)
def test_a_replacement_is_recognised_also_if_it_has_run(change, ours):
    seen = changed(WANTED, type="old", next_time=0, next_run_time=0)
    assert was_replaced(changed(WANTED, **change), seen, written=WANTED) is ours


def test_a_requeued_row_is_recognised_also_if_it_has_ended_again():
    written = changed(RUN, status="waiting", created_at=2000)
    assert was_requeued(changed(written, status="finished", version=3), written)
    assert not was_requeued(changed(RUN, version=3), written)
    assert not was_requeued(written, written)


@pytest.mark.parametrize("patience", [inf, 0.5])
def test_an_outcome_that_is_unknown_stays_unknown_though_the_store_refuses_the_repetition(patience):
    """Otherwise a caller would take the change for one that was not made, and make it again."""
    answers = [UnknownOutcomeError("lost"), *(StoreUnavailableError(str(n)) for n in range(9))]
    raised = iter(answers)

    def request():
        raise next(raised)

    send = partial(retry_while_unavailable, clock=ManualClock(), tries=5, patience=patience)
    with pytest.raises(UnknownOutcomeError, match="lost"):
        send(request)
    with pytest.raises(StoreUnavailableError):
        send(request)
