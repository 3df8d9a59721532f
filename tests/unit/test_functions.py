"""Functions as tasks: what can be pushed, what is stored, and how a worker calls the function."""

import asyncio
import contextvars
import inspect
import threading
from contextlib import closing
from datetime import UTC, datetime
from typing import ClassVar

import pytest

import psched
import psched.testing
from psched.application import Dispatch
from psched.application.dispatch import running, running_task
from psched.application.function import TaskFunction
from psched.application.task import Task
from psched.base.errors import AlreadyExistsError, ConfigError, InvalidError
from psched.config import from_mapping
from psched.core.columns import parse_options
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.service.jobs import Jobs
from support.tables import fill_sqlite

DEFAULTS = from_mapping({"url": "sqlite:///unused.db"})


@pytest.fixture
def url(tmp_path):
    return fill_sqlite(tmp_path / "psched.db")


@pytest.fixture
def app(url):
    with closing(psched.App(url=url)) as app:
        yield app


def pushed(schedule):
    return schedule.metadata()


def test_a_call_is_pushed_as_data_by_name(app):
    @app.task("mail")
    def mail(to, subject="Hello", *, copies=1, **more):
        """Sends a mail."""
        return [to, subject, copies, more]

    assert pushed(mail.push("ann")).data == {"to": "ann"}
    found = pushed(mail.push("ann", copies=2, urgent=True))
    assert (found.type, found.data) == ("mail", {"to": "ann", "copies": 2, "urgent": True})
    assert mail.data("ann", "Hi") == {"to": "ann", "subject": "Hi"}
    assert mail("ann", copies=3) == ["ann", "Hello", 3, {}]
    assert (mail.__name__, mail.__doc__) == ("mail", "Sends a mail.")
    assert str(inspect.signature(mail)) == "(to, subject='Hello', *, copies=1, **more)"


def test_only_a_function_that_gets_the_task_can_have_to_finish_it(app):
    @app.task("mail")
    def mail(to): ...

    @app.task("careful")
    def careful(task, to): ...

    for function, outcome in {mail: "finished", careful: "failed"}.items():
        ran = psched.testing.run(function, {"to": "ann"}, on_return="retry", catch_exceptions=True)
        assert ran.outcome == outcome


def test_any_name_can_be_that_of_an_argument(app):
    @app.task("hook")
    def hook(**fields):
        return fields

    assert pushed(hook.push(self="x")).data == hook.data(self="x") == hook(self="x")
    assert pushed(hook.options(delay=1).push(self="x")).data == {"self": "x"}


class Recursive(list):
    def __init__(self):
        super().__init__([self])


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "problem"),
    [
        ((), {}, "to", "is missing"),
        ((), {"to": "ann", "too": 1}, "too", "is not an argument"),
        (("ann", "a", "b"), {}, "argument 3", "one too many"),
        (("ann",), {"to": "bob"}, "to", "given twice"),
        (("ann",), {"task": 1}, "task", "leave it out"),
        ((object(),), {}, "to", "JSON"),
        (("ann", datetime(2026, 1, 1, tzinfo=UTC)), {}, "subject", "JSON"),
        ((float("nan"),), {}, "to", "JSON"),
        (("\ud800",), {}, "to", "JSON"),
        ((b"ann",), {}, "to", "JSON"),
        (({"a": [({1: "one"},)]},), {}, "to", "the key 1 is not a text"),
        ((Recursive(),), {}, "to", "JSON"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(app, args, kwargs, field, problem):
    @app.task("mail")
    def mail(task, to, subject="Hello"): ...

    with pytest.raises(InvalidError, match=problem) as caught:
        mail.push(*args, **kwargs)
    assert caught.value.field == field
    assert len(app.schedules) == 0
    assert "task" not in caught.value.problem.partition("mail(")[2]


def test_a_push_has_the_options_of_the_function_and_its_own(app):
    @app.task("mail", max_attempts=3, retry_wait=7)
    def mail(to): ...

    options = mail.options(key="mail-1", max_attempts=4, delay="1m", timeout=99)
    row = pushed(options.push(to="ann")).row
    assert row.key == "mail-1"
    assert row.delay == 60
    assert row.alive_time == 99
    assert row.next_run_time == row.next_time + 60
    assert parse_options(row.options) == {"max_attempts": 4, "retry_wait": 7}
    usual = pushed(mail.push(to="ann")).row
    assert parse_options(usual.options) == {"max_attempts": 3, "retry_wait": 7}
    with pytest.raises(AlreadyExistsError):
        options.push(to="bob")
    with pytest.raises(InvalidError, match="max_attemps"):
        mail.options(max_attemps=3).push(to="ann")
    with pytest.raises(InvalidError, match=r"^run_at: "):
        mail.options(run_at="tomorrow").push(to="ann")
    for name in "type", "data":
        with pytest.raises(InvalidError, match=name):
            mail.options(**{name: "x"})


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_attempt": 1}, "max_attempt"),
        ({"max_attempts": "many"}, "max_attempts"),
        ({"cron": "* * * * *"}, "cron"),
        ({"key": "k"}, "key"),
        ({"run_at": 1}, "run_at"),
        ({"at": 1}, "at"),
        ({"connection": object()}, "connection"),
        ({"data": {}}, "data"),
        ({"timeout": "x"}, "timeout"),
    ],
)
def test_a_wrong_option_is_refused_where_the_function_is_defined(app, options, field):
    with pytest.raises(InvalidError) as caught:
        app.task("mail", **options)
    assert caught.value.field == field


def test_a_function_that_cannot_be_a_task_is_refused(app):
    def positional(to, /): ...

    def starred(*to): ...

    def two(one: Task, two: Task): ...

    def generator():
        yield

    class Mail:
        def run(self): ...

    for wrong in positional, starred, two, generator, Mail, "mail", dict.get:
        with pytest.raises(InvalidError) as caught:
            app.task("mail")(wrong)
        assert caught.value.field == "function"
    app.task("mail")(lambda to: to)
    with pytest.raises(InvalidError, match="another function"):
        app.task("mail")
    with pytest.raises(InvalidError):
        app.task("")


class Held:
    """A lease as far as a handler uses it here."""

    def __init__(self, schedules=None):
        self.schedules = schedules


def task_of(data, schedules=None):
    row = Row(key="k", type="t", next_time=1, owner="o", fence=1, attempt=1)
    values = parse_row(row, DEFAULTS).assignment(row, 1)
    return Task({**values, "data": data}, Held(schedules))


def test_a_worker_calls_the_function_with_the_data(app):
    @app.task("plain")
    def plain(to, subject="Hello"):
        return to, subject

    @app.task("named")
    def named(task, to):
        return task, to

    def annotated(to: str, job: "psched.Task | None" = None, task: int = 0):
        return job, to, task

    def unresolved(job: "psched.Task", to: "psched.OnlyForTypeChecks"):
        return job, to

    app.task("annotated")(annotated)
    app.task("unresolved")(unresolved)

    task = task_of('{"to": "ann"}')
    assert app.find("plain")(task) == ("ann", "Hello")
    assert app.find("named")(task) == (task, "ann")
    assert app.find("annotated")(task) == (task, "ann", 0)
    assert app.find("unresolved")(task) == (task, "ann")
    assert app.find("another") is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("{}", "to is missing: the function is mail(to, *, days=1)"),
        ('{"to": "ann", "until": 2}', "until is not an argument"),
        ('{"to": "ann", "task": 2}', "task is not an argument"),
    ],
)
def test_a_task_whose_data_do_not_match_the_function_fails(app, data, problem):
    called = []

    @app.task("mail")
    def mail(task, to, *, days=1):
        called.append((task, to, days))

    with pytest.raises(InvalidError) as caught:
        app.find("mail")(task_of(data))
    assert caught.value.field == "data"
    assert problem in caught.value.problem
    assert called == []
    assert running_task() is None


def test_a_function_that_a_task_runs_pushes_to_the_schedules_of_the_task(app, tmp_path):
    other = fill_sqlite(tmp_path / "other.db")

    @app.task("follow")
    def follow(number): ...

    @app.task("begin")
    def begin():
        follow.push(number=1)

    with psched.open({"url": other}) as schedules:
        task = task_of("{}", schedules)
        with running(task):
            app.find("begin")(task)
        assert [each.type for each in schedules.list()] == ["follow"]
    assert len(app.schedules) == 0
    follow.push(number=2)
    assert len(app.schedules) == 1


def test_a_coroutine_function_is_called_with_the_data_and_returns_its_coroutine(app):
    async def waits(to):
        return to, running_task()

    function = TaskFunction(app, "waits", waits, {})
    assert asyncio.run(function("ann")) == ("ann", None)
    task = task_of('{"to": "ann"}')
    with running(task):
        assert asyncio.run(function.handler(task)) == ("ann", task)


def test_another_thread_of_a_task_does_not_use_the_connection_of_the_task(app):
    @app.task("threads")
    def threads():
        pushing = threading.Thread(target=contextvars.copy_context().run, args=(push,))
        pushing.start()  # as asyncio.to_thread does
        pushing.join()

    found = []

    def push():
        found.append((running_task(), len(app.schedules)))

    task = task_of("{}")  # it has no schedules
    with running(task):
        app.find("threads")(task)
    assert found == [(None, 0)]


def test_a_function_can_be_in_the_routes_of_a_dispatch(app):
    @app.task("mail")
    def mail(to):
        return to

    class Routes(Dispatch):
        routes: ClassVar = {"other": mail}

    assert Routes().find("other")(task_of('{"to": "ann"}')) == "ann"


def test_the_settings_are_read_when_the_first_task_is_pushed(tmp_path, url):
    app = psched.App(tmp_path / "later.yml")

    @app.task("mail")
    def mail(to): ...

    with pytest.raises(ConfigError):
        mail.push(to="ann")
    (tmp_path / "later.yml").write_text(f"url: {url}\n")
    with closing(app):
        reference = mail.push(to="ann")
        assert reference.exists()


def test_each_thread_has_a_connection_of_its_own_which_ends_with_it(app):
    @app.task("mail")
    def mail(number): ...

    references = [mail.push(number=0)]
    own = {id(app._schedules.current())}

    def push(number):
        references.append(mail.push(number=number))
        assert references[0].exists()  # the reference uses this thread's connection
        own.add(id(app._schedules.current()))

    for round_ in range(3):
        threads = [threading.Thread(target=push, args=(10 * round_ + n,)) for n in range(1, 5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert len(references) == len(app.schedules) == 13
    assert len(own) >= 2
    # Those of ended threads are closed when the next one is opened, and here.
    app.close()
    assert len(app._schedules._opened) == 1


def test_what_stands_for_schedules_acts_like_them(app):
    @app.task("mail")
    def mail(number): ...

    key = mail.push(number=1).key
    assert key.startswith("mail-")
    assert key in app.schedules
    assert [each.key for each in app.schedules] == [key]
    assert app.schedules[key].metadata().data == {"number": 1}
    app.schedules.push_many(
        {"key": f"m{n}", "type": mail.type, "data": mail.data(number=n)} for n in range(3)
    )
    app.schedules.add("daily", mail.type, cron="@daily", data=mail.data(number=9))
    assert len(app.schedules) == 5
    assert app.schedules


def test_hooks_of_an_app_are_those_of_a_program_that_includes_it(app):
    called = []
    assert app.after_fork(called.clear) == called.clear
    app.after_fork(lambda: called.append("after_fork"))
    app.before_exit(lambda: called.append("before_exit"))
    jobs = Jobs("program", "label", DEFAULTS, lambda: 0.0)
    jobs.included.append(app)

    dispatch = jobs.dispatch()
    dispatch.after_fork()
    dispatch.before_exit()

    assert called == ["after_fork", "before_exit"]
