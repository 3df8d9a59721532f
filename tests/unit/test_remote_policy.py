"""Tests of the policy in the process that loads triggers, and of the checks of its answers."""

import gzip
import json
import sys
from dataclasses import asdict
from dataclasses import replace as changed

import pytest

from psched.config import from_mapping
from psched.core import remote_policy
from psched.core.history.records import Fate, Skipped
from psched.core.model import CANCELLING, QUARANTINED, Finish, Release, Retry, Row, Settlement
from psched.core.policy import Run, after_claim, after_run
from psched.core.remote_policy import PolicyRequest, answer_request, parse_answer

NOON = 1_800_014_400

MODULE = """
class Hourly:
    def next_at(self, after):
        return (after // 3600 + 1) * 3600

class Broken:
    def next_at(self, after):
        raise OSError("ebb\\x1b")
"""


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch):
    """Do not limit the memory of the process that runs the tests."""
    monkeypatch.setattr(remote_policy, "limit_memory", lambda: None)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "psched_hours.py").write_text(MODULE)
    given = {
        "url": "sqlite:///unused.db",
        "load_path": str(tmp_path),
        "types": {"t": {"jitter": 9}},
    }
    yield from_mapping(given)
    sys.modules.pop("psched_hours", None)


def leased(cron="@call psched_hours:Hourly", **columns):
    usual = {"key": "k", "next_time": NOON, "owner": "o", "fence": 3, "attempt": 1}
    return Row(**{**usual, "cron": cron, **columns})


ROWS = [
    leased(),
    leased(next_time=NOON - 3600, options='{"catchup": "latest"}'),
    leased(next_time=NOON - 3600, options=gzip.compress(b'{"catchup": "latest"}')),
    leased(next_time=NOON - 3600, options=b'{"catchup": "skip", "delay": 5}', type="t"),
    leased(next_time=None, data=b"\x00\xff"),
    leased(status=CANCELLING),
    leased("@call psched_hours:Broken"),
    leased("@call psched_hours:Missing"),
    leased("@call psched_missing:Hourly", attempt=7),
    leased(attempt=9, options='{"max_attempts": 3}'),
]


def answer(request, settings):
    """The answer as a worker receives it: as JSON."""
    message = json.loads(json.dumps(answer_request(request.message(), settings)))
    return parse_answer(request, message)


@pytest.mark.parametrize("row", ROWS)
def test_another_process_decides_as_the_worker_would(row, settings):
    without_payload = changed(row, data=None)
    expected = after_claim(without_payload, settings, NOON + 1)
    found = answer(PolicyRequest(row, NOON + 1), settings)
    assert found == (None if isinstance(expected, Run) else expected)
    for decision in (Finish(), Release(), Release(4, "no room"), Retry(5, "no"), Retry()):
        current = changed(row, version=2)
        expected = after_run(without_payload, changed(current, data=None), decision, settings, NOON)
        assert answer(PolicyRequest(current, NOON, row, decision), settings) == expected


GOOD = {
    name: value
    for name, value in asdict(Settlement(key="k", token=None, version=1, next_time=NOON)).items()
    if name not in {"key", "token", "version", "seen_status", "records"}
} | {"skipped": []}


SPAN = {"fate": "skipped_catchup", "first": NOON, "until": None, "count": 7, "reason": "late"}


def test_the_fate_and_the_dropped_occurrences_pass():
    found = parse_answer(
        PolicyRequest(leased(), NOON),
        {"settle": {**GOOD, "fate": "gave_up", "skipped": [SPAN]}},
    )
    assert found.fate is Fate.GAVE_UP
    assert found.skipped == (
        Skipped(fate=Fate.SKIPPED_CATCHUP, first=NOON, until=None, count=7, reason="late"),
    )
    assert isinstance(found.skipped[0].fate, Fate)


def test_the_lease_in_a_settlement_is_the_workers_own():
    found = parse_answer(PolicyRequest(leased(), NOON), {"settle": GOOD})
    assert (found.key, found.token, found.version) == ("k", leased().token, 1)


@pytest.mark.parametrize(
    "message",
    [
        None, [], "run", {}, {"run": 1}, {"run": False}, {"settle": None}, {"settle": {}},
        {"settle": {**GOOD, "token": "o#3"}},
        {"settle": {**GOOD, "next_time": -1}}, {"settle": {**GOOD, "next_time": 2**70}},
        {"settle": {**GOOD, "next_time": "soon"}}, {"settle": {**GOOD, "next_time": 1.5}},
        {"settle": {**GOOD, "not_before": True}}, {"settle": {**GOOD, "retain": -1}},
        {"settle": {**GOOD, "wait": None}}, {"settle": {**GOOD, "wait": 10**13}},
        {"settle": {**GOOD, "attempt": -1}}, {"settle": {**GOOD, "decided_until": 2**60}},
        {"settle": {**GOOD, "moved_at": -1}}, {"settle": {**GOOD, "reason_code": "mine"}},
        {"settle": {**GOOD, "paused_until": NOON}}, {"settle": {**GOOD, "pause_note": "mine"}},
        {"settle": {**GOOD, "attempt": 99}}, {"settle": {**GOOD, "rest": 1}},
        {"settle": {**GOOD, "remove": None}}, {"settle": {**GOOD, "status": "mine"}},
        {"settle": {**GOOD, "status": []}}, {"settle": {**GOOD, "reason": "\x1b[2J"}},
        {"settle": {**GOOD, "reason": 5}}, {"settle": {**GOOD, "reason": "x" * 2001}},
        {"settle": {**GOOD, "records": []}}, {"settle": {**GOOD, "fate": "mine"}},
        {"settle": {**GOOD, "fate": []}}, {"settle": {**GOOD, "skipped": None}},
        {"settle": {**GOOD, "skipped": [None]}}, {"settle": {**GOOD, "skipped": [{}]}},
        {"settle": {**GOOD, "skipped": [SPAN] * 4}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "fate": "finished"}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "fate": {}}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "first": -1}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "first": 2**60}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "until": NOON - 1}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "until": 2**60}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "count": 0}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "count": 10**6}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "count": True}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "reason": "x" * 2001}]}},
        {"settle": {**GOOD, "skipped": [{**SPAN, "more": 1}]}},
    ],
)  # fmt: skip
def test_an_invalid_answer_is_refused(message):
    with pytest.raises(ValueError, match="it is not a valid"):
        parse_answer(PolicyRequest(leased(), NOON), message)


def test_a_reason_that_was_written_by_hand_is_valid(settings):
    row = leased(status=QUARANTINED, reason="looked\u00a0at")
    assert answer(PolicyRequest(row, NOON, row, Finish()), settings).reason == "looked\u00a0at"


def test_an_answer_cannot_run_an_occurrence_again():
    request = PolicyRequest(leased(), NOON, leased(), Finish())
    with pytest.raises(ValueError, match="it is not a valid answer"):
        parse_answer(request, {"run": True})
    assert (request.quarantine("x").status, request.quarantine("x").next_time) == (
        QUARANTINED,
        None,
    )
    assert PolicyRequest(leased(), NOON).quarantine("x").next_time == NOON


@pytest.mark.parametrize(
    ("decision", "fate"), [(Finish(), Fate.FINISHED), (Retry(None, "no"), Fate.GAVE_UP)]
)
def test_a_trigger_that_hangs_after_a_run_does_not_change_what_became_of_the_occurrence(
    decision, fate
):
    after_a_run = PolicyRequest(leased(), NOON, leased(), decision).quarantine("x")
    assert (after_a_run.status, after_a_run.fate) == (QUARANTINED, fate)
    assert PolicyRequest(leased(), NOON).quarantine("x").fate is Fate.QUARANTINED
