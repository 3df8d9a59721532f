"""A chaos tells a lost record from a lost run."""

import pytest

from psched.reports.findings import Kind, Violation
from psched.testing.witnesses import Fault, Seen, Witness
from support.chaos.run import check_hosts, lacks_only_records
from support.run_log import Run


def witness(at, *, completed=True):
    return Witness(
        key="backup",
        scheduled_time=at,
        attempt=1,
        owner="w.1",
        fence=1,
        host="h1",
        started=at,
        store_time=at,
        ended=at + 1,
        completed=completed,
    )


def missing(kind=Kind.MISSING, **of):
    return Violation(kind=kind, key="backup", instant=100, text="", **of)


SLOW = Fault(at=100, until=103, host="h1", what="slow answers")


@pytest.mark.parametrize(
    ("violation", "witnesses", "faults", "is_record"),
    [
        (missing(), [witness(100)], [SLOW], True),
        (missing(until=102, count=2), [witness(100), witness(102)], [SLOW], True),
        (missing(until=102, count=2), [witness(100)], [SLOW], False),
        (missing(), [witness(100, completed=False)], [SLOW], False),
        (missing(), [witness(40)], [SLOW], False),
        (missing(), [witness(100)], [], False),
        (missing(kind=Kind.STUCK), [witness(100)], [SLOW], False),
    ],
)
def test_a_record_is_told_from_a_run(violation, witnesses, faults, is_record):
    seen = Seen(witnesses=witnesses, records=[], audits=[], faults=faults, lease=17, now=1000)
    assert lacks_only_records(violation, seen) is is_record


def run_on(names, key):
    return Run(
        key=key,
        scheduled_time=100,
        attempt=1,
        fence=1,
        pid=2,
        worker=3,
        started=100.0,
        last_sign=101.0,
        end=None,
        notes=[{"event": "start", "names": names}],
    )


@pytest.mark.parametrize(
    ("key", "names", "is_right"),
    [
        ("s0", ["h1"], True),
        ("s2", ["h1"], True),
        ("s2", ["h0"], False),
        ("s2!0mx3lmm6btasfwwf", ["h2"], False),
        ("p13", ["h2"], True),
        ("p13", ["h1"], False),
        ("a4", ["h2"], True),
        ("e4@h0", ["h0", "second"], True),
        ("e4@h0", ["h1"], False),
    ],
)
def test_a_run_on_another_host_than_those_of_its_schedule_is_found(key, names, is_right):
    found = [each.kind for each in check_hosts([run_on(names, key)])]
    assert found == ([] if is_right else [Kind.HOST])
