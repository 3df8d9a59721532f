"""Which database is used: by file, by environment, and by default."""

import json
import sys

import pytest

import psched
from psched.config import SETTINGS
from support.run_log import completed


def added(service, *options):
    """The sections of the configuration to whose database ``psched add`` adds a schedule."""
    done = service.run(sys.executable, "-m", "psched", *options, "add", "s1", "t", "@daily")
    assert done.returncode == 0, done.stderr
    return {
        name
        for name in ("development", "production", "other")
        if keys(f"sqlite:///{service.folder}/{name}.db") == ["s1"]
    }


def keys(url):
    with psched.open({"url": url}) as schedules:
        return [seen.key for seen in schedules.list()]


def make_databases(service):
    """A file with two environments, another with no sections, and the databases they name."""
    sections = [
        f"{name}:\n  url: sqlite:///{service.folder}/{name}.db\n"
        for name in ("development", "production")
    ]
    service.config.unlink()
    service.write("config/psched.yml", "".join(sections))
    service.write("other.yml", f"url: sqlite:///{service.folder}/other.db\n")
    for options in ("-e", "development"), ("-e", "production"), ("-c", "other.yml"):
        assert service.run(sys.executable, "-m", "psched", *options, "init").returncode == 0


def test_options_go_before_the_environment_and_that_before_the_usual_places(service):
    make_databases(service)

    assert added(service) == {"development"}
    assert added(service, "-e", "production") == {"development", "production"}
    service.run(sys.executable, "-m", "psched", "delete", "s1")
    service.env["PSCHED_ENV"] = "production"
    service.run(sys.executable, "-m", "psched", "delete", "s1")
    assert added(service) == {"production"}
    service.env["PSCHED_CONFIG"] = "other.yml"
    assert added(service) == {"production", "other"}
    assert added(service, "-c", "config/psched.yml", "-e", "development") == {
        *("development", "production", "other"),
    }


@pytest.mark.extended
def test_without_a_configuration_there_is_a_database_of_ones_own(service):
    service.config.unlink()
    commands = [
        ["init"],
        ["add", "s1", "exec", "@daily", '{"command": ["touch", "ran"]}', "-s", "2026-01-01"],
        ["list", "--legacy"],
    ]
    for command in commands:
        done = service.run(sys.executable, "-m", "psched", *command)
        assert done.returncode == 0, done.stderr
    assert "1 entries." in done.stdout
    # The state folder of a service, and that of a user.
    assert (service.folder / ".local/state/psched/psched.db").exists()

    master = service.start(sys.executable, "-m", "psched", "run")
    master.wait_for_log(r"\[s1\.\d+\] finished", count=2)
    assert (service.folder / "ran").exists()
    assert master.stop() == 0

    service.env["STATE_DIRECTORY"] = str(service.folder / "state")
    assert service.run(sys.executable, "-m", "psched", "init").returncode == 0
    assert (service.folder / "state/psched.db").exists()


@pytest.mark.extended
def test_a_program_opens_schedules_by_a_path_by_settings_or_by_nothing(service):
    service.write(
        "program.py",
        """
        import psched, sys

        for given in [("psched.yml",), (psched.open("psched.yml")._settings,), ()]:
            with psched.open(*given) as schedules:
                print([seen.key for seen in schedules.list()])
        """,
    )
    service.env["PSCHED_CONFIG"] = "psched.yml"
    service.add("s1")

    done = service.run(sys.executable, "program.py")

    assert (done.stdout, done.stderr) == ("['s1']\n" * 3, "")


def test_a_program_can_do_all_that_the_command_line_can_and_more(each_service):
    with each_service.schedules() as schedules:
        schedules.submit("s1", "recorder", cron="@daily", data={"k": 1}, timezone="Europe/Paris")
        s1 = schedules["s1"]
        assert s1.exists()
        assert (s1.metadata().cron, s1.metadata().data) == ("@daily", {"k": 1})
        s1.modify(cron="@hourly", delay=5)
        assert s1.metadata().next_time % 3600 == 0
        assert s1.metadata().next_run_time == s1.metadata().next_time + 5
        assert schedules.poll() is None

        schedules.add("now", "recorder", next_time=1, data={"k": 2})
        task = schedules.poll()
        assert (task.key, task.type, task.data, task.attempt) == ("now", "recorder", {"k": 2}, 1)
        assert (task.scheduled_time, task.idempotency_key, task.fence) == (1, "now.1", 1)
        task.extend()
        task.update_data({"k": 3})
        task.retry(0)
        again = schedules.poll()
        assert (again.attempt, again.data) == (2, {"k": 3})
        again.finish()
        assert schedules["now"].metadata().status == "finished"

        s1.delete()
        assert not s1.exists()
    each_service.start()
    each_service.add("last")
    each_service.runs.wait("last", completed(1))


def test_every_public_name_is_there_and_a_slip_is_an_attribute_error():
    unions = {"Duration", "When"}  # types in signatures, which Python makes
    for name in psched.__all__:
        assert getattr(psched, name).__module__.startswith("psched.") or name in unions
    with pytest.raises(AttributeError, match="module 'psched' has no attribute 'opne'"):
        _ = psched.opne


def test_the_schema_for_editors_is_printed_without_a_configuration(make_service):
    done = make_service("sqlite:////no/such/folder/psched.db").psched("check", "--schema")

    assert (done.returncode, done.stderr) == (0, "")
    settings = json.loads(done.stdout)["$defs"]["settings"]["properties"]
    assert [*settings] == [*SETTINGS]
    assert settings["poll_interval"]["description"].startswith("Longest time between two searches")
