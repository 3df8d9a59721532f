"""Hooks that run programs: commands, and sendmail."""

import email
import json
import os
import subprocess
import sys
import threading
from datetime import UTC
from email import policy
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.config.monitoring import CommandHook, MailHook
from psched.core.alerts.alert import Alert
from psched.notify.mail import send_mail
from psched.notify.notification import DeliveryError, Notification
from psched.notify.program import run_for
from psched.process import kernel, tree
from psched.reports.redaction import Redaction
from support.isolated import isolated
from support.waiting import wait_for_end, wait_until

CLOCK = SystemClock()

ENDLESS = "sleep 100000"


def told(event="raised", *, key="nightly", text="exited with status 1", redact=(), **more):
    return Notification(
        event=event,
        alert=Alert(key=key, rule="failed", since=1_000, text=text, **more),
        installation="psched",
        host="web1",
        redaction=Redaction(redact),
    )


def run(script, *words, notification=None, timeout=60.0):
    hook = CommandHook(command=("/bin/sh", "-c", script, "sh", *words), timeout=timeout)
    run_for(hook, notification or told())


def failure(script, *words, **more):
    with pytest.raises(DeliveryError) as error:
        run(script, *words, **more)
    assert error.value.retry
    return error.value.problem


def pids(folder, number):
    """The pids that a script has written into files, when there are so many."""

    def written():
        found = [each.read_text() for each in folder.glob("pid*")]
        return [*map(int, found)] if len(found) == number and all(found) else None

    return wait_until(written, what="pids")


def test_a_command_gets_the_notification_as_json_and_as_variables(tmp_path):
    notification = told(text="$(touch pwned) `id` \"'", label="team")
    run(
        'cat > "$1/in"; env -0 > "$1/env"; pwd > "$1/pwd"', str(tmp_path), notification=notification
    )
    assert json.loads((tmp_path / "in").read_text()) == notification.body
    variables = dict(
        each.split("=", 1) for each in (tmp_path / "env").read_text().split("\0") if each
    )
    assert {name: variables[f"PSCHED_{name}"] for name in ("EVENT", "RULE", "KEY", "HOST")} == {
        "EVENT": "raised",
        "RULE": "failed",
        "KEY": "nightly",
        "HOST": "",
    }
    assert variables["PSCHED_TEXT"] == "$(touch pwned) `id` \"'"
    assert variables["PSCHED_LABEL"] == "team"
    assert variables["PSCHED_SINCE"] == "1970-01-01T00:00:01.000Z"
    assert (variables["PSCHED_TEST"], variables["PSCHED_ID"]) == ("", notification.id)
    assert variables["PATH"] == os.environ["PATH"]


def test_the_page_names_each_variable(tmp_path):
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text()
    run('env > "$1/env"', str(tmp_path))
    made = {
        line.partition("=")[0]
        for line in (tmp_path / "env").read_text().splitlines()
        if line.startswith("PSCHED_") and line.partition("=")[0] not in os.environ
    }
    assert len(made) == 14
    assert all(f"`{name}`" in page for name in made)


def test_a_command_need_not_read_its_input():
    run("exec <&-; exit 0", notification=told(text="x" * 2000))
    run("exit 0", notification=told(text="x" * 2000, key="k" * 900))


def test_a_command_that_fails_says_how_and_what_it_printed():
    assert failure("echo to out; echo to err >&2; exit 3") == (
        "/bin/sh exited with status 3: to out to err"
    )
    assert failure("kill -9 $$") == "/bin/sh was killed by signal 9"
    long = failure("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 1")
    assert long.endswith("line 19999")
    assert len(long) < 600
    shown = failure(
        r"printf 'a\033[2Jb\n\377 password=s3cret'; exit 1", notification=told(redact=["password"])
    )
    assert shown == "/bin/sh exited with status 1: a\\x1b[2Jb \ufffd password=[redacted]"


@pytest.mark.parametrize(
    ("program", "how"),
    [("/no/such/program", "No such file or directory"), ("/etc/passwd", "Permission denied")],
)
def test_a_command_that_cannot_be_started_is_a_failure(program, how):
    with pytest.raises(DeliveryError) as error:
        run_for(CommandHook(command=(program,)), told())
    assert error.value.problem == f"{program} cannot be started: {how}"
    assert error.value.retry


def test_a_command_has_a_time_limit_and_leaves_nothing(tmp_path):
    script = f"""
        trap '' TERM
        setsid sh -c 'echo $$ > "$0/pid1"; exec {ENDLESS}' "$1" &
        echo $$ > "$1/pid2"
        echo begun
        {ENDLESS}
    """
    assert failure(script, str(tmp_path), timeout=5.0) == (
        "/bin/sh has not ended within 5 s: begun"
    )
    for pid in pids(tmp_path, 2):
        wait_for_end(pid)


def test_what_a_command_leaves_behind_is_killed(tmp_path):
    """Also a daemon, which keeps the output open and has a session of its own."""
    script = f"""
        setsid sh -c 'sh -c "echo \\$\\$ > $0/pid1; exec {ENDLESS}" & exit' "$1"
        while [ ! -s "$1/pid1" ]; do sleep 0.01; done
    """
    run(script, str(tmp_path))
    [pid] = pids(tmp_path, 1)
    wait_for_end(pid)


LIKE_THE_MONITOR = """
import sys
from psched.config.monitoring import CommandHook
from psched.core.alerts.alert import Alert
from psched.notify.program import run_for
from psched.notify.notification import Notification

alert = Alert(key="k", rule="failed", since=1, text="t")
notification = Notification(event="raised", alert=alert, installation="psched", host="web1")
run_for(CommandHook(command=tuple(sys.argv[1:])), notification)
"""


def test_if_the_monitor_dies_so_does_the_command(tmp_path):
    """The guard and the program die; the master kills what the program has started."""
    script = f'echo $$ > "$1/pid1"; echo $PPID > "$1/pid2"; exec {ENDLESS}'
    words = ("/bin/sh", "-c", script, "sh", str(tmp_path))
    monitor = subprocess.Popen([sys.executable, "-c", LIKE_THE_MONITOR, *words])
    found = pids(tmp_path, 2)
    monitor.kill()
    monitor.wait()
    for pid in found:
        wait_for_end(pid)


def leave_processes_to_the_guard():
    """A subreaper above the guard gets whatever the guard does not reap."""
    kernel.adopt_orphans()
    run("for n in 1 2 3; do setsid sleep 100000 & done; exit 0")
    failure(f"setsid sleep 100000 & {ENDLESS}", timeout=0.5)
    return tree.children(os.getpid())


def test_a_guard_leaves_no_zombie():
    assert isolated(leave_processes_to_the_guard) == []


def test_commands_run_in_several_threads_at_the_same_time(tmp_path):
    """Each ends only if the other has begun, and each gets its own end."""
    wait_for_other = 'touch "$1/$2"; while [ ! -e "$1/$3" ]; do sleep 0.01; done; exit $4'
    problems = {}

    def deliver(*words):
        problems[words[0]] = failure(wait_for_other, str(tmp_path), *words)

    threads = [
        threading.Thread(target=deliver, args=words) for words in (("a", "b", "3"), ("b", "a", "4"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == {
        "a": "/bin/sh exited with status 3",
        "b": "/bin/sh exited with status 4",
    }


def test_a_command_leaves_no_descriptor_and_no_child():
    before = {*Path("/proc/self/fd").iterdir()}
    run("exit 0")
    failure("exit 1")
    failure(ENDLESS, timeout=0.1)
    assert {*Path("/proc/self/fd").iterdir()} == before
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [
        each for each in children if "guard.py" in Path(f"/proc/{each}/cmdline").read_text()
    ] == []


# --- mail ----------------------------------------------------------------------------


@pytest.fixture
def sendmail(tmp_path):
    """A program in place of sendmail, which keeps its arguments and its input."""
    program = tmp_path / "sendmail"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\ncat > {tmp_path}/mail\n'
    )
    program.chmod(0o755)
    return program


def mailed(sendmail, notification, **hook):
    hook = MailHook(**{"to": ("ops@example.org", "ann"), "sendmail": sendmail, **hook})
    send_mail(hook, CLOCK, notification)
    raw = (sendmail.parent / "mail").read_bytes()
    assert b"\r" not in raw
    assert raw.isascii()
    return email.message_from_bytes(raw, policy=policy.default)


def test_a_mail_goes_to_the_addresses_of_the_hook(sendmail):
    mail = mailed(sendmail, told(text="exited: ÄÖ 日本"), sender="psched@example.org")
    assert (sendmail.parent / "words").read_text().split() == ["-i", "--", "ops@example.org", "ann"]
    assert (mail["To"], mail["From"]) == ("ops@example.org, ann", "psched@example.org")
    assert mail["Subject"] == "psched: failed: nightly"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert abs(mail["Date"].datetime.replace(tzinfo=UTC).timestamp() - CLOCK.wall()) < 300
    assert mail.get_content().splitlines() == [
        "exited: ÄÖ 日本",
        "",
        "since: 1970-01-01T00:00:01.000Z",
        "installation: psched (told by web1)",
        "to see more: psched why nightly",
    ]


def test_no_text_can_add_a_header_or_end_the_mail(sendmail):
    key = "a\r\nBcc: eve@example.org\r\n\r\nbody\n.\n"
    mail = mailed(sendmail, told(key=key, text=key, type=key, label=key))
    assert {*mail} == {
        *("Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted"),
        *("Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
    }
    assert mail["Subject"].startswith(r"psched: failed: a\r\nBcc: eve@example.org")
    assert "." not in mail.get_content().splitlines()


def test_the_subject_can_be_long_and_in_any_script(sendmail):
    for key in "é" * 150, "日本 " * 40, "x" * 1000:
        subject = mailed(sendmail, told(key=key))["Subject"]
        assert subject.startswith(f"psched: failed: {key[:30]}")
    lines = (sendmail.parent / "mail").read_bytes().splitlines()
    assert max(map(len, lines)) < 998, "the longest line that SMTP allows"


def test_the_mail_of_the_end_is_an_answer_to_that_of_the_beginning(sendmail):
    first = mailed(sendmail, told())
    again = mailed(sendmail, told())
    end = mailed(sendmail, told("closed", closed=5, closed_text="it runs"))
    assert first["Message-ID"] == again["Message-ID"] == end["In-Reply-To"] == end["References"]
    assert end["Message-ID"] != first["Message-ID"]
    assert end["Subject"] == "psched: recovered from failed: nightly"


def test_a_sendmail_that_fails_is_a_failure(sendmail):
    sendmail.write_text("#!/bin/sh\necho queue is full; exit 75\n")
    with pytest.raises(DeliveryError) as error:
        send_mail(MailHook(to=("ann",), sendmail=sendmail), CLOCK, told())
    assert error.value.problem == f"{sendmail} exited with status 75: queue is full"
    assert error.value.retry
