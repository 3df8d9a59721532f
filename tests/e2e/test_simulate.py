"""The command bin/simulate: every mix of faults on seeds that nobody has tried before."""

import secrets
import subprocess
from pathlib import Path

import pytest

from psched.testing.simulation.plan import MIXES

ROOT = Path(__file__).resolve().parents[2]


def simulate(*options):
    """Run the command, and return what it has printed."""
    done = subprocess.run(
        [ROOT / "bin/simulate", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("mix", [*MIXES])
def test_half_an_hour_of_each_mix(mix):
    # To make a failing plan short takes minutes; who looks into it does that with the seed.
    seed = str(secrets.randbelow(10**9))
    simulate("--mix", mix, "--hours", "0.5", "--seed", seed, "--no-shrink")


def test_some_minutes_on_sqlite():
    simulate("--store", "sqlite", "--hours", "0.1", "--seed", str(secrets.randbelow(10**9)))


@pytest.mark.once
@pytest.mark.parametrize("part", range(8))
def test_two_thousand_hours(part):
    simulate("--hours", "10", "--pace", "20", "--seeds", "25", "--seed", str(25 * part + 1))
