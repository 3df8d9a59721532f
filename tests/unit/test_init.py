"""Tests of what `psched init` shows while the database works."""

from contextlib import nullcontext

from click.testing import CliRunner

from psched.cli.commands import psched
from psched.cli.daemon import init
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


def test_an_empty_database_is_not_said_to_take_minutes(monkeypatch, tmp_path):
    said = []

    def say(text, **_):
        said.append(text)
        return nullcontext()

    monkeypatch.setattr(init, "say_if_slow", say)
    CliRunner().invoke(psched, ["init", "--url", f"sqlite:///{tmp_path}/psched.db"])
    assert said == ["working on psched; the time grows with its rows, see psched init --plan"]
