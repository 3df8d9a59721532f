"""What an overview counts, made from rows that a store has read."""

from psched.core.model import RUNNING, Row
from psched.core.operations.overview import DUE, made_of

NOW = 1_800_000_000


def overview(*, leased, due):
    counts = {RUNNING: len(leased), DUE: len(due)}
    lists = {"leased": leased, "due": due, "following": [], "paused": []}
    return made_of(NOW, **lists, counts=counts, limit=9)


def row(key, **columns):
    return Row(**{"key": key, "next_time": NOW - 60, "owner": "w.1", "claimed_at": NOW, **columns})


def test_what_lost_its_lease_is_late_and_does_not_run():
    runs, lost = row("runs", next_run_time=NOW + 9), row("lost", next_run_time=NOW - 9)
    seen = overview(leased=[runs, lost], due=[lost])
    assert ([*seen.running], [*seen.late]) == ([runs], [lost])
    assert seen.counts == {RUNNING: 1, DUE: 1}


def test_a_schedule_that_waits_for_an_extra_run_is_not_late():
    for until, is_late in ((NOW + 9, False), (NOW, True)):
        held = row("held", owner=None, next_run_time=NOW - 5, held_by="w.1", held_until=until)
        seen = overview(leased=[], due=[held])
        assert [*seen.late] == [held] * is_late
