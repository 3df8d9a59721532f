"""Tests of what `psched init` shows while the database works."""

from psched.cli.daemon.init import say_if_slow
from support.waiting import wait_until


def test_only_slow_work_is_explained(capsys):
    shown = ""

    def is_shown():
        nonlocal shown
        shown += capsys.readouterr().err
        return shown == "patience\n"

    with say_if_slow("patience"):
        wait_until(is_shown, what="the text")
    with say_if_slow("patience"):
        pass
    assert capsys.readouterr().err == ""
