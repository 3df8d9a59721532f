"""``psched add`` and ``psched push`` with a program and its arguments after ``--``."""

import os
import shlex

import pytest

EXEC = "exec"


def refused(done, status=1):
    """The last line with which a command was refused."""
    assert done.exit_code == status, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "cron"),
    [
        (["30 2 * * *"], "30 2 * * *"),
        (["exec", "30 2 * * *"], "30 2 * * *"),
        (["--every", "5m"], "@every 300"),
        (["exec", "--every", "5m"], "@every 300"),
        (["@daily", "-t", "Asia/Tokyo"], "@daily"),
    ],
)
def test_a_schedule_runs_what_stands_after_the_dashes(service, words, cron):
    added = service.invoke("add", "backup", *words, "--", "pg_dump", "-Fc", "--", "-t", "a b")

    assert (added.exit_code, added.stderr) == (0, "")
    seen = service.row("backup")
    assert seen.type == EXEC
    assert seen.cron.startswith(cron)
    assert seen.data == {"command": ["pg_dump", "-Fc", "--", "-t", "a b"]}


@pytest.mark.parametrize("words", [["k1"], ["k1", "exec"], ["--max-attempts", "3", "k1"]])
def test_a_task_runs_what_stands_after_the_dashes(service, words):
    pushed = service.invoke("push", *words, "--", "ls", "-l")

    assert (pushed.exit_code, pushed.stdout, pushed.stderr) == (0, "k1: pushed\n", "")
    seen = service.row("k1")
    assert (seen.type, seen.data) == (EXEC, {"command": ["ls", "-l"]})


def test_a_pushed_command_needs_no_key(service):
    for _ in range(2):
        pushed = service.invoke("push", "--at", "2030-01-01", "--", "ls", "--wait")
        assert (pushed.exit_code, pushed.stderr) == (0, "")
        key = pushed.stdout.removesuffix(": pushed\n")
        assert service.row(key).data == {"command": ["ls", "--wait"]}
    with service.schedules() as schedules:
        assert len([*schedules.list()]) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("add", "k", "@daily", "--"), 2, "the command after -- is missing"),
        (("push", "k", "--"), 2, "the command after -- is missing"),
        (("push", "--"), 2, "the command after -- is missing"),
        (("add", "k", "mail", "@daily", "--", "ls"), 2, "add KEY CRON -- COMMAND"),
        (("add", "k", "exec", "@daily", "{}", "--", "ls"), 2, "add KEY CRON -- COMMAND"),
        (("add", "k", "@daily", "--every", "5m", "--", "ls"), 2, "add KEY CRON -- COMMAND"),
        (("add", "k", "--", "ls"), 2, "CRON or --every is missing"),
        (("add", "--", "ls"), 2, "Missing argument 'KEY'"),
        (("push", "k", "mail", "--", "ls"), 2, "push [KEY] -- COMMAND"),
        (("push", "k", "--raw", "--", "ls"), 2, "--raw"),
        (("push", "--", "-k", "{}"), 1, "begins with -"),
        (("push", "k", "--", ""), 1, '"command" is empty'),
        (("push", "", "--", "ls"), 1, "key: "),
        (("push", "k", "--", "ls", os.fsdecode(b"\xff")), 1, "data: "),
        (("add", "k", "@daily", "--", "ls -l | wc"), 1, "-- sh -c 'ls -l | wc'"),
        (("push", "k", "--", "ls -l"), 1, "-- ls -l"),
    ],
)
def test_what_makes_no_sense_is_refused(service, arguments, status, says):
    assert says in refused(service.invoke(*arguments), status)
    with service.schedules() as schedules:
        assert [*schedules.list()] == []


def test_a_program_whose_path_has_a_blank_is_a_program(service, tmp_path):
    (tmp_path / "my program").write_text("#!/bin/sh\n")
    (tmp_path / "my program").chmod(0o755)
    pushed = service.invoke("push", "k", "--", str(tmp_path / "my program"))
    assert (pushed.exit_code, pushed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("add", "k", "exec", "0 9 * * *", "ls -l"), "psched add k '0 9 * * *' -- ls -l"),
        (("add", "k", "exec", "@daily", "ls|wc"), "psched add k @daily -- sh -c 'ls|wc'"),
        (("add", "k", "exec", "@daily", 'ls "*'), "psched add k @daily -- sh -c 'ls \"*'"),
        (("add", "k", "exec", "@daily", "'my ls' x"), "psched add k @daily -- 'my ls' x"),
        (("add", "a b", "exec", "--every", "5m", "ls"), "psched add 'a b' --every 5m -- ls"),
        (
            ("add", "-t", "Asia/Tokyo", "k", "exec", "@daily", "ls"),
            "psched add -t Asia/Tokyo k @daily -- ls",
        ),
        (("push", "k", "exec", "ls -l"), "psched push k -- ls -l"),
        (("push", "exec", "ls -l"), "psched push -- ls -l"),
    ],
)
def test_a_command_in_place_of_json_is_answered_with_the_line_to_write(service, arguments, answer):
    refusal = refused(service.invoke(*arguments))
    before = shlex.join(["psched", f"--config={service.config}"])  # as it was given
    assert refusal.endswith(f"; to run a command, write: {answer.replace('psched', before, 1)}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "k", "mail", "@daily", "ls -l"),
        ("push", "k", "mail", "ls -l"),
        ("add", "k", "exec", "@daily", '{"command": ["ls"]'),
        ("add", "k", "exec", "@daily", '["ls"]'),
        ("add", "k", "mail", "@nosuch"),
    ],
)
def test_what_is_no_command_is_not_answered_with_one(service, arguments):
    assert "to run a command" not in refused(service.invoke(*arguments))
