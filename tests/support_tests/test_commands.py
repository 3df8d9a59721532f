"""support.commands: a command that is forked is like one that an interpreter starts with."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import support
from support.commands import INTERPRETER, can_be_forked, run_forked
from support.processes import title
from support.service import services
from support.waiting import wait_until

PSCHED = [sys.executable, "-m", "psched"]


def started(command, *, cwd, env):
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def env(tmp_path):
    return {**INTERPRETER, "PATH": "/bin", "HOME": str(tmp_path), "TZ": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--version"], 0),
        (["-c", "none.yml", "list"], 1),
        (["list", "--no-such"], 2),
        (["-c", "psched.yml", "init", "--plan"], 0),
        (["next", "--cron", "0 12 1 1 *", "-s", "2026-01-01T12:00", "-n", "1", "--json"], 0),
        (["-c", "psched.yml", "show", "none"], 1),
    ],
)
def test_it_does_and_says_the_same(tmp_path, env, arguments, status):
    results = []
    for number, run in enumerate((started, run_forked)):
        folder = tmp_path / str(number) / "service"
        folder.mkdir(parents=True)
        (folder / "psched.yml").write_text("url: sqlite:///psched.db\n")
        if arguments[-1] == "none":
            started([*PSCHED, "-c", "psched.yml", "init"], cwd=folder, env=env)
        done = run([*PSCHED, *arguments], cwd=folder, env=env)
        texts = (text.replace(str(folder), "FOLDER") for text in (done.stdout, done.stderr))
        results.append([done.returncode, *texts])
    assert results[0] == results[1]
    assert results[0][0] == status, results[0]


def test_two_run_at_the_same_time(tmp_path, env):
    done = []
    threads = [
        threading.Thread(
            target=lambda: done.append(run_forked([*PSCHED, "--version"], cwd=tmp_path, env=env))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.returncode for each in done] == [0, 0]


@pytest.mark.parametrize(
    ("change", "possible"),
    [
        ({}, True),
        ({"EDITOR": "vi"}, True),
        ({"LD_PRELOAD": "libfaketime.so"}, False),
        ({"PYTHONPATH": "."}, False),
        ({"LC_ALL": "C"}, False),
        ({"LANG": "de_DE"}, False),
    ],
)
def test_what_an_interpreter_reads_at_its_start_prevents_it(env, change, possible):
    assert can_be_forked(PSCHED, env | change) is possible


FIRST_IN_THREADS = """
import sys, threading
from pathlib import Path
from support.commands import INTERPRETER, run_forked

def run():
    command = [sys.executable, "-m", "psched", "--version"]
    done = run_forked(command, cwd=Path.cwd(), env={**INTERPRETER, "PATH": "/bin"})
    print(done.stdout, end="")

threads = [threading.Thread(target=run) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
run()
"""


def test_threads_can_start_the_server_and_it_outlives_them(tmp_path):
    command = [sys.executable, "-c", FIRST_IN_THREADS]
    env = os.environ | {"PYTHONPATH": str(Path(support.__file__).parents[1])}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.count("version") == 3


def as_seen(pid):
    """What the kernel tells of a process that is the same however it was started."""
    status = Path(f"/proc/{pid}/status").read_text()
    names = "SigBlk", "SigIgn", "NoNewPrivs", "Threads"
    files = [Path(f"/proc/{pid}/fd/{number}").readlink().name for number in (0, 1, 2)]
    return [
        *(
            re.search(rf"^{name}(.*)$", status, re.MULTILINE).group(1)[-7:] for name in names
        ),  # no signal above 28
        files,
        os.getpgid(pid) == pid,
    ]


def kinds(master):
    """The beginnings of the titles of its processes: what they do changes."""
    return sorted(
        re.match(r"(psched [a-z ]*[a-z])?", title(pid)).group() for pid in master.descendants
    )


def test_a_master_that_is_forked_is_like_one_that_is_started(tmp_path):
    with services(tmp_path) as make:
        seen = []
        for forked in (False, True):
            service = make(f"sqlite:///{tmp_path}/{forked}.db", monitor=True)
            service.init()
            master = service.start(forked=forked, log="log")
            master.wait_for_monitor()
            assert os.getsid(master.pid) == master.session
            # A runner is idle from some time after the start on.
            wait_until(lambda master=master: "psched runner" in kinds(master), what="a runner")
            seen.append([kinds(master), as_seen(master.pid)])
            assert master.stop() == 0
            assert "Traceback" not in master.text
    assert seen[0] == seen[1]
