"""Which changes tell the masters of this host that a row may be due, and which do not."""

import datetime as dt
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

import psched
from psched.app import hint_of
from psched.base.clock import SystemClock
from psched.config.urls import wake_code
from psched.master.waking import WakeSocket
from support.isolated import isolated

FAR = 4_000_000_000
CLOCK = SystemClock()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the masters' sockets."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def master(folder, settings):
    """The socket of a master of this table."""
    made = WakeSocket([folder], CLOCK)
    made.keep(wake_code(settings.url, settings.table))
    yield made
    made.close()


@pytest.fixture
def open_here(folder):
    """A function that opens the schedules as a program does that runs beside the masters."""
    assert os.environ["RUNTIME_DIRECTORY"] == str(folder)
    return psched.open


@pytest.fixture
def here(schedules, settings, open_here):
    """The schedules, with a daily one, a paused one, and an ended task in them."""
    with schedules:
        schedules.add("daily", cron="@daily", next_time=FAR)
        schedules.add("late", next_time=FAR)
        schedules.add("paused")
        schedules.pause("paused")
        schedules.push("over")
        schedules.poll().finish()
    with open_here(settings) as made:
        yield made


def soon():
    return int(CLOCK.wall())


TELLING = {
    "push": lambda it: it.push("k"),
    "push for now": lambda it: it.push("k", run_at=soon()),
    "push for a moment before the next poll": lambda it: it.push("k", run_at=soon() + 1),
    "push_many": lambda it: it.push_many([{"key": "far", "run_at": FAR}, {"key": "k"}]),
    "add": lambda it: it.add("k"),
    "add_many": lambda it: it.add_many([{"key": "k", "cron": "* * * * *", "next_time": soon()}]),
    "modify": lambda it: it.modify("late", next_time=soon()),
    "edit": lambda it: it.edit("late", next_time=soon()),
    "requeue": lambda it: it.requeue("over"),
    "trigger": lambda it: it.trigger("daily"),
    "resume": lambda it: it.resume("paused"),
    "resume of a type": lambda it: (it.pause_type("default"), it.resume_type("default")),
    "select": lambda it: it.select("over", status="finished").requeue(),
}

SILENT = {
    "push for later": lambda it: it.push("k", run_at=FAR),
    "push_many for later": lambda it: it.push_many([{"key": "k", "run_at": FAR}]),
    "add for later": lambda it: it.add("k", cron="@daily", next_time=FAR),
    "modify": lambda it: it.modify("daily", note="n"),
    "requeue for later": lambda it: it.requeue("over", run_at=FAR),
    "trigger for later": lambda it: it.trigger("daily", run_at=FAR),
    "pause": lambda it: it.pause("daily"),
    "pause of a type": lambda it: it.pause_type("default"),
    "cancel": lambda it: it.cancel("daily"),
    "delete": lambda it: it.delete("daily"),
    "reading": lambda it: (it.read("daily"), [*it.list()], len(it), it.next("daily"), it.now()),
    "polling in vain": lambda it: it.poll(),
}


@pytest.mark.parametrize("change", TELLING.values(), ids=TELLING)
def test_a_change_that_may_make_a_row_due_tells_the_masters(here, master, change):
    change(here)
    assert master.take()


@pytest.mark.parametrize("change", SILENT.values(), ids=SILENT)
def test_any_other_change_tells_nobody(here, master, change):
    change(here)
    assert not master.take()


def test_a_task_that_is_given_back_tells_the_masters_and_one_that_has_finished_does_not(
    here, master
):
    here.push("k")
    task = here.poll()
    assert master.take()
    task.release()
    assert master.take()
    here.poll().finish()
    assert not master.take()


def test_a_schedule_that_is_behind_tells_the_masters_when_one_of_its_runs_has_ended(here, master):
    here.add("k", cron="@every 60", next_time=soon() - 600, catchup="all")
    task = here.poll()
    assert master.take()
    task.finish()
    assert master.take()


def test_a_change_that_was_refused_tells_nobody(here, master):
    with pytest.raises(psched.AlreadyExistsError):
        here.push("late")
    assert not master.take()


@pytest.mark.usefixtures("sql")
@pytest.mark.parametrize("pool", [None, NullPool])
def test_a_push_in_the_callers_transaction_tells_the_masters_after_the_commit(
    here, settings, master, pool
):
    here.close()
    engine = create_engine(settings.url, poolclass=pool)
    for key in "k", "l":
        with engine.begin() as mine:
            here.push(key, connection=mine)
            here.push(f"{key}2", connection=mine)
            assert not master.take()
        assert master.take()
    with engine.begin() as mine:
        mine.exec_driver_sql("SELECT 1")
        here.push("later", run_at=FAR, connection=mine)
    assert not master.take()
    engine.dispose()


@pytest.mark.usefixtures("sql")
def test_a_push_in_a_transaction_of_each_of_many_engines_tells_the_masters(here, settings, master):
    # A new engine's pool can be where a deleted one was.
    for number in range(20):
        engine = create_engine(settings.url, poolclass=NullPool)
        with engine.begin() as mine:
            here.push(f"k{number}", connection=mine)
        engine.dispose()
        assert master.take()


@pytest.mark.usefixtures("sql")
def test_a_push_in_a_transaction_of_the_driver_tells_nobody(here, settings, master):
    here.close()
    engine = create_engine(settings.url)
    mine = engine.raw_connection()
    here.push("k", connection=mine.driver_connection)
    mine.commit()
    mine.close()
    engine.dispose()
    assert not master.take()
    assert here["k"].exists()


def told_by_django(url, folder):
    """When the masters are told of pushes with a connection of Django's."""
    import django  # noqa: PLC0415
    from django.conf import settings as django_settings  # noqa: PLC0415
    from django.db import connection, transaction  # noqa: PLC0415

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    django_settings.configure(DATABASES={"default": database})
    django.setup()
    master = WakeSocket([Path(folder)], CLOCK)
    os.environ["RUNTIME_DIRECTORY"] = folder
    told = {}
    with psched.open({"url": url, "dispatch": "jobs:Dispatch"}) as schedules:
        schedules._store.init()
        master.keep(wake_code(url, "psched"))
        with transaction.atomic():
            schedules.push("in a transaction", connection=connection)
            told["before the commit"] = bool(master.take())
        told["after the commit"] = bool(master.take())
        with suppress(RuntimeError), transaction.atomic():
            schedules.push("rolled back", connection=connection)
            raise RuntimeError
        told["after a rollback"] = bool(master.take())
        schedules.push("no transaction", connection=connection)
        told["without a transaction"] = bool(master.take())
        transaction.set_autocommit(False)
        schedules.push("own commit", connection=connection)
        transaction.commit()
        told["after the program's own commit"] = bool(master.take())
        found = sorted(each.key for each in schedules)
    connection.close()
    master.close()
    return [told, found]


@pytest.mark.slow
def test_django_tells_when_it_has_committed(tmp_path):
    told, found = isolated(told_by_django, f"sqlite:///{tmp_path}/psched.db", str(tmp_path))
    assert told == {
        "before the commit": False,
        "after the commit": True,
        "after a rollback": False,
        "without a transaction": True,
        "after the program's own commit": False,
    }
    assert found == ["in a transaction", "no transaction", "own commit"]


def test_with_wake_off_nobody_is_told(settings, schedules, master, open_here):
    off = settings.with_settings(wake="off")
    assert hint_of(off) is None
    with schedules, open_here(off) as here:
        here.push("k")
    assert not master.take()


def test_masters_of_other_tables_are_told_nothing(here, settings, folder, master):
    others = [WakeSocket([folder], CLOCK) for _ in range(2)]
    others[0].keep(wake_code(settings.url, "other"))
    others[1].keep(wake_code("sqlite:////other.db", settings.table))
    here.push("k")
    assert master.take()
    for other in others:
        assert not other.take()
        other.close()


def test_a_collection_that_is_opened_in_another_service_tells_the_masters_of_its_table_only(
    settings, schedules, monkeypatch
):
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/shop")
    # The kernel lists a socket only if its path is short.
    with tempfile.TemporaryDirectory() as short, schedules, psched.open(settings) as elsewhere:
        master, other = (WakeSocket([Path(short)], CLOCK) for _ in range(2))
        master.keep(wake_code(settings.url, settings.table))
        other.keep(wake_code(settings.url, "other"))
        elsewhere.push("k")
        assert master.take()
        assert not other.take()
        master.close()
        other.close()


def test_without_any_master_or_with_a_folder_that_cannot_be_read_a_push_succeeds(
    settings, schedules, folder
):
    Path(folder).write_text("no folder")
    with schedules, psched.open(settings) as here:
        here.push("k", run_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        assert here["k"].exists()
