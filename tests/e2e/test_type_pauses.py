"""Pauses of types and of everything, with real workers: what waits, what runs, what is skipped."""

import json
import signal
import subprocess

import pytest

from support.processes import kill
from support.waiting import wait_until

pytestmark = pytest.mark.verified

MINUTE = 60


@pytest.fixture
def busy(each_service):
    """A service whose types mail and web record their runs."""
    each_service.write(
        "both.py",
        """
        from psched.application import Dispatch as BaseDispatch
        from recorder import Recorder

        class Dispatch(BaseDispatch):
            routes = {"mail": Recorder, "web": Recorder}
        """,
    )
    each_service.configure(dispatch="both:Dispatch")
    return each_service


def skipped(service, key):
    with service.schedules() as schedules:
        return [run for run in schedules.runs(key) if run.fate == "skipped_paused"]


def runs(service, key):
    return [run.key for run in service.runs.runs(key)]


def test_a_paused_type_does_not_start_and_the_others_do(busy):
    busy.add("running", "mail", data={"until": "gate"})
    busy.start()
    busy.runs.wait("running")

    done = busy.psched("pause", "--type", "mail", "-m", "deploy")
    assert (done.returncode, done.stdout) == (0, "type mail: paused, also what is added later\n")
    busy.add("before", "mail")
    busy.add("web1", "web")
    busy.open_gate("gate")
    busy.wait_for_finish("running")
    busy.wait_for_finish("web1")
    # A second task of the other type shows that a claim has passed the one that waits.
    busy.add("web2", "web")
    busy.wait_for_finish("web2")
    assert runs(busy, "before") == []
    [listed] = busy.psched("list", "--status", "paused", "--json").stdout.splitlines()
    assert json.loads(listed)["key"] == "before"
    assert "(type mail): deploy" in busy.psched("show", "before").stdout
    assert busy.psched("pause", "--list").stdout.startswith("type mail since ")
    assert "paused: type mail since " in busy.psched("check").stdout

    assert busy.psched("resume", "--type", "mail").stdout == "type mail: resumed\n"
    busy.wait_for_finish("before")
    assert busy.psched("list", "--status", "paused", "--json").stdout == ""


def test_everything_waits_until_it_is_resumed_and_what_fell_due_is_skipped(busy):
    busy.start()
    assert busy.psched("pause", "--all", "-m", "move").returncode == 0
    with busy.schedules() as schedules:
        # In reality, so many occurrences fall due one after the other.
        now = int(schedules.now())
        [rule] = schedules.pauses()
        early = type(rule)(**{**rule.to_json(), "type": None, "since": now - 10 * MINUTE})
        schedules._store.pauses.change_pause_rules(drop=[rule.id], store=[early])
        schedules.add("s1", "mail", cron="* * * * *", next_time=now - 5 * MINUTE)
        schedules.add("once", "web", next_time=now - 5 * MINUTE)
    assert "(everything): move" in busy.psched("next", "s1").stdout

    assert busy.psched("resume", "--all").stdout == "everything: resumed\n"
    busy.wait_for_finish("once")
    busy.wait_for_row("s1", lambda seen: seen.next_time > now)
    [span] = skipped(busy, "s1")
    assert span.scheduled_time < now
    assert not [run for run in busy.runs.runs("s1") if run.scheduled_time < now]
    why = busy.psched("why", "s1", "--utc", span.scheduled_time)
    assert "move" in why.stdout


@pytest.mark.extended
def test_a_pause_ends_at_its_time_without_a_command(busy):
    busy.start()
    with busy.schedules() as schedules:
        rule = schedules.pause_type("mail", "+3s")
        schedules.push("m1", "mail")
    busy.wait_for_finish("m1")
    with busy.schedules() as schedules:
        assert schedules.pauses() == ()
        [run] = schedules.runs("m1")
    assert run.started >= rule.until


@pytest.mark.extended
def test_two_operators_at_once_end_in_one_of_the_documented_states(busy):
    busy.start()
    words = [*busy.psched_command, "pause", "--type", "mail", "-m"]
    started = [
        subprocess.Popen(
            [*words, who], cwd=busy.folder, env=busy.env, stdout=subprocess.PIPE, text=True
        )
        for who in ("one", "two")
    ]
    assert [each.communicate()[0] for each in started] == [
        "type mail: paused, also what is added later\n"
    ] * 2
    busy.add("m1", "mail")
    busy.add("web1", "web")
    busy.wait_for_finish("web1")
    assert runs(busy, "m1") == []
    with busy.schedules() as schedules:
        assert {rule.note for rule in schedules.pauses()} <= {"one", "two"}
        assert schedules.pauses()
    # One command ends whatever holds the type.
    assert busy.psched("resume", "--type", "mail").returncode == 0
    busy.wait_for_finish("m1")
    assert busy.psched("resume", "--type", "mail").returncode == 1


def test_a_worker_that_dies_while_its_type_is_paused_leaves_its_task_waiting(busy):
    busy.configure(retry_wait=0)
    master = busy.start()
    busy.add("m2", "mail", data={"until": "gate"})
    busy.runs.wait("m2")
    assert busy.psched("pause", "--type", "mail").returncode == 0
    [worker] = master.workers()
    kill(worker, signal.SIGKILL)
    busy.wait_for_row("m2", lambda seen: seen.row.owner is None)
    busy.open_gate("gate")
    busy.add("web1", "web")
    busy.wait_for_finish("web1")
    assert len(busy.runs.runs("m2")) == 1

    assert busy.psched("resume", "--type", "mail").returncode == 0
    busy.wait_for_finish("m2")
    wait_until(lambda: len(busy.runs.runs("m2")) == 2, what="the second attempt")


@pytest.mark.extended
def test_what_would_be_done_is_shown_and_wrong_options_are_refused(busy):
    busy.add("m1", "mail")
    shown = busy.psched("pause", "--type", "mail", "--type", "web", "--dry-run")
    assert shown.stdout.splitlines() == [
        "type mail: would be paused: 1 schedule now",
        "type web: would be paused: 0 schedules now",
    ]
    assert busy.psched("pause", "--all", "--dry-run").stdout.startswith("everything: would be")
    assert "neither a type nor" in busy.psched("pause", "--list").stdout
    shown = busy.psched("pause", "--type", "mail", "--until", "yesterday", "--dry-run")
    assert (shown.returncode, shown.stdout) == (1, "")
    shown = busy.psched("resume", "--type", "mail", "--dry-run")
    assert (shown.returncode, shown.stdout, shown.stderr) == (
        1, "", "type mail: would not be resumed: it is not paused\n",
    )  # fmt: skip
    assert busy.psched("pause", "--type", "web", "-m", "new", "--until", "+1h").returncode == 0
    shown = busy.psched("resume", "--type", "web", "--dry-run")
    assert (shown.returncode, shown.stdout) == (0, "type web: would be resumed: 0 schedules now\n")
    [listed] = map(json.loads, busy.psched("pause", "--list", "--json").stdout.splitlines())
    assert (listed["type"], listed["note"]) == ("web", "new")
    assert listed["until"] > listed["since"]
    for wrong in (["--list", "m1"], ["--list", "--until", "+1h"], ["--json", "m1"]):
        assert busy.psched("pause", *wrong).returncode == 2
    refused = busy.psched("pause", "--all", "--rate", "1/s")
    assert refused.returncode == 2
    assert "--rate" in refused.stderr
    refused = busy.psched("resume", "--type", "mail")
    assert refused.returncode == 1
    assert "the type 'mail' is not paused" in refused.stderr
    refused = busy.psched("pause", "--type", "mail", "--until", "yesterday 10:00")
    assert refused.returncode == 1
    assert "until" in refused.stderr
