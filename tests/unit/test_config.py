import codecs
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from psched.base import lease_times
from psched.base.errors import ConfigError
from psched.config import SETTINGS, Config, from_mapping, load, read_raw, reader
from psched.config.kinds import EVERYWHERE, Choice, Flag, Networks, Programs, Types
from psched.config.monitoring import PARTS, Expect
from psched.config.reference import json_schema, summary, texts
from psched.config.settings import OF_A_TYPE
from psched.config.urls import Tls, redis_address

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "etc" / "psched.yml.example"
CANARY = "c4n4ry"
COMPAT = {"type": "rdb_compat", "url": "mysql://db/x", "table": "schedules"}


@pytest.fixture
def etc(tmp_path, monkeypatch):
    """The path used in place of /etc/psched/psched.yml, which can exist on this machine."""
    place = tmp_path / "etc" / "psched.yml"
    place.parent.mkdir()
    monkeypatch.setattr(reader, "_USUAL_PLACES", (*reader._USUAL_PLACES[:-1], str(place)))
    return place


@pytest.fixture
def read(tmp_path):
    """Load a configuration file with this content, in a new folder and a given environment."""

    def load_content(content, environment=None, **environ):
        file = tmp_path / "psched.yml"
        file.write_text(content, encoding="utf-8")
        return load(file, environment, environ={"HOME": "/home/ann", **environ}, cwd=tmp_path)

    return load_content


@pytest.fixture
def refusal(read, tmp_path):
    """The text of the error for a file with this content, without the file's name."""

    def load_broken(content, environment=None, **environ):
        with pytest.raises(ConfigError) as caught:
            read(content, environment, **environ)
        lines = str(caught.value).splitlines()
        assert all(line.startswith(f"{tmp_path}/psched.yml:") for line in lines)
        return "\n".join(line.removeprefix(f"{tmp_path}/psched.yml:").strip() for line in lines)

    return load_broken


def take(mapping, **environ):
    return from_mapping(mapping, environ={"HOME": "/home/ann", **environ}, cwd=Path("/cwd"))


def problem(mapping, **environ):
    with pytest.raises(ConfigError) as caught:
        take(mapping, **environ)
    return str(caught.value)


# --- the table of settings -----------------------------------------------------------


def test_defaults_are_those_of_the_documentation():
    assert take({}) == Config(
        type="rdb",
        url="sqlite:////home/ann/.local/state/psched/psched.db",
        table="psched",
        database_timeout=None,
        claim_strategy="auto",
        poll_interval=1.0,
        timezone="UTC",
        alive_time=300,
        retry_wait=300,
        retry_backoff="fixed",
        retry_wait_limit=86_400,
        max_attempts=0,
        expire=4 * 86_400,
        retention_time=10 * 86_400,
        data_limit=16 * 2**20,
        compress_above=64 * 2**10,
        dst_policy="debian",
        catchup="all",
        catchup_limit=1000,
        catchup_grace=60,
        catchup_window=0,
        jitter=0,
        types=Types(),
        processors=min(len(os.sched_getaffinity(0)), 4),
        concurrency=5,
        max_tasks_per_child=1,
        task_signals="any",
        kill_timeout=6000,
        kill_interval=60,
        graceful_kill_limit=150,
        graceful_timeout=300,
        start_timeout=60,
        child_heartbeat_limit=60,
        load_path=(),
        triggers=None,
        require=(),
        dispatch=None,
        log=None,
        log_level="info",
        log_format="text",
        pid_file=None,
    )


def test_every_default_is_accepted_as_a_value():
    defaults = {name: s.default for name, s in SETTINGS.items() if s.default is not None}
    assert take(defaults) == take({})


def test_every_setting_is_explained_where_it_is_declared():
    assert [*texts()] == [*SETTINGS]
    for name in SETTINGS:
        assert re.fullmatch(r"[A-Z].*\.", summary(name)), name


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError):
        take({}).alive_time = 60


def test_a_config_can_be_a_key_as_caches_need():
    assert len({take({}), take({}), take({"table": "other"})}) == 2
    own = {"types": {"report": {"retry_wait": 5}}}
    assert len({take({}), take(own), take(own), take(own).with_settings(retry_wait=1)}) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("poll_interval", 0.05),
        ("poll_interval", 60),
        ("alive_time", lease_times.SHORTEST_ALIVE_TIME),
        ("retry_wait", 0),
        ("retry_backoff", "exponential"),
        ("retry_wait_limit", 0),
        ("max_attempts", 0),
        ("max_attempts", 1),
        ("expire", 0),
        ("retention_time", 0),
        ("data_limit", 1024),
        ("data_limit", 64 * 2**20),
        ("compress_above", 0),
        ("catchup_limit", 1),
        ("catchup_limit", 10_000),
        ("catchup_grace", 0),
        ("catchup_window", 0),
        ("jitter", 0),
        ("jitter", 86_400),
        ("processors", 1000),
        ("concurrency", 1000),
        ("max_tasks_per_child", 1),
        ("kill_timeout", 0),
        ("kill_interval", 0.1),
        ("graceful_kill_limit", 0),
        ("graceful_timeout", 0),
        ("start_timeout", 0.5),
        ("child_heartbeat_limit", 12),
        ("database_timeout", 0.5),
        ("type", "rdb"),
        ("dst_policy", "wallclock"),
        ("catchup", "latest"),
        ("catchup", "skip"),
        ("log_level", "debug"),
        ("log_format", "json"),
        ("timezone", "Europe/Berlin"),
        ("table", "_a1" + "x" * 45),
        ("dispatch", "myapp.schedules:Router.main"),
    ],
)
def test_a_value_at_the_edge_is_accepted(name, value):
    assert getattr(take({name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("poll_interval", 0),
        ("poll_interval", 60.1),
        ("poll_interval", float("nan")),
        ("alive_time", lease_times.SHORTEST_ALIVE_TIME - 1),
        ("retry_wait", -1),
        ("retry_backoff", "linear"),
        ("retry_wait_limit", -1),
        ("max_attempts", -1),
        ("max_attempts", 1.5),
        ("expire", -1),
        ("expire", 10**9 + 1),
        ("retention_time", -1),
        ("data_limit", 1023),
        ("data_limit", 64 * 2**20 + 1),
        ("compress_above", -1),
        ("types", 5),
        ("types", ["report"]),
        ("catchup_limit", 0),
        ("catchup_limit", 100_001),
        ("catchup_grace", -1),
        ("catchup_window", -1),
        ("jitter", -1),
        ("jitter", 1.5),
        ("jitter", 86_401),
        ("processors", 0),
        ("processors", 1001),
        ("concurrency", 0),
        ("max_tasks_per_child", 0),
        ("kill_timeout", -1),
        ("kill_timeout", float("inf")),
        ("kill_timeout", 10**400),
        ("kill_interval", 0),
        ("graceful_kill_limit", -0.1),
        ("graceful_timeout", -1),
        ("start_timeout", 0),
        ("child_heartbeat_limit", 11.9),
        ("database_timeout", 0),
        ("dst_policy", "vixie"),
        ("catchup", "none"),
        ("log_level", "INFO"),
        ("log_format", "logfmt"),
        ("timezone", "Europe/Atlantis"),
        ("timezone", "Europe"),
        ("timezone", "../../etc/localtime"),
        ("table", "1st"),
        ("table", "a-b"),
        ("table", "x" * 49),
        ("table", "psched\n"),
        ("dispatch", "myapp.schedules"),
        ("dispatch", "myapp/schedules.py:Dispatch"),
        ("log", ""),
        ("log", "a\0b"),
    ],
)
def test_a_value_past_the_edge_is_refused_by_name(name, value):
    assert problem({name: value}).startswith(f"{name}: ")


def test_a_refused_number_is_told_its_bounds():
    assert problem({"poll_interval": 90}) == (
        "poll_interval: must be a number of seconds above 0 and up to 60"
        " (or with a unit: 30s, 5m, 1h, 30d)"
    )
    assert problem({"processors": 0}) == (
        "processors: must be a whole number of processes from 1 to 1000, or auto"
    )


def test_a_refused_word_is_told_the_words_there_are():
    known = "rdb, rdb_compat, redis, dynamodb, simpledb"
    known += ", or module:Class, the import path of a store of your own"
    assert problem({"type": "rdbms"}) == f"type: must be {known}"
    assert problem({"catchup": "some"}) == "catchup: must be all, latest or skip"


def test_whole_numbers_are_taken_where_fractions_are_allowed():
    config = take({"poll_interval": 2})
    assert (config.poll_interval, type(config.poll_interval)) == (2.0, float)


def test_a_fraction_is_refused_where_only_whole_seconds_make_sense():
    assert problem({"alive_time": 7.5}) == (
        "alive_time: must be a whole number of seconds from 6 to 1000000000"
        " (or with a unit: 30s, 5m, 1h, 30d)"
    )
    assert isinstance(take({"alive_time": 60.0}).alive_time, int)


BESIDE = {
    "claim_strategy: skip_locked": "url: postgresql://db/x",
    "ssl_verify: full": "url: mysql://db/x\nssl_ca: ca.pem",
    "ssl_verify: ca": "url: mysql://db/x\nssl_ca: ca.pem",
    "ssl_verify: none": "url: mysql://db/x",
    "wake: notify": "url: redis://h",
}
"""What must stand beside a value of a setting."""


def words():
    """Each word that is a value of a setting: the setting, the word, and what it means."""
    switches = {"on": True, "off": False}
    for name, setting in SETTINGS.items():
        match setting.kind:
            case Choice():
                yield from ((name, word, word) for word in setting.kind.words)
            case Flag():
                yield from ((name, word, value) for word, value in switches.items())
                yield from ((name, word, word == "true") for word in ("true", "false"))
            case Programs():
                yield from ((name, word, value) for word, value in switches.items())
            case Networks():
                yield name, "on", EVERYWHERE
                yield name, "off", ()
            case Expect():
                yield name, "off", dict.fromkeys(PARTS)
    yield "ping", "none", "none"
    yield "processors", "auto", take({}).processors
    yield from (("type", word, word) for word in ("rdb", "own:Store"))


def test_perfectscheds_table_has_perfectscheds_defaults():
    """A handler that returns without finish, and one that raises, keep the lease there."""
    settings = take({**COMPAT, "alive_time": 77})
    assert (settings.on_return, settings.retry_wait) == ("retry", 77)
    assert take(COMPAT).retry_wait == 300
    chosen = take({**COMPAT, "on_return": "finish", "retry_wait": 5})
    assert (chosen.on_return, chosen.retry_wait) == ("finish", 5)
    # A script is PerfectQueue's, where a return is a success.
    assert take({**COMPAT, "script": "run.py"}).on_return == "finish"
    assert settings.with_settings(alive_time=60).on_return == "retry"
    assert (take({}).on_return, take({"alive_time": 77}).retry_wait) == ("finish", 300)


@pytest.mark.parametrize(("name", "word", "value"), [*words()])
def test_every_word_of_a_setting_can_be_written_without_quotes(read, tmp_path, name, word, value):
    (tmp_path / "ca.pem").write_text("PEM")
    written = f"{name}: {word}\n"
    if name in OF_A_TYPE:
        assert read(f"types: {{report: {{{name}: {word}}}}}\n").types["report"][name] == value
    assert getattr(read(written + BESIDE.get(written.strip(), "")), name) == value


def test_every_word_of_a_setting_is_documented():
    for name, setting in SETTINGS.items():
        if isinstance(setting.kind, Choice):
            assert {*setting.kind.words} <= {*re.findall(r"\w+", texts()[name])}, name


TEXTS = (
    *("table: V", "password: V", "timezone: V", "dispatch: V", "log: V", "path: V", "ssl_ca: V"),
    *("ping: V", "type: V", "url: V", "load_path: V", "require: [a, V]", "only: [a, V]"),
    *("redact: [V]", "exec: V", "exec_type: [V]", "triggers: V", "on_failed: V", "host: V"),
    *("pings: {a: V}", "hooks: {a: {mail: V}}", "hooks: {a: {webhook: V}}", "metrics: V"),
    "hooks: {a: {webhook: https://h, headers: {a: V}}}",
)


@pytest.mark.parametrize("written", TEXTS)
def test_what_is_no_text_for_yaml_is_told_to_be_put_in_quotes(refusal, written):
    for value in ("yes", "Off", "true", "12", "1.5", "2020-01-02"):
        assert "; put text in quotes" in refusal(written.replace("V", value) + "\n")


@pytest.mark.parametrize(
    "value", ["0660", "-010", "00", "1:30", "1:30:00", "1" + ":59" * 1000 + ".5"]
)
def test_a_number_that_yaml_reads_in_another_base_is_refused(refusal, value):
    for name in ("kill_timeout", "processors", "port", "password"):
        text = refusal(f"{name}: {value}\n")
        assert text.startswith(f"1: {name}: a number in base 8 or 60; write it in base 10")
    text = refusal(f"types: {{report: {{retry_wait: {value}}}}}\n")
    assert text.startswith("1: retry_wait: a number in base 8 or 60")


@pytest.mark.parametrize("data", ["{at: 2020-01-02}", "{on: 1}", "{a: {5: 1}}", "{a: .nan}"])
@pytest.mark.parametrize("section", ["", "development:\n  "])
def test_data_of_a_hook_that_json_cannot_hold_are_refused(refusal, section, data):
    text = refusal(f"{section}hooks: {{a: {{task: t, data: {data}}}}}\n")
    assert text.endswith("in quotes")


def test_true_is_not_a_number():
    assert problem({"processors": True}).endswith(", not true or false")


def test_text_is_not_a_number():
    assert problem({"poll_interval": "5"}).endswith(", not text")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "nothing"),
        (5, "a number; put text in quotes"),
        (["psched"], "a list"),
        ({"name": "psched"}, "a mapping"),
        (b"psched", "a bytes; put text in quotes"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_what_it_is(value, found):
    assert problem({"table": value}).endswith(f", not {found}")


@pytest.mark.parametrize("name", ["database_timeout", "dispatch", "log", "pid_file"])
def test_null_is_the_default_of_a_setting_that_may_have_no_value(name):
    assert getattr(take({name: None}), name) is None


def test_a_url_that_was_left_empty_does_not_become_the_default_database(refusal):
    assert refusal("url:\n").startswith("1: url: must be a url such as mysql://")


def test_lists_may_be_a_single_text_or_empty(read):
    assert read("require: myapp.schedules\n").require == ("myapp.schedules",)
    assert read("require: [a, b.c]\n").require == ("a", "b.c")
    assert read("require:\n").require == ()


def test_triggers_are_modules_and_none_is_not_the_default(read, refusal):
    assert read("triggers:\n").triggers is None
    assert read("triggers: []\n").triggers == ()
    assert read("triggers: [myapp.triggers, tides]\n").triggers == ("myapp.triggers", "tides")
    for wrong in ("myapp.", "my-app", "tides.py", "myapp:Tides", "5"):
        assert "the name of a module" in refusal(f"triggers: {wrong}\n")


def test_an_item_of_a_list_that_is_not_text_is_refused(refusal):
    assert refusal("require: [myapp, 5]\n").endswith("not a number; put text in quotes")


def test_paths_are_made_absolute():
    config = take(
        {
            "load_path": ["lib", "/opt/lib"],
            "require": ["handlers.py", "myapp.schedules", "/opt/h.py"],
            "log": "log/psched.log",
            "pid_file": Path("psched.pid"),
        }
    )
    assert config.load_path == ("/cwd/lib", "/opt/lib")
    assert config.require == ("/cwd/handlers.py", "myapp.schedules", "/opt/h.py")
    assert config.log == Path("/cwd/log/psched.log")
    assert config.pid_file == Path("/cwd/psched.pid")


@pytest.fixture
def link(tmp_path, monkeypatch):
    """A link to the current folder, by which the user has entered it."""
    (tmp_path / "r1").mkdir()
    (tmp_path / "r2").mkdir()
    link = tmp_path / "current"
    link.symlink_to("r1")
    monkeypatch.chdir(link)
    monkeypatch.setenv("PWD", str(link))
    return link


def test_relative_paths_start_from_the_current_folder_as_its_user_has_named_it(link, monkeypatch):
    (link / "p.yml").write_text("url: sqlite:///x.db\nload_path: lib\nlog: log\nexec: ./run\n")

    config = load("p.yml")

    assert config.origin == link / "p.yml"
    assert (config.url, config.log) == (f"sqlite:///{link}/x.db", link / "log")
    assert (config.load_path, config.exec) == ((f"{link}/lib",), (f"{link}/run",))
    assert config.with_settings(pid_file="pid").pid_file == link / "pid"
    # The link leads elsewhere now, and other values of the variable were never right.
    link.unlink()
    link.symlink_to("r2")
    for wrong in (str(link), ".", "", "/no/such/folder"):
        monkeypatch.setenv("PWD", wrong)
        assert load("p.yml").log == link.parent / "r1/log"
    monkeypatch.delenv("PWD")
    assert load("p.yml").log == link.parent / "r1/log"


def test_a_deleted_current_folder_is_named_where_it_is_needed_and_else_does_not_matter(
    link, monkeypatch, tmp_path
):
    (tmp_path / "p.yml").write_text("url: sqlite:////x.db\nload_path: /lib\n")
    (link / "config").mkdir()
    (link / "config").rmdir()
    (tmp_path / "r1").rmdir()

    config = load(tmp_path / "p.yml")

    assert config.load_path == ("/lib",)
    assert config.with_settings(retry_wait=5).retry_wait == 5
    monkeypatch.setenv("PSCHED_CONFIG", "p.yml")
    for refused in (
        lambda: load("p.yml"),
        load,
        lambda: from_mapping({"url": "memory:", "load_path": "lib"}),
        lambda: from_mapping({"url": "sqlite:///x.db"}),
        lambda: config.with_settings(log="log"),
    ):
        with pytest.raises(ConfigError, match=f"but the current folder {tmp_path}/r1 was deleted"):
            refused()


# --- combinations --------------------------------------------------------------------


@pytest.mark.parametrize("alive_time", [6, 7, 12, 37, 38, 300, 86_400])
def test_the_derived_driver_timeout_fits_every_lease(alive_time):
    config = take({"alive_time": alive_time})
    assert 2 * config.driver_timeout < lease_times.margin(alive_time)


def test_a_database_timeout_is_the_driver_timeout():
    assert take({"database_timeout": 2}).driver_timeout == 2.0


def test_a_database_timeout_that_outlasts_the_margin_is_refused_with_what_would_do():
    text = problem({"alive_time": 10, "database_timeout": 5})
    assert text == (
        "database_timeout: two timeouts of 5 s do not fit into the 4 s that are left to stop "
        "a task in time if alive_time is 10 s; set database_timeout below 2s, or alive_time to at "
        "least 26s"
    )
    assert take({"alive_time": 10, "database_timeout": 1.99})
    assert take({"alive_time": 26, "database_timeout": 5})


def test_no_alive_time_is_advised_where_none_would_do():
    text = problem({"alive_time": 10, "database_timeout": 7.5})
    assert text.endswith("; set database_timeout below 2s")
    assert "database_timeout: " in problem({"alive_time": 1000, "database_timeout": 7.5})


def test_a_combination_is_not_judged_by_a_value_that_was_refused():
    text = problem({"alive_time": "long", "database_timeout": 100})
    assert text.startswith("alive_time: ")
    assert len(text.splitlines()) == 1


def test_a_combination_is_told_at_the_line_of_the_timeout(refusal):
    text = refusal("alive_time: 6\ntable: t\ndatabase_timeout: 3\n")
    assert text.startswith("3: database_timeout: ")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {**COMPAT, "claim_strategy": "cas"},
            "is of no use with type: rdb_compat, which takes rows in one way only; remove it",
        ),
        (
            {"url": "sqlite:////x.db", "claim_strategy": "skip_locked"},
            "an SQLite file cannot do skip_locked; set it to auto or cas",
        ),
        (
            {"claim_strategy": "update_first"},
            "update_first was removed; set it to auto, or delete the line",
        ),
        (
            {"url": "mysql://db/x", "claim_strategy": "skip_locked"},
            "skip_locked was removed for MySQL and MariaDB; set it to auto, or delete the line",
        ),
        (
            {"url": "mariadb://db/x", "claim_strategy": "skip_locked"},
            "skip_locked was removed for MySQL and MariaDB; set it to auto, or delete the line",
        ),
        ({"claim_strategy": "other"}, "must be auto, skip_locked or cas"),
    ],
)
def test_a_way_to_claim_that_the_store_has_not_is_refused_with_the_mend(settings, reason):
    assert problem(settings) == f"claim_strategy: {reason}"


@pytest.mark.parametrize(
    "settings",
    [
        {**COMPAT, "claim_strategy": "auto"},
        {"url": "sqlite:////x.db", "claim_strategy": "cas"},
        {"url": "mysql://db/x", "claim_strategy": "cas"},
        {"url": "postgresql://db/x", "claim_strategy": "skip_locked"},
    ],
)
def test_a_way_to_claim_that_the_store_may_have_is_accepted(settings):
    assert take(settings).claim_strategy == settings["claim_strategy"]


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "sqlite:////x.db"},
        {"url": "memory:"},
        {"url": "mysql://db/x"},
        {**COMPAT, "url": "postgresql://db/x"},
    ],
)
def test_a_store_that_announces_nothing_is_refused_for_notify(settings):
    text = problem({**settings, "wake": "notify"})
    assert text == "wake: must not be notify, which needs PostgreSQL or Redis; use local"


@pytest.mark.parametrize(
    "settings",
    [{"url": "postgresql://db/x"}, {"url": "redis://db"}, {"type": "own:Store"}],
)
def test_a_store_that_may_announce_is_accepted_for_notify(settings):
    assert take({**settings, "wake": "notify"}).wake == "notify"


def test_a_way_to_claim_is_not_judged_by_a_url_that_was_refused():
    text = problem({"url": "oracle://db", "claim_strategy": "skip_locked"})
    assert text.startswith("url: ")
    assert len(text.splitlines()) == 1


# --- changes to a config -------------------------------------------------------------


def test_changed_settings_replace_the_old_and_leave_the_others(read):
    old = read("alive_time: 60\nprocessors: 2\nurl: mysql://u:p@db/x\n")
    new = old.with_settings(processors=4, log="x.log", cwd=Path("/run"))
    assert (new.alive_time, new.processors, new.log) == (60, 4, Path("/run/x.log"))
    assert (new.url, new.origin) == (old.url, old.origin)
    assert old.processors == 2


def test_changed_settings_are_validated():
    with pytest.raises(ConfigError, match=r"^processors: must be a whole number"):
        take({}).with_settings(processors=0)
    with pytest.raises(ConfigError, match="unknown setting; did you mean processors"):
        take({}).with_settings(procesors=2)


def test_changed_settings_are_validated_beside_the_others():
    config = take({"database_timeout": 5})
    with pytest.raises(ConfigError, match="alive_time is 10"):
        config.with_settings(alive_time=10)


def test_changed_settings_are_taken_as_they_are_without_references():
    # The values may come from a row of the table, which must not read the environment.
    config = take({"url": "mysql://u:${PW}@db/x"}, PW="a${HOME}b")
    assert make_url(config.with_settings(table="t").url).password == "a${HOME}b"
    assert config.with_settings(log="${HOME}", cwd=Path("/w")).log == Path("/w/${HOME}")
    with pytest.raises(ConfigError, match="not text"):
        config.with_settings(retry_wait="${HOME}")


# --- which file ----------------------------------------------------------------------


def test_without_any_file_all_settings_have_their_defaults(etc, tmp_path):
    assert not etc.exists()
    config = load(environ={"HOME": "/home/ann"}, cwd=tmp_path)
    assert config == take({})
    assert config.origin is None


def test_the_places_are_searched_in_order(etc, tmp_path):
    (tmp_path / "config").mkdir()
    below, named, asked = tmp_path / "config/psched.yml", tmp_path / "named.yml", tmp_path / "a.yml"

    def found(path=None, **environ):
        return load(path, environ={"HOME": "/home/ann", **environ}, cwd=tmp_path).origin

    etc.write_text("table: etc\n")
    assert found() == etc
    below.write_text("table: below\n")
    assert found() == below
    named.write_text("table: named\n")
    assert found(PSCHED_CONFIG="named.yml") == named
    asked.write_text("table: asked\n")
    assert found("a.yml", PSCHED_CONFIG="named.yml") == asked


def test_perfectscheds_file_and_environment_are_found(etc, tmp_path):
    theirs, own = tmp_path / "config/perfectsched.yml", tmp_path / "config/psched.yml"
    theirs.parent.mkdir()
    url = "url: mysql://db/x"
    theirs.write_text(
        f"development: {{}}\nproduction: {{type: rdb_compat, {url}, table: jobs, max_acquire: 4}}\n"
    )
    etc.write_text("table: etc\n")

    def found(**environ):
        return load(environ={"HOME": "/home/ann", **environ}, cwd=tmp_path)

    assert found().origin == theirs
    production = found(RAILS_ENV="production")
    assert (production.type, production.table) == ("rdb_compat", "jobs")
    assert found(RAILS_ENV="production", PSCHED_ENV="development").type == "rdb"
    own.write_text("table: own\n")
    assert found(RAILS_ENV="production").table == "own"


def test_of_several_files_the_later_ones_count(tmp_path):
    first, second = tmp_path / "a.yml", tmp_path / "b.yml"
    first.write_text("table: a\nretry_wait: 5\nalive_time: 77\n")
    second.write_text("url: mysql://u:${PW}@db/x\ntable: b\n")

    def both():
        return load((first, second), environ={"HOME": "/home/ann", "PW": "p"}, cwd=tmp_path)

    settings = both()
    assert (settings.table, settings.retry_wait, settings.origin) == ("b", 5, second)
    assert make_url(settings.url).password == "p"
    assert read_raw((first, second))["url"] == "mysql://u:${PW}@db/x"
    assert read_raw((first, second))["alive_time"] == 77
    first.write_text("retry_wait: x\n")
    with pytest.raises(ConfigError, match=r"^retry_wait: "):
        both()
    first.write_text("1: x\n")
    with pytest.raises(ConfigError, match=r"^.*/a\.yml:1: "):
        both()


def test_an_empty_variable_names_no_file(etc, tmp_path):
    etc.write_text("table: etc\n")
    environ = {"HOME": "/home/ann", "PSCHED_CONFIG": "", "PSCHED_ENV": ""}
    assert load(environ=environ, cwd=tmp_path).table == "etc"


def test_the_last_place_is_etc():
    assert reader._USUAL_PLACES[-1] == "/etc/psched/psched.yml"


def test_a_file_that_was_asked_for_and_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load("gone.yml", environ={}, cwd=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/gone.yml: cannot be read: No such file or directory (asked for by name)"
    )


def test_a_file_that_a_variable_names_and_is_missing_is_an_error_that_names_the_variable(tmp_path):
    with pytest.raises(ConfigError, match=r"/gone\.yml: .*\(named by PSCHED_CONFIG\)"):
        load(environ={"PSCHED_CONFIG": "gone.yml"}, cwd=tmp_path)


def test_a_file_that_is_there_but_cannot_be_read_is_not_passed_over(etc, tmp_path):
    etc.write_text("table: etc\n")
    (tmp_path / "config" / "psched.yml").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"config/psched\.yml: cannot be read: Is a directory"):
        load(environ={}, cwd=tmp_path)


@pytest.fixture
def nobody():
    """Run the test as a user without privileges, because root can search every folder."""
    # This codec is loaded now, because the other user may not be able to read Python's own modules.
    codecs.lookup("utf-8-sig")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        me = os.geteuid()
        if me == 0:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(me)


def test_a_folder_that_may_not_be_searched_is_passed_over(nobody, monkeypatch):
    me = os.geteuid()
    os.seteuid(os.getuid())
    readable, closed = nobody / "psched.yml", nobody / "closed"
    readable.write_text("table: etc\n")
    closed.mkdir(mode=0)
    os.seteuid(me)
    monkeypatch.setattr(reader, "_USUAL_PLACES", ("config/psched.yml", str(readable)))
    assert load(environ={"HOME": "/home/ann"}, cwd=closed).table == "etc"


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "psched.yml"
    file.write_bytes(b"table: \xff\xfe\n")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load(file, environ={}, cwd=tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(read):
    assert read("\ufefftable: mine\n").table == "mine"


def test_a_config_remembers_its_file(read, tmp_path):
    assert read("table: mine\n").origin == tmp_path / "psched.yml"


# --- sections ------------------------------------------------------------------------

SECTIONS = """\
default: &default
  alive_time: 60
  table: common
development:
  <<: *default
production:
  <<: *default
  table: live
empty:
"""


def test_the_section_development_is_read_by_default(read):
    config = read(SECTIONS)
    assert (config.alive_time, config.table) == (60, "common")


def test_the_environment_chooses_the_section(read):
    assert read(SECTIONS, PSCHED_ENV="production").table == "live"
    assert read(SECTIONS, "production", PSCHED_ENV="development").table == "live"


def test_a_section_overrides_what_it_merges(read):
    config = read(SECTIONS, "production")
    assert (config.alive_time, config.table) == (60, "live")


def test_several_mappings_can_be_merged(read):
    content = "a: &a {table: a}\nb: &b {table: b, processors: 2}\n"
    for merge in ("<<: [*a, *b]", "<<: *b\n  <<: *a"):
        config = read(f"{content}development:\n  {merge}\n")
        assert config.processors == 2


def test_an_empty_section_has_the_defaults(read):
    assert read(SECTIONS, "empty") == take({})


def test_a_missing_section_is_refused_with_those_there_are(refusal):
    assert refusal(SECTIONS, "staging") == (
        "no section for the environment staging; there are default, development, production, empty"
    )


def test_only_the_chosen_section_is_validated(read, refusal):
    content = "development: {table: ok}\nold: {tabel: x}\n"
    assert read(content).table == "ok"
    assert refusal(content, "old") == "2: tabel: unknown setting; did you mean table?"


def test_a_flat_file_applies_to_every_environment(read):
    assert read("table: mine\n", PSCHED_ENV="production").table == "mine"


@pytest.mark.parametrize("content", ["table: mine\n", ""])
def test_a_flat_file_cannot_be_asked_for_an_environment(refusal, content):
    assert refusal(content, "production") == (
        "the environment production was asked for, but this file has no sections"
    )


def test_no_file_cannot_be_asked_for_an_environment(etc, tmp_path):
    assert not etc.exists()
    with pytest.raises(ConfigError, match="production was asked for, but there is no config"):
        load(environment="production", environ={"HOME": "/home/ann"}, cwd=tmp_path)


@pytest.mark.parametrize("content", ["", "\n", "# nothing\n", "---\n", "{}\n", "~\n"])
def test_an_empty_file_has_the_defaults(read, content):
    assert read(content) == take({})


def test_a_setting_among_sections_is_refused(refusal):
    text = refusal(SECTIONS + "poll_interval: 5\n")
    assert text.startswith("10: poll_interval: a file has either settings or sections at its top")


def test_a_section_among_settings_is_refused(refusal):
    text = refusal("table: x\nprocessors: 2\nlog: y\nproduction:\n  table: z\n")
    assert text.startswith("4: production: a file has either settings or sections at its top")


def test_a_misspelled_setting_without_a_value_is_not_taken_for_a_section(refusal):
    text = refusal("table: x\npidfile:\n")
    assert text == "2: pidfile: unknown setting; did you mean pid_file?"


def test_a_mapping_has_no_sections():
    assert problem({"production": {"table": "x"}}) == (
        "production: unknown setting; sections can only stand at the top of a file"
    )


def test_a_mapping_must_be_one():
    with pytest.raises(ConfigError, match="must be a mapping, not a list"):
        from_mapping(["table"])


# --- errors in a file ----------------------------------------------------------------


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(tmp_path):
    file = tmp_path / "psched.yml"
    file.write_text("# mine\n\npoll_intervall: 5\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={"HOME": "/home/ann"}, cwd=tmp_path)
    assert str(caught.value) == (
        f"{file}:3: poll_intervall: unknown setting; did you mean poll_interval?"
    )


def test_an_unknown_key_that_is_like_no_other_is_sent_to_the_documentation(refusal):
    assert refusal("xyzzy: 1\n") == (
        "1: xyzzy: unknown setting; see psched.yml.example for those there are"
    )


def test_all_problems_are_told_together_in_the_order_of_their_lines(refusal):
    content = "procesors: 2\ntable: a\nalive_time: 1\ntable: b\nurl: ftp://x/y\n"
    lines = refusal(content).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["1", "procesors"],
        ["3", "alive_time"],
        ["4", "table"],
        ["5", "url"],
    ]


def test_a_key_that_stands_twice_is_refused_with_both_lines(refusal):
    assert refusal("table: a\nlog: x\ntable: b\n") == (
        "3: table: appears twice; remove this one or the one in line 1"
    )


def test_a_key_that_stands_twice_in_a_section_is_refused_once(refusal):
    content = "default: &d\n  table: a\n  table: b\ndevelopment:\n  <<: *d\n"
    assert refusal(content) == "3: table: appears twice; remove this one or the one in line 2"


BOMBS = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in itertools.pairwise("abcdefghijkl")
    ),
    "merges": "a: &a {x0: 1, x1: 1, x2: 1}\n"
    + "".join(
        f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n"
        for a, b in itertools.pairwise("abcdefghijkl")
    ),
    "texts": f"a: &a {'x' * 1_000_000}\nb: [{', '.join(['*a'] * 100)}]\n",
    "itself": "a: &a [*a]\n",
    "wide": "a: &a [" + "x, " * 1000 + "]\n" + "".join(f"b{n}: *a\n" for n in range(300)),
}
BOMB_LINES = {"aliases": 6, "merges": 6, "texts": 2, "itself": 1, "wide": 1}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.slow
def test_what_aliases_add_to_a_file_is_bounded(refusal, bomb):
    began = time.process_time()
    text = refusal(BOMBS[bomb])
    assert time.process_time() - began < 10
    assert text.startswith(f"{BOMB_LINES[bomb]}: ")
    assert "aliases (*) and merges (<<) add more than 250000 values" in text


@pytest.mark.parametrize("value", ["2020-13-45", "9" * 5000])
def test_a_value_that_is_no_date_or_number_after_all_is_refused(refusal, value):
    assert (
        refusal(f"poll_interval: {value}\n") == "1: poll_interval: cannot be read; put it in quotes"
    )


def test_a_merged_problem_is_told_once_and_at_its_own_line(refusal):
    content = "default: &d\n  log: 2020-13-45\ndevelopment:\n  <<: *d\n"
    assert refusal(content) == "2: log: cannot be read; put it in quotes"


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        ("table: [a\nlog: b\n", 2, "expected ',' or ']'"),
        ("table: a: b\n", 1, "mapping values are not allowed here"),
        ("\ttable: a\n", 1, "cannot start any token"),
        ("a: &a {}\nb: *nope\n", 2, "found undefined alias"),
        ("table: a\n---\ntable: b\n", 2, "another document"),
        ("table: a\n\nlog: \x01\n", 3, "the character U+0001 is not allowed; remove it"),
        ("table: a\n<<: 5\n", 2, "for merging"),
    ],
)
def test_broken_yaml_is_told_with_its_line(refusal, content, line, text):
    told = refusal(content)
    assert told.startswith(f"{line}: not YAML: ")
    assert text in told


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [id]",
        "!secret x",
        "!!bool x",
        "!!timestamp x",
        "! x",
        "!!map {}",
    ],
)
def test_yaml_tags_are_refused(refusal, value):
    assert refusal(f"table: a\nlog: {value}\n") == (
        "2: not YAML: a tag (!) has no meaning here; remove it"
    )


@pytest.mark.parametrize("content", ["- table\n", "just text\n", "5\n", "2020-13-45"])
def test_a_file_that_is_no_mapping_is_refused(refusal, content):
    assert refusal(content) == "1: holds no settings; write each as NAME: VALUE"


@pytest.mark.parametrize("key", ["5", "yes", "[a]", "{a: b}", "2020-01-01", "null"])
def test_a_key_that_is_not_text_is_refused(refusal, key):
    assert refusal(f"table: a\n? {key}\n: b\n") == ("2: a key that is not text; put it in quotes")


@pytest.mark.parametrize(
    "value", ["2020-13-45", "9" * 5000, "&a [*a]", "{[a]: b}", "{{a: b}: c}", "="]
)
def test_a_value_that_cannot_be_made_sense_of_is_refused(refusal, value):
    assert refusal(f"log: {value}\n").startswith("1: ")


@pytest.mark.parametrize(
    "content",
    ["log: " + "[" * 500, "log: " + "{a: " * 500, "a: &a\n  b: *a\n", "a: &a\n  <<: *a\n"],
)
def test_endless_nesting_is_refused(refusal, content):
    assert refusal(content)


def test_dates_are_not_text(refusal):
    text = "1: log: must be the path of a file, not a date; put text in quotes"
    assert refusal("log: 2020-01-02\n") == text


# --- references ----------------------------------------------------------------------


def test_a_reference_is_replaced_by_the_variable():
    config = take({"log": "/var/${SITE}/${SITE}.log"}, SITE="north")
    assert config.log == Path("/var/north/north.log")


def test_a_reference_in_a_list_is_replaced():
    assert take({"load_path": ["${LIB}/a"]}, LIB="/opt").load_path == ("/opt/a",)


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [("processors", "4", 4), ("poll_interval", "0.5", 0.5), ("poll_interval", "2", 2.0)],
)
def test_a_reference_can_give_a_number(name, text, number):
    assert getattr(take({name: "${N}"}, N=text), name) == number


@pytest.mark.parametrize("text", ["many", "", "1.5", "nan", "inf", "-1", "9" * 5000, "$${N}"])
def test_a_reference_that_gives_no_number_is_refused(text):
    assert problem({"processors": "${N}"}, N=text).startswith("processors: must be a whole number")


# --- processors ----------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (3, 3), (4, 4), (64, 4)])
def test_by_default_there_is_a_worker_for_each_core_but_at_most_four(monkeypatch, cores, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {*range(cores)})
    assert take({}).processors == workers
    assert take({"processors": "auto"}).processors == workers
    assert take({"processors": "${N}"}, N="auto").processors == workers
    assert take({"processors": 7}).processors == 7
    assert take({"processors": 7}).with_settings(processors="auto").processors == workers


@pytest.mark.parametrize("word", ["Auto", "4", "automatic", ""])
def test_no_other_word_than_auto_is_a_number_of_workers(word):
    assert problem({"processors": word}) == (
        "processors: must be a whole number of processes from 1 to 1000, or auto, not text"
    )
    assert "auto" not in problem({"concurrency": word})


def test_what_a_reference_gives_is_not_expanded_again():
    assert take({"log": "/${A}"}, A="${B}").log == Path("/${B}")


def test_a_doubled_dollar_makes_a_plain_one():
    assert take({"log": "/a$${B}c$d$$e"}).log == Path("/a${B}c$d$$e")


@pytest.mark.parametrize("value", ["${}", "${A", "${1}", "${A-b}", "${ A }"])
def test_a_reference_without_a_name_is_refused_with_the_mend(value):
    assert problem({"log": value}, A="a") == (
        "log: has ${ without a NAME}; write $${ if no reference is meant"
    )


def test_a_reference_to_a_variable_that_is_not_set_is_refused_by_name():
    assert problem({"log": "${NOPE}/x"}) == (
        "log: refers to the environment variable NOPE, which is not set"
    )


def test_a_variable_that_is_not_utf8_is_refused():
    raw = os.fsdecode(b"\xff")
    assert problem({"url": "mysql://u:${PW}@db/x"}, PW=raw) == (
        "url: refers to the environment variable PW, which is not UTF-8 text"
    )


def test_a_credential_is_the_content_of_its_file_without_the_last_newline(tmp_path):
    (tmp_path / "db-password.1").write_text("s3cr et\n\n")
    config = take(
        {"url": "mysql://u:${CREDENTIALS_DIRECTORY}/db-password.1@db/x"},
        CREDENTIALS_DIRECTORY=str(tmp_path),
    )
    assert make_url(config.url).password == "s3cr et\n"


def test_a_credential_can_be_the_whole_value(tmp_path):
    (tmp_path / "url").write_text("mysql://u:p%40w@db/x\n")
    config = take({"url": "${CREDENTIALS_DIRECTORY}/url"}, CREDENTIALS_DIRECTORY=str(tmp_path))
    assert config.url == "mysql+pymysql://u:p%40w@db/x"


def test_the_folder_of_credentials_is_also_a_variable():
    config = take({"log": "${CREDENTIALS_DIRECTORY}"}, CREDENTIALS_DIRECTORY="/run/c")
    assert config.log == Path("/run/c")


def test_a_missing_credential_is_refused_by_the_name_of_its_file(tmp_path):
    text = problem({"url": "${CREDENTIALS_DIRECTORY}/nope"}, CREDENTIALS_DIRECTORY=str(tmp_path))
    assert text == (
        f"url: refers to {tmp_path}/nope, which cannot be read: No such file or directory"
    )
    assert problem({"url": "${CREDENTIALS_DIRECTORY}/nope"}) == (
        "url: refers to the environment variable CREDENTIALS_DIRECTORY, which is not set"
    )


def test_a_credential_cannot_lead_out_of_its_folder(tmp_path):
    text = problem({"log": "${CREDENTIALS_DIRECTORY}/.."}, CREDENTIALS_DIRECTORY=str(tmp_path))
    assert text.endswith("cannot be read: Is a directory")


# --- urls ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("mysql://u:p@db/x", "mysql+pymysql://u:p@db/x"),
        ("mysql2://u:p@db/x", "mysql+pymysql://u:p@db/x"),
        ("mariadb://u:p@db/x", "mysql+pymysql://u:p@db/x"),
        ("MySQL://u@db:3306/x", "mysql+pymysql://u@db:3306/x"),
        ("mysql+mysqldb://u:p@db/x", "mysql+mysqldb://u:p@db/x"),
        ("mariadb+pymysql://u:p@db/x", "mariadb+pymysql://u:p@db/x"),
        ("mysql://u:p@[::1]:3306/x?charset=utf8", "mysql+pymysql://u:p@[::1]:3306/x?charset=utf8"),
        ("mysql:///x?unix_socket=/run/m.sock", "mysql+pymysql:///x?unix_socket=/run/m.sock"),
        ("mysql://u@corp:p@ss@db/x", "mysql+pymysql://u%40corp:p%40ss@db/x"),
        ("mysql://u:p%2Fw:x@db/x", "mysql+pymysql://u:p%2Fw:x@db/x"),
        ("sqlite://jobs.db", "sqlite:////cwd/jobs.db"),
        ("sqlite://data/jobs.db", "sqlite:////cwd/data/jobs.db"),
        ("sqlite:///jobs.db", "sqlite:////cwd/jobs.db"),
        ("sqlite:///jobs.db?timeout=3", "sqlite:////cwd/jobs.db?timeout=3"),
        (
            "sqlite:///x.db?uri=1&cached_statements=9",
            "sqlite:////cwd/x.db?uri=1&cached_statements=9",
        ),
        ("sqlite:////var/my jobs@1.db", "sqlite:////var/my jobs@1.db"),
        ("sqlite+pysqlite:///jobs.db", "sqlite+pysqlite:////cwd/jobs.db"),
    ],
)
def test_a_url_is_brought_into_sqlalchemys_form(written, meant):
    url = take({"url": written}).url
    assert url == meant
    assert make_url(url)


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///", "sqlite://:memory:", "sqlite:///:memory:", "sqlite:///?timeout=1"],
)
def test_a_database_in_memory_is_refused_with_the_mend(url):
    text = problem({"url": url})
    assert "each process would have its own; name a file" in text


@pytest.mark.parametrize("url", ["oracle://u:p@db/x", "mysql3://db/x", "redis4://db"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url):
    assert problem({"url": url}) == (
        "url: names an unknown kind of database; "
        "known are sqlite, mysql, mariadb, postgresql, redis, dynamodb, simpledb"
    )


@pytest.mark.parametrize(
    "url",
    [
        "db/x",
        ":memory:",
        "mysql:/u:p@db/x",
        "my sql://db/x",
        "mysql://",
        "mysql://db",
        "mysql://db:port/x",
        "mysql://db:123456/x",
        "mysql://u:p@db:3306:1/x",
        "mysql://u:p@[::1/x",
        "mysql://u:p@d b/x",
        "mysql://u:p/w@db/x",
        "mysql://db/x?ca=a@b",
        "mysql://u:p@db/x\n",
        "sqlite://u:p@db/x",
        "sqlite:///file:x?mode=memory&uri=true",
        "sqlite:///a%20b",
        "sqlite:////tmp/a b#c?d.db",
        "sqlite:///a?d=b.db",
        "sqlite:///x.db?timeout=3&mode=ro",
        "mysql://u:p@db/x?y",
        "postgresql://u:p@db/x?sslmode=require&y",
    ],
)
def test_a_url_that_could_be_misread_is_refused(url):
    assert problem({"url": url}).startswith("url: ")


def test_a_slash_in_a_password_is_refused_with_the_way_to_write_it():
    assert "write %2F %3F %23" in problem({"url": "mysql://u:p/w@db/x"})


@given(st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_password_survives_a_reference_and_never_shows(password):
    config = take({"url": "mysql://ann:${PW}@db:3306/x"}, PW=password)
    parsed = make_url(config.url)
    assert (parsed.username, parsed.password, parsed.host) == ("ann", password, "db")
    assert config.safe_url == "mysql+pymysql://ann:***@db:3306/x"


def test_a_reference_outside_user_and_password_is_not_encoded():
    config = take(
        {"url": "${KIND}://${U}:p@${DB}?${OPTIONS}"},
        KIND="mysql",
        U="a/b",
        DB="db:3306/x",
        OPTIONS="charset=utf8&x=1",
    )
    assert config.url == "mysql+pymysql://a%2Fb:p@db:3306/x?charset=utf8&x=1"


def test_a_reference_that_is_the_whole_url_is_taken_as_it_is():
    assert take({"url": "${URL}"}, URL="mysql://u:p%2Fw@db/x").url == (
        "mysql+pymysql://u:p%2Fw@db/x"
    )


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/psched"}, "/var/lib/psched"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"STATE_DIRECTORY": "", "XDG_STATE_HOME": "/xdg"}, "/xdg/psched"),
        ({"STATE_DIRECTORY": "/var/lib/psched", "XDG_STATE_HOME": "/xdg"}, "/var/lib/psched"),
        ({"XDG_STATE_HOME": "relative"}, "/home/ann/.local/state/psched"),
        ({}, "/home/ann/.local/state/psched"),
    ],
)
def test_the_default_database_is_in_the_state_folder(environ, folder):
    assert take({}, **environ).url == f"sqlite:///{folder}/psched.db"


def test_the_state_folder_is_not_created(tmp_path):
    take({}, STATE_DIRECTORY=str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"])
def test_a_state_folder_whose_name_is_no_text_is_refused(name):
    environ = {name: os.fsdecode(b"/var/\xff")}
    with pytest.raises(ConfigError, match=r"^url: leads to a path that is not UTF-8 text"):
        from_mapping({}, environ=environ)


def test_without_a_state_folder_a_url_is_demanded():
    with pytest.raises(ConfigError, match=r"^url: is not set, and neither STATE_DIRECTORY"):
        from_mapping({}, environ={})
    assert from_mapping({"url": "mysql://db/x"}, environ={})


# --- a password in a file ------------------------------------------------------------


@pytest.fixture
def keep(tmp_path):
    """A function that writes a file that only the file's owner can read."""

    def write(name, content, mode=0o600):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(mode)
        return file

    return write


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_a_password_is_read_from_its_file_without_the_last_newline(keep, mode):
    file = keep("pw", "s3:cr@et /%\n", mode)
    config = take({"url": "mysql://ann@db/x?charset=utf8", "password_file": str(file)})
    assert make_url(config.url).password == "s3:cr@et /%"
    assert config.safe_url == "mysql+pymysql://ann:***@db/x?charset=utf8"
    assert config.password_file == file
    assert "cr@et" not in repr(config)


REPLICA = "mysql://replica/x"


@pytest.mark.parametrize(
    ("read_url", "url"),
    [
        (REPLICA, "mysql+pymysql://ann:s3cret@replica/x"),
        ("mariadb://bob:c4n4ry@replica/y", "mysql+pymysql://bob:c4n4ry@replica/y"),
        ("mysql://bob@replica/x", "mysql+pymysql://bob@replica/x"),
    ],
)
def test_a_replica_has_the_user_and_the_password_of_the_url_unless_it_has_its_own(
    keep, read_url, url
):
    for named in (
        {"url": "mysql://ann:s3cret@db/x"},
        {"url": "mysql://ann@db/x", "password_file": str(keep("pw", "s3cret"))},
    ):
        config = take({**named, "read_url": read_url})
        assert config.of_replica.url == url
        assert config.of_replica.of_replica is None
        assert "c4n4ry" not in repr(config)
        assert "s3cret" in config.secrets
        assert ("c4n4ry" in config.secrets) is ("c4n4ry" in read_url)
    assert take({"url": "mysql://ann:s3cret@db/x"}).of_replica is None


def test_the_variable_of_a_replica_s_password_is_withheld_from_tasks():
    config = take(
        {"url": "mysql://ann@db/x", "read_url": "mysql://bob:${PW}@replica/x"}, PW="c4:n4ry"
    )
    assert make_url(config.of_replica.url).password == "c4:n4ry"
    assert config.withheld == {"PW"}


def test_another_url_has_not_the_replica_of_the_old_one():
    config = take({"url": "mysql://db/x", "read_url": REPLICA})
    assert config.with_settings(url="mysql://db/y").read_url is None
    assert config.with_settings(alive_time=60).read_url == config.read_url
    both = config.with_settings(url="postgresql://db/y", read_url="postgresql://replica/y")
    assert both.read_url == "postgresql+psycopg://replica/y"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"url": "sqlite:////x.db"}, "is for type: rdb with PostgreSQL, MySQL or MariaDB"),
        ({"read_url": "sqlite:////x.db"}, "is for type: rdb with PostgreSQL, MySQL or MariaDB"),
        ({"read_url": "memory:"}, "is for type: rdb with PostgreSQL, MySQL or MariaDB"),
        ({"url": "redis://h", "read_url": "redis://i"}, "is for type: rdb with PostgreSQL"),
        ({"type": "rdb_compat", "table": "t"}, "is for type: rdb with PostgreSQL"),
        (
            {"url": "postgresql://db/x"},
            "is a mysql database, and url a postgresql database; name a replica of url",
        ),
        ({"read_url": "mysql://a,b/x"}, "names several servers; name one"),
        (
            {"ssl_verify": "none", "read_url": f"{REPLICA}?ssl_ca=x"},
            "has ssl_ca among its options, beside the settings ssl_verify",
        ),
        ({"read_url": "replica"}, "must be a url such as"),
    ],
)
def test_a_replica_that_cannot_be_read_is_refused_with_the_mend(given, reason):
    text = problem({"url": "mysql://db/x", "read_url": REPLICA, **given})
    assert text.startswith(f"read_url: {reason}")


def test_the_address_of_a_redis_server_shows_no_password():
    url = "redis+sentinel://ann:s3cret@h:1,i:2/name/0?sentinel_password=c4n4ry"
    shown = repr(redis_address(url))
    assert "h:1,i:2/name/0" in shown
    assert "s3cret" not in shown
    assert "c4n4ry" not in shown


def test_a_credential_that_names_a_file_is_the_file_and_not_its_content(keep, tmp_path):
    keep("pw", "s3cret")
    config = take(
        {"url": "mysql://ann@db/x", "password_file": "${CREDENTIALS_DIRECTORY}/pw"},
        CREDENTIALS_DIRECTORY=str(tmp_path),
    )
    assert config.password_file == tmp_path / "pw"
    assert make_url(config.url).password == "s3cret"


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (None, 0, "cannot be read: No such file or directory"),
        ("", 0o600, "is empty; it must hold the password and nothing else"),
        ("\n", 0o600, "is empty; it must hold the password and nothing else"),
        ("c4n4ry\nc4n4ry\n", 0o600, "holds a second line, or a character that cannot be printed"),
        ("c4n4ry\r\n", 0o600, "holds a second line, or a character that cannot be printed"),
        (b"c4n4ry\xff", 0o600, "is not UTF-8 text"),
        ("c4n4ry", 0o604, "may be read or changed by everybody on this host; run `chmod o= FILE`"),
        ("c4n4ry", 0o602, "may be read or changed by everybody on this host; run `chmod o= FILE`"),
    ],
)
def test_a_password_file_that_cannot_be_used_is_refused_with_the_mend(
    keep, tmp_path, content, mode, reason
):
    if content is not None:
        keep("c4n4ry", content, mode)
    text = problem({"url": "mysql://ann@db/x", "password_file": f"{tmp_path}/c4n4ry"})
    assert text.startswith(f"password_file: {reason}")
    assert CANARY not in text
    assert len(text.splitlines()) == 1


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("pipe", "."):
        text = problem({"url": "mysql://ann@db/x", "password_file": f"{tmp_path}/{name}"})
        assert text == "password_file: is not a regular file"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://ann:x@db/x", "the url has a password already; remove one of the two"),
        ("mysql://ann@db/x?password=x", "the url has a password already; remove one of the two"),
        ("mysql://db/x", "needs a user in the url, as in mysql://USER@HOST/DATABASE"),
        ("sqlite:////x.db", "the url names an SQLite file, which has no password"),
        (None, "the url names an SQLite file, which has no password"),
    ],
)
def test_a_password_file_beside_a_url_without_a_place_for_it_is_refused(keep, url, reason):
    given = {"password_file": str(keep("pw", CANARY))} | ({} if url is None else {"url": url})
    text = problem(given)
    assert text.startswith("password_file: ")
    assert text.endswith(reason)


def test_changed_settings_have_the_password_of_the_file_that_goes_with_them(keep):
    old, new = keep("old", "old"), keep("new", "new")
    config = take({"url": "mysql://ann@db/x", "password_file": str(old)})

    def password(**changes):
        return make_url(config.with_settings(**changes).url).password

    assert password(password_file=new) == "new"
    assert password(password_file=None) is None
    assert password(url="mysql://bob@db/y") == "old"
    assert password(url="mysql://bob:z@db/y", password_file=None) == "z"
    old.unlink()
    assert password(retry_wait=5) == "old"  # it is read again only where it matters


# --- encryption ----------------------------------------------------------------------


def encrypted(keep, url="mysql://db/x", **settings):
    files = {name: str(keep(name, "PEM")) for name in ("ca", "cert", "key")}
    chosen = {
        f"ssl_{name}": files.get(name, value) if value == name else value
        for name, value in settings.items()
    }
    return {"url": url, **chosen}


@pytest.mark.parametrize(
    ("settings", "verify"),
    [
        ({"ca": "ca"}, "full"),
        ({"ca": "ca", "verify": "full"}, "full"),
        ({"ca": "ca", "verify": "ca"}, "ca"),
        ({"ca": "ca", "cert": "cert", "key": "key"}, "full"),
        ({"verify": "none"}, "none"),
        ({"verify": "none", "cert": "cert", "key": "key"}, "none"),
    ],
)
@pytest.mark.parametrize("url", ["mysql://db/x", "mariadb+pymysql://db/x", "postgresql://db/x"])
def test_encryption_is_what_its_settings_say(keep, tmp_path, url, settings, verify):
    config = take(encrypted(keep, url, **settings))
    expected = {
        name: tmp_path / name if name in settings else None for name in ("ca", "cert", "key")
    }
    assert config.tls == Tls(verify=verify, **expected)
    assert (config.ssl_ca, config.ssl_cert, config.ssl_key) == tuple(expected.values())
    assert config.ssl_verify == settings.get("verify")
    assert config.with_settings(retry_wait=5).tls == config.tls


def test_without_its_settings_encryption_is_left_to_the_driver():
    assert take({"url": "mysql://db/x?ssl_ca=/ca.pem"}).tls is None
    assert take({"url": "postgresql://db/x?sslmode=verify-full"}).tls is None


def test_perfectqueues_word_for_the_authority_is_understood_once(keep, refusal):
    file = keep("ca", "PEM")
    assert take({"url": "mysql://db/x", "sslca": str(file)}).ssl_ca == file
    assert refusal(f"url: mysql://db/x\nssl_ca: {file}\nsslca: {file}\n") == (
        "3: sslca: is an alias of ssl_ca; use that alone"
    )


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"ca": "ca", "cert": "cert"}, "ssl_cert: needs ssl_key, the file with its private key"),
        ({"ca": "ca", "key": "key"}, "ssl_key: needs ssl_cert, the file with the certificate"),
        ({"cert": "cert", "key": "key"}, "ssl_cert: does not say how the server is checked; set"),
        ({"verify": "full"}, "ssl_verify: needs ssl_ca, the file with the certificate of"),
        ({"verify": "ca"}, "ssl_verify: needs ssl_ca, the file with the certificate of"),
        ({"ca": "ca", "verify": "none"}, "ssl_verify: must not be none beside ssl_ca"),
        ({"verify": "yes"}, "ssl_verify: must be full, ca or none"),
        ({"ca": "/nowhere/ca"}, "ssl_ca: cannot be read: No such file or directory"),
        (
            {"ca": "ca", "url": "sqlite:////x.db"},
            "url: is an SQLite file, which has no connection to encrypt; remove the settings",
        ),
        (
            {"verify": "none", "url": "mysql+mysqldb://db/x"},
            "url: names a driver without settings for TLS; there are such for mysql+pymysql, ",
        ),
        (
            {"ca": "ca", "url": "mysql://db/x?charset=utf8&ssl_ca=/y"},
            "url: has ssl_ca among its options, beside the settings ssl_ca; use one or the other",
        ),
        (
            {"ca": "ca", "url": "postgresql://db/x?sslmode=require&sslcrl=/y"},
            "url: has sslmode among its options, beside the settings ssl_ca; use one or the other",
        ),
        (
            {"url": "mysql://db/x?ssl_ca=/y&ssl_verify_identity=true"},
            "url: has ssl_verify_identity among its options, which makes the driver ignore",
        ),
    ],
)
def test_settings_for_encryption_that_contradict_are_refused_with_the_mend(keep, settings, reason):
    url = settings.get("url", "mysql://db/x")
    others = {name: value for name, value in settings.items() if name != "url"}
    text = problem(encrypted(keep, url, **others))
    assert text.startswith(reason)
    assert len(text.splitlines()) == 1


def test_a_private_key_that_everybody_may_read_is_refused(keep):
    given = encrypted(keep, ca="ca", cert="cert", key="key")
    Path(given["ssl_key"]).chmod(0o644)
    Path(given["ssl_cert"]).chmod(0o644)
    assert problem(given).startswith("ssl_key: may be read or changed by everybody on this host")


# --- secrets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("mysql://u:c4n4ry@db/x", "mysql+pymysql://u:***@db/x"),
        ("mysql://:c4n4ry@db/x", "mysql+pymysql://:***@db/x"),
        ("mysql://u:c4n4@ry:c4n4ry@db/x", "mysql+pymysql://u:***@db/x"),
        ("mysql://u@db:3306/x", "mysql+pymysql://u@db:3306/x"),
        ("mysql://u@[::1]:3306/x", "mysql+pymysql://u@[::1]:3306/x"),
        ("mysql://[::1]:3306/x", "mysql+pymysql://[::1]:3306/x"),
        ("mysql://u:c4n4ry@[::1]/x?a=b", "mysql+pymysql://u:***@[::1]/x?a=b"),
        ("mysql://u@db/x?password=c4n4ry&a=b", "mysql+pymysql://u@db/x?password=***&a=b"),
        ("mysql://u@db/x?ssl_key_passwd=c4n4ry", "mysql+pymysql://u@db/x?ssl_key_passwd=***"),
        ("sqlite:////var/a:b@c.db", "sqlite:////var/a:b@c.db"),
    ],
)
def test_a_safe_url_hides_the_password_and_nothing_else(url, safe):
    config = take({"url": url})
    assert config.safe_url == safe
    assert f"url={safe!r}" in repr(config)
    assert CANARY not in f"{config!r} {config}"


@pytest.mark.parametrize(
    "url", ["u:c4n4ry@db", "x://u:c4/n4ry://c4n4ry@db", "mysql://u:c4n4ry\n@db/x", "://u:c4n4ry@"]
)
def test_even_a_url_that_nobody_checked_hides_its_password(url):
    shown = repr(Config(url=url, processors=1))
    assert "u:***@" in shown
    assert "n4ry" not in shown


@pytest.mark.parametrize(
    "content",
    [
        "url: mysql://u:c4n4ry",
        "url: mysql://u:c4n4ry@",
        "url: mysql://u:c4n4ry@db",
        "url: mysql://u:c4n4ry@db:c4n4ry/x",
        "url: mysql://u:x/c4n4ry@db/x",
        "url: mysql://u:x@c4n4ry:y@z:w/x",
        "url: mysql//u:c4n4ry@db/x",
        "url: u:c4n4ry@db/x",
        "url: c4n4ry://u:c4n4ry@db/x",
        "url: postgres5://u:c4n4ry@db/x",
        "url: sqlite://u:c4n4ry@db/x",
        "url: mysql://u:c4n4ry@db/x${",
        'url: "mysql://u:c4n4ry@db/x\\n"',
        'url: "mysql://u:c4n4ry\\ud800@db/x"',
        'url: "mysql://u:c4n4ry@db/x\\q"',
        'url: "mysql://u:c4n4ry@db/x',
        "url: mysql://u:c4n4ry@db/x: y",
        "url: [mysql://u:c4n4ry@db/x]",
        "url: {mysql: {password: c4n4ry}}",
        "url: mysql://u:${PW}@db/",
        "url: ${PW}",
        "url: ${URL}",
        "url: ${CREDENTIALS_DIRECTORY}/pw",
        "url: mysql://u:${CREDENTIALS_DIRECTORY}/latin@db/x",
        "url: *c4n4ry",
        "url: !c4n4ry x",
        "url: !c4n4ry!x y",
        "url: 'mysql://u:c4n4ry@db/x'\nurl: 'mysql://u:c4n4ry@db/y'",
        "url:mysql://u:c4n4ry@db/x",
        "url:mysql://u:c4n4ry@db/x: 5",
        "mysql://u:c4n4ry@db/x: 5",
        "mysql://u:c4n4ry@db/x: {table: x}",
        "mysql://u:c4n4ry@db/x: {table: x}\ntable: y",
        "mysql://u:c4n4ry@db/x: 5\nproduction: {table: y}",
        "? [mysql://u:c4n4ry@db/x]\n: 5",
        "url mysql://u:c4n4ry@db/x\ntable: x",
        "- mysql://u:c4n4ry@db/x",
        "password: c4n4ry",
        "table: c4n4ry-1",
        "type: c4n4ry",
        "timezone: c4n4ry",
        "dispatch: c4n4ry/",
        "poll_interval: c4n4ry",
        "poll_interval: ${PW}",
        "table: ${URL}",
        "log: ${URL}\0c4n4ry",
        "require: [x, {c4n4ry: c4n4ry}]",
        "log_level: [c4n4ry]",
        "types: {report: {retry_wait: c4n4ry}}",
        "types: {'mysql://u:c4n4ry@db/x': 5}",
        "types: {report: {'mysql://u:c4n4ry@db/x': 5}}",
        "types: c4n4ry",
        "log: {a: {[c4n4ry]: c4n4ry}}",
        "url: mysql://u:c4n4ry@db/x\nalive_time: 6\ndatabase_timeout: 3",
        "url: mysql://u:c4n4ry@db/x\nnope: 3",
        "%c4n4ry",
        "table: |\n c4n4ry\n\tc4n4ry: c4n4ry",
    ],
)
def test_no_error_shows_a_secret(tmp_path, content):
    (tmp_path / "pw").write_text(CANARY)
    (tmp_path / "latin").write_bytes(b"c4n4ry\xff")
    file = tmp_path / "psched.yml"
    file.write_text(content, encoding="utf-8")
    environ = {
        "HOME": "/home/ann",
        "PW": CANARY,
        "URL": "mysql://u:c4n4ry@db:c4n4ry/x",
        "CREDENTIALS_DIRECTORY": str(tmp_path),
    }
    with pytest.raises(ConfigError) as caught:
        load(file, environ=environ, cwd=tmp_path)
    # Neither the traceback nor the traceback of any cause contains the secret.
    assert CANARY not in "".join(traceback.format_exception(caught.value))


# --- settings of a type ---------------------------------------------------------------


def test_a_type_may_have_settings_of_its_own(read):
    own = {"report": {"alive_time": 60, "kill_timeout": 600, "dst_policy": "wallclock"}}
    flat = "types:\n  report: {alive_time: 60, kill_timeout: 600, dst_policy: wallclock}\n"
    assert take({"types": own}).types == own
    assert read(flat).types == own
    indented = "".join(f"  {line}\n" for line in flat.splitlines())
    assert read(f"development:\n{indented}").types == own
    assert read(flat).with_settings(poll_interval=2).types == own


def test_no_types_may_be_an_empty_mapping_or_nothing(read):
    assert read("types:\n").types == read("types: {}\n").types == {}
    assert read("types:\n  report: {}\n").types == {"report": {}}


def test_a_reference_may_stand_in_a_types_settings():
    own = {"report": {"kill_timeout": "${LIMIT}"}}
    assert take({"types": own}, LIMIT="7").types["report"]["kill_timeout"] == 7


def test_what_is_wrong_in_a_type_is_told_by_its_path_and_line(refusal):
    problems = refusal(
        "types:\n"
        "  report:\n"
        "    kill_timeout: soon\n"
        "    retry_wait: -1\n"
        "  mail:\n"
        "    max_atempts: 5\n"
        "    processors: 5\n"
        "  job: 5\n"
        "  ' x': {}\n"
    ).splitlines()
    bounds = "from 0 to 1000000000 (or with a unit: 30s, 5m, 1h, 30d)"
    assert problems == [
        f"3: types.report.kill_timeout: must be a number of seconds {bounds}, not text",
        f"4: types.report.retry_wait: must be a whole number of seconds {bounds}",
        "6: types.mail.max_atempts: is not a setting of a type; did you mean max_attempts?",
        f"7: types.mail.processors: is not a setting of a type; these are {', '.join(OF_A_TYPE)}",
        "8: types.job: must be a mapping of settings",
        "9: types.(not a name): must be the name of a type",
    ]
    assert problem({"types": {7: {}, "": {}}}).count("types.(not a name): must be the name") == 2


def test_a_types_lease_is_judged_beside_the_timeout(refusal):
    assert take({"types": {"t": {"alive_time": 26}}}).types["t"]["alive_time"] == 26
    assert refusal("table: x\ntypes: {report: {alive_time: 25}}\n") == (
        "2: types: report.alive_time: must be at least 26s, so that a task can be stopped in time"
        " after two timeouts of 5 s; set a shorter database_timeout, or raise it"
    )
    assert take({"types": {"t": {"alive_time": 6}}, "database_timeout": 1}).alive_time == 300
    assert "PerfectSched's table" in problem({**COMPAT, "types": {"t": {"alive_time": 60}}})


@pytest.mark.parametrize(
    ("setting", "value", "neutral", "why"),
    [
        ("jitter", 5, 0, "shows a later start as a lease"),
        ("max_attempts", 1, 0, "does not count attempts"),
        ("max_attempts", 4, 0, "does not count attempts"),
        ("retry_backoff", "exponential", "fixed", "does not count attempts"),
    ],
)
def test_what_perfectscheds_table_cannot_keep_is_refused(setting, value, neutral, why):
    refusal = f"{setting}: PerfectSched's table {why}; remove it"
    assert problem({**COMPAT, setting: value}) == refusal
    assert problem({**COMPAT, "types": {"t": {setting: value}}}) == f"types: t.{refusal}"
    assert getattr(take({**COMPAT, setting: neutral}), setting) == neutral
    assert take({**COMPAT, "types": {"t": {setting: neutral}}}).types["t"][setting] == neutral
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        take(COMPAT).with_settings(**{setting: value})


@pytest.mark.parametrize("missing", ["url", "table"])
def test_perfectscheds_table_and_database_are_named_by_the_configuration(missing, refusal):
    given = {name: value for name, value in COMPAT.items() if name != missing}
    assert problem(given).startswith(f"{missing}: is missing: type: rdb_compat works in Perfect")
    lines = "".join(f"{name}: {value}\n" for name, value in given.items())
    assert f"{missing}: is missing" in refusal(lines)
    with pytest.raises(ConfigError, match=f"{missing}: is missing"):
        take({}).with_settings(**given)
    assert take(COMPAT).with_settings(retry_wait=1).table == COMPAT["table"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("sqlite:///var/lib/sched.db", "sqlite:////var/lib/sched.db"),
        ("sqlite:////var/lib/sched.db", "sqlite:////var/lib/sched.db"),
        ("sqlite://sched.db", "sqlite:////cwd/sched.db"),
        ("sqlite://db/sched.db", "sqlite:////cwd/db/sched.db"),
        ("sqlite:///sched.db?timeout=3", "sqlite:////sched.db?timeout=3"),
        ("mysql2://u:p@h/d", "mysql+pymysql://u:p@h/d"),
        ("mysql2://u:p&encoding=1@h/d", "mysql+pymysql://u:p&encoding=1@h/d"),
        ("mysql://u:p@h/d?encoding=utf8", "mysql+pymysql://u:p@h/d?charset=utf8"),
        ("postgres://u@h/d?encoding=utf8", "postgresql+psycopg://u@h/d?client_encoding=utf8"),
    ],
)
def test_beside_perfectsched_a_url_means_what_it_means_to_sequel(written, meant):
    settings = take({**COMPAT, "url": written})
    assert settings.url == meant
    # It is read once: other changes leave it as it is.
    assert settings.with_settings(retry_wait=1).url == meant
    assert settings.with_settings(url=written, cwd=Path("/cwd")).url == meant


# --- Redis ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("REDIS://h/", "redis://h:6379/0"),
        ("redis://:p@h:1/3", "redis://:p@h:1/3"),
        ("redis://u:p@ss:w%2F@[::1]/3", "redis://u:p%40ss%3Aw%2F@[::1]:6379/3"),
        ("rediss://u:p@h/1", "rediss://u:p@h:6379/1"),
        ("unix:///run/my%20redis.sock", "unix:///run/my%20redis.sock"),
        ("unix://:p@/run/redis.sock?db=4", "unix://:p@/run/redis.sock?db=4"),
        ("redis+sentinel://a,b:7/main", "redis+sentinel://a:26379,b:7/main/0"),
        (
            "rediss+sentinel://:p@a/main/2?sentinel_user=s&sentinel_password=%26",
            "rediss+sentinel://:p@a:26379/main/2?sentinel_user=s&sentinel_password=%26",
        ),
    ],
)
def test_a_url_of_redis_says_which_type_it_is(given, url):
    config = take({"url": given})
    assert (config.type, config.url) == ("redis", url)
    assert take({"type": "redis", "url": url}) == config


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "redis://localhost:6379/0"),
        ({"host": "h", "port": 7, "db": 2}, "redis://h:7/2"),
        ({"host": "::1"}, "redis://[::1]:6379/0"),
        ({"password": "p:/@?"}, "redis://:p%3A%2F%40%3F@localhost:6379/0"),
        ({"path": "/run/r.sock", "db": 3, "password": "p"}, "unix://:p@/run/r.sock?db=3"),
        ({"path": "r.sock"}, "unix:///cwd/r.sock"),
        ({"path": "/run/a@b.sock"}, "unix:///run/a%40b.sock"),
    ],
)
def test_settings_may_say_what_a_url_of_redis_says(settings, url):
    config = take({"type": "redis", **settings})
    assert config.url == url
    assert config.with_settings(alive_time=60).url == url


def test_a_url_takes_the_place_of_the_settings_that_say_the_same():
    config = take({"type": "redis", "host": "h", "port": 7, "password": "s3cret"})
    other = config.with_settings(url="redis://other")
    assert other == take({"url": "redis://other"})
    assert config.with_settings(url="mysql://d/x") == take({"url": "mysql://d/x"})
    assert config.with_settings(port=8).url == "redis://:s3cret@h:8/0"


def test_a_part_of_a_url_is_not_changed_by_the_setting_that_may_stand_in_its_place():
    config = take({"url": "redis://h:7/2"})
    with pytest.raises(ConfigError, match=r"^port: repeats what the url says"):
        config.with_settings(port=8)


def test_the_password_of_redis_is_shown_to_nobody(tmp_path):
    (tmp_path / "password").write_text("c4n4ry\n")
    (tmp_path / "password").chmod(0o600)
    sentinels = "redis+sentinel://:c4n4ry@a/b?sentinel_password=c4n4ry"
    for config in (
        take({"type": "redis", "password": "c4n4ry"}),
        take({"url": "redis://:c4n4ry@h"}),
        take({"url": sentinels}),
        take({"url": "redis://h", "password_file": str(tmp_path / "password")}),
        take({"type": "redis", "path": "/x", "password_file": str(tmp_path / "password")}),
    ):
        assert "c4n4ry" in config.url
        assert "c4n4ry" not in repr(config) + config.safe_url


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"url": "redis://a,b"}, "url: names several hosts; if they are Sentinels, write redis+s"),
        ({"url": "redis://h/x"}, "url: must end in the number of a database"),
        ({"url": "redis://h:99999"}, "url: must be redis://"),
        ({"url": "redis://"}, "url: must be redis://"),
        ({"url": "redis://u:p/w@h"}, "url: has a / ? or # before its last @"),
        ({"url": "redis://h/0?timeout=1"}, "url: has an unknown option after its question mark"),
        ({"url": "unix://h/x"}, "url: must be redis://"),
        ({"url": "redis+sentinel://h"}, "url: needs the name under which the Sentinels know"),
        ({"url": "redis+sentinel://h/m?x=1"}, "url: has an unknown option after its question mark"),
        ({"type": "rdb", "url": "redis://h"}, "type: must be redis with such a url"),
        ({"type": "redis", "url": "mysql://d/x"}, "type: redis needs a url of the form redis://"),
        ({"host": "h"}, "host: is for type: redis; for any other use the url"),
        ({"password": "s3cret"}, "password: is for type: redis; for any other use password_file"),
        ({"url": "redis://h", "port": 1}, "port: repeats what the url says"),
        ({"type": "redis", "path": "/x", "host": "h"}, "host: is of no use beside path"),
        ({"type": "redis", "port": 0}, "port: must be a whole number from 1 to 65535"),
        ({"type": "redis", "db": -1}, "db: must be a whole number from 0 to 999999"),
        ({"type": "redis", "host": "h/0"}, "host: must be the name or address of a host"),
        ({"type": "redis", "password": 5}, "password: must be a text, not a number"),
        ({"url": "mysql://db/x", "wait_replicas": 1}, "wait_replicas: is for type: redis; remove"),
        ({"type": "redis", "claim_strategy": "cas"}, "claim_strategy: is of no use with type: re"),
        (
            {"type": "rdbx"},
            "type: must be rdb, rdb_compat, redis, dynamodb, simpledb, or module:Cl",
        ),
        ({"store": {"path": "x"}}, "store: is for a store of your own, type: module:Class"),
        ({"type": "x:Y", "takeover": "observed"}, "takeover: must not be observed with a store of"),
        ({**COMPAT, "takeover": "observed"}, "takeover: must not be observed with PerfectSched's"),
        ({"takeover": "seen"}, "takeover: must be clock or observed"),
        ({"url": "unix:///x", "ssl_verify": "none"}, "url: is a socket of this host"),
    ],
)
def test_what_redis_cannot_be_is_refused_with_the_mend(settings, refusal):
    text = problem(settings)
    assert text.startswith(refusal)
    assert "s3cret" not in text


@pytest.mark.parametrize("section", ["", "production:\n  "])
def test_a_store_of_the_users_own_gets_its_options_as_they_are_nested_in_the_file(read, section):
    options = 'store: {path: "${HOME}/x", pool: {size: 2, retry: {wait: 1}, name: "${HOME}"}}\n'
    content = f"{section}type: own:Store\n{'  ' if section else ''}{options}"
    # A reference is expanded only in a text that is not nested.
    assert dict(read(content, "production" if section else None).store) == {
        "path": "/home/ann/x",
        "pool": {"size": 2, "retry": {"wait": 1}, "name": "${HOME}"},
    }


# --- which database is used if none is named -------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"url": "sqlite:////home/ann/.local/state/psched/psched.db"},
        {"url": "memory:"},
        {"type": "redis"},
        {"type": "redis", "host": "db"},
        {"type": "own:Store"},
    ],
)
def test_a_database_that_is_named_is_no_default(given):
    assert not take(given).url_is_default


def test_the_default_database_is_known_as_such_until_another_is_named():
    settings = take({"table": "mine"})
    assert settings.url_is_default
    assert settings.with_settings(processors=2).url_is_default
    assert not settings.with_settings(url=settings.url).url_is_default
    assert not settings.with_settings(type="redis").url_is_default
    assert "url_is_default" not in SETTINGS


@pytest.mark.parametrize(("given", "value"), [(True, True), (False, False), ("${IT}", True)])
def test_a_table_is_created_if_that_is_asked_for(given, value):
    assert take({"create_table": given}, IT="true").create_table is value
    assert not take({}).create_table


@pytest.mark.parametrize("given", ["yes", 1, [], "on"])
def test_true_and_false_are_the_only_answers(given):
    assert problem({"create_table": given}) == "create_table: must be true or false"


# --- the shipped file ----------------------------------------------------------------


def test_the_shipped_file_is_the_defaults_but_for_what_it_explains(tmp_path):
    shipped = load(SHIPPED, environ={"HOME": "/home/ann"}, cwd=tmp_path)
    url = "sqlite:////var/lib/psched/psched.db"
    assert shipped == take({"alive_time": 60, "url": url, "create_table": True})


def test_the_file_that_is_installed_is_short_and_sets_the_same(tmp_path):
    short = SHIPPED.with_suffix("")
    environ = {"HOME": "/home/ann"}
    first, second = (load(file, environ=environ, cwd=tmp_path) for file in (short, SHIPPED))
    assert first == second
    assert len(short.read_text().splitlines()) <= 38  # two lines of psched's stand above them


def test_the_examples_of_the_file_that_is_installed_can_be_used(read, tmp_path):
    (tmp_path / "password").write_text("s3cret\n")
    (tmp_path / "password").chmod(0o640)
    text = re.sub(r"^#(?=[a-z_]+: )", "", SHIPPED.with_suffix("").read_text(), flags=re.MULTILINE)
    [*urls] = re.findall(r"^#   (\w+://\S+)", text, re.MULTILINE)
    assert len(urls) == 3
    for url in urls:
        given = re.sub(r"^url: .*", f"url: {url}", text, flags=re.MULTILINE)
        assert read(given.replace("/etc/psched/", f"{tmp_path}/")).exec_type is True


def test_the_shipped_file_holds_every_setting_and_no_other_in_the_order_of_the_table():
    names = re.findall(r"^#?([a-z_]+):(?= |$)", SHIPPED.read_text(), re.MULTILINE)
    # The line of a url that is commented out is an example beside the url that is set.
    in_file = list(dict.fromkeys(names))
    assert in_file == [*SETTINGS]


def test_the_shipped_file_comments_out_just_the_settings_without_a_default():
    set_here = set(yaml.safe_load(SHIPPED.read_text()))
    # url decides which database root and the service share, so the file sets it explicitly.
    # The default of processors depends on the host, so it is none of the declared defaults.
    said = {name for name, s in SETTINGS.items() if s.default is not None}
    said |= {"processors", "url"}
    assert set_here == said


def test_the_examples_of_the_shipped_file_can_be_used(read, tmp_path):
    # The url that is set gives way to the example above it.
    shipped = re.sub(r"^url: .*", "", SHIPPED.read_text(), flags=re.MULTILINE)
    examples = re.sub(r"^#(?=[a-z_]+: )", "", shipped, flags=re.MULTILINE)
    for name in ("password", "ca.pem", "client.pem", "client.key"):
        (tmp_path / name).write_text("s3cret\n")
        (tmp_path / name).chmod(0o640)
    examples = examples.replace("/etc/psched/", f"{tmp_path}/")
    # The file shows two places for the password: the url, and a file.
    in_url = re.sub(r"^password_file: .*", "", examples, flags=re.MULTILINE)
    in_file = examples.replace(":${PSCHED_DB_PASSWORD}", "")
    # The file shows three kinds of handlers: a dispatch, a program, a script.
    ways = [("dispatch",), ("exec",), ("script", "script_class")]
    parts = "host|port|db|path|password"
    found = []
    for way in ways:
        others = "|".join(name for each in ways if each != way for name in each)
        for text, environ in ((in_url, {"PSCHED_DB_PASSWORD": "s3cret"}), (in_file, {})):
            left = re.sub(rf"^({others}|{parts}): .*", "", text, flags=re.MULTILINE)
            found.append(read(left, **environ))
    assert len({each.url for each in found}) == 1
    # The file shows two urls of a Redis server: by its host, and by its socket.
    for others in ("host|port", "path"):
        in_parts = re.sub(
            rf"^(url|read_url|password_file|ssl_\w+|script|script_class|exec|{others}): .*",
            "",
            examples.replace("type: rdb\n", "type: redis\n"),
            flags=re.MULTILINE,
        )
        found.append(read(in_parts, REDIS_PASSWORD="s3cret"))
    assert [each.safe_url for each in found[-2:]] == [
        "unix://:***@/run/redis/redis-server.sock?db=2",
        "redis://:***@redis.example.com:6380/2",
    ]
    for name in SETTINGS:
        assert any(getattr(each, name) is not None for each in found), name
    example = re.search(r"For example:\n((#   .*\n)+)", SHIPPED.read_text())[1]
    types = read(example.replace("#   ", "")).types
    assert types["report"]["kill_timeout"] == 7200
    assert types["mail"] == {"retry_backoff": "exponential"}


# --- weight --------------------------------------------------------------------------


def test_neither_sqlalchemy_nor_yaml_is_imported_before_there_is_a_file():
    program = (
        "import sys; from psched.config import from_mapping; from_mapping({'url': 'mysql://d/x'});"
        "print({'sqlalchemy', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


# --- the JSON schema -----------------------------------------------------------------


def fits(value, schema, whole):
    """Whether a value is valid; knows those keywords that the schema uses."""
    if "$ref" in schema:
        return fits(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    types = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "number": numeric,
        "integer": numeric and value == int(value),
        "null": value is None,
    }
    checks = {
        "type": lambda known: any(map(types.get, [known] if isinstance(known, str) else known)),
        "enum": lambda words: any(value == word and type(value) is type(word) for word in words),
        "anyOf": lambda schemas: any(fits(value, each, whole) for each in schemas),
        "pattern": lambda pattern: not types["string"] or re.search(pattern, value),
        "minimum": lambda least: not numeric or value >= least,
        "exclusiveMinimum": lambda least: not numeric or value > least,
        "maximum": lambda most: not numeric or value <= most,
        "items": lambda item: not types["array"] or all(fits(each, item, whole) for each in value),
        "not": lambda other: not fits(value, other, whole),
        "propertyNames": lambda name: (
            not types["object"] or all(fits(each, name, whole) for each in value)
        ),
        "required": lambda names: not types["object"] or {*names} <= {*value},
        "minProperties": lambda least: not types["object"] or len(value) >= least,
        "properties": lambda known: (
            not types["object"]
            or all(fits(value[name], known[name], whole) for name in {*known} & {*value})
        ),
        "additionalProperties": lambda other: (
            not types["object"]
            or not (more := {*value} - {*schema.get("properties", {})})
            or (other is not False and all(fits(value[name], other, whole) for name in more))
        ),
    }
    annotations = {"$schema", "title", "description", "default", "$defs"}
    return all(checks[word](given) for word, given in schema.items() if word not in annotations)


def is_valid(text):
    schema = json_schema()
    return bool(fits(yaml.safe_load(text), schema, schema))


def test_the_schema_accepts_the_shipped_files_and_their_examples():
    for file in (SHIPPED, SHIPPED.with_suffix("")):
        text = file.read_text()
        assert is_valid(text)
        assert is_valid(re.sub(r"^#(?=[a-z_]+: )", "", text, flags=re.MULTILINE))
    assert is_valid("production: {poll_interval: 1s}\ndevelopment:\n")
    assert is_valid("hooks: {a: {webhook: https://h, tries: 3}}\nexpect: off\nmonitor: on\n")
    assert is_valid("processors: ${N}\nlog_level: ${LEVEL}\ncreate_table: ${YES}\ncgroup: off\n")


@pytest.mark.parametrize(
    "wrong",
    [
        *("poll_intervall: 1", "poll_interval: 90", "poll_interval: [1]", "catchup: some"),
        *("jitter: 1.5", "only: 5", "monitor: 3", "types: {a: {table: x}}", "port: 0", "url:"),
        *("hooks: {a: {mail: b, command: c}}", "hooks: {a: {timeout: 5}}", "pings: {a: 5}"),
        *("hooks: {a: {mail: b, port: 0}}", "expect: {soon: 5}", "expect: {late: 0}", "[]"),
        *("production: 5", "alive_time: 60\nproduction: {jitter: 0}"),
    ],
)
def test_the_schema_refuses_what_psched_refuses(refusal, wrong):
    assert not is_valid(wrong)
    assert refusal(f"{wrong}\n")


# --- DynamoDB -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"url": "dynamodb://eu-west-1"}, "dynamodb://eu-west-1"),
        ({"url": "dynamodb:"}, "dynamodb://"),
        ({"type": "dynamodb"}, "dynamodb://"),
        ({"type": "simpledb"}, "simpledb://"),
        ({"url": "simpledb://us-east-1"}, "simpledb://us-east-1"),
        (
            {"url": "dynamodb://r-1?endpoint=http://127.0.0.1:8000/"},
            "dynamodb://r-1?endpoint=http://127.0.0.1:8000",
        ),
    ],
)
def test_a_url_of_dynamodb_chooses_the_type_and_the_type_the_url(given, url):
    config = take(given)
    kind = url.partition(":")[0]
    assert (config.type, config.url) == (kind, url)
    assert config.with_settings(url=url) == config
    assert config.with_settings(url="redis://h").type == "redis"
    assert take({"url": "redis://h"}).with_settings(url=url).type == kind
    assert config.with_settings(url="mysql://d/x").type == "rdb"
    assert config.with_settings(max_clock_offset="10s").max_clock_offset == 10


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"url": "dynamodb://AKIA:key@eu-west-1"}, "url: must be dynamodb://REGION, or"),
        ({"url": "dynamodb://r?endpoint=x"}, "url: must be dynamodb://REGION, or"),
        ({"type": "simpledb", "url": "dynamodb://r"}, "type: must be dynamodb with such a url"),
        ({"type": "rdb", "url": "dynamodb://r"}, "type: must be dynamodb with such a url"),
        ({"type": "dynamodb", "url": "mysql://d/x"}, "type: dynamodb needs a url of the form"),
        ({"url": "dynamodb://r", "claim_strategy": "cas"}, "claim_strategy: is of no use with"),
        ({"url": "dynamodb://r", "ssl_verify": "none"}, "url: names a driver without settings"),
        (
            {"url": "redis://h", "max_clock_offset": "6s"},
            "max_clock_offset: is for type: dynamodb or",
        ),
        ({"url": "dynamodb://r", "password_file": "/x"}, "password_file: "),
    ],
)
def test_what_does_not_belong_to_dynamodb_is_refused(given, error):
    with pytest.raises(ConfigError) as refused:
        take(given)
    assert error in str(refused.value)
    assert "AKIA" not in str(refused.value)
