"""support.commands: a command that is forked is like one that an interpreter starts with."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import support
from support.commands import INTERPRETER, can_be_forked, run_psched


def started(arguments, *, cwd, env):
    command = [sys.executable, "-m", "psched", *arguments]
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
    for number, run in enumerate((started, run_psched)):
        folder = tmp_path / str(number) / "service"
        folder.mkdir(parents=True)
        (folder / "psched.yml").write_text("url: sqlite:///psched.db\n")
        if arguments[-1] == "none":
            started(["-c", "psched.yml", "init"], cwd=folder, env=env)
        done = run(arguments, cwd=folder, env=env)
        texts = (text.replace(str(folder), "FOLDER") for text in (done.stdout, done.stderr))
        results.append([done.returncode, *texts])
    assert results[0] == results[1]
    assert results[0][0] == status, results[0]


def test_two_run_at_the_same_time(tmp_path, env):
    done = []
    threads = [
        threading.Thread(
            target=lambda: done.append(run_psched(["--version"], cwd=tmp_path, env=env))
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
    assert can_be_forked(env | change) is possible


FIRST_IN_THREADS = """
import sys, threading
from pathlib import Path
from support.commands import INTERPRETER, run_psched

def run():
    done = run_psched(["--version"], cwd=Path.cwd(), env={**INTERPRETER, "PATH": "/bin"})
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
