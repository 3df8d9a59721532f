"""Tests that lines of plain numbers have the times that croniter finds for them."""

import random

import pytest
from croniter import croniter

from psched.base.errors import InvalidError
from psched.triggers import cron
from psched.triggers.cron import find_matches

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def field(rng, low, high):
    """A random field of a cron line."""
    numbers = sorted(rng.randint(low, high) for _ in range(3))
    return rng.choice(
        [
            "*",
            f"*/{rng.randint(1, high)}",
            f"{numbers[0]}-{numbers[2]}",
            f"{numbers[1]}",
            ",".join(map(str, numbers)),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_plain_lines_match_when_croniter_says(seed, monkeypatch):
    rng = random.Random(seed)  # noqa: S311  # the same lines in every run
    compared = 0
    while compared < 300:
        line = " ".join(field(rng, *limits) for limits in RANGES)
        try:
            plain = cron.parse_cron(line, "UTC", "wallclock")
        except InvalidError:
            continue  # a date that never comes, such as 30 February
        with monkeypatch.context() as patched:
            patched.setattr(cron, "find_matches", lambda _line, **_options: None)
            slow = cron.parse_cron(line, "UTC", "wallclock")
        wall = rng.randint(-2_208_988_800, 6_000_000_000)
        for start in (wall, wall - wall % 60):
            assert plain.match_after(start) == slow.match_after(start), line
        compared += 1


@pytest.mark.parametrize(
    "line", ["0 0 L * *", "0 0 15W * *", "0 0 * * 5#3", "0 0 * * L5", "0 0 L 6 1"]
)
def test_other_lines_are_left_to_croniter(line):
    assert find_matches(line, either=False) is None
    assert croniter(line)


@pytest.mark.parametrize("line", ["* * * * *", "0 0 * * *", "0,30 1,2 3 4 5"])
def test_plain_lines_are_not_left_to_croniter(line):
    assert find_matches(line, either=False) is not None
