"""What is shown of answers in logs and shells: what they are about, and nothing that is secret."""

import dataclasses

import pytest

from psched.core.history.run import Run, TaskEnd
from psched.core.model import Row
from psched.core.output import Output, OutputRecord
from psched.core.schedule import ScheduleMetadata
from support.run_records import run_record

SECRET = "s3cr3t"
ROW = Row(key="k", type="mail", data=f'{{"password": "{SECRET}"}}', next_time=60)
RUN = Run(run_record("k", scheduled_time=60, error=f"Traceback … {SECRET}", result=f'"{SECRET}"'))
FAILED = dataclasses.replace(ROW, status="failed", reason="gave up after 1 attempts: no")
OUTPUT = OutputRecord(
    key="k",
    scheduled_time=60,
    owner="owner.1",
    attempt=1,
    ended=61_000,
    output=SECRET.encode(),
    dropped=0,
)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (ScheduleMetadata(ROW), "<ScheduleMetadata k type='mail' status=waiting>"),
        (RUN, "<Run k.60 attempt=1 finished finished>"),
        (TaskEnd(FAILED, RUN), "<TaskEnd k failed: gave up after 1 attempts: no>"),
        (TaskEnd(dataclasses.replace(ROW, status="finished"), None), "<TaskEnd k finished>"),
        (Output(OUTPUT), "<Output k.60 attempt=1 bytes=6>"),
    ],
)
def test_an_answer_shows_what_it_is_about_and_no_secret(answer, shown):
    assert repr(answer) == shown
    assert SECRET not in shown
