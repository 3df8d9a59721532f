"""Programs of tasks: run by a program runner, or by a runner where that must do more."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from psched.handlers.exec import Exec
from psched.process import kernel, program_runner, tree
from psched.process.cgroup import Cgroup
from psched.runner.shared_memory import Reason
from support.bench import Bench
from support.cgroups import own_cgroup, populated
from support.isolated import isolated, say, started_isolated
from support.processes import kill, title
from support.waiting import PATIENCE, has_ended, wait_for_end, wait_until

FOREVER = str(1000 * PATIENCE)


class ByRunner(Exec):
    """As if the setting ``exec_type`` listed all programs: then a runner looks whether it is so."""

    allowed = ("/bin/sh", "sh", "/bin/cat", sys.executable)


def bench_with_program_runner(**given):
    """A bench with a program runner that waits."""
    settings = {"output": "both", "kill_interval": 1000, "graceful_kill_limit": 1000, **given}
    bench = Bench({"exec": Exec, "by_runner": ByRunner}, **settings)
    warm(bench)
    return bench


def warm(bench):
    """Have a program run by a runner, because there is no program runner yet; then there is."""
    task = bench.start("exec", command=["true"])
    assert not task.runner.programs
    assert bench.finish(task) == "Finish()"
    bench.until(lambda: bench.pool._idle_programs)


def start(bench, script, *words, **data):
    """Start a script in a program runner."""
    task = bench.start("exec", command=["/bin/sh", "-c", script, "sh", *words], **data)
    assert task.runner.programs
    return task


def printed(bench, script, *words, **data):
    """Run a script in a program runner; what it has printed."""
    task = start(bench, script, *words, **data)
    assert bench.finish(task) == "Finish()"
    return task.output.tail.decode()


def text_of(note):
    """What a program has written into a file, as soon as there is a whole line."""
    path = Path(note)
    return wait_until(
        lambda: path.exists() and (text := path.read_text()).endswith("\n") and text.strip(),
        what=note,
    )


# --- what a program starts with -------------------------------------------------------


def programs_one_after_the_other():
    bench = bench_with_program_runner()
    found = [printed(bench, 'echo "$PPID $PSCHED_KEY $1"', str(number)) for number in range(3)]
    (runner,) = {line.split()[0] for line in found}
    shown = title(int(runner))
    bench.close()
    return [[line.split()[1:] for line in found], shown, has_ended(int(runner))]


def test_one_process_runs_programs_one_after_the_other():
    found = isolated(programs_one_after_the_other)
    assert found == [[["exec", "0"], ["exec", "1"], ["exec", "2"]], "psched runner: idle", True]


STATE = (
    "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | xargs;"
    " set -- $(cat /proc/$$/stat); [ $1 = $6 ] && [ $1 = $5 ] && echo leads"
)


def state_at_the_start():
    # As a library of users may leave a descriptor, and as the service may have been started.
    os.set_inheritable(os.open("/etc/passwd", os.O_RDONLY), True)  # noqa: FBT003  # its parameter has no name
    bench = bench_with_program_runner()
    return printed(bench, STATE)


def test_it_starts_with_signals_descriptors_and_a_session_as_from_a_shell():
    blocked, ignored, descriptors, leads = isolated(state_at_the_start).splitlines()
    for mask in blocked, ignored:
        # The C library uses some of the signals from 32 on itself.
        assert int(mask.split()[1], 16) & 0x7FFF_FFFF == 0
    assert descriptors == "0 1 2 3"  # with descriptor 3, ls reads the folder
    assert leads == "leads"


READS_TWICE = (
    "import os, sys\n"
    "first = sys.stdin.buffer.read()\n"
    "sys.stdin.buffer.seek(0)\n"
    "print(sys.stdin.buffer.read() == first, len(first), first[-4:].decode())\n"
)


def input_read_twice(type_, size):
    bench = bench_with_program_runner()
    task = bench.start(type_, command=[sys.executable, "-c", READS_TWICE], data="x" * size)
    by_program_runner = task.runner.programs
    assert bench.finish(task) == "Finish()"
    return [by_program_runner, *task.output.tail.decode().split()[:3]]


@pytest.mark.parametrize(
    ("type_", "size", "by_program_runner"),
    [("exec", 10, True), ("exec", 2_000_000, False), ("by_runner", 10, False)],
)
def test_it_can_read_its_input_again(type_, size, by_program_runner):
    kind, same, length, end = isolated(input_read_twice, type_, size)
    assert (kind, same, end) == (by_program_runner, "True", 'xx"}')
    assert int(length) > size


def environments():
    os.environ["INHERITED"] = "of the service"
    bench = bench_with_program_runner()
    lines = {}
    for type_ in "exec", "by_runner":
        env = {"MORE": "ü", "PATH": "/usr/bin:/bin"} if type_ == "exec" else {}
        task = bench.start(type_, "k", command=["sh", "-c", "env"], env=env, append_key=True)
        assert bench.finish(task) == "Finish()"
        found = task.output.tail.decode().splitlines()
        lines[type_] = {line for line in found if line.startswith(("PSCHED_", "INHER", "MORE"))}
    lines["by_runner"].discard("PSCHED_TYPE=by_runner")
    return [sorted(lines["exec"] - lines["by_runner"]), sorted(lines["by_runner"] - lines["exec"])]


def test_its_environment_is_that_of_the_service_with_its_own():
    assert isolated(environments) == [["MORE=ü", "PSCHED_TYPE=exec"], []]


def output_thrown_away():
    bench = bench_with_program_runner()
    bench._settings = bench._settings.with_settings(output="none")
    return (
        printed(
            bench, "echo out; echo err >&2; there=$(readlink /proc/$$/fd/1); echo $there >where"
        )
        + Path("where").read_text()
    )


def test_its_output_can_be_thrown_away():
    assert isolated(output_thrown_away) == "/dev/null\n"


def output_after_the_log_was_renamed():
    log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    bench = bench_with_program_runner(log_file="log", output="raw")
    runners = [start_and_finish(bench, "echo before")]
    Path("log").rename("old")
    bench.log.reopen()
    warm(bench)
    runners += [start_and_finish(bench, f"echo after {number}") for number in range(2)]
    texts = [Path(name).read_text() for name in ("old", "log")]
    found = [[line for line in text.splitlines() if "Z" not in line] for text in texts]
    return [*found, runners[0] == runners[1], runners[1] == runners[2]]


def start_and_finish(bench, script):
    task = start(bench, script)
    assert bench.finish(task) == "Finish()"
    return task.runner.pid


def test_what_is_not_collected_follows_the_log():
    assert isolated(output_after_the_log_was_renamed) == [
        ["before"],
        ["after 0", "after 1"],
        False,
        True,
    ]


# --- what ends it ---------------------------------------------------------------------

CASES = {
    "missing": {"command": ["/no/such"]},
    "nowhere": {"command": ["no-such-program"]},
    "folder": {"command": ["true"], "cwd": "/no/where"},
    "file as folder": {"command": ["true"], "cwd": "/etc/passwd"},
    "not executable": {"command": ["/etc/passwd"]},
    "no program": {"command": ["./text"]},
    "too long": {"command": ["true", "x" * 200_000]},
}


class Unlisted(Exec):
    """Run by a runner: it is no class of the built-in type."""

    allowed = ("unused",)

    def __init__(self, task):
        type(self).allowed = True
        super().__init__(task)
        type(self).allowed = ("unused",)


def failures():
    Path("text").write_text("neither a script nor a binary")
    Path("text").chmod(0o755)
    bench = Bench({"exec": Exec, "by_runner": Unlisted}, output="both")
    warm(bench)
    found = []
    for data in CASES.values():
        both = []
        for type_ in "exec", "by_runner":
            size = len(str(data))
            task = bench.start(type_, **data)
            assert task.runner.programs == (type_ == "exec" and size < 1 << 16)
            bench.finish(task)
            both.append([task.attempt.reason, task.attempt.error])
        found.append(both)
    return found


def test_what_cannot_be_executed_is_told_in_the_same_words_whoever_runs_it():
    found = isolated(failures)
    assert [one for one, _ in found] == [other for _, other in found]
    assert [reason for (reason, _), _ in found] == [
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/such'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'no-such-program'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/no/where'",
        "NotADirectoryError: [Errno 20] Not a directory: '/etc/passwd'",
        "PermissionError: [Errno 13] Permission denied: '/etc/passwd'",
        "OSError: [Errno 8] Exec format error: './text'",
        "OSError: [Errno 7] Argument list too long: 'true'",
    ]


def ends():
    bench = bench_with_program_runner()
    found = []
    for script, ok in ("exit 3", [0]), ("exit 3", [0, 3]), ("kill -9 $$", [9, 137]), ("", [3]):
        task = start(bench, script, ok_exit=ok)
        bench.finish(task)
        attempt = task.attempt
        found.append([attempt.reason, attempt.exit_status, attempt.exit_signal])
    return found


def test_its_exit_status_or_signal_is_known():
    assert isolated(ends) == [
        ["/bin/sh exited with status 3", 3, None],
        [None, 3, None],
        ["/bin/sh was killed by signal 9", None, 9],
        ["/bin/sh exited with status 0", 0, None],
    ]


HOGS = "import time; len(bytearray(b'x') * (200 << 20))\nwhile time.process_time() < 0.3: pass"


def usage():
    bench = bench_with_program_runner()
    found = []
    for command in [sys.executable, "-c", HOGS], ["true"]:
        task = bench.start("exec", command=command)
        assert task.runner.programs
        bench.finish(task)
        found.append([task.attempt.cpu_ms, task.attempt.peak_kb])
    return found


def test_what_it_has_used_is_its_own_only():
    (hog_cpu, hog_peak), (cpu, peak) = isolated(usage)
    assert 290 <= hog_cpu < 2000
    assert 200 << 10 < hog_peak < 300 << 10
    assert cpu < 100
    assert peak < 20 << 10


def lack_of_descriptors():
    bench = bench_with_program_runner()
    (runner,) = bench.pool._idle_programs
    before = resource.prlimit(runner.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(runner.pid, resource.RLIMIT_NOFILE, (4, before[1]))
    task = start(bench, "echo ran")
    bench.finish(task)
    lacking = [task.conclusion.wait, task.conclusion.reason, task.output.tail.decode()]
    # Its process may be the one too many, so it ends, and a runner runs the next program.
    wait_until(lambda: has_ended(runner.pid), what="the end of the program runner")
    task = bench.start("exec", command=["echo", "ran"])
    assert not task.runner.programs
    bench.finish(task)
    return [*lacking, task.output.tail.decode()]


def test_a_lack_of_room_costs_no_attempt():
    reason = "no room for a process: [Errno 24] Too many open files"
    assert isolated(lack_of_descriptors) == [1.0, reason, "", "ran\n"]


# --- what it leaves behind ------------------------------------------------------------

DOUBLE_FORK = "(setsid sh -c 'echo $$ >>left; exec sleep {0}' &) ; sleep {0} & echo $! >>left"


def left_behind():
    # What is killed may take as long to die as the machine needs.
    tree._DYING = tree._LONGEST = PATIENCE
    bench = bench_with_program_runner()
    script = DOUBLE_FORK.format(FOREVER) + "; until [ $(wc -l <left) = 2 ]; do :; done"
    task = start(bench, script)
    runner = task.runner
    assert bench.finish(task) == "Finish()"
    assert printed(bench, "echo again") == "again\n"
    return [has_ended(int(pid)) for pid in Path("left").read_text().split()], runner.exit is None


def test_what_it_leaves_behind_is_killed_and_its_runner_used_again():
    assert isolated(left_behind) == [[True, True], True]


ORPHANS = (
    "import os, signal\n"
    "for _ in range(5):\n"
    "    if os.fork() == 0:\n"
    "        os._exit(0 if os.fork() else 0)\n"
    "for _ in range(5): os.wait()\n"
    "print(len(os.listdir('/proc/self/task')), file=open('made', 'w'), flush=True)\n"
    "signal.pause()\n"
)


def orphans_while_it_runs():
    bench = bench_with_program_runner()
    task = bench.start("exec", command=[sys.executable, "-c", ORPHANS])
    runner = task.runner
    assert runner.programs
    text_of("made")
    bench.until(lambda: len(tree.children(runner.pid)) == 1)  # the program
    bench.tasks.stop(task, Reason.SHUTDOWN)
    return bench.finish(task)


def test_its_orphans_are_reaped_while_it_runs_by_another_process():
    assert isolated(orphans_while_it_runs) == "Release()"


# --- how it is stopped ----------------------------------------------------------------

TRAPS = (
    "trap 'echo TERM >>signs; [ $1 ] || { wait; exit 0; }' TERM;"
    " (trap 'echo child >>signs; exit' TERM;"
    f" echo >ready; while :; do sleep 0.01; done) & while :; do sleep 0.01; done # {FOREVER}"
)


def stopped(stubborn):
    bench = bench_with_program_runner(graceful_kill_limit=2 if stubborn else 1000)
    task = start(bench, TRAPS, *stubborn)
    runner = task.runner
    wait_until(Path("ready").exists, what="the child")
    # As `systemctl kill` does, which sends TERM to the program, too.
    kill(runner.pid, signal.SIGTERM)
    for _ in range(5):
        bench.turn()
    early = Path("signs").exists()
    bench.tasks.stop(task, Reason.TIMEOUT)
    conclusion = bench.finish(task)
    return [early, conclusion, sorted(Path("signs").read_text().split()), runner.exit is None]


def test_term_reaches_it_and_its_children_when_the_worker_stops_it_only():
    assert isolated(stopped, []) == [False, "Finish()", ["TERM", "child"], True]


def test_it_is_killed_if_it_does_not_end():
    early, conclusion, signs, _ = isolated(stopped, ["on"])
    assert (early, signs) == (False, ["TERM", "child"])
    assert conclusion == "Retry(wait=None, reason='stopped at its time limit')"


def stopped_by_stop():
    bench = bench_with_program_runner(graceful_kill_limit=1)
    task = start(bench, "kill -STOP $$; echo went on")
    [program] = wait_until(lambda: tree.children(task.runner.pid), what="the program")
    wait_until(lambda: tree.stopped(program), what="its stop")
    bench.tasks.stop(task, Reason.TIMEOUT)
    return [bench.finish(task), task.output.tail.decode(), has_ended(program)]


def test_one_that_stands_still_is_killed():
    reason = "Retry(wait=None, reason='stopped at its time limit')"
    assert isolated(stopped_by_stop) == [reason, "", True]


def stop_that_comes_too_late():
    bench = bench_with_program_runner()
    task = start(bench, "echo >ran")
    wait_until(Path("ran").exists, what="the program")
    wait_until(lambda: title(task.runner.pid) == program_runner.IDLE, what="the program's end")
    task.runner.send(signal.SIGTERM)
    first = bench.finish(task)
    return [first, printed(bench, "sleep 0.1; echo not stopped")]


def test_a_stop_that_comes_too_late_does_not_stop_the_next():
    assert isolated(stop_that_comes_too_late) == ["Finish()", "not stopped\n"]


# --- its cgroup, and its parents' deaths ----------------------------------------------

FORKS_AT_ONCE = (
    "import os, sys\n"
    "child = lambda: os.fork() or os.execlp('sleep', 'sleep', sys.argv[1])\n"
    "pids = [os.getpid(), *(child() for _ in range(5))]\n"
    "print(*{open(f'/proc/{pid}/cgroup').read().split('0::')[1].split()[0] for pid in pids})\n"
)


def all_in_its_cgroup(path):
    cgroup = Cgroup(Path(path))
    bench = bench_with_program_runner(cgroup=cgroup)
    task = bench.start("exec", command=[sys.executable, "-c", FORKS_AT_ONCE, FOREVER])
    assert task.runner.programs
    own = task.runner.cgroup.path.name
    assert bench.finish(task) == "Finish()"
    bench.close()
    cgroup.path.parent.joinpath("cgroup.procs").write_text("0")
    return [own, task.output.tail.decode().split(), task.attempt.cpu_ms is not None]


def test_one_that_forks_at_once_is_wholly_in_its_cgroup():
    with own_cgroup("programs") as group:
        own, found, knows_cpu = isolated(all_in_its_cgroup, str(group))
        assert [Path(path).name for path in found] == [own]
        assert own.startswith("run-")
        assert knows_cpu
        assert not populated(group)


def runs_until_killed():
    kernel.adopt_orphans()  # as a worker does
    bench = bench_with_program_runner()
    task = start(bench, "echo $$ >pid; exec sleep " + FOREVER)
    program = text_of("pid")
    say("program", program, "runner", task.runner.pid, "server", bench.server)
    bench.finish(task)
    say("end", task.attempt.outcome.name, task.conclusion)
    wait_until(Path("never").exists, what="nothing")


@pytest.mark.parametrize("victim", ["runner", "server", "worker"])
def test_it_dies_with_its_runner_the_fork_server_and_the_worker(victim):
    with started_isolated(runs_until_killed) as process:
        words = f"program {process.said('program')}".split()
        pids = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        kill(pids.get(victim, process.pid))
        wait_for_end(pids["program"])
        wait_for_end(pids["runner"])
        if victim != "worker":
            outcome = {"runner": "FAILED", "server": "LOST"}[victim]
            assert process.said("end").startswith(outcome)


def become_of_a_dead_parent():
    """What `start` does in the forked process, whose parent has died before."""
    reader, writer = os.pipe()
    pid = os.fork()  # noqa: TID251  # a child that is not of the one which it is told
    if pid == 0:
        program_runner._become(
            [b"/usr/bin/touch", b"ran"], os.environb, None, [reader, writer], 1, quiet=False
        )
        os._exit(5)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [status, Path("ran").exists()]


def test_it_never_runs_if_its_parent_has_died_before():
    assert isolated(become_of_a_dead_parent) == [5, False]


def test_a_program_runner_ends_if_the_fork_server_has_died_before():
    ours, theirs = socket.socketpair()
    text = Path(program_runner.__file__).read_text()
    command = [sys.executable, "-I", "-S", "-c", text, str(theirs.fileno()), "1", ""]
    with ours, theirs:
        ended = subprocess.run(command, pass_fds=[theirs.fileno()], check=False, timeout=PATIENCE)
        theirs.close()
        assert (ended.returncode, ours.recv(100)) == (0, b"")


# --- where there is none --------------------------------------------------------------


def no_interpreter(path):
    sys.executable = path
    bench = Bench({"exec": Exec}, output="both")
    found = [bench.run("exec", command=["true"])]
    bench.until(lambda: bench.pool._no_programs_before)
    found += [bench.run("exec", command=["true"]) for _ in range(2)]
    return [found, sum(runner.programs for runner in bench.pool._alive.values())]


@pytest.mark.parametrize(
    ("path", "how"),
    [("/bin/false", "exited with status 1"), ("/no/python", "exited with status 70")],
)
def test_runners_run_programs_if_no_program_runner_can_be_started(path, how):
    with started_isolated(no_interpreter, path) as process:
        assert process.result() == [["Finish()"] * 3, 0]
        text = f"runners for programs do not start: one {how}"
        assert process.text.count(text) == 1


def test_a_term_that_comes_when_the_helper_has_told_the_end_changes_no_status(
    tmp_path, monkeypatch
):
    # Root's helper, which starts nothing here.
    path, used = str(tmp_path / "socket"), os.memfd_create("used")
    monkeypatch.setattr(program_runner, "SOCKET", path)
    monkeypatch.setattr(program_runner, "_open_group", lambda: os.open(os.devnull, os.O_WRONLY))
    told, stand_ins = [], []

    def helper():
        connection, _ = listener.accept()
        with connection:
            connection.recv(8)
            connection.recv(1000)
            connection.sendall(b"started\n")
            told.append(connection.recv(1000))
            [pid] = stand_ins
            kill(pid, signal.SIGSTOP)
            stat = Path(f"/proc/{pid}/stat")
            # The name of the process, in brackets, can have blanks.
            wait_until(lambda: ") T " in stat.read_text(), what="its stop")
            connection.sendall(b"exited 3 5 7\n")
        kill(pid, signal.SIGTERM)
        kill(pid, signal.SIGCONT)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=helper)
        thread.start()
        pid = program_runner.start([b"/bin/true"], {}, None, None, user=b"nobody", used=used)
        stand_ins.append(pid)
        kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
        thread.join()
    assert told == [b"T"]
    assert os.waitstatus_to_exitcode(status) == 3
    assert program_runner.usage(used) == (5, 7)
