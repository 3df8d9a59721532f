"""The built-in type exec, with real commands."""

import json

import pytest

from psched import ProcessStopError, Task
from psched.handlers.exec import Exec
from psched.process import tree
from support.processes import kill, title
from support.waiting import has_ended, wait_for_end, wait_until

NOTES = 'printf \'%s\\n\' "$0" "$@" >args; cat >stdin; env >environ; pwd >where'


def test_a_command_gets_its_arguments_input_environment_and_folder(each_service):
    service = each_service
    folder = service.folder / "there"
    folder.mkdir()
    data = {
        "command": ["/bin/sh", "-c", NOTES, "zero", "a b", "$HOME", "*"],
        "env": {"COLOUR": "grün", "HOME": "/nowhere"},
        "cwd": "there",
        "append_key": True,
        "data": ["for", "the", "command"],
    }
    service.add("s 1", "exec", data=data)
    master = service.start()

    service.wait_for_finish("s 1")

    assert (folder / "args").read_text() == "zero\na b\n$HOME\n*\ns 1\n"
    assert json.loads((folder / "stdin").read_text()) == data
    assert (folder / "where").read_text() == f"{folder}\n"
    environ = dict(line.split("=", 1) for line in (folder / "environ").read_text().splitlines())
    assert (environ["COLOUR"], environ["HOME"]) == ("grün", "/nowhere")
    assert environ["PATH"] == service.env["PATH"]
    assert environ.pop("PSCHED_MASTER").startswith(f"{master.pid}.")
    assert {name: value for name, value in environ.items() if name.startswith("PSCHED_")} == {
        "PSCHED_KEY": "s 1",
        "PSCHED_SCHEDULE_KEY": "s 1",
        "PSCHED_TYPE": "exec",
        "PSCHED_SCHEDULED_TIME": "1000000000",
        "PSCHED_OCCURRENCE": "s 1.1000000000",
        "PSCHED_ATTEMPT": "1",
        "PSCHED_FENCE": "1",
    }


def test_what_a_command_has_orphaned_is_reaped_while_it_runs(service):
    orphans = "for i in 1 2 3 4 5 6 7 8 9; do (true &) ; done; touch made"
    command = f"{orphans}; until [ -e gate ]; do sleep 0.1; done"
    service.add("s1", "exec", data={"command": command, "shell": True})
    master = service.start()
    wait_until((service.folder / "made").exists, what="the orphans")

    def zombies():
        [runner] = [p for p in master.descendants if title(p).startswith("psched runner: exec")]
        return [child for child in tree.children(runner) if has_ended(child)]

    wait_until(lambda: not zombies(), what="the end of the orphans")
    service.open_gate("gate")
    service.wait_for_finish("s1")
    assert master.stop() == 0


def test_a_command_does_not_outlive_a_runner_that_is_killed(service):
    service.add("s1", "exec", data={"command": ["/bin/sh", "-c", "echo $$ >pid; exec sleep 60"]})
    master = service.start()
    note = service.folder / "pid"
    pid = int(wait_until(lambda: note.exists() and note.read_text(), what="the command"))

    # No worker is left that could kill the program.
    for process in [master.pid, *master.workers()]:
        kill(process)

    wait_for_end(pid)


def test_a_key_that_holds_a_nul_costs_no_process(service):
    with service.sql() as database:
        insert = "insert into psched (id, type, data) values (?, 'exec', ?)"
        database.execute(insert, ("a\0b", '{"command": ["true"]}'))
    master = service.start()

    master.wait_for_log(r"a\\x00b: quarantined: key: .* holds characters that cannot be seen")
    assert "exited with status 70" not in master.text
    assert master.stop() == 0


def test_only_with_shell_is_a_text_given_to_the_shell(service):
    shell = {"command": 'echo "$1 $0 $PSCHED_KEY" >out', "shell": True, "append_key": True}
    service.add("asked", "exec", data=shell)
    for name, data in {
        "text": {"command": "touch no"},
        "list": {"command": ["touch", "no"], "shell": True},
        "nothing": {},
        "empty": {"command": []},
        "numbers": {"command": ["touch", 7]},
        "env": {"command": ["touch", "no"], "env": {"A": 1}},
        "nul": {"command": ["touch", "no\0"]},
        "stdin": {"command": ["touch", "no"], "stdin": ["no text"]},
    }.items():
        service.insert(name, "exec", data=data, retry_wait=600)
    master = service.start()

    service.wait_for_finish("asked")
    master.wait_for_log("failed after", count=8)

    assert (service.folder / "out").read_text() == "asked sh asked\n"
    assert not (service.folder / "no").exists()
    text = service.row("text")
    assert text.status == "waiting"
    assert text.reason == (
        'InvalidError: data: "command" must be a list of texts, such as ["program", "argument"];'
        ' one text needs "shell": true'
    )


def test_a_command_that_fails_is_run_again_and_its_status_is_told(service):
    once = "echo run $PSCHED_ATTEMPT; [ $PSCHED_ATTEMPT != 1 ] || "
    service.add("exits", "exec", data={"command": once + "exit 3", "shell": True})
    service.add("dies", "exec", data={"command": once + "kill -9 $$", "shell": True})
    service.add("missing", "exec", data={"command": ["/no/such/program"]}, retry_wait=600)
    service.add("nowhere", "exec", data={"command": ["true"], "cwd": "/no/where"}, retry_wait=600)
    master = service.start()

    for key in "exits", "dies":
        service.wait_for_finish(key)
    master.wait_for_log("No such file", count=2)

    assert "/bin/sh exited with status 3" in master.text
    assert "/bin/sh was killed by signal 9" in master.text
    # Each has run twice. The fence may be larger: it counts leases, also those that are given back.
    assert [master.text.count(f"run {attempt}\n") for attempt in (1, 2, 3)] == [2, 2, 0]
    assert "/no/such/program" in (service.row("missing").reason or "")
    assert "/no/where" in (service.row("nowhere").reason or "")


def test_a_command_says_which_exit_statuses_count_as_success(service):
    for key, exits, ok in (
        ("one", "exit 1", [0, 1]),
        ("none", "exit 0", [0, 1]),
        ("zero", "exit 0", [3]),
        ("signal", "kill -9 $$", [9, 137]),
    ):
        data = {"command": exits, "shell": True, "ok_exit": ok}
        service.add(key, "exec", data=data, retry_wait=600, max_attempts=9)
    for key, ok in ("empty", []), ("text", "0"), ("truth", [True]), ("large", [256]):
        data = {"command": "true", "shell": True, "ok_exit": ok}
        service.insert(key, "exec", data=data, retry_wait=600, max_attempts=9)
    master = service.start()

    for key in "one", "none":
        assert service.wait_for_finish(key).row.fence == 1
    master.wait_for_log("failed after", count=6)

    assert "exited with status 0" in service.row("zero").reason
    assert "was killed by signal 9" in service.row("signal").reason
    for key in "empty", "text", "truth", "large":
        assert '"ok_exit" must be a list of exit statuses' in service.row(key).reason


def test_a_command_can_have_a_text_for_its_input_in_place_of_the_data(service):
    service.add("said", "exec", data={"command": ["tee", "said"], "stdin": "ü\n"})
    service.add("empty", "exec", data={"command": ["tee", "empty"], "stdin": ""})
    service.start()

    service.wait_for_finish("said")
    service.wait_for_finish("empty")

    assert (service.folder / "said").read_text() == "ü\n"
    assert (service.folder / "empty").read_text() == ""


def test_a_command_that_does_not_read_its_input_finishes_all_the_same(service):
    service.add("deaf", "exec", data={"command": ["true"], "data": "x" * 500_000})
    service.start()

    service.wait_for_finish("deaf")


def test_a_command_starts_with_signals_and_descriptors_as_from_a_shell(service):
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status >sig; ls /proc/self/fd | xargs >fd"
    service.add("s1", "exec", data={"command": script, "shell": True})
    service.start()

    service.wait_for_finish("s1")

    _, blocked, _, ignored = (service.folder / "sig").read_text().split()
    # The C library uses some of the signals from 32 on itself.
    assert int(blocked, 16) & 0x7FFF_FFFF == int(ignored, 16) & 0x7FFF_FFFF == 0
    # With descriptor 3, ls reads the folder.
    assert (service.folder / "fd").read_text() == "0 1 2 3\n"


def test_a_command_that_is_stopped_before_it_is_started_never_is():
    task = {"key": "s1", "type": "exec", "data": '{"command": ["touch", "no"]}', "attempt": 1}
    trigger = {"cron": None, "timezone": "UTC", "delay": 0, "scheduled_time": 0}
    command = Exec(Task({**task, **trigger, "owner": "me", "fence": 1}, None))

    with pytest.raises(ProcessStopError, match="timeout"):
        command.kill("timeout")


def test_a_command_is_gone_at_its_time_limit_with_all_that_it_has_started(service):
    service.configure(graceful_kill_limit=1)
    stubborn = (
        "trap 'echo TERM >>signs' TERM;"
        # A child, and a daemon in a session of its own; both ignore TERM.
        " (trap '' TERM; exec sleep 600) & setsid sh -c \"trap '' TERM; sleep 600\" &"
        " touch started; while :; do sleep 0.1; done"
    )
    service.add(
        "stuck",
        "exec",
        data={"command": stubborn, "shell": True},
        kill_timeout=10,
        retry_wait=600,
    )
    master = service.start()
    wait_until((service.folder / "started").exists, what="the command's start")
    (worker,) = master.workers()
    before = len(master.descendants)

    row = service.wait_for_row("stuck", lambda seen: seen.reason)

    assert before >= 5 + 1 + 3
    assert row.reason == "stopped at its time limit"
    assert (service.folder / "signs").read_text() == "TERM\n"
    # The master, monitor and worker, its collector, its fork server, and an idle runner.
    wait_until(lambda: len(master.descendants) <= 6, what="the end of the command's children")
    assert master.workers() == [worker]


def test_programs_finish_by_their_exit_status_whatever_handlers_must_do(service):
    service.configure(on_return="retry")
    service.add("runs", "exec", data={"command": ["true"]})
    service.add("submits", "push", data={"type": "exec", "data": {"command": ["true"]}})
    service.start()

    for key in "runs", "submits", "submits.1000000000":
        assert service.wait_for_finish(key).row.fence == 1


def test_rows_run_no_program_where_exec_type_is_off(service):
    service.configure(exec_type=False)
    with service.sql() as database:
        insert = "insert into psched (id, type, data) values ('s1', 'exec', ?)"
        database.execute(insert, ('{"command": "touch no", "shell": true}',))
    master = service.start()

    master.wait_for_log(r"s1\.\d+\] failed after .*: exec_type is off: rows of type exec run")

    shown = service.psched("status").stdout
    for told in "rows cannot choose a program: exec_type is off", "rows may call":
        assert told in master.text
        assert told in shown
    assert "Traceback" not in master.text
    row = service.row("s1")
    assert (row.status, row.reason.partition(":")[0]) == ("waiting", "exec_type is off")
    assert not (service.folder / "no").exists()


@pytest.mark.parametrize("kind", ["exec", "script"])
def test_beside_one_handler_for_every_type_rows_run_no_program_unless_that_is_said(service, kind):
    text = "class Run:\n  def __init__(self, task): 0\n  def run(self): 0\n"
    work = service.write("work.py", text)
    service.configure(dispatch=None, **{kind: "true" if kind == "exec" else str(work)})
    service.add("s1", "exec", data={"command": ["touch", "ran"]})
    master = service.start()
    master.wait_for_log("failed after .*: exec_type is off")
    assert not (service.folder / "ran").exists()

    service.configure(exec_type="on")
    master.stop()
    again = service.start()
    service.wait_for_finish("s1")

    again.wait_for_log("rows may run any program as user .*: exec_type is on")
    assert (service.folder / "ran").exists()


def test_with_a_list_rows_run_what_it_names_and_nothing_else(service):
    service.configure(exec_type=["touch", str(service.folder / "./work")])
    service.write("work", '#!/bin/sh\ncat >"$1"\n').chmod(0o755)
    service.write("touch", "#!/bin/sh\n/bin/touch no\n").chmod(0o755)
    allowed = {
        "name": {"command": ["touch", "name"], "env": {}},
        "path": {"command": ["/usr/bin/touch", "path"]},
        "relative": {"command": ["./work"], "append_key": True, "stdin": "said"},
    }
    refused = {
        "shell": {"command": "touch no", "shell": True},
        "other": {"command": ["/bin/sh", "-c", "touch no"]},
        "impostor": {"command": ["./touch", "no"]},
        "path variable": {"command": ["touch", "no"], "env": {"PATH": str(service.folder)}},
        "preload": {"command": ["touch", "no"], "env": {"LD_PRELOAD": "/x.so"}},
        "folder": {"command": ["./work", "no"], "cwd": "/"},
    }
    for key, data in (allowed | refused).items():
        service.add(key, "exec", data=data, retry_wait=600)
    master = service.start()

    for key in allowed:
        service.wait_for_finish(key)
    master.wait_for_log("failed after .*exec_type", count=len(refused))

    assert (service.folder / "name").exists()
    assert (service.folder / "path").exists()
    assert (service.folder / "relative").read_text() == "said"
    assert not (service.folder / "no").exists()
    assert all("exec_type" in service.row(key).reason for key in refused)
