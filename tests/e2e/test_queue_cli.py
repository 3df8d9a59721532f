"""The queue on the command line: push, list, show, cancel, requeue, run and configure."""

import json
import os
import re
import signal
import stat
import subprocess
import sys

import pytest
import yaml

from psched.app import make_store, read_config
from psched.base.payload import WRAPPED_IN
from psched.config import from_mapping
from support.programs import lines, run_work, with_work
from support.waiting import wait_until

SECONDS = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture
def queue(service):
    """A service whose tasks are run by a program, ``work.sh``."""
    return with_work(service)


def refused(done, status=1):
    """The line with which a command was refused."""
    assert done.exit_code == status, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.stdout == ""
    return done.stderr.splitlines()[-1]


# --- push ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "type_", "data"),
    [
        (["t1", '{"k": 1}'], "default", {"k": 1}),
        (["t1", "mail", '{"k": 1}'], "mail", {"k": 1}),
        (['t1={"k": "="}'], "default", {"k": "="}),
        (["t1={}"], "default", {}),
    ],
)
def test_a_push_is_key_type_and_data_or_perfectqueues_one_word(queue, words, type_, data):
    pushed = queue.invoke("push", *words)

    assert (pushed.exit_code, pushed.stdout) == (0, "t1: pushed\n")
    seen = queue.row("t1")
    assert (seen.type, seen.data, seen.cron, seen.status) == (type_, data, None, "waiting")


@pytest.mark.parametrize("words", [["t1", "{}"], ["t1=text"]])
def test_a_push_without_type_warns_if_no_handler_is_configured(queue, words):
    queue.configure(dispatch=None)

    pushed = queue.invoke("push", *words)

    assert (pushed.exit_code, pushed.stdout) == (0, "t1: pushed\n")
    assert pushed.stderr == (
        'Warning: t1: no type is given, so the type is "default", and the configuration names no'
        " handler for it (dispatch, exec or script); to give the type of a handler, write: psched"
        " push t1 TYPE DATA\n"
    )
    for more in ["t2", "default", "{}"], ["t3", "mail", "{}"]:
        assert queue.invoke("push", *more).stderr == ""
    queue.configure(exec="true")
    assert queue.invoke("push", "t4", "{}").stderr == ""


def test_a_push_has_settings_of_its_own(queue):
    pushed = queue.invoke(
        *["push", "t1", "{}", "--at", "2030-01-01T00:00Z", "--timeout", "30", "--expire", "60"],
        *["--max-attempts", "3", "--kill-timeout", "1.5", "--retry-wait", "2"],
    )

    assert pushed.exit_code == 0, pushed.output
    row = queue.row("t1").row
    assert (row.next_time, row.next_run_time, row.alive_time) == (1893456000, 1893456000, 30)
    assert json.loads(row.options) == {
        "max_attempts": 3, "expire": 60, "kill_timeout": 1.5, "retry_wait": 2,
    }  # fmt: skip


def test_a_push_takes_durations_with_units(queue):
    pushed = queue.invoke(
        *["push", "t1", "{}", "--timeout", "30s", "--expire", "1h", "--kill-timeout", "1.5s"],
        *["--retry-wait", "2m"],
    )

    assert pushed.exit_code == 0, pushed.output
    row = queue.row("t1").row
    assert row.alive_time == 30
    assert json.loads(row.options) == {"expire": 3600, "kill_timeout": 1.5, "retry_wait": 120}

    slow = queue.invoke("push", "slow", "{}", "--at", "2030-01-01", "--wait", "0.1s")
    assert slow.exit_code == 3
    assert "after 0.1 s" in slow.output
    done = queue.psched("push", "slow", "{}", "--wait", "0.1s", "--json")
    assert done.returncode == 3
    unknown = {"reason": None, "result": None, "run": None}
    assert json.loads(done.stdout) == {"key": "slow", "status": "waiting", **unknown}


@pytest.mark.extended
def test_data_can_come_from_standard_input(queue):
    queue.configure(exec="./work.sh")
    for word in ["t1", "-"], ["t2=-"]:
        done = subprocess.run(
            [*queue.psched_command, "push", *word],
            cwd=queue.folder,
            env=queue.env,
            input='{"k": "ü"}\n'.encode(),
            check=True,
            capture_output=True,
        )
        assert done.stderr == b""

    assert queue.row("t1").data == queue.row("t2").data == {"k": "ü"}


PLAIN = [
    (["t1=hello world"], b"", b"hello world"),
    (["t1=[1,2,3]"], b"", b"[1,2,3]"),
    (["t1="], b"", b""),
    (["t1=" + os.fsdecode(b"\xff\xc3")], b"", b"\xff\xc3"),
    (["t1=-"], b"\0\xff\n", b"\0\xff\n"),
    (["t1", "{no object", "--raw"], b"", b"{no object"),
    (["t1", '{"an": "object"}', "--raw"], b"", b'{"an": "object"}'),
    (["t1", "mail", "-", "--raw"], b"from a file\n", b"from a file\n"),
]


@pytest.mark.parametrize(("words", "given", "payload"), PLAIN)
@pytest.mark.extended
def test_a_payload_need_not_be_json(queue, words, given, payload):
    queue.configure(exec="./work.sh")
    done = subprocess.run(
        [*queue.psched_command, "push", *words],
        cwd=queue.folder,
        env=queue.env,
        input=given,
        check=True,
        capture_output=True,
    )
    assert (done.stdout, done.stderr) == (b"t1: pushed\n", b"")
    assert queue.row("t1").raw_data == payload
    shown = json.loads(queue.invoke("show", "--json", "t1").stdout)
    form = shown["options"]["payload"]
    assert shown["data"].keys() == {WRAPPED_IN[form]}


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["t1"], 2, r"Error: DATA is missing; for a task without data: push t1 '\{\}'"),
        (["t1", "a", "b", "c"], 2, "Error: too many arguments: put quotes around DATA"),
        (
            ["t1", "hello"],
            1,
            r"Error: data: is not JSON: .*; write a JSON object in quotes, such as '",
        ),
        (["t1", "mail"], 1, r"Error: data: .*; for type mail without data: push t1 mail '\{\}'$"),
        (['t1={"k": 1'], 1, r"Error: data: is not JSON: .*; write a JSON object.* or add --raw$"),
        (["t1", "[1]"], 1, "Error: data: must be a JSON object, not list; write a JSON object"),
        (["=1"], 1, "Error: key: must not be empty"),
        (["={}"], 1, "Error: key: must not be empty"),
        (["t1", "", "{}"], 1, "Error: type: must not be empty"),
        (["t1", "{}", "--at", "soon"], 1, "Error: at: 'soon' is no time; write 18:00"),
        (["t1", "{}", "--at", "9" * 15], 1, f"Error: at: '{'9' * 15}' is no time"),
        (["t1", "{}", "--timeout", "-1"], 1, "Error: timeout: must be from 0 to"),
        (
            ["t1", "{}", "--timeout", "1w"],
            2,
            "Error: Invalid value for '--timeout': '1w' is not whole seconds, or a number with",
        ),
        (["t1", "{}", "--wait", "-5"], 2, "Error: Invalid value for '--wait': -5 is less than 0"),
        (["t1", "{}", "--expire", "-1"], 1, "Error: expire: must be a whole number of seconds"),
        (["t1", "{}", "--max-attempts", "-1"], 1, "Error: max_attempts: must be a whole number"),
        (["t1", "{}", "--kill-timeout", "nan"], 1, "Error: kill_timeout: must be a number"),
        (["t1", "{}", "--wait=-1"], 2, "Error: Invalid value for '--wait'"),
    ],
)
def test_a_push_that_makes_no_sense_names_the_field_and_the_mend(queue, words, status, line):
    assert re.match(line, refused(queue.invoke("push", *words), status))
    assert "0 entries" in queue.invoke("list", "--legacy").output


@pytest.mark.extended
def test_push_list_cancel_and_run_can_be_told_which_database_and_table(queue):
    there = ("--database", f"sqlite:///{queue.folder}/there.db", "--table", "tasks")
    settings = {"url": there[1], "table": there[3]}
    make_store(from_mapping(settings)).init()

    def run(*words):
        done = queue.invoke(*words, *there)
        assert done.exit_code == 0, done.output
        return done.stdout

    run("push", "t1", "{}")
    assert "t1" in run("list", "--legacy")
    assert run("cancel", "t1") == "t1: cancelled\n"
    assert run("list", "--legacy", "--status", "cancelled").endswith("1 entries.\n")
    master = run_work(queue, *there)
    assert run("push", "t2", "{}", "--wait", "60") == "t2: finished\n"
    assert master.stop() == 0
    assert "0 entries" in queue.invoke("list", "--legacy").output
    wrong = queue.invoke("list", "--database", "oracle://x/y")
    assert "url: names an unknown kind of database; known are" in refused(wrong)
    assert refused(queue.invoke("list", "--table", "a b")).startswith("Error: table: must be")


def test_a_task_that_is_not_retained_cannot_be_waited_for(queue):
    queue.configure(retention_time=0)
    run_work(queue)

    done = queue.psched("push", "t1", "{}", "--wait")

    assert done.returncode == 3
    assert "has been deleted, so its result is unknown" in done.stderr


def test_a_key_is_pushed_once(queue):
    queue.invoke("push", "t1", '{"k": 1}')

    again = queue.invoke("push", "t1", '{"k": 2}')

    assert refused(again) == "Error: the key 't1' is taken"
    assert queue.row("t1").data == {"k": 1}


def test_waiting_for_a_task_ends_with_its_outcome(queue):
    queue.configure(exec="./work.sh")
    queue.invoke("push", "later", "{}", "--at", "2030-01-01")
    run_work(queue)

    # The word after --wait is its value only if it is a number.
    good = queue.psched("push", "--wait", "good", "{}")
    assert (good.returncode, good.stdout, good.stderr) == (0, "good: finished\n", "")

    (queue.folder / "fail").touch()
    bad = queue.invoke("push", "bad", "{}", "--max-attempts", "1", "--wait", "60")
    assert re.fullmatch(r"Error: bad: failed: .*work.sh exited with status 3", refused(bad))

    # A user who was cut off runs the command again.
    again = queue.invoke("push", "good", "{}", "--wait", "60")
    assert (again.exit_code, again.stdout) == (0, "good: finished\n")
    assert again.stderr == "the key 'good' is taken: waiting for that task\n"

    slow = queue.invoke("push", "slow", "{}", "--at", "2030-01-01", "--wait", "0.1")
    assert refused(slow, 3) == "Error: 'slow' is still waiting after 0.1 s; the task goes on"


def test_who_waits_is_told_of_each_failed_attempt_and_a_command_is_given_up(queue):
    queue.configure(retry_wait=2)
    queue.start()
    command = '{"command": ["sh", "-c", "echo no >&2; exit 3"]}'
    done = queue.psched("push", "--wait", "60", "bad", "exec", command)
    assert (done.returncode, done.stdout) == (1, "")
    first, *failed, last = done.stderr.splitlines()
    assert (
        first == "bad: is given up after 3 failed attempts, because of --wait; see --max-attempts"
    )
    time = r"[0-9-]+ [0-9:]+ [A-Z]+"
    for number, line in enumerate(failed, 1):
        assert re.fullmatch(
            rf"bad: attempt {number} failed: .*status 3.*; the next is at {time}", line
        )
    assert len(failed) == 2
    unnamed = queue.psched("push", "--wait", "0", "--", "true").stderr
    assert re.match(r"exec-\S+: is given up after 3 failed attempts", unnamed)
    assert last.startswith("Error: bad: failed: gave up after 3 attempts: ")

    told = queue.psched("push", "--wait", "--max-attempts", "1", "told", "exec", command)
    assert len(told.stderr.splitlines()) == 1
    queue.invoke("push", "alone", "exec", command)
    assert queue.row("alone").row.options is None


@pytest.mark.extended
def test_who_waits_for_an_extra_run_is_told_of_each_failed_attempt(queue):
    queue.configure(retry_wait=1)
    queue.start()
    queue.add("k", "exec", data={"command": ["false"]}, every="1d", max_attempts=2)
    done = queue.psched("trigger", "k", "--wait")
    assert "attempt 1 failed: " in done.stderr
    assert "see --max-attempts" not in done.stderr


# --- list and show -------------------------------------------------------------------


def test_list_shows_when_a_task_was_created_and_can_be_asked_for_some(queue):
    queue.invoke("push", "t1", "mail", "{}")
    queue.invoke("push", "t2", "{}", "--at", "2030-01-01")
    queue.invoke("push", "t3", "report", "{}")
    queue.invoke("cancel", "t3")

    def keys(*options):
        listed = [
            json.loads(line)
            for line in queue.invoke("list", "--json", *options).stdout.split("\n")[:-1]
        ]
        return [each["key"] for each in listed]

    heading, t1, *_, total = queue.invoke("list", "--legacy").stdout.splitlines()
    assert heading.split()[-3:] == ["next_time", "next_run_time", "data"]
    assert re.fullmatch(rf" +t1 +mail +0 +UTC( +{SECONDS}){{2}}  {{}}", t1)
    assert total == "3 entries."
    assert keys() == ["t1", "t2", "t3"]
    assert keys("--due") == ["t1"]
    assert keys("--status", "cancelled") == ["t3"]
    assert keys("--status", "cancelled", "--status", "waiting", "--type", "mail") == ["t1"]
    assert keys("--type", "default", "--due") == []
    assert "'runing' is not one of 'waiting', 'due', 'failing', 'running'" in refused(
        queue.invoke("list", "--status", "runing"), 2
    )


def test_show_tells_all_that_is_known_a_field_on_each_line(queue):
    queue.invoke("push", "t1", '{"k": "a\\nb"}', "--max-attempts", "3")
    queue.invoke("cancel", "t1")

    shown = dict(
        re.split(": +", line, maxsplit=1) for line in queue.invoke("show", "t1").stdout.splitlines()
    )
    columns = json.loads(queue.invoke("show", "--json", "t1").stdout)

    assert {name: shown[name] for name in ("key", "type", "data", "status", "options")} == {
        "key": "t1", "type": "default", "data": r'{"k":"a\nb"}', "status": "cancelled",
        "options": '{"max_attempts":3}',
    }  # fmt: skip
    for name in "next_time", "created_at", "retain_until":
        assert re.fullmatch(SECONDS, shown[name])
    assert "cron" not in shown
    assert columns["data"] == {"k": "a\nb"}
    assert columns["state"] == "cancelled"
    assert refused(queue.invoke("show", "t2")) == "Error: no schedule has the key 't2'"


# --- cancel and requeue --------------------------------------------------------------


def test_what_is_refused_for_one_key_holds_up_no_other(queue):
    for key in "t1", "t2":
        queue.invoke("push", key, "{}")

    cancelled = queue.invoke("cancel", "t1", "nobody", "t2")
    again = queue.invoke("cancel", "t1")
    requeued = queue.invoke("requeue", "t1", "nobody", "t2", "--at", "2030-01-01")
    waiting = queue.invoke("requeue", "t1")

    assert (cancelled.exit_code, requeued.exit_code) == (1, 1)
    assert cancelled.stdout == "t1: cancelled\nt2: cancelled\n"
    assert cancelled.stderr == "Error: no schedule has the key 'nobody'\n"
    assert refused(again) == "Error: 't1' has ended already: it is cancelled"
    assert requeued.stdout == "t1: requeued\nt2: requeued\n"
    assert queue.row("t1").next_run_time == 1893456000
    assert refused(waiting) == "Error: 't1' has not ended: it is waiting"


# --- run -----------------------------------------------------------------------------


@pytest.mark.extended
def test_a_program_gets_data_and_key_of_tasks_of_every_type_also_after_a_restart(queue):
    queue.configure(exec_type=True)
    queue.configure(dispatch="no.such:Dispatch")  # which the option replaces
    master = run_work(queue, "--retry-wait", "1", "--", "-a", "b c", "--log")
    queue.invoke("push", "t1", '{"k": "ü"}')
    queue.invoke("push", "t2", "mail", "{}")
    queue.wait_for_finish("t1")
    queue.wait_for_finish("t2")

    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    (queue.folder / "fail").touch()
    queue.invoke("push", "t3", "report", "{}")
    queue.wait_for_row("t3", lambda seen: seen.reason)
    (queue.folder / "fail").unlink()
    queue.wait_for_finish("t3")
    # psched's own types keep their meaning.
    queue.add("own", "exec", data={"command": ["touch", "made"]})
    queue.wait_for_finish("own")

    assert sorted(lines(queue, "done")) == [f"-a b c --log t{number}" for number in (1, 2, 3)]
    assert '-a b c --log t1 {"k":"ü"}' in lines(queue, "ran")
    assert (queue.folder / "made").exists()
    assert master.stop() == 0


def test_a_running_program_is_stopped_when_its_task_is_cancelled(queue):
    (queue.folder / "hold").touch()
    run_work(queue)
    queue.invoke("push", "t1", "{}")
    wait_until(lambda: lines(queue, "ran"), what="the program's start")
    assert "1 entries." in queue.invoke("list", "--legacy", "--status", "running").stdout

    cancelled = queue.invoke("cancel", "t1")

    assert cancelled.output == "t1: will be cancelled when its task has stopped\n"
    queue.wait_for_row("t1", lambda seen: seen.status == "cancelled")
    assert lines(queue, "done") == []


def test_a_run_is_stopped_and_its_schedule_goes_on_until_it_is_cancelled(queue):
    (queue.folder / "hold").touch()
    run_work(queue)
    queue.add("s1", every=3600, next_time=0, catchup="latest")
    wait_until(lambda: lines(queue, "ran"), what="the program's start")

    stopped = queue.invoke("stop", "s*", "-m", "it hangs")

    assert stopped.output.splitlines() == [
        "s1: its run is being stopped",
        "1 schedule stopped",
    ]
    queue.wait_for_row("s1", lambda seen: seen.status == "waiting" and seen.row.owner is None)
    assert queue.row("s1").reason.endswith(": it hangs")
    why = queue.invoke("why", "s1").output
    assert "was stopped at " in why
    assert "the next is " in why
    again = queue.invoke("stop", "s1")
    assert again.exit_code == 1
    assert "'s1' does not run now: it is waiting" in again.output
    shown = queue.invoke("cancel", "s1", "--dry-run").output
    assert (
        "s1: would be cancelled; it runs no more until psched requeue, or a new trigger or time\n"
        in shown
    )
    cancelled = queue.invoke("cancel", "s1").output
    assert (
        cancelled
        == "s1: cancelled; it runs no more until psched requeue, or a new trigger or time\n"
    )
    assert queue.invoke("why", "s1").output.endswith(
        "the schedule runs no more until psched requeue, or a new trigger or time.\n"
    )
    assert "runs no more until psched requeue" in queue.invoke("list").output


@pytest.mark.extended
@pytest.mark.parametrize(("said", "lease"), [({}, 600), ({"alive_time": 60}, 60)])
def test_a_worker_for_everything_has_perfectqueues_timeout_unless_it_is_told(queue, said, lease):
    queue.configure(**said)
    (queue.folder / "hold").touch()
    master = run_work(queue)
    queue.invoke("push", "t1", "{}")
    wait_until(lambda: lines(queue, "ran"), what="the program's start")
    row = queue.row("t1").row
    assert lease <= row.next_run_time - row.created_at <= lease + 30
    (queue.folder / "hold").unlink()
    queue.wait_for_finish("t1")
    assert master.stop() == 0


SCRIPT = """
    import sys
    import time
    from pathlib import Path

    import neighbour

    class Run:
        def __init__(self, task):
            self.task = task
            self.stopped = False

        def run(self):
            print("runs", self.task.key, self.task.type, sys.argv[1:], neighbour.WORD, flush=True)
            while self.task.data.get("stay") and not self.stopped:
                time.sleep(0.05)

        def kill(self):
            print("killed", self.task.key, self.task.raw_data, flush=True)
            self.stopped = True
"""


@pytest.mark.extended
def test_a_script_has_a_class_like_perfectqueues_for_tasks_of_every_type(queue):
    queue.write("lib/neighbour.py", "WORD = 'hello'\n")
    queue.write("lib/job.py", SCRIPT)
    master = queue.start(
        *queue.psched_command, "run", "--script", "lib/job.py", "--kill-timeout", 1, "--", "-x"
    )

    queue.invoke("push", "t1", "mail", "{}")
    queue.invoke("push", "t2", '{"stay": 1}')

    queue.wait_for_finish("t1")
    master.wait_for_log(r"""killed t2 b'{"stay":1}'""")
    assert "runs t1 mail ['-x'] hello" in master.text
    assert master.stop() == 0


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        (["--exec", "./no.sh"], 65, "exec: there is no executable program '.*/no.sh'"),
        (["--exec", "work.sh a"], 65, "and its arguments as separate items"),
        (["--script", "no.py"], 65, "there is no file '.*/no.py'"),
        (["--script", "two.py"], 65, "should have one class with run.*, but has One, Two; set"),
        (["--script", "two.py", "--class", "Three"], 65, "script: there is no class 'Three' in"),
        (["--script", "work.sh"], 65, "is not a Python file; its name must end in .py"),
        (["--class", "Run"], 78, "Error: script_class: needs script, the file that it is in"),
        (["--exec", "a", "--script", "b.py"], 2, "Error: --exec and --script cannot both run"),
        (["one:Dispatch", "two:Dispatch"], 2, "Error: only one DISPATCH can route tasks"),
        (["--exec", "./work.sh", "--timeout", 5], 78, "Error: alive_time: must be a whole number"),
        (
            ["--exec", "./work.sh", "--timeout", 60, "--heartbeat-interval", 46],
            78,
            "Error: heartbeat-interval: 46 s is not within three quarters of the timeout of 60 s",
        ),
    ],
)
def test_workers_that_make_no_sense_do_not_start(queue, options, status, text):
    queue.write("two.py", "class One:\n def run(self): 0\nclass Two:\n def run(self): 0\n")

    done = queue.psched("run", *options)

    assert done.returncode == status, done.stderr
    assert re.search(text, done.stderr)


# --- configure -----------------------------------------------------------------------


def test_perfectqueues_short_options_mean_what_they_mean_there(queue):
    queue.write("base.yml", "retry_wait: 9\n")
    done = queue.psched(
        *["configure", "q.yml", "-f", "base.yml", "--script", "job.py", "-C", "Job", "-t", 60],
        *["-b", 30, "-x", 7, "-X", 8, "-i", 2, "-w", 3, "-d", "q.pid", "-o", "q.log", "-v"],
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load((queue.folder / "q.yml").read_text()) == {
        "retry_wait": 9,
        "script": [str(queue.folder / "job.py")],
        "script_class": "Job",
        "alive_time": 60,
        "kill_timeout": 7.0,
        "kill_interval": 8.0,
        "poll_interval": 2.0,
        "processors": 3,
        "pid_file": str(queue.folder / "q.pid"),
        "log": str(queue.folder / "q.log"),
        "log_level": "debug",
    }


def test_options_with_units_are_written_in_seconds(queue):
    done = queue.invoke(
        *["configure", str(queue.folder / "q.yml"), "--exec", "./work.sh", "--timeout", "2m"],
        *[
            "-b",
            "30s",
            "-x",
            "1h",
            "-X",
            "1.5m",
            "-i",
            "2s",
            "--retry-wait",
            "5m",
            "--expire",
            "4d",
        ],
    )

    assert done.exit_code == 0, done.output
    written = yaml.safe_load((queue.folder / "q.yml").read_text())
    durations = {
        "alive_time": 120,
        "kill_timeout": 3600.0,
        "kill_interval": 90.0,
        "poll_interval": 2.0,
        "retry_wait": 300,
        "expire": 345_600,
    }
    assert durations.items() <= written.items()


def test_an_option_that_means_something_else_in_perfectqueue_is_told(queue):
    done = queue.psched("run", "--exec", "./work.sh", "-r", "300")

    assert done.returncode == 2
    assert "-r 300: is --require here; PerfectQueue's -r is --retry-wait 300" in done.stderr


@pytest.mark.extended
def test_what_configure_has_written_runs_from_any_folder(queue):
    written = queue.psched(
        *["configure", "q.yml", "--exec", "./work.sh", "--timeout", 30, "--workers", 2],
        *["--log", "q.log", "--kill-interval", 5, "--", "-x", "${NOTES}"],
    )
    assert (written.returncode, written.stderr) == (0, "")
    queue.invoke("push", "t1", "{}")
    path = queue.folder / "q.yml"
    elsewhere = queue.folder / "elsewhere"
    elsewhere.mkdir()

    settings = read_config(path)
    master = queue.start(
        *["/bin/sh", "-c", 'cd elsewhere; exec "$@"', "sh", sys.executable, "-m", "psched"],
        *["-c", path, "run"],
        log="q.log",
    )
    queue.wait_for_finish("t1")

    assert settings.exec == (str(queue.folder / "work.sh"), "-x", "${NOTES}")
    assert (settings.alive_time, settings.processors, settings.kill_interval) == (30, 2, 5)
    assert lines(queue, "done") == ["-x ${NOTES} t1"]
    assert master.stop() == 0


def test_the_number_of_workers_can_be_left_to_each_host(queue):
    written = queue.psched("configure", "q.yml", "--workers", "auto", "--concurrency", 3)
    assert written.returncode == 0
    path = queue.folder / "q.yml"

    assert yaml.safe_load(path.read_text())["processors"] == "auto"
    workers = min(len(os.sched_getaffinity(0)), 4)
    checked = queue.run(sys.executable, "-m", "psched", "-c", "q.yml", "check")
    assert read_config(path).processors == workers
    assert f"workers: {workers}; slots of each: 3\n" in checked.stdout


def test_configure_takes_over_a_file_as_it_stands_but_for_what_is_said_anew(queue):
    queue.configure(
        url="mysql://u:${PASSWORD}@db/q", dispatch="a:B", types={"mail": {"retry_wait": 7}}
    )
    queue.env["PASSWORD"] = "s3cret"

    done = queue.psched("configure", "q.yml", "--script", "job.py", "--class", "Job")

    assert (done.returncode, done.stderr) == (0, "")
    settings = yaml.safe_load((queue.folder / "q.yml").read_text())
    assert settings["url"] == "mysql://u:${PASSWORD}@db/q"
    assert settings["types"] == {"mail": {"retry_wait": 7}}
    assert settings["script"] == [str(queue.folder / "job.py")]
    assert settings["script_class"] == "Job"
    assert "dispatch" not in settings
    assert settings["alive_time"] == 600


def test_a_zero_is_a_value_as_every_other(queue):
    zeros = {"--kill-timeout": "kill_timeout", "--expire": "expire", "--retry-wait": "retry_wait"}

    done = queue.psched("configure", "q.yml", *(word for name in zeros for word in (name, "0")))

    assert (done.returncode, done.stderr) == (0, "")
    settings = read_config(queue.folder / "q.yml")
    assert {name: getattr(settings, name) for name in zeros.values()} == dict.fromkeys(
        zeros.values(), 0
    )
    for name in ("--timeout", "--workers", "--concurrency", "--poll-interval"):
        assert queue.psched("configure", "no.yml", name, "0").returncode == 1, name


@pytest.mark.extended
def test_configure_keeps_a_password_to_its_owner_and_replaces_nothing_unasked(queue):
    path = queue.folder / "new.yml"

    def configure(*options):
        return queue.run(sys.executable, "-m", "psched", "configure", path.name, *options)

    assert configure("--database", "sqlite://q.db").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert yaml.safe_load(path.read_text()) == {"url": f"sqlite:///{queue.folder}/q.db"}

    again = configure("--database", "mysql://u:p@db/q")
    assert again.returncode == 1
    assert again.stderr == "Error: new.yml exists already; --force replaces it\n"
    assert "mysql" not in path.read_text()

    assert configure("--force", "--database", "mysql://u:p@db/q").returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.safe_load(path.read_text()) == {"url": "mysql://u:p@db/q"}
    assert sorted(each.name for each in queue.folder.glob("*new.yml*")) == ["new.yml"]

    for secret in ("type: redis\npassword: p\n", "type: my:Store\nstore: {token: p}\n"):
        queue.write("base.yml", secret)
        assert configure("--force", "-c", "base.yml").returncode == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    nowhere = queue.invoke("configure", "no/where.yml")
    assert refused(nowhere) == "Error: no/where.yml: cannot be written: No such file or directory"
    odd = queue.invoke("configure", str(queue.folder / os.fsdecode(b"\xf7.yml")))
    assert odd.output.strip().endswith(r"/\udcf7.yml check")
    for options, line in {
        ("--timeout", 5): "Error: alive_time: must be a whole number of seconds from 6",
        ("--heartbeat-interval", 300): "Error: heartbeat-interval: 300 s is not within three",
        ("--database", "oracle://x/y"): "Error: url: names an unknown kind of database",
    }.items():
        refusal = configure("--force", *options)
        assert (refusal.returncode, refusal.stderr.startswith(line)) == (1, True), refusal.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--run", "task.rb"], "psched run --script FILE.py"),
        (["--exec", "./x"], "psched run --exec COMMAND"),
        (["run", "--run", "task.rb"], "psched run --script FILE.py"),
        (["--push", "k=1"], "psched push KEY=DATA"),
        (["--list"], "psched list"),
        (["--cancel", "k"], "psched cancel KEY"),
        (["--configure", "x.yml"], "psched configure PATH"),
        (["--add", "k", "* * * * *", "{}"], "psched add KEY TYPE CRON DATA"),
        (["--delete", "k"], "psched delete KEY"),
        (
            ["--database", "sqlite:///x.db", "--push", "k", "1"],
            "--database: stands after the command",
        ),
        (["list", "-f", "x.yml"], "-f: psched run has it; other commands read -c"),
        (["list", "--daemon", "x"], "--daemon: psched run has it"),
        (["submit", "k", "t", "{}"], "psched push KEY TYPE DATA"),
        (["run", "--simpledb", "domain"], "--url simpledb://REGION --table DOMAIN"),
        (["run", "-e", "400"], "PerfectQueue's -e is --expire 400"),
        (["-e", "400", "list"], "PerfectQueue's -e is --expire 400"),
        (["run", "-r", "60"], "PerfectQueue's -r is --retry-wait 60"),
        (["--lost"], "No such option"),
    ],
)
def test_options_of_the_ancestors_get_a_hint(queue, words, hint):
    failed = queue.invoke(*words)
    assert failed.exit_code == 2
    assert hint in " ".join(failed.stderr.split())


def test_perfectqueues_options_of_a_worker(queue, tmp_path):
    file = tmp_path / "new.yml"
    assert queue.invoke("configure", str(file), "-D", "30m").exit_code == 0
    assert yaml.safe_load(file.read_text())["retention_time"] == 1800
    told = refused(queue.invoke("configure", str(file), "--env", "A=1"), 2)
    assert "--env: is for run and check" in told
    assert "'A' is not NAME=VALUE" in refused(queue.invoke("check", "--env", "A"), 2)
    queue.write("ref.yml", "url: sqlite:///${FOLDER}/x.db\n")
    queue.write("more.yml", "alive_time: 77\nretention_time: 9\n")
    queue.write("most.yml", "retention_time: 8\ntable: jobs\n")
    files = ("-f", "more.yml", "-f", "most.yml")
    assert queue.psched("configure", "all.yml", *files, "--expire", "5").returncode == 0
    written = yaml.safe_load((queue.folder / "all.yml").read_text())
    assert written == {"alive_time": 77, "retention_time": 8, "table": "jobs", "expire": 5}
    files = ("-f", "more.yml", "-f", "ref.yml")
    checked = queue.psched("check", *files, "--env", f"FOLDER={tmp_path}/c")
    assert f"no database at {tmp_path}/c/x.db" in checked.stderr
    checked = queue.psched("check", "-c", "ref.yml", "--env", f"FOLDER={tmp_path}/a=b")
    assert f"no database at {tmp_path}/a=b/x.db" in checked.stderr
