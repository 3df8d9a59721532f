"""The tab key in a shell: keys of the database."""

import os
import shlex
import sys

import pytest

pytestmark = pytest.mark.extended

SHELLS = ("bash", "zsh", "fish")


def complete(service, *words, shell="bash", options=True):
    """The values that a shell is offered for the last word."""
    line = ["psched", *(["-c", service.config.name] if options else []), *words]
    service.env |= {
        "_PSCHED_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(line),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(line) - 1),
    }
    done = service.run(sys.executable, "-m", "psched")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.strip("\n").splitlines()
    if shell == "zsh":
        return lines[1::3]
    return [line.partition(",")[2] for line in lines]


@pytest.fixture
def filled(service):
    with service.schedules() as schedules:
        schedules.add_many({"key": key, "cron": "@daily"} for key in ("report.b", "report.a", "x"))
    return service


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("command", ["show", "next", "delete", "cancel", "requeue"])
def test_keys_are_completed(filled, command, shell):
    assert complete(filled, command, "rep", shell=shell) == ["report.a", "report.b"]


def test_the_second_key_and_the_options_that_name_the_database_count(filled):
    assert complete(filled, "delete", "x", "rep") == ["report.a", "report.b"]
    after = ["delete", "-c", filled.config.name, "rep"]
    assert complete(filled, *after, options=False) == ["report.a", "report.b"]
    assert complete(filled, "cancel", "--table", "other", "rep") == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("psched -c psched.yml show ", ["cron:a", "cron:b:1", "cron:b:2", "x@y=z"]),
        ("psched -c psched.yml show cr", ["cron:a", "cron:b:1", "cron:b:2"]),
        ("psched -c psched.yml show cron:", ["a", "b:1", "b:2"]),
        ("psched -c psched.yml delete x@y=z cron:b:", ["1", "2"]),
        ("psched -c psched.yml show x@", ["y=z"]),
        ("psched sho", ["show"]),
        ("psched list --status=quar", ["quarantined"]),
    ],
)
def test_bash_completes_keys_with_the_characters_at_which_it_splits_words(service, typed, offered):
    with service.schedules() as schedules:
        keys = ("cron:a", "cron:b:1", "cron:b:2", "x@y=z")
        schedules.add_many({"key": key, "cron": "@daily"} for key in keys)
    service.write("bin/psched", f'#!/bin/sh\nexec {sys.executable} -m psched "$@"\n').chmod(0o755)
    service.env["PATH"] = f"{service.folder}/bin:{service.env['PATH']}"
    script = service.write(
        "completion.bash",
        f"""
        eval "$(_PSCHED_COMPLETE=bash_source psched)"
        COMP_LINE={shlex.quote(typed + "after the cursor")} COMP_POINT={len(typed)}
        COMP_WORDBREAKS=$' \\t\\n"\\'@><=;|&(:'
        _psched_completion psched
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """,
    )
    done = service.run("bash", "--norc", script)
    assert done.stderr == ""
    assert done.stdout.splitlines() == offered


def test_a_key_that_a_shell_would_interpret_is_not_offered(service):
    dangerous = (
        "k$(reboot)",
        "k`reboot`",
        "k;reboot",
        "k reboot",
        "k*",
        "k'",
        "-k",
        "k\\",
        "k|x",
        "=k",
    )
    with service.schedules() as schedules:
        schedules.add_many({"key": key, "cron": "@daily"} for key in (*dangerous, "k_1", "kü:a@b"))
    assert complete(service, "show", "") == ["k_1", "kü:a@b"]


def test_no_more_than_some_hundred_keys_are_offered(service):
    with service.schedules() as schedules:
        schedules.add_many({"key": f"k{n}", "cron": "@daily"} for n in range(400))
    assert len(complete(service, "show", "k")) == 300


@pytest.mark.parametrize(
    "url", ["sqlite:////none/psched.db", "mysql://u@127.0.0.1:1/d", "nonsense"]
)
def test_if_the_database_cannot_be_read_nothing_is_offered(service, url):
    service.configure(url=url)
    assert complete(service, "show", "k") == []


def test_a_completion_makes_no_database(service):
    made = service.folder / "new.db"
    service.configure(url=f"sqlite:///{made}")
    assert complete(service, "show", "k") == []
    assert not made.exists()


def test_no_code_is_executed_that_the_current_folder_names(service):
    made = service.folder / "executed"
    service.write("evil.py", f"open({str(made)!r}, 'w')")
    service.write("config/psched.yml", "type: evil:Store\nload_path: [.]\n")
    service.env.pop("PSCHED_CONFIG", None)
    assert complete(service, "show", "k", options=False) == []
    assert not made.exists()
    assert complete(service, "-c", "config/psched.yml", "show", "k", options=False) == []
    assert made.exists()  # the user has named the file


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_in_the_current_folder_is_not_used(filled):
    found = filled.write("config/psched.yml", filled.config.read_text())
    filled.env.pop("PSCHED_CONFIG", None)
    assert complete(filled, "show", "rep", options=False) == ["report.a", "report.b"]
    os.chown(found, 4242, 4242)
    assert complete(filled, "show", "rep", options=False) == []
