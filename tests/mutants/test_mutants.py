"""Each mutant is noticed: a simulation or a test fails in a copy of psched with one fault."""

import secrets
import subprocess
from collections import Counter

import pytest

from support import mutants
from support.mutants import DRAWN, ROOT, Mutant

MUTANTS = mutants.read()

FAST = (
    "lease-a-second-short",
    "settled-while-processes-live",
    "finished-occurrence-runs-again",
    "catch-up-grace-ignored",
)
"""These run at each landing."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_list_is_about_the_present_code(mutant):
    assert mutant.problem() is None


@pytest.mark.parametrize("name", mutants.explained())
def test_what_makes_no_difference_is_of_the_present_code(name):
    file, _, change = name.partition(" - ")
    assert change.partition(" + ")[0] in (ROOT / "psched" / file).read_text()


def test_the_names_are_unique():
    assert Counter(each.name for each in MUTANTS).most_common(1)[0][1] == 1


@pytest.mark.parametrize("name", FAST)
def test_a_mutant_is_killed(name):
    (mutant,) = (each for each in MUTANTS if each.name == name)
    verdict = mutants.run(mutant.killer, mutant.budget, mutant)
    assert verdict.found, verdict


def test_what_changes_nothing_survives():
    (mutant,) = (each for each in MUTANTS if each.name == FAST[-1])
    assert mutants.run(mutant.killer, mutant.budget).found is None


def test_what_cannot_be_imported_is_killed():
    file, old = "base/lease_times.py", "MARGIN_LIMIT = 15.0"
    mutant = Mutant("no-number", file, old, "MARGIN_LIMIT = 1 / 0", DRAWN[file])
    assert mutants.run(mutant.killer, mutant.budget, mutant).found


def test_a_test_that_does_not_exist_kills_nothing():
    (mutant,) = (each for each in MUTANTS if each.name == FAST[-1])
    verdict = mutants.run("pytest tests/unit/test_nothing.py", mutant.budget, mutant)
    assert verdict.found is None
    assert "not found" in verdict.failure


@pytest.mark.once
def test_no_mutant_of_the_list_survives():
    done = subprocess.run([ROOT / "bin/mutants"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.once
def test_no_drawn_mutant_survives_but_those_that_make_no_difference():
    """The seed is another one each time; the command that has failed shows it."""
    command = [ROOT / "bin/mutants", "--drawn", "50", "--seed", secrets.token_hex(3)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
