"""`psched.testing.run`: a handler runs in the process of its test, with the semantics of a task."""

import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass

import pytest

import psched
from psched.application import Base
from psched.base.errors import (
    AlreadyFinishedError,
    InvalidError,
    LoadError,
    NotSupportedError,
    UnfinishedError,
)
from psched.core.history.records import Outcome
from psched.testing import Schedules, run


def test_a_handler_that_returns_has_finished():
    def handler(task):
        task.progress(50, "rows")
        task.extend()
        task.update_data({**task.data, "done": True})
        task.result = {"rows": 3}
        return "returned"

    ran = run(handler, {"to": "ann"})
    assert ran.outcome == "finished"
    assert (ran.returned, ran.error, ran.wait) == ("returned", None, None)
    assert ran.result == {"rows": 3}
    assert ran.task.data == {"to": "ann", "done": True}
    assert ran.progress == [(50, "rows")]
    assert ran.extensions == 1


@pytest.mark.parametrize(
    ("decide", "outcome", "wait"),
    [
        (lambda task: task.finish(), Outcome.FINISHED, None),
        (lambda task: task.retry(), Outcome.FAILED, None),
        (lambda task: task.retry(30), Outcome.FAILED, 30),
        (lambda task: task.release(), Outcome.RELEASED, None),
    ],
)
def test_a_decision_counts_even_if_the_handler_raises_after_it(decide, outcome, wait):
    def handler(task):
        decide(task)
        if "fail" in task.data:
            raise ValueError("no")

    for data in {}, {"fail": True}:
        ran = run(handler, data, catch_exceptions=True)
        assert (ran.outcome, ran.wait) == (outcome, wait)
        assert isinstance(ran.error, ValueError) == bool(data)


def test_an_exception_is_raised_or_returned():
    def handler():
        raise ValueError("no")

    def leaves():
        sys.exit(3)

    for each, kind in (handler, ValueError), (leaves, SystemExit):
        with pytest.raises(kind):
            run(each)
        ran = run(each, catch_exceptions=True)
        assert (ran.outcome, type(ran.error), ran.returned) == ("failed", kind, None)


class Handler(Base):
    def run(self):
        return self.task.key, self.task.type, self.task.attempt, self.task.scheduled_time


@dataclass
class Report:
    who: str

    def run(self):
        return self.who


def test_whatever_can_be_a_handler_is_run():
    async def waits(task):
        return task.data

    async def waits_for_nothing():
        return 7

    task = {"key": "k", "type": "t", "attempt": 3, "scheduled_time": 12}
    assert run(Handler, **task).returned == ("k", "t", 3, 12)
    assert run(Report("ann")).returned == "ann"
    assert run(lambda: 1).returned == 1
    assert run(waits, {"a": 1}).returned == {"a": 1}
    assert run(waits_for_nothing).returned == 7
    assert run(lambda: waits_for_nothing()).returned == 7  # noqa: PLW0108  # a plain function
    with pytest.raises(LoadError, match="has returned a generator"):
        run(lambda: (number for number in range(3)))
    for wrong in "handler", 7, type("NoRun", (), {}):
        with pytest.raises(LoadError):
            run(wrong)


def test_a_function_of_an_app_gets_the_data_as_arguments():
    app = psched.App(url="sqlite:////nowhere/psched.db")

    @app.task("mail")
    def mail(task, to, subject="Hello"):
        return task.type, to, subject

    assert run(mail, {"to": "ann"}).returned == ("mail", "ann", "Hello")
    assert run(mail, mail.data("ann", subject="Hi")).returned == ("mail", "ann", "Hi")
    with pytest.raises(InvalidError, match="too is not an argument"):
        run(mail, {"too": "ann"})


def test_nothing_is_pushed_to_a_store_that_was_not_given(tmp_path):
    app = psched.App(url=f"sqlite:///{tmp_path}/psched.db")

    @app.task("mail")
    def mail(to): ...

    def pushes():
        mail.push(to="ann")

    def asks(task):
        return task.schedules

    for handler in pushes, asks:
        with pytest.raises(NotSupportedError, match=r"schedules=psched\.testing\.Schedules"):
            run(handler)
    assert [*tmp_path.iterdir()] == []
    with closing(Schedules()) as schedules:
        run(pushes, schedules=schedules)
        assert [each.data for each in schedules.pushed("mail")] == [{"to": "ann"}]


def test_settings_say_what_a_return_means():
    assert run(lambda: 7).result is None
    assert run(lambda: 7, result="return").result == 7
    assert run(lambda: {1, 2}, result="return").result is None
    with pytest.raises(UnfinishedError):
        run(lambda: None, on_return="retry")
    ran = run(lambda: None, on_return="retry", catch_exceptions=True)
    assert (ran.outcome, type(ran.error)) == ("failed", UnfinishedError)
    assert run(lambda task: task.finish(), on_return="retry").outcome == "finished"


def test_wrong_use_of_a_task_is_refused_as_in_a_worker():
    def twice(task):
        task.finish()
        task.release()

    def no_json(task):
        task.result = object()

    def no_object(task):
        task.update_data([1])

    for handler, error in (
        (twice, AlreadyFinishedError),
        (no_json, InvalidError),
        (no_object, InvalidError),
    ):
        with pytest.raises(error):
            run(handler)
    for arguments in {"attempt": 0}, {"attempt": True}, {"scheduled_time": "now"}:
        with pytest.raises(InvalidError):
            run(Handler, **arguments)
    for data in [1], {"a": object()}:
        with pytest.raises(InvalidError):
            run(Handler, data)


@pytest.mark.slow
def test_a_test_of_a_handler_loads_no_tests_of_stores():
    code = (
        "import sys, psched.testing; assert not {m for m in sys.modules if 'sqlalchemy' in m}\n"
        "from psched.testing import run; run(lambda: 1)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True)
    loaded = {*done.stdout.decode().split()}
    assert "psched.testing.handler_runs" in loaded
    assert not loaded & {
        *("pytest", "sqlalchemy", "psched.worker", "psched.master", "psched.stores"),
        *("psched.testing.store_contract", "psched.testing.virtual_schedules"),
    }
