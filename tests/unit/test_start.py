"""Tests of the arguments of `psched.start`, and of declaring a program's jobs."""

from contextlib import closing
from typing import NamedTuple

import pytest

import psched
from psched import config
from psched.app import make_store
from psched.base.errors import ConfigError, InvalidError, StoreUnavailableError
from psched.core.model import Row
from psched.core.store_protocol import Store
from psched.service.jobs import JobDeclarer, Jobs
from psched.service.program import interpreter_options
from psched.service.start import start
from support.run_records import worker_record
from support.tables import fill_sqlite


@pytest.fixture(autouse=True)
def _a_program(monkeypatch):
    """Make psched treat the process of the tests as a program that can be started again."""
    monkeypatch.setattr("psched.service.program._program", lambda: (True, "program"))


SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""


def test_the_newest_of_missed_occurrences_is_run_unless_the_file_that_is_found_says_else(
    tmp_path, monkeypatch
):
    file = tmp_path / "psched.yml"
    file.write_text("url: memory://\n")
    monkeypatch.setenv("PSCHED_CONFIG", str(file))
    assert start()._jobs.settings.catchup == "latest"
    file.write_text("url: memory://\ncatchup: all\n")
    for given in None, str(file), file, {"catchup": "all"}:
        assert start(given)._jobs.settings.catchup == "all"
    assert start(catchup="skip")._jobs.settings.catchup == "skip"


class OwnStore:
    pass


@pytest.mark.parametrize(
    ("backend", "type_", "url"),
    [
        ("memory", "rdb", "memory:"),
        ("memory:", "rdb", "memory:"),
        ("redis", "redis", "redis://localhost:6379/0"),
        ("redis://db/1", "redis", "redis://db:6379/1"),
        ("sqlite:////tmp/x.db", "rdb", "sqlite:////tmp/x.db"),
        ("stores:Own", "stores:Own", SETTINGS.url),
        (OwnStore, f"{OwnStore.__module__}:OwnStore", SETTINGS.url),
    ],
)
def test_a_backend_is_another_word_for_url_and_type(backend, type_, url):
    settings = start(
        {"url": SETTINGS.url} if ":" in type_ else None, backend=backend
    )._jobs.settings
    assert (settings.type, settings.url) == (type_, url)


def test_a_kind_of_backend_and_its_url_belong_together():
    settings = start(backend="redis", url="redis://db/2")._jobs.settings
    assert (settings.type, settings.url) == ("redis", "redis://db:6379/2")
    settings = start(lambda: {"url": SETTINGS.url, "catchup": "skip"}, backend="rdb")._jobs.settings
    assert (settings.type, settings.url, settings.catchup) == ("rdb", SETTINGS.url, "skip")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"backend": 5}, "backend: must be memory, redis, a url, or a store class of your own"),
        (
            {"backend": OwnStore()},
            "backend: must be memory, redis, a url, or a store class of your own",
        ),
        (
            {"backend": "file"},
            "type: must be rdb, rdb_compat, redis, dynamodb, simpledb, or module:Class",
        ),
        (
            {"backend": "memory", "url": "redis://db"},
            "backend: and url both say where the jobs are stored",
        ),
        (
            {"backend": OwnStore, "type": "rdb"},
            "backend: and type both say where the jobs are stored",
        ),
        ({"backend": "redis", "url": "sqlite:///x.db"}, "type: redis needs a url of the form"),
    ],
)
def test_a_backend_that_is_none_is_refused(given, problem):
    with pytest.raises(ConfigError, match=f"^{problem}"):
        start(**given)


def one_job():
    jobs = Jobs("program", "program", SETTINGS, lambda: NOON)
    jobs.add("job", lambda: None, {"every": 60})
    return jobs


class Away:
    """A store that does not answer."""

    def __init__(self):
        self.requests = 0

    def init(self):
        return ()

    def look(self, _keys):
        self.requests += 1
        raise StoreUnavailableError("away")


@pytest.mark.parametrize("in_file", [True, False])
def test_a_store_that_keeps_no_labels_is_refused_wherever_it_is_named(in_file):
    compat = {"type": "rdb_compat", "url": "sqlite:///unused.db", "table": "schedules"}
    with pytest.raises(ConfigError, match=r"^type: a store of type rdb_compat keeps no"):
        start(compat) if in_file else start({}, **compat)


def test_a_keyword_replaces_a_store_that_keeps_no_labels():
    compat = {"type": "rdb_compat", "url": "sqlite:///unused.db", "table": "schedules"}
    assert start(compat, type="rdb")._jobs.settings.type == "rdb"


@pytest.mark.parametrize("label", ["", "a/b", 3])
def test_a_label_is_a_name_that_cannot_be_taken_for_another_and_a_key(label):
    with pytest.raises(InvalidError, match="label: must"):
        start({"url": "sqlite:///unused.db"}, label=label)


class Taken(Store):
    """A store in which another program adopts a job just before psched removes the job."""

    mine = Row(key="left", label="program")
    taken = Row(key="left", label="other")

    def init(self):
        return ()

    def look(self, keys):
        return {"left": self.taken} if "left" in keys else {}

    def now(self):
        return 0.0

    def add(self, rows, *, nonce):
        pass

    def rows(self, _selection):
        return iter([self.mine])


def test_what_another_program_has_taken_over_meanwhile_is_not_removed():
    list(JobDeclarer(one_job(), prune=True).declare(Taken()))


@pytest.mark.parametrize("prune", [True, False])
def test_the_rows_of_hosts_and_extra_runs_of_a_job_are_no_jobs_that_left(tmp_path, caplog, prune):
    url = fill_sqlite(tmp_path / "psched.db")
    settings = config.from_mapping({"url": url})
    jobs = Jobs("program", "program", settings, lambda: NOON)
    jobs.add("trim", lambda: None, {"every": 60, "each_host": True})
    jobs.add("mail", lambda: None, {"every": 60})
    with psched.open(settings) as schedules:
        store = schedules.access.store
        store.history.beat(worker_record(nonce="web1", host="web1", labels="web1", started=1))
        list(JobDeclarer(jobs, prune=prune).declare(store))
        schedules["trim@web1"].pause()
        rows = ["mail", schedules["mail"].trigger().key, "trim", "trim@web1"]
        list(JobDeclarer(jobs, prune=prune).declare(store))
        assert sorted(each.key for each in schedules.list()) == rows
        assert schedules["trim@web1"].metadata().status == "paused"
    assert "no longer in the program" not in caplog.text


def test_a_store_that_is_away_is_asked_once_so_that_the_worker_goes_on_with_all_else():
    store = Away()
    with pytest.raises(StoreUnavailableError):
        next(JobDeclarer(one_job(), prune=False).declare(store))
    assert store.requests == 1


def test_no_module_takes_its_name():
    assert psched.start is start


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("python prog.py -x", []),
        ("python -m prog -m other", []),
        ("python -mprog", []),
        ("python -B -W ignore -X dev prog.py", ["-B", "-W", "ignore", "-X", "dev"]),
        ("python -Bm prog", ["-B"]),
        ("python -IBmprog -O", ["-IB"]),
        ("python -BWignore -Xdev prog.py", ["-BWignore", "-Xdev"]),
        ("python -BW ignore prog.py", ["-BW", "ignore"]),
        ("python --check-hash-based-pycs always -- -p", ["--check-hash-based-pycs", "always"]),
        ("python -", []),
    ],
)
def test_the_interpreters_options_are_found_in_its_command_line(command, options):
    assert interpreter_options(command.split()) == options


def test_a_program_includes_the_functions_of_an_app_which_pushes_to_its_schedules(tmp_path):
    app = psched.App(url="sqlite:////nowhere/psched.db")

    @app.task("mail")
    def mail(to): ...

    url = f"sqlite:///{tmp_path}/psched.db"
    program = start(url=url)
    program.include(app)
    assert program._jobs.dispatch().find("mail") is mail.handler
    make_store(program._jobs.settings).init()
    with closing(app):
        assert mail.push(to="ann").metadata().data == {"to": "ann"}

    @app.task("early")  # is not added, because of the other one
    def early(): ...

    app.functions = {"early": early, "mail": mail}
    with pytest.raises(InvalidError, match="another job"):
        program.include(app)
    assert program._jobs.dispatch().find("early") is None
    program.add("daily", mail, cron="@daily", data={"to": "ann"})
    assert program._jobs.dispatch().find("program/daily") is mail.handler


def test_a_job_has_the_label_of_its_program():
    with pytest.raises(InvalidError, match=r"^label: .*give it to psched\.start"):
        start(SETTINGS).add("job", print, every=1, label="reports")
    start(SETTINGS).add("job", print, every=1, label=None)


def test_a_decorator_without_parentheses_is_refused():
    with pytest.raises(InvalidError, match=r"^key: must be a text, not function"):

        @start(SETTINGS).task
        def mail(task): ...


class Slotted:
    __slots__ = ("days",)

    def __init__(self, days=7):
        self.days = days

    def run(self): ...


class Extended(Slotted):
    def __init__(self, days=7, name="x"):
        super().__init__(days)
        self.name = name


class Named(NamedTuple):
    days: int = 7

    def run(self): ...


@pytest.mark.parametrize(
    ("job", "parameters"),
    [
        (Slotted(3), {"days": 3}),
        (Extended(3, "y"), {"days": 3, "name": "y"}),
        (Named(3), {"days": 3}),
    ],
)
def test_an_object_is_stored_with_all_its_attributes(job, parameters):
    jobs = Jobs("program", "program", SETTINGS, lambda: NOON)
    jobs.add("job", job, {"every": 3600})
    assert jobs.schedules[0]["data"]["parameters"] == parameters


class Almanac:
    """A trigger that knows the tides of 2027."""

    def next_at(self, after):
        if after < NOON - 14 * 86_400:
            raise LookupError("the table begins in 2027")
        return after + 3600 if after < NOON + 350 * 86_400 else None


def test_a_trigger_that_knows_no_time_long_ago_is_tried_from_now_on():
    settings = SETTINGS.with_settings(triggers=[__name__])
    jobs = Jobs("program", "program", settings, lambda: NOON)
    jobs.add("job", lambda: None, {"trigger": Almanac})
    assert jobs.row(jobs.schedules[0]).next_time == NOON + 3599


def test_a_job_whose_times_have_all_passed_has_a_row_without_times():
    settings = SETTINGS.with_settings(triggers=[__name__])
    jobs = Jobs("program", "program", settings, lambda: NOON + 351 * 86_400)
    jobs.add("job", lambda: None, {"trigger": Almanac})
    assert jobs.row(jobs.schedules[0]).next_time is None


def test_an_unknown_field_of_a_job_is_named_with_the_one_that_was_meant():
    jobs = Jobs("program", "program", SETTINGS, lambda: NOON)
    with pytest.raises(InvalidError, match=r"^evry: .*did you mean every\?$"):
        jobs.add("job", lambda: None, {"evry": 3600})
