"""psched skip: what it prints, what runs afterwards, and what the history says."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import psched
from support.processes import kill
from support.waiting import wait_until

pytestmark = pytest.mark.verified

FIRST = 4_000_003_200  # 2096-10-02T08:00Z
TIMES = [f"2096-10-02 {hour:02}:00:00 CEST" for hour in range(10, 16)]


@pytest.fixture
def service(service):
    """Two schedules that run every hour, and a task that runs once."""
    with service.schedules() as schedules:
        for key in ("one", "two"):
            schedules.add(
                key, "recorder", cron="@hourly", timezone="Europe/Paris", next_time=FIRST, label="h"
            )
        schedules.push("once", "recorder", run_at=FIRST)
    service.env["TZ"] = "Europe/Paris"
    return service


def test_it_shows_the_next_runs_before_and_after(service):
    wanted = [
        f"    left out: {TIMES[0]} and the next one",
        f"    next was: {', '.join(TIMES[:3])}",
        f"    next: {', '.join(TIMES[2:5])}",
    ]
    shown = service.psched("skip", "one", "-n", "2", "--dry-run")
    assert shown.stdout.splitlines() == [
        "one: would be skipped",
        *wanted,
        "1 schedule would be skipped",
    ]
    assert service.row("one").next_time == FIRST

    done = service.psched("skip", "one", "-n", "2", "-m", "holidays")
    assert (done.returncode, done.stdout.splitlines()) == (0, ["one: skipped", *wanted])
    assert service.row("one").next_time == FIRST + 7200

    [record] = map(json.loads, service.psched("history", "one", "--json").stdout.splitlines())
    assert (record["fate"], record["count"]) == ("skipped", 2)
    assert re.fullmatch(r"skipped by \S+@\S+: holidays", record["reason"])
    [audited] = service.psched("audit", "one", "--json").stdout.splitlines()[:1]
    assert (json.loads(audited)["action"], json.loads(audited)["note"]) == ("skip", "holidays")
    why = service.psched("why", "one", "2096-10-02T11:00")
    assert re.search(r"was skipped by \S+ at .*: holidays\.", why.stdout), why.stdout
    listed = service.psched("history", "--fate", "skipped").stdout
    assert "2 skipped, " in listed


def test_patterns_and_labels_choose_schedules(service):
    shown = service.psched("skip", "--label", "h", "--dry-run").stdout
    assert shown.splitlines()[-1] == "2 schedules would be skipped"
    done = service.psched("skip", "--all")
    assert done.stdout.splitlines()[-1] == "2 schedules skipped"
    assert service.row("two").next_time == FIRST + 3600
    assert service.row("once").next_time == FIRST


def test_what_cannot_be_skipped_is_refused_with_the_fix(service):
    done = service.psched("skip", "once", "one", "none")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: 'once' runs only once; to leave its run out, cancel it: psched cancel",
        "Error: no schedule has the key 'none'",
    ]
    assert service.row("one").next_time == FIRST + 3600
    shown = service.psched("skip", "once", "one", "--dry-run")
    assert shown.returncode == 1
    assert "once: would not be skipped: " in shown.stderr
    assert shown.stdout.splitlines()[-1] == "1 schedule would be skipped"
    assert service.psched("skip", "one", "-n", "0").returncode == 2


def test_a_schedule_that_runs_now_is_refused_and_its_run_ends_as_usual(service):
    service.add("busy", cron="@yearly", next_time=0, catchup="latest", data={"until": "gate"})
    service.start()
    # The first lease only moves it over what it has missed.
    service.wait_for_row("busy", lambda seen: seen.status == "running" and seen.next_time > 0)
    running = service.row("busy").next_time
    done = service.psched("skip", "busy")
    assert done.returncode == 1
    assert "'busy' runs now" in done.stderr
    assert "skip again when this run has ended" in done.stderr
    many = service.psched("skip", "*")
    assert (many.returncode, many.stdout.splitlines()[-1]) == (
        1, "2 schedules skipped; 1 not skipped, because of errors",
    )  # fmt: skip
    service.open_gate("gate")
    service.wait_for_row("busy", lambda seen: seen.next_time > running)
    assert service.psched("skip", "busy").returncode == 0
    [skipped, finished, *_] = map(
        json.loads, service.psched("history", "busy", "--json").stdout.splitlines()
    )
    assert (skipped["fate"], finished["fate"]) == ("skipped", "finished")
    assert finished["scheduled_time"] == running


def test_only_what_was_not_skipped_runs(service):
    """The schedule is due; two of its five missed times are skipped before a worker comes."""
    with service.schedules() as schedules:
        now = int(schedules.now())
    first = now // 3600 * 3600 - 4 * 3600
    service.add("late", cron="@hourly", next_time=first, catchup="all")
    assert service.psched("skip", "late", "-n", "2").returncode == 0
    service.start()

    def ran():
        with service.schedules() as schedules:
            return [each.scheduled_time for each in schedules.runs("late", outcome="finished")]

    wait_until(lambda: len(ran()) >= 3, what="the runs")
    assert min(ran()) == first + 2 * 3600


@pytest.mark.extended
def test_two_operators_amid_runs_and_a_dying_worker(each_service):
    """Whatever is refused or comes in between, each occurrence has one fate (`verified`)."""
    service = each_service
    # On a slow machine, there are so many runs that the first records would be trimmed.
    service.configure(history_keep_per_key=0)
    service.add("fast", every=1, catchup="all")
    master = service.start()

    def finished():
        with service.schedules() as schedules:
            return len([*schedules.runs("fast", outcome="finished")])

    wait_until(lambda: finished() >= 1, what="a run")

    def skip(_):
        done = refused = 0
        with service.schedules() as schedules:
            while done < 4:
                try:
                    done += schedules["fast"].skip().skipped.count
                except psched.InvalidError as error:
                    assert "runs now" in str(error)  # noqa: PT017  # the loop goes on
                    refused += 1
        return done

    with ThreadPoolExecutor(2) as pool:
        skips = [pool.submit(skip, number) for number in range(2)]
        kill(master.workers()[0])
        assert [each.result() for each in skips] == [4, 4]
    before = finished()
    wait_until(lambda: finished() >= before + 3, what="more runs")
    with service.schedules() as schedules:
        skipped = [each.scheduled_time for each in schedules.runs("fast", fate="skipped")]
    assert len({*skipped}) == len(skipped) == 8
