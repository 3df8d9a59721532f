"""Each mutant is noticed: a simulation or a test fails in a copy of psched with one fault."""

import subprocess
from collections import Counter

import pytest

from support import mutants
from support.mutants import ROOT

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


@pytest.mark.once
def test_no_mutant_of_the_list_survives():
    done = subprocess.run([ROOT / "bin/mutants"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
