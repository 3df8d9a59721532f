"""An SQLite file of one user, and the commands of others: readers and root, and too early ones."""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from psched.cli.commands import psched
from support.isolated import isolated
from support.service import Service

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

SERVICE_USER, OTHER = 65_533, 65_534

READING = (["list"], ["show", "s1"], ["next", "s1"], ["export"])
WRITING = (
    ["add", "s2", "report", "@daily"],
    ["push", "t1", "{}"],
    ["cancel", "s1"],
    ["delete", "s1"],
)


@contextlib.contextmanager
def user(number):
    """Do what follows as another user."""
    os.setegid(number)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory):
    """Load all modules as root, because another user may not be able to read them."""
    folder = tmp_path_factory.mktemp("modules")
    url, log = f"sqlite:///{folder}/psched.db", str(folder / "psched.log")
    with contextlib.closing(Service(folder, url, dispatch=None, load_path=None, log=log)) as made:
        for command in (["init"], *WRITING, *READING):
            made.invoke(*command)


def checked_by_another(config):
    """What the command check, which needs a process of its own, tells another user."""
    command = ["-c", config, "check"]
    CliRunner().invoke(psched, command)  # loads all modules, as above
    with user(OTHER):
        done = CliRunner().invoke(psched, command)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def folder():
    """A folder of the service's user that all may search."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def service(folder):
    """A service in that folder, on an SQLite file; the table is not created."""
    with contextlib.closing(Service(folder, f"sqlite:///{folder}/psched.db")) as made:
        yield made


class TestNobodyButInitCreatesTheFile:
    @pytest.mark.extended
    @pytest.mark.parametrize("command", [*READING, *WRITING, ["check"]], ids=" ".join)
    def test_other_commands_name_init_and_leave_nothing(self, service, command):
        service.configure(dispatch=None, load_path=None)
        before = sorted(service.folder.iterdir())

        done = service.invoke(*command)

        assert done.exit_code == 1
        file = service.folder / "psched.db"
        assert f"no database at {file}: run `psched init`, or correct url\n" in done.output
        assert sorted(service.folder.iterdir()) == before

    def test_init_creates_it(self, service):
        assert service.invoke("init").exit_code == 0
        assert service.invoke("add", "s1", "report", "@daily").exit_code == 0

    @ROOT_ONLY
    def test_init_says_who_may_create_it(self, service):
        with user(OTHER):
            done = service.invoke("init")
        assert done.exit_code == 1
        assert done.output.startswith(
            f"Error: cannot create the database {service.folder}/psched.db: Permission denied; run"
            " `psched init` as a user who may write to"
        )


@ROOT_ONLY
class TestReaders:
    @pytest.fixture(autouse=True)
    def schedule(self, service):
        service.init()
        service.add("s1", cron="@daily", next_time=None)
        (service.folder / "psched.db").chmod(0o644)

    @pytest.fixture(params=["at rest", "in use"])
    def file(self, request, service):
        """The file, with or without another process that has it open and has written to it."""
        path = service.folder / "psched.db"
        if request.param == "at rest":
            yield path
            return
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE psched SET type = 'seen' WHERE id = 's1'")
            assert path.with_name("psched.db-wal").stat().st_size
            yield path

    @pytest.mark.parametrize("command", READING, ids=" ".join)
    def test_a_user_who_may_only_read_it_reads_it(self, service, file, command):
        before = sorted(service.folder.iterdir())

        with user(OTHER):
            done = service.invoke(*command)

        assert (done.exit_code, done.stderr) == (0, "")
        assert "s1" in done.stdout
        assert sorted(service.folder.iterdir()) == before
        if command == ["show", "s1"]:
            assert ("seen" in done.stdout) is file.with_name("psched.db-wal").exists()

    def test_a_reader_who_may_write_the_folder_leaves_no_files_of_their_own(self, service, file):
        # A configuration in a folder that everybody may write would be refused.
        os.chown(service.folder, 0, OTHER)
        service.folder.chmod(0o775)
        with user(OTHER):
            assert service.invoke("list").exit_code == 0
        owners = {path.stat().st_uid for path in file.parent.glob("psched.db*")}
        assert owners == {0}

    @pytest.mark.extended
    @pytest.mark.usefixtures("file")
    @pytest.mark.parametrize("command", WRITING, ids=" ".join)
    def test_what_would_write_is_refused_with_the_fix(self, service, command):
        with user(OTHER):
            done = service.invoke(*command)
        assert done.exit_code == 1
        assert "read-only" in done.stderr
        assert "run the command as a user who may write the file" in done.stderr

    @pytest.mark.usefixtures("file")
    def test_check_shows_what_it_can_read_and_fails_because_of_the_rights(self, service):
        service.configure(dispatch=None, load_path=None)
        status, said, errors = isolated(checked_by_another, str(service.config))
        assert status == 1
        assert "  server: SQLite" in said
        assert "  writable: no: this user may only read the file\n" in said
        assert "a user who may write the file" in errors

    def test_a_log_whose_index_cannot_be_read_is_named(self, service):
        file = service.folder / "psched.db"
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("UPDATE psched SET type = 'unseen' WHERE id = 's1'")
            for beside in "-wal", "-shm":
                file.with_name(f"psched.db{beside}").chmod(0)
            with user(OTHER):
                done = service.invoke("list")
        assert done.exit_code == 1
        assert "unseen" not in done.stdout
        assert "give this user the right to write the file and its folder" in done.stderr


@ROOT_ONLY
class TestRoot:
    """Root's commands leave nothing that the service's user could not use."""

    def test_a_database_that_root_creates_belongs_to_the_owner_of_its_folder(self, service, folder):
        os.chown(folder, SERVICE_USER, SERVICE_USER)
        assert service.invoke("init").exit_code == 0
        assert service.invoke("add", "s1", "report", "@daily").exit_code == 0
        found = (folder / "psched.db").stat()
        assert (found.st_uid, found.st_gid) == (SERVICE_USER, SERVICE_USER)
        with user(SERVICE_USER):
            assert service.invoke("cancel", "s1").exit_code == 0

    def test_so_do_new_folders(self, service, folder):
        os.chown(folder, SERVICE_USER, SERVICE_USER)
        service.configure(url=f"sqlite:///{folder}/a/b/psched.db")
        assert service.invoke("init").exit_code == 0
        for made in "a", "a/b", "a/b/psched.db":
            assert (folder / made).stat().st_uid == SERVICE_USER
        with user(SERVICE_USER):
            assert service.invoke("add", "s1", "report", "@daily").exit_code == 0

    @pytest.mark.parametrize("link", [os.link, os.symlink])
    def test_a_link_in_place_of_a_new_folder_gives_nothing_away(
        self, service, folder, monkeypatch, link
    ):
        secret = folder / "secret"
        secret.write_text("root's")
        os.chown(folder, SERVICE_USER, SERVICE_USER)
        service.configure(url=f"sqlite:///{folder}/a/psched.db")
        make = Path.mkdir

        def make_and_replace(path, *args, **options):
            make(path, *args, **options)
            if path == folder / "a":
                path.rmdir()
                link(secret, path)

        monkeypatch.setattr(Path, "mkdir", make_and_replace)
        assert service.invoke("init").exit_code == 1
        assert secret.stat().st_uid == 0

    def test_the_log_beside_a_database_that_is_in_use_belongs_to_its_owner(self, service, folder):
        os.chown(folder, SERVICE_USER, SERVICE_USER)
        service.init()
        with service.schedules() as schedules:
            schedules.add("s1", "report", cron="@daily")
            beside = [*folder.glob("psched.db-*")]
            assert {path.stat().st_uid for path in beside} == {SERVICE_USER}
            assert len(beside) == 2
            with user(SERVICE_USER):
                assert service.invoke("cancel", "s1").exit_code == 0


@ROOT_ONLY
def test_check_finds_a_log_that_this_user_cannot_write(service, folder):
    log = folder / "psched.log"
    log.write_text("")
    log.chmod(0o600)
    service.configure(log=str(log), dispatch=None, load_path=None)
    status, _, errors = isolated(checked_by_another, str(service.config))
    assert status == 1
    assert f" cannot append to {log}: Permission denied; give the file" in errors
