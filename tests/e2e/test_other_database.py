"""Commands without a url on a host where a service serves another database."""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from psched.cli import opening
from psched.config import reader
from psched.service.service_file import ServiceFile, find_services
from support.odd_files import KINDS, leave
from support.waiting import wait_until

pytestmark = pytest.mark.extended

WRITING = (
    ["init"],
    ["add", "s1", "report", "@daily"],
    ["push", "t1", "{}"],
    ["cancel", "s1"],
    ["requeue", "s1"],
    ["delete", "s1"],
    ["apply", "schedules.yml"],
    ["import-crontab", "--user", "ann", "--any-user", "--apply", "crontab"],
    ["import-timers", "job.timer", "--any-user", "--apply"],
    ["import-cronjobs", "jobs.yml", "--source", "a", "--apply"],
    ["migrate", "schedules"],
)
ABOUT = {"url": "sqlite:////x.db", "table": "psched", "config": "/c.yml"}

READING = (["list"], ["show", "s1"], ["next", "s1"], ["export"])


class TestRunningMaster:
    @pytest.fixture
    def psched(self, service):
        """A function that runs psched without a configuration, while a master runs with one."""
        service.write("schedules.yml", "s1: {type: report, cron: '@daily'}\n")
        service.write("crontab", "0 0 * * * true\n")
        self.master = service.start()
        folder = Path(service.env["RUNTIME_DIRECTORY"])
        # The master writes the file just after it has logged that it serves.
        [self.published] = wait_until(
            lambda: [*folder.glob("service.*.json")], what="the file of the service"
        )

        def psched(*arguments):
            return service.run(sys.executable, "-m", "psched", *arguments)

        return psched

    @pytest.mark.landing
    def test_commands_that_write_refuse_and_name_both(self, service, psched, tmp_path):
        for command in WRITING:
            done = psched(*command)
            assert done.returncode == 1, command
            assert done.stderr == (
                "Error: url: none is configured, so this command would use"
                f" sqlite:///{service.folder}/.local/state/psched/psched.db, but psched-master"
                f" {self.master.pid} on this host serves sqlite:///{tmp_path}/psched.db, as"
                f" {service.config} says; set url in the configuration file, or name a database"
                " with -c FILE or --database URL\n"
            )
        assert not (service.folder / ".local").exists()

    def test_commands_that_read_warn(self, psched):
        for command in READING:
            done = psched(*command)
            warning, error = done.stderr.splitlines()
            assert warning.startswith("Warning: url: none is configured, so this command would use")
            assert error.startswith("Error: no database at ")

    def test_a_database_that_is_named_is_used(self, service, psched, tmp_path):
        mine = f"sqlite:///{tmp_path}/mine.db"
        for option in "--url", "--database":
            assert psched("init", option, mine).returncode == 0
        added = psched("add", "s1", "report", "@daily", "--url", mine)
        assert (added.returncode, added.stderr) == (0, "")
        listed = psched("list", "--url", mine)
        assert (listed.returncode, listed.stderr) == (0, "")
        assert "s1" in listed.stdout
        for command in READING[1:]:
            assert psched(*command, "--url", mine).returncode == 0
        assert service.psched("add", "s2", "report", "@daily").returncode == 0

    def test_a_trigger_needs_no_database(self, psched):
        done = psched("next", "--cron", "@daily")
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_master_that_was_killed_counts_no_more(self, psched):
        self.master.kill()
        assert self.published.exists()
        assert psched("init").returncode == 0

    @pytest.mark.landing
    def test_a_master_that_stops_removes_its_file(self, psched):
        assert self.master.stop() == 0
        assert not self.published.exists()
        assert psched("init").returncode == 0

    def test_the_file_can_be_read_by_all_and_contains_no_secret(self, service):
        service.env["PASSWORD"] = "s3cret"
        service.configure(url="mysql://psched:${PASSWORD}@127.0.0.1:1/psched")
        before = os.umask(0o077)
        try:
            service.start()
        finally:
            os.umask(before)
        folder = Path(service.env["RUNTIME_DIRECTORY"])
        wait_until(lambda: [*folder.glob("service.*.json")], what="the file")
        [path] = folder.glob("service.*.json")
        assert path.stat().st_mode & 0o777 == 0o644
        told = json.loads(path.read_text())
        assert told["url"] == "mysql+pymysql://psched:***@127.0.0.1:1/psched"
        assert (told["table"], told["config"]) == ("psched", str(service.config))

    def test_a_master_of_the_same_database_is_no_other(self, service):
        own = f"sqlite:///{service.folder}/.local/state/psched/psched.db"
        service.configure(url=own, create_table=True)
        service.start().wait_for_log("created table psched_info")
        done = service.run(sys.executable, "-m", "psched", "add", "s1", "recorder", "@daily")
        assert (done.returncode, done.stderr) == (0, "")


class TestFiles:
    """Tasks can write to the folder; what they leave there is information or nothing."""

    def test_a_living_master_is_found(self, tmp_path):
        file = ServiceFile(tmp_path)
        file.publish({})
        assert [*find_services([tmp_path])] == []
        file.publish(ABOUT)
        assert [*find_services([tmp_path, tmp_path / "missing"])] == [
            (os.getpid(), "sqlite:////x.db", "psched", "/c.yml")
        ]
        file.close()
        assert [*tmp_path.iterdir()] == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_a_task_leaves_is_passed_over_and_replaced(self, tmp_path, kind):
        file = ServiceFile(tmp_path)
        file.publish(ABOUT)
        [path] = tmp_path.iterdir()
        path.unlink()
        leave(kind, path)
        assert [*find_services([tmp_path])] == []
        file.publish({**ABOUT, "table": "other"})
        assert [each.table for each in find_services([tmp_path])] == ["other"]

    @pytest.mark.parametrize("kind", ["nothing", *KINDS])
    def test_what_a_task_removes_or_replaces_is_written_again(self, tmp_path, kind):
        file = ServiceFile(tmp_path)
        file.check()
        assert [*tmp_path.iterdir()] == []
        file.publish(ABOUT)
        [path] = tmp_path.iterdir()
        path.unlink()
        if kind != "nothing":
            leave(kind, path)
        file.check()
        assert [each.table for each in find_services([tmp_path])] == ["psched"]
        assert path.stat().st_mode & 0o777 == 0o644

    @pytest.mark.parametrize(
        "content", ["", "[]", "7", "{}", '{"namespace": 0}', "[" * 100_000, "\udcff"]
    )
    def test_what_no_master_has_written_is_passed_over(self, tmp_path, content):
        file = ServiceFile(tmp_path)
        file.publish(ABOUT)
        [path] = tmp_path.iterdir()
        path.write_text(content, errors="surrogateescape")
        assert [*find_services([tmp_path])] == []

    def test_files_of_the_dead_are_removed_by_the_next_master(self, tmp_path):
        ServiceFile(tmp_path).publish(ABOUT)
        [path] = tmp_path.iterdir()
        dead = path.rename(tmp_path / f"service.{os.getpid()}.1.json")
        assert [*find_services([tmp_path])] == []
        ServiceFile(tmp_path)
        assert not dead.exists()


class TestInstalledUnit:
    @pytest.fixture
    def etc(self, tmp_path, monkeypatch):
        """A folder in place of /etc, with the shipped unit, and without a configuration."""
        etc = tmp_path / "etc"
        (etc / "psched").mkdir(parents=True)
        unit = Path(__file__).parents[2] / "systemd/psched.service"
        (etc / "psched.service").write_text(unit.read_text())
        monkeypatch.setattr(opening, "_UNIT_FOLDERS", ("/nosuch", str(etc)))
        monkeypatch.setattr(opening, "_SERVICE_CONFIG", str(etc / "psched/psched.yml"))
        monkeypatch.setattr(reader, "_USUAL_PLACES", (str(etc / "psched/psched.yml"),))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "run"))
        for name in "XDG_STATE_HOME", "STATE_DIRECTORY", "PSCHED_CONFIG":
            monkeypatch.delenv(name, raising=False)
        return etc

    @pytest.fixture
    def refusal(self, etc):  # noqa: ARG002  # it is read
        """Why a command that writes is refused; None if it is not."""
        return lambda: opening._describe_other_database(reader.load())

    def test_without_a_configuration_it_is_not_in_use(self, refusal):
        assert refusal() is None

    def test_its_state_folder_holds_its_database(self, etc, refusal):
        (etc / "psched/psched.yml").write_text("log_level: debug\n")
        assert "but the installed psched.service uses sqlite:////var/lib/psched/" in refusal()

    def test_a_command_within_the_service_uses_the_same(self, etc, refusal, monkeypatch):
        (etc / "psched/psched.yml").write_text("log_level: debug\n")
        monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/psched")
        assert refusal() is None

    def test_a_url_in_its_configuration_is_used(self, etc, refusal):
        (etc / "psched/psched.yml").write_text("url: sqlite:////var/lib/psched/psched.db\n")
        assert refusal() is None

    def test_another_configuration_without_a_url_is_no_excuse(self, etc, refusal, monkeypatch):
        (etc / "psched/psched.yml").write_text("url: mysql://u:s3cret@db/x\n")
        (etc / "own.yml").write_text("log_level: debug\n")
        monkeypatch.setenv("PSCHED_CONFIG", str(etc / "own.yml"))
        assert "the installed psched.service uses mysql+pymysql://u:***@db/x" in refusal()

    def test_a_configuration_that_this_user_cannot_read_is_named(self, etc, refusal, monkeypatch):
        (etc / "psched/psched.yml").write_text("url: mysql://u:${SECRET_OF_SERVICE}@db/x\n")
        monkeypatch.setattr(reader, "_USUAL_PLACES", ())
        assert f"uses the database that {etc}/psched/psched.yml names" in refusal()

    @pytest.mark.landing
    def test_a_configuration_that_is_only_unreadable_is_not_called_none(self, etc, monkeypatch):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            closed = Path(folder, "psched")
            closed.mkdir(mode=0o700)
            (closed / "psched.yml").write_text("url: mysql://u@db/x\n")
            monkeypatch.setattr(opening, "_SERVICE_CONFIG", str(closed / "psched.yml"))
            places = ("config/psched.yml", str(closed / "psched.yml"))
            monkeypatch.setattr(reader, "_USUAL_PLACES", places)
            monkeypatch.setattr(os, "access", partial(os.access, effective_ids=True))
            etc.chmod(0o755)
            unit = (etc / "psched.service").read_text()
            monkeypatch.setattr(opening, "_unit_text", lambda: unit)
            me = os.geteuid()
            os.seteuid(65534)
            try:
                refusal = opening._describe_other_database(reader.load(cwd=closed.parent))
            finally:
                os.seteuid(me)
        assert refusal.startswith(f"url: this user may not read {closed}/psched.yml, so this")
        assert "run this as root, or as a user who may read it, or name a database" in refusal

    def test_a_master_of_this_users_own_serves_the_same(self, etc, refusal, tmp_path, monkeypatch):
        (etc / "psched/psched.yml").write_text("url: mysql://u:${SECRET_OF_SERVICE}@db/x\n")
        monkeypatch.setattr(reader, "_USUAL_PLACES", ())
        assert refusal() is not None
        (tmp_path / "run").mkdir()
        own = ServiceFile(tmp_path / "run")
        own.publish({**ABOUT, "url": reader.load().url})
        assert refusal() is None
        own.close()
        assert refusal() is not None

    def test_what_a_task_has_forged_is_one_short_line(self, refusal, tmp_path):
        (tmp_path / "run").mkdir()
        ServiceFile(tmp_path / "run").publish({"url": "a\n\x1b[2J" + "x" * 9999, "config": "b\nc"})
        assert "\n" not in refusal()
        assert "serves a \\x1b[2Jxxx" in refusal()
        assert len(refusal()) < 3000

    def test_a_masked_unit_is_not_in_use(self, etc, refusal):
        (etc / "psched/psched.yml").write_text("log_level: debug\n")
        (etc / "psched.service").unlink()
        (etc / "psched.service").symlink_to("/dev/null")
        assert refusal() is None
