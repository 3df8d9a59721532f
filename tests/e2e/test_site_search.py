"""The search of the documentation site answers what people ask: in its first three hits."""

import json
import subprocess

import pytest

from support.code_blocks import ROOT
from support.waiting import HANG_TIMEOUT

pytestmark = pytest.mark.extended

QUESTIONS = {
    "crontabs of many hosts": "files",
    "stop a run": "operate",
    "failover": "daemon",
    "upgrade": "daemon",
    "users": "schedules",
    "every host": "schedules",
    "some hosts": "schedules",
    "secrets": "security",
    "rate limits": "schedules",
    "backup": "daemon",
}
"""What is asked, and the page that has the answer."""


def output_of(*command):
    """What a program of this repository prints."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=10 * HANG_TIMEOUT,
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def hits():
    """The pages that each question finds, the best first."""
    index = output_of("bin/docs").replace("index.html", "searchindex.js")
    python = f"{output_of('bin/venv', 'docs')}/bin/python"
    return json.loads(output_of(python, "tests/support/site_search.py", index, *QUESTIONS))


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_the_first_three_hits(question, hits):
    assert QUESTIONS[question] in hits[question][:3]
