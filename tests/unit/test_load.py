"""When the coming runs are most, and proposals that lower the peak: known cases, and an oracle."""

import random
from pathlib import Path

import pytest

from psched.base.errors import InvalidError
from psched.cli.operate.load import _Read, _show
from psched.reports.load import MOST_TIMES, Coming, estimate, slots_needed
from psched.reports.redaction import Redaction
from psched.reports.spreading import (
    expanded_minutes,
    propose,
    written_minutes,
)
from psched.triggers.trigger import first, parse

START = 1_800_000_000  # 2027-01-15T08:00Z
HOUR = 3600
DAY = 24 * HOUR


def coming(key, text, took=None, *, type="t", delay=0, jitter=0, zone="UTC", **more):  # noqa: A002
    trigger = parse(text, zone)
    cursor = first(trigger, START)
    given = {"cursor": cursor, "first": cursor + delay, **more}
    return Coming(
        key=key,
        type=type,
        trigger=trigger,
        text=text,
        took=took,
        delay=delay,
        jitter=jitter,
        **given,
    )


def once(key, at, took=None, **more):
    return Coming(
        key=key, type="t", trigger=None, text=None, cursor=at, first=at, took=took, **more
    )


def load_of(*schedules, hours=1, per=60):
    return estimate(schedules, START, START + int(hours * HOUR), per=per)[0]


def busy(load):
    return {(each.start - START) // 60: each.busy for each in load.intervals if each.busy}


def test_nothing_runs_without_schedules():
    load = load_of()
    assert (load.schedules, load.runs, load.slots, load.slots_needed) == (0, 0, 0, 0)
    assert load.worst == []
    assert len(load.intervals) == 60


def test_each_run_occupies_a_slot_for_as_long_as_it_usually_takes():
    load = load_of(coming("a", "0 * * * *", 90.0), coming("b", "5,50 * * * *", 30.5))
    assert busy(load) == {0: 60.0, 1: 30.0, 5: 30.5, 50: 30.5}
    assert [each.runs for each in load.intervals if each.runs] == [1, 1, 1]
    assert (load.slots, load.slots_needed, load.runs, load.schedules) == (1, 1, 3, 2)


def test_intervals_are_those_of_a_clock():
    begin = START + 90
    load, _ = estimate([once("a", START + 100, 5.0)], begin, begin + 120, per=60)
    assert [(each.start - START, each.busy) for each in load.intervals] == [
        (60, 5.0),
        (120, 0),
        (180, 0),
    ]
    assert load.worst[0].at == START + 100
    hours, _ = estimate([once("a", START + 100, 5.0)], begin, begin + 2 * HOUR, per=HOUR)
    assert [(each.start - START) for each in hours.intervals] == [0, HOUR, 2 * HOUR]


def test_the_worst_minutes_name_the_schedules_that_run_then():
    load = load_of(
        coming("long", "0 * * * *", 600.0),
        coming("short", "5 * * * *", 10.0),
        *(coming(f"x{i}", "5 * * * *", 1.0) for i in range(7)),
    )
    worst = load.worst[0]
    assert (worst.interval.start, worst.at) == (START + 300, START + 300)
    assert worst.interval.slots == 9
    assert [cause.key for cause in worst.causes] == ["long", "short", "x0", "x1", "x2"]
    assert worst.more == 4
    assert {cause.share for cause in worst.causes} == {1.0}
    assert load.slots_needed == 9
    assert [each.interval.slots for each in load.worst] == [9, 1, 1, 1, 1]


def test_a_run_shorter_than_a_second_needs_a_part_of_a_slot():
    load = load_of(*(coming(f"x{i}", "5 * * * *", 0.25) for i in range(6)))
    assert load.slots == pytest.approx(1.5)
    assert load.slots_needed == 2


def test_durations_that_are_not_known_are_those_of_the_type_or_one_second():
    load = load_of(
        coming("known", "0 * * * *", 20.0, type="mail"),
        coming("other", "0 * * * *", 40.0, type="mail"),
        coming("guessed", "10 * * * *", type="mail"),
        coming("unknown", "20 * * * *", type="new"),
    )
    assert busy(load) == {0: 60.0, 10: 30.0, 20: 1.0}
    assert (load.guessed, load.unknown) == (1, 1)


def test_delay_moves_runs_and_jitter_spreads_them():
    load = load_of(coming("a", "0 * * * *", 10.0, delay=120))
    assert busy(load) == {2: 10.0}
    load = load_of(*(coming(f"x{i}", "10 * * * *", 60.0, jitter=599) for i in range(10)), per=60)
    assert load.slots == pytest.approx(1.0, abs=0.01)
    assert load.runs == pytest.approx(10)
    assert sum(each.busy for each in load.intervals) == pytest.approx(600)
    assert [round(each.runs, 3) for each in load.intervals[9:21]] == [0, *[1] * 10, 0]


def test_a_jitter_of_a_run_that_is_due_already_is_known():
    load = load_of(coming("a", "0 * * * *", 10.0, jitter=60, cursor=START - HOUR, first=START - 9))
    assert load.intervals[0].busy >= 10.0


def test_the_run_that_goes_on_occupies_what_is_left_of_its_time():
    load = load_of(
        coming("a", "30 * * * *", 600.0, ran=540.0, cursor=START - 540, first=None),
        coming("over", "30 * * * *", 60.0, ran=100.0, cursor=START - 100, first=None),
    )
    assert busy(load) == {0: 60.0 + 1.0, **dict.fromkeys(range(30, 40), 60.0), 30: 120.0}


def test_what_is_late_runs_at_once_and_what_was_missed_before_it_does_not():
    late = coming("a", "*/10 * * * *", 5.0, cursor=START - 6000, first=START - 6000)
    load = load_of(late)
    assert busy(load) == {0: 10.0, 10: 5.0, 20: 5.0, 30: 5.0, 40: 5.0, 50: 5.0}


def test_a_schedule_that_begins_later_does_not_run_before():
    at = START + 1800
    load = load_of(coming("a", "*/10 * * * *", 5.0, cursor=at, first=at))
    assert [*busy(load)] == [30, 40, 50]


def test_a_retry_comes_when_its_row_says():
    load = load_of(coming("a", "0 * * * *", 5.0, cursor=START - 600, first=START + 120))
    assert busy(load) == {2: 5.0, 0: 5.0}


def test_tasks_that_run_once():
    load = load_of(once("a", START + 60, 5.0), once("due", START - 99, 5.0), once("b", START + DAY))
    assert busy(load) == {0: 5.0, 1: 5.0}


def test_runs_of_one_schedule_never_overlap():
    load = load_of(coming("slow", "*/10 * * * *", 5000.0))
    assert load.slots == 1.0
    assert load.crowded == ["slow"]
    assert {each.busy for each in load.intervals} == {60.0}


def test_very_many_durations_are_rounded_a_little():
    load = load_of(*(coming(f"s{i}", "0 * * * *", 70.0 + i / 7) for i in range(1000)))
    busy = sum(70.0 + i / 7 for i in range(1000))
    assert sum(each.busy for each in load.intervals) == pytest.approx(busy, rel=0.02)
    assert load.slots == 1000


def test_a_schedule_that_runs_every_second_is_bounded():
    load = load_of(coming("s", "@every 1", 0.25), hours=24)
    assert load.thinned == ["s"]
    assert load.runs == pytest.approx(DAY, rel=0.001)
    assert load.slots == pytest.approx(0.25)
    last = load.intervals[-1]
    assert (last.runs, last.busy) == (pytest.approx(60), pytest.approx(15))
    assert [each.key for each in load.worst[-1].causes] == ["s"]


def test_no_more_times_than_the_limit_are_computed():
    class Counting:
        asked = 0

        def next_after(self, instant):
            self.asked += 1
            return instant + 1

    trigger = Counting()
    schedule = Coming(key="s", type="t", trigger=trigger, text="x", cursor=START, first=START)
    load_of(schedule, hours=24)
    assert trigger.asked <= MOST_TIMES + 2


def test_triggers_that_cannot_be_asked_are_told():
    class Broken:
        def next_after(self, _instant):
            raise InvalidError("cron", "is broken")

    broken = Coming(key="b", type="t", trigger=Broken(), text="x", cursor=None, first=None)
    load = load_of(broken, coming("a", "0 * * * *"))
    assert load.broken == {"b": "cron: is broken"}
    assert load.schedules == 1


def seeds(count):
    """Seeds of which one is enough after each edit."""
    return [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, count))]


LINES = ["* * * * *", "*/7 * * * *", "3-59/10 * * * *", "0 * * * *", "@every 77 +5", "30 9 * * *"]


@pytest.mark.parametrize("seed", range(20))
def test_the_load_is_that_of_the_runs_one_by_one(seed):
    rng = random.Random(seed)  # noqa: S311  # a test's cases
    schedules = [
        coming(
            f"s{i}",
            rng.choice(LINES),
            rng.choice([0.3, 1.0, 2.5, 7.0, 30.0, 59.75]),
            delay=rng.choice([0, 0, 100]),
            zone=rng.choice(["UTC", "Asia/Kathmandu"]),
        )
        for i in range(12)
    ]
    expected = [0.0] * (3 * HOUR)
    runs = 0
    for each in schedules:
        time = each.trigger.next_after(START - 1)
        while time + each.delay < START + 3 * HOUR:
            begin, runs = time + each.delay - START, runs + 1
            left = min(each.took, 77 if "77" in each.text else DAY)
            while left > 0 and begin < len(expected):
                expected[begin] += min(1.0, left)
                begin, left = begin + 1, left - 1
            time = each.trigger.next_after(time)
    load, found = estimate(schedules, START, START + 3 * HOUR)
    assert found.load == pytest.approx(expected)
    assert load.runs == pytest.approx(runs)
    assert load.slots == pytest.approx(max(expected))


# --- proposals -------------------------------------------------------------------------------


def proposal_of(*schedules, hours=24):
    load, runs = estimate(schedules, START, START + hours * HOUR)
    return load, propose(schedules, load, runs)


def applied(schedules, proposal):
    """The load after somebody has applied the proposal."""
    texts = {move.key: move.after for move in proposal.moves}
    changed = [
        coming(
            each.key,
            texts.get(each.key, each.text),
            each.took,
            zone=getattr(each.trigger, "timezone", "UTC"),
        )
        for each in schedules
    ]
    return estimate(changed, START, START + DAY)[0]


def test_schedules_that_run_on_the_hour_are_spread_over_the_hour():
    schedules = [coming(f"s{i:02}", "0 * * * *", 50.0) for i in range(30)]
    load, proposal = proposal_of(*schedules)
    assert load.slots_needed == 30
    assert proposal.slots <= 2
    assert proposal.movable == 30
    assert proposal.complete
    assert all(move.before == "0 * * * *" for move in proposal.moves)
    assert all(move.after.endswith(" * * * *") for move in proposal.moves)
    assert len({move.key for move in proposal.moves}) == len(proposal.moves)
    assert applied(schedules, proposal).slots == pytest.approx(proposal.slots)


def test_aligned_intervals_get_offsets():
    schedules = [coming(f"s{i}", "@every 300", 20.0) for i in range(12)]
    load, proposal = proposal_of(*schedules)
    assert load.slots_needed == 12
    assert proposal.slots <= 2
    for move in proposal.moves:
        trigger = parse(move.after, "UTC")
        assert trigger.gap == 300
    assert applied(schedules, proposal).slots == pytest.approx(proposal.slots)


def test_times_of_day_are_never_moved():
    schedules = [coming(f"s{i}", "30 2 * * *", 600.0) for i in range(9)]
    load, proposal = proposal_of(*schedules)
    assert load.slots_needed == 9
    assert (proposal.moves, proposal.movable, proposal.slots) == ((), 0, load.slots)


def test_what_is_spread_already_and_what_runs_each_minute_is_not_moved():
    _, proposal = proposal_of(
        *(coming(f"j{i}", "0 * * * *", 60.0, jitter=600) for i in range(9)),
        *(coming(f"m{i}", "* * * * *", 30.0) for i in range(9)),
        *(coming(f"w{i}", "0 9-17 * * 1-5", 30.0) for i in range(9)),
    )
    assert (proposal.moves, proposal.movable) == ((), 0)


def test_those_that_can_be_moved_make_room_for_those_that_cannot():
    fixed = [coming(f"f{i}", "0 3 * * *", 600.0) for i in range(5)]
    movable = [coming(f"m{i}", "0 * * * *", 60.0) for i in range(5)]
    load, proposal = proposal_of(*fixed, *movable)
    assert load.slots_needed == 10
    assert proposal.slots == 5
    assert {move.key for move in proposal.moves} <= {each.key for each in movable}


def test_no_more_are_moved_than_help():
    """Those that run alone stay, and so do those whose move would not lower the peak."""
    quiet = [coming(f"q{i}", f"{i} * * * *", 1.0) for i in range(20, 40)]
    crowd = [coming(f"c{i}", "0 * * * *", 30.0) for i in range(4)]
    _, proposal = proposal_of(*quiet, *crowd)
    assert {move.key[0] for move in proposal.moves} == {"c"}
    assert len(proposal.moves) == 3


def test_a_proposal_that_would_not_help_is_none():
    _, proposal = proposal_of(*(coming(f"s{i}", "*/15 * * * *", 900.0) for i in range(5)))
    assert proposal.moves == ()


def test_the_same_schedules_get_the_same_proposal():
    schedules = [coming(f"s{i:02}", "*/10 * * * *", 20.0 + i) for i in range(20)]
    assert proposal_of(*schedules)[1] == proposal_of(*schedules)[1]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "Europe/Berlin"])
@pytest.mark.parametrize("seed", seeds(6))
def test_a_proposal_really_lowers_the_peak_as_it_says(seed, zone):
    rng = random.Random(seed)  # noqa: S311  # a test's cases
    lines = ["0 * * * *", "*/5 * * * *", "0,30 * * * *", "@hourly", "@every 600", "15 4 * * *"]
    schedules = [
        coming(f"s{i:02}", rng.choice(lines), rng.choice([0.4, 5.0, 40.0, 200.0]), zone=zone)
        for i in range(60)
    ]
    load, proposal = proposal_of(*schedules)
    assert proposal.moves
    assert proposal.slots < load.slots
    after = applied(schedules, proposal)
    assert after.slots == pytest.approx(proposal.slots)
    assert after.slots_needed < load.slots_needed
    assert after.runs == pytest.approx(load.runs, rel=0.02)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("0", (0,)),
        ("5,20", (5, 20)),
        ("*/20", (0, 20, 40)),
        ("10-12", (10, 11, 12)),
        ("10-30/10", (10, 20, 30)),
        ("5/25", (5, 30, 55)),
        ("*", None),
        ("L", None),
    ],
)
def test_the_minutes_of_a_field(text, minutes):
    assert expanded_minutes(text) == minutes


@pytest.mark.parametrize(
    ("minutes", "text"),
    [
        ((7,), "7"),
        ((0, 30), "*/30"),
        ((3, 18, 33, 48), "3-59/15"),
        ((3, 18, 33), "3,18,33"),
        ((1, 2), "1,2"),
        ((5, 35), "5-59/30"),
        ((0, 7, 14), "0,7,14"),
    ],
)
def test_minutes_are_written_shortly(minutes, text):
    assert written_minutes(minutes) == text
    assert expanded_minutes(text) == minutes


def example():
    """The schedules of the example in docs/schedules.md."""
    hourly = [
        coming(f"report-{name}", "0 * * * *", took, type="report")
        for name, took in (("de", 95.0), ("fr", 80.0), ("jp", 40.0), ("uk", 130.0), ("us", 210.0))
    ]
    mails = [coming(f"mail-{i}", "*/15 * * * *", 20.0, type="mail") for i in (1, 2)]
    return [
        *hourly,
        *mails,
        coming("backup", "30 2 * * *", 1500.0),
        coming("new", "45 6 * * *", type="n"),
    ]


def test_the_documentation_shows_a_real_load(capsys):
    given = _Read(example(), (), 4, all_read=True, no_history=None)
    load, runs = estimate(given.schedules, START, START + DAY)
    proposal = propose(given.schedules, load, runs)
    _show(given, load, proposal, "minute", Redaction(()))
    page = Path(__file__).parents[2].joinpath("docs/schedules.md").read_text()
    section = page.partition("## When is it busy: `psched load`")[2]
    assert section.split("```text\n")[1].split("```")[0] == capsys.readouterr().out
    assert load.slots_needed > slots_needed(proposal.slots)


AUTUMN = 1_792_879_200
"""Three hours before the clocks of Europe are set back: 2026-10-24 22:00 UTC."""

SPRING = 1_774_738_800
"""Two hours before they are set forward: 2026-03-28 23:00 UTC."""


@pytest.mark.parametrize("start", [START, AUTUMN, SPRING])
@pytest.mark.parametrize("seed", seeds(8))
def test_jitter_and_tasks_that_run_once_count_also_while_clocks_are_changed(seed, start):
    """The mean of all times at which a run can start is what a jitter stands for."""
    rng = random.Random(seed)  # noqa: S311  # a test's cases
    size = 4 * HOUR
    expected = [0.0] * size
    schedules = []
    for i in range(10):
        took, delay = rng.choice([0.5, 1.0, 7.0, 90.0]), rng.choice([0, 45])
        jitter = rng.choice([0, 0, 30, 300])
        line = rng.choice(["*/20 * * * *", "30 2 * * *", "7 * * * *", "@every 700 +3", None])
        if line is None:
            times, jitter = [start + rng.randrange(size)], 0
            trigger, cursor = None, times[0] - delay
        else:
            trigger = parse(line, "Europe/Berlin")
            cursor = trigger.next_after(start - 1)
            times, time = [], cursor
            while time + delay < start + size:
                times.append(time + delay)
                time = trigger.next_after(time)
        schedules.append(
            Coming(
                key=f"s{i}",
                type="t",
                trigger=trigger,
                text=line,
                cursor=cursor,
                first=cursor + delay,
                delay=delay,
                jitter=jitter,
                took=took,
            )
        )
        for time in times:
            for later in range(jitter + 1):
                begin, left = time + later - start, took
                while left > 0 and begin < size:
                    expected[begin] += min(1.0, left) / (jitter + 1)
                    begin, left = begin + 1, left - 1
    _, found = estimate(schedules, start, start + size)
    assert found.load == pytest.approx(expected, abs=1e-6)
