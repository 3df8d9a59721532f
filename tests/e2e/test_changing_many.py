"""Commands that change several schedules: patterns, conditions, questions, previews."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support.waiting import wait_until

pytestmark = pytest.mark.extended

SCRIPT = Path(support.__file__).with_name("on_terminal.py")
LATER = 4_000_000_000


@pytest.fixture
def service(service):
    """Four tasks of type mail, of which two have failed, and a schedule."""
    with service.schedules() as schedules:
        schedules.push_many(
            {"key": f"mail-{n}", "type": "mail", "run_at": LATER, "label": "team"} for n in range(4)
        )
        schedules.add("report", "report", cron="@daily", next_time=LATER)
    with service.sql() as database:
        failed = (
            "UPDATE psched SET status = 'failed', next_run_time = NULL, reason = ? WHERE id = ?"
        )
        database.execute(failed, ["gave up after 3 attempts: TimeoutError: no answer", "mail-1"])
        database.execute(failed, ["gave up after 3 attempts: ValueError: no", "mail-2"])
    return service


def states(service):
    listed = service.psched("list", "--json").stdout.splitlines()
    return {each["key"]: each["status"] for each in map(json.loads, listed)}


def test_what_has_failed_for_a_reason_is_requeued_at_a_rate(service):
    chosen = ["requeue", "--failed", "--reason", "*timeout*"]
    preview = service.psched(*chosen, "--dry-run")
    assert preview.stdout == "mail-1: would be requeued\n1 schedule would be requeued\n"
    assert states(service)["mail-1"] == "failed"

    done = service.psched(*chosen, "--rate", "10/s", "--at", str(LATER), "-m", "the server is back")

    assert (done.returncode, done.stdout) == (0, "mail-1: requeued\n1 schedule requeued\n")
    assert states(service) == {
        "mail-0": "waiting", "mail-1": "waiting", "mail-2": "failed", "mail-3": "waiting",
        "report": "waiting",
    }  # fmt: skip
    [audited] = service.psched("audit", "mail-1", "--json").stdout.splitlines()
    assert json.loads(audited)["note"] == "the server is back"
    again = service.psched(*chosen)
    assert (again.returncode, again.stdout) == (0, "no schedule matches\n")


@pytest.mark.landing
def test_a_pattern_chooses_what_can_be_changed(service):
    shown = service.psched("cancel", "mail-*", "--dry-run", "--rate", "2/s")
    assert shown.stdout.splitlines() == [
        "mail-0: would be cancelled",
        "mail-3: would be cancelled",
        "2 schedules would be cancelled, in 500 ms",
    ]
    done = service.psched("cancel", "mail-*")
    assert done.stdout == "mail-0: cancelled\nmail-3: cancelled\n2 schedules cancelled\n"
    failed = service.psched("requeue", "--label", "team", "--at", str(LATER))
    assert failed.stdout == "mail-1: requeued\nmail-2: requeued\n2 schedules requeued\n"
    everything = service.psched("cancel", "--all")
    assert everything.stdout.splitlines()[-1] == "3 schedules cancelled"
    assert {*states(service).values()} == {"cancelled"}


def test_an_existing_key_is_no_pattern(service):
    with service.schedules() as schedules:
        schedules.push("mail-*", "mail", run_at=LATER)
    done = service.psched("cancel", "mail-*")
    assert done.stdout == "mail-*: cancelled\n"
    assert states(service)["mail-0"] == "waiting"


def test_a_preview_of_named_schedules_says_which_would_not_be_changed(service):
    shown = service.psched("requeue", "mail-1", "mail-0", "none", "--dry-run")
    assert shown.returncode == 1
    assert shown.stdout == "mail-1: would be requeued\n1 schedule would be requeued\n"
    assert shown.stderr.splitlines() == [
        "mail-0: would not be requeued: 'mail-0' has not ended: it is waiting",
        "none: would not be requeued: no schedule has the key 'none'",
    ]
    assert states(service)["mail-1"] == "failed"


@pytest.mark.parametrize(
    ("command", "state"), [("cancel", "cancelled"), ("force-finish", "finished")]
)
def test_a_preview_says_that_a_named_task_would_be_requeued_as_it_is_then(service, command, state):
    assert service.psched(command, "mail-0").returncode == 0
    shown = service.psched("requeue", "mail-0", "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == "mail-0: would be requeued\n1 schedule would be requeued\n"
    assert states(service)["mail-0"] == state
    assert service.psched("requeue", "mail-0").stdout == "mail-0: requeued\n"


@pytest.mark.landing
def test_each_named_schedule_is_tried(service):
    done = service.psched("cancel", "none", "mail-0", "mail-0")
    assert (done.returncode, done.stdout) == (1, "mail-0: cancelled\n")
    assert done.stderr == "Error: no schedule has the key 'none'\n"


def test_nobody_is_asked_if_standard_input_is_closed(service):
    words = [*service.psched_command, "cancel", "mail-0", "mail-3"]
    done = service.run("sh", "-c", 'exec "$@" <&-', "sh", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "mail-0: cancelled\nmail-3: cancelled\n"


def test_an_error_names_the_schedule_once(service):
    for command, said in (
        (["skip", "mail-0"], "Error: 'mail-0' runs only once"),
        (["trigger", "mail-1"], "Error: 'mail-1' has no extra runs"),
        (["edit", "report", "--cron", "x"], "Error: report: cron: "),
    ):
        done = service.psched(*command)
        assert done.returncode == 1
        assert done.stderr.startswith(said), done.stderr
    shown = service.psched("skip", "mail-0", "--dry-run")
    assert shown.stderr.startswith("mail-0: would not be skipped: 'mail-0' runs only once")


def test_a_preview_of_a_named_schedule_does_not_say_that_none_matches(service):
    shown = service.psched("resume", "mail-0", "--dry-run", "--rate", "1/s")
    assert (shown.returncode, shown.stdout) == (1, "0 schedules would be resumed\n")
    assert shown.stderr == "mail-0: would not be resumed: it is waiting\n"


def test_an_edit_by_pattern_leaves_out_what_is_finished_or_cancelled(service):
    """Else a new time would run it again."""
    assert service.psched("force-finish", "mail-0").returncode == 0
    assert service.psched("cancel", "mail-3").returncode == 0
    done = service.psched("edit", "mail-*", "--start", str(LATER), "--dry-run")
    assert done.stdout.splitlines()[-1] == "2 schedules would be edited"
    named = service.psched("edit", "mail-*", "--status", "cancelled", "--jitter", "5", "--dry-run")
    assert named.stdout.splitlines()[-1] == "1 schedule would be edited"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cancel"], "name KEYS, or choose by"),
        (["requeue", "--all", "mail-1"], "--all chooses every schedule"),
        (["cancel", "--all", "--type", "mail"], "--all chooses every schedule"),
        (["requeue", "--status", "waiting"], "'waiting' cannot be requeued; choose from cancelled"),
        (["cancel", "--type", "mail", "--rate", "5"], "rate: must be a number per time"),
        (["cancel", "--reason", ""], "reason: must not be empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(service, arguments, said):
    before = states(service)
    done = service.psched(*arguments)
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert states(service) == before


def test_what_was_not_done_before_an_interruption_is_done_by_the_same_command(service):
    with service.schedules() as schedules:
        schedules.push_many({"key": f"k{n:03}", "run_at": LATER} for n in range(200))
    arguments = ["cancel", "k*", "--rate", "20/s"]
    service.env["PYTHONUNBUFFERED"] = "1"
    command = service.start(*service.psched_command, *arguments, log="cancelled", generation=0)
    wait_until(lambda: command.text.count(": cancelled") >= 2, what="some changes")
    command.send(signal.SIGINT)
    assert command.wait() == 1
    assert "; the same command goes on with the others" in command.text
    done = sum(state == "cancelled" for state in states(service).values())
    # The interruption can come between a change and its line.
    assert 0 <= done - command.text.count(": cancelled") <= 1
    assert done < 200

    rest = service.psched("cancel", "k*")
    assert rest.stdout.splitlines()[-1] == f"{200 - done} schedules cancelled"


def test_a_closed_pipe_stops_it_and_says_so(service):
    with service.schedules() as schedules:
        schedules.push_many({"key": f"k{n:03}", "run_at": LATER} for n in range(50))
    service.env["PYTHONUNBUFFERED"] = "1"
    command = f"{shlex.join(map(str, service.psched_command))} cancel 'k*' --rate 20/s | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=service.folder, env=service.env,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "k000: cancelled\n"
    assert re.search(r"stopped after \d+ of 50; the same command goes on", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cancel", *(f"k{n:03}" for n in range(40))], "the same command goes on with the others"),
        (["trigger", "k*"], "the same command would trigger these again"),
        (["skip", "s*"], "the same command would skip these again"),
    ],
)
def test_an_interruption_says_whether_the_same_command_goes_on(service, arguments, said):
    with service.schedules() as schedules:
        schedules.push_many({"key": f"k{n:03}", "run_at": LATER} for n in range(40))
        schedules.add_many({"key": f"s{n:03}", "cron": "@daily"} for n in range(40))
    service.env["PYTHONUNBUFFERED"] = "1"
    command = service.start(
        *service.psched_command, *arguments, "--rate", "5/s", log="done", generation=0
    )
    wait_until(lambda: command.text.count("ed") >= 2, what="some changes")
    command.send(signal.SIGINT)
    assert command.wait() == 1
    assert re.search(rf"stopped after \d+ of 40; .*{said}", command.text), command.text


# --- on a terminal -------------------------------------------------------------------


def on_terminal(service, *arguments):
    """Start a command on a terminal of its own."""
    words = [sys.executable, "-I", "-S", SCRIPT, service.folder / "keys", *service.psched_command]
    return service.start(*words, *arguments, log="seen", generation=0)


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_on_a_terminal_it_asks_before_it_changes_several(service, answer, status):
    terminal = on_terminal(service, "cancel", "mail-*")
    wait_until(lambda: "[y/N]" in terminal.text, what="the question")
    assert "cancel 2 schedules (mail-0, mail-3)? [y/N]" in terminal.text
    (service.folder / "keys").write_text(f"{answer}\n")
    assert terminal.wait() == status
    assert ("nothing was changed" in terminal.text) == (status == 1)
    changed = {key for key, state in states(service).items() if state == "cancelled"}
    assert changed == ({"mail-0", "mail-3"} if status == 0 else set())


def test_on_a_terminal_it_shows_how_far_it_has_come(service):
    with service.schedules() as schedules:
        schedules.push_many({"key": f"k{n:03}", "run_at": LATER} for n in range(40))
    terminal = on_terminal(service, "cancel", "k*", "--yes", "--rate", "12/s")
    assert terminal.wait() == 0
    shown = re.findall(r"cancelled ([0-9]+) of 40, about ([0-9]+)s left", terminal.text)
    assert shown
    assert all(int(done) < 40 for done, _ in shown)
    # The line is removed before another one is printed.
    written = terminal.log.read_bytes().decode().split("\r\n")
    lines = [line.rpartition("\r\x1b[K")[2] for line in written]
    assert [*filter(None, lines)] == [
        *(f"k{n:03}: cancelled" for n in range(40)), "40 schedules cancelled",
    ]  # fmt: skip


def test_without_a_terminal_the_lines_tell_the_progress(service):
    with service.schedules() as schedules:
        schedules.push_many({"key": f"k{n:03}", "run_at": LATER} for n in range(30))
    done = service.psched("cancel", "k*", "--rate", "20/s")
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 31)


@pytest.mark.landing
def test_force_finish(service):
    shown = service.psched("force-finish", "mail-*", "--dry-run").stdout
    assert shown.splitlines() == [
        "mail-0: would be finished", "mail-3: would be finished", "2 schedules would be finished",
    ]  # fmt: skip
    done = service.psched("force-finish", "--type", "mail", "-m", "done by hand")
    assert done.stdout.splitlines()[-1] == "2 schedules finished"
    assert states(service)["mail-0"] == "finished"
    again = service.psched("force-finish", "mail-0")
    assert (again.returncode, again.stderr) == (
        1,
        "Error: 'mail-0' has ended already: it is finished\n",
    )
    [audited, *_] = map(json.loads, service.psched("audit", "mail-3", "--json").stdout.splitlines())
    assert (audited["action"], audited["note"]) == ("force_finish", "done by hand")


@pytest.mark.parametrize("arguments", [["mail-0"], ["mail-*", "--yes"], ["mail-0", "mail-3", "-y"]])
def test_it_does_not_ask_without_need(service, arguments):
    terminal = on_terminal(service, "cancel", *arguments)
    assert terminal.wait() == 0
    assert "[y/N]" not in terminal.text
    assert states(service)["mail-0"] == "cancelled"
