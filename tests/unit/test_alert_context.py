"""Tests of what people are told besides an alert, on a real store."""

from dataclasses import replace as changed

import pytest

from psched.config import from_mapping
from psched.core.alerts.alert import Alert
from psched.core.history.records import Fate, Outcome
from psched.monitor.delivering import HookCaller, context_of
from psched.notify.notification import Context, Notification, Told
from psched.notify.webhook import render
from psched.testing.store_contract.history import made
from psched.testing.store_contract.output import printed
from psched.triggers.zone import find_zone
from support.driven import START, driven_host


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        host.schedules.add("k", "test", every=3600, next_time=START, note="call ann")
        yield host


def ran(host, outcome, **fields):
    given = {"scheduled_time": START, "owner": "w.1", "fate": None, "outcome": outcome}
    host.store().history.record([made("k", **{**given, "ended": 1000 * (START + 60), **fields})])


def alert(rule="failed", since=START, **more):
    return Alert(key="k", rule=rule, since=1000 * since, text="why", scheduled_time=START, **more)


def told(event, context, rule="failed", zone="UTC"):
    return Notification(
        event=event,
        alert=alert(rule, closed=1, closed_text="the run has ended"),
        installation="psched",
        host="web1",
        context=context,
        zone=find_zone(zone),
    )


def test_a_failure_is_told_with_the_note_the_next_run_and_the_end_of_the_output(host):
    store = host.store()
    ran(host, Outcome.FAILED, attempt=2)
    lines = "".join(f"line {number}\n" for number in range(40))
    output = printed("k", scheduled_time=START, owner="w.1", attempt=2, output=lines.encode())
    store.output.write_output([output, changed(output, owner="w.0", attempt=1, output=b"earlier")])
    context = context_of(store, "raised", alert())
    assert (context.note, context.next_run, context.failed) == ("call ann", START, None)
    assert context.output.splitlines() == [f"line {number}" for number in range(25, 40)]


def test_the_output_of_a_run_that_somebody_has_stopped_is_not_that_of_the_failure(host):
    store = host.store()
    ran(host, Outcome.FAILED, attempt=1)
    ran(host, Outcome.CANCELLED, attempt=2, owner="w.2", ended=1000 * (START + 61))
    output = printed("k", scheduled_time=START, owner="w.1", attempt=1, output=b"why")
    store.output.write_output([output, changed(output, owner="w.2", attempt=2, output=b"stopped")])
    assert context_of(store, "raised", alert()).output == "why"


def test_what_is_not_known_is_left_out(host):
    store = host.store()
    assert context_of(store, "raised", alert()).output == ""
    host.schedules["k"].cancel()
    assert context_of(store, "raised", alert()).next_run is None
    host.schedules["k"].delete()
    assert context_of(store, "raised", alert()) == Context()
    assert (
        context_of(store, "raised", Alert(key="", host="web1", rule="lost", since=1, text="x"))
        == Context()
    )


@pytest.mark.parametrize("rule", ["longest", "unusual"])
@pytest.mark.parametrize(
    ("outcome", "failed"),
    [
        (Outcome.TIMED_OUT, "the run was stopped at its time limit"),
        (Outcome.FAILED, "the run has failed"),
        (Outcome.LOST, "the run was lost"),
        (Outcome.FINISHED, None),
        (Outcome.CANCELLED, "the run was stopped"),
    ],
)
def test_a_run_that_was_killed_at_its_limit_has_not_recovered(host, rule, outcome, failed):
    ran(host, outcome, started=1000 * START)
    later = {"scheduled_time": START + 3600, "owner": "w.2", "started": 1000 * (START + 3600)}
    ran(host, Outcome.FINISHED, fate=Fate.FINISHED, ended=1000 * (START + 3700), **later)
    context = context_of(host.store(), "closed", alert(rule))
    assert context.failed == failed
    notification = told("closed", context, rule)
    assert notification.title == (
        f"psched: {rule}, ended without success: k"
        if failed
        else f"psched: recovered from {rule}: k"
    )
    assert notification.text == (failed or "the run has ended")


def test_times_are_in_the_zone_of_the_installation():
    facts = dict(told("raised", Context(note="a\nb", next_run=START), zone="Asia/Tokyo").facts)
    assert facts["next run"] == "2023-11-15T07:13:20+09:00 (Asia/Tokyo)"
    assert facts["since"] == "2023-11-15T07:13:20+09:00 (Asia/Tokyo)"
    assert facts["note"] == r"a\nb"


def test_programs_are_told_what_people_are_told():
    context = Context(note="call ann", next_run=START, output="no space\nleft")
    body = told("raised", context).body
    assert (body["note"], body["next_run"], body["output"]) == (
        "call ann", "2023-11-14T22:13:20Z", "no space\nleft",
    )  # fmt: skip


def test_a_message_about_several_events_is_as_urgent_as_the_worst():
    given = []
    settings = from_mapping({"url": "sqlite:////unused.db"})
    caller = HookCaller({"phone": given.append}, settings, "web1")
    events = [
        Told("closed", alert("gave_up", closed=1, closed_text="it has succeeded")),
        Told("raised", alert("late")),
        Told("raised", alert("gave_up"), Context(note="call ann")),
    ]
    caller.deliver("phone", events)
    caller.deliver("phone", events[:1] * 2)
    mixed, over = given
    body = render("ntfy", "https://ntfy.sh/t", mixed, None).body
    assert (body["priority"], body["tags"]) == (4, ["warning"])
    assert body["message"].splitlines()[1:4] == [
        "gave up: k: why", "late: k: why", "recovered from gave up: k: it has succeeded",
    ]  # fmt: skip
    assert render("ntfy", "https://ntfy.sh/t", over, None).body["priority"] == 3


def test_ntfy_is_told_the_note_and_the_next_run():
    body = render(
        "ntfy", "https://ntfy.sh/t", told("raised", Context(note="call ann", next_run=START)), None
    ).body
    assert "note: call ann\n" in body["message"]
    assert "next run: 2023-11-14T22:13:20Z\n" in body["message"]
