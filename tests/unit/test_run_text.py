"""How the tables of the run history show a run."""

import pytest

from psched.cli.shown import RUNS
from psched.cli.text_table import View
from psched.core.history.records import RunRecord
from psched.core.history.run import Run
from psched.reports.redaction import Redaction

NOON = 1_800_014_400


@pytest.mark.parametrize(("offset", "reason"), [(-7200, "of 12:00"), (5, ""), (7200, "of 12:00")])
def test_a_run_far_from_its_scheduled_time_names_it(offset, reason):
    began = (NOON + offset) * 1000
    record = RunRecord(
        key="k",
        type="t",
        scheduled_time=NOON,
        owner="w.1",
        fence=1,
        attempt=1,
        started=began,
        ended=began + 1000,
        outcome="finished",
        fate="finished",
    )
    (column,) = [each for each in RUNS if each.heading == "REASON"]
    assert column.text(Run(record), View(NOON, Redaction(()))) == reason
