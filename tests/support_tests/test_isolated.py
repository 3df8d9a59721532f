"""The helper that runs subjects in processes of their own."""

import os
import signal
import subprocess
import threading
import warnings
from pathlib import Path

import pytest

from support.isolated import isolated, say, started_isolated
from support.waiting import wait_for_end


def doubled(number):
    return 2 * number


def test_a_function_runs_apart_with_its_arguments_and_gives_its_result():
    assert isolated(doubled, 21) == 42


def pid_and_threads():
    return os.getpid(), threading.active_count(), len([*Path("/proc/self/task").iterdir()])


def test_it_runs_in_another_process_with_one_thread():
    pid, *threads = isolated(pid_and_threads)
    assert pid != os.getpid()
    assert threads == [1, 1]


def complaint():
    raise ValueError("of the subject")


def test_what_it_raises_is_shown():
    with pytest.raises(AssertionError, match="ValueError: of the subject"):
        isolated(complaint)


def warning():
    warnings.warn("careful", DeprecationWarning, stacklevel=1)


def test_a_warning_in_it_is_an_error():
    with pytest.raises(AssertionError, match="DeprecationWarning: careful"):
        isolated(warning)


def deserted():
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    say("daemon", daemon.pid)
    signal.pause()


def test_what_it_has_started_dies_with_it():
    with started_isolated(deserted) as process:
        daemon = int(process.said("daemon"))
    wait_for_end(process.pid)
    wait_for_end(daemon)
