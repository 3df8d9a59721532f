import subprocess
import sys

import pytest

from support.waiting import has_ended, wait_for_end, wait_for_text, wait_until


def test_waiting_returns_what_the_condition_returned_at_last():
    answers = iter([None, "", 0, "there"])

    assert wait_until(lambda: next(answers), what="an answer") == "there"


def test_waiting_in_vain_says_for_what():
    with pytest.raises(AssertionError, match="in vain for the moon"):
        wait_until(lambda: False, timeout=0.01, what="the moon")


def test_a_condition_is_asked_even_when_there_is_no_time():
    assert wait_until(lambda: True, timeout=0, what="what is there already")


def test_waiting_for_text_returns_all_that_the_file_contains(tmp_path):
    log = tmp_path / "log"
    log.write_text("started\nready\n")

    assert wait_for_text(log, "ready") == "started\nready\n"


def test_a_failure_to_find_text_shows_what_was_there_instead(tmp_path):
    log = tmp_path / "log"
    log.write_text("cannot start: no table\n")

    with pytest.raises(AssertionError, match="'ready'") as failure:
        wait_for_text(log, "ready", timeout=0.01)

    assert "no table" in failure.value.__notes__[0]


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path):
    with pytest.raises(AssertionError, match="in vain"):
        wait_for_text(tmp_path / "log", "ready", timeout=0.01)


def test_a_process_has_ended_when_it_is_dead_even_if_nobody_has_reaped_it():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not has_ended(process.pid)
        process.kill()
        wait_for_end(process.pid)
        assert process.returncode is None
    assert has_ended(process.pid)
