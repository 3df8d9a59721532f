"""The page about web applications: its programs run under real servers, and psched runs the tasks.

Tests add what the page leaves out: Django's settings and urls.
"""

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from support.code_blocks import ROOT, blocks_of, server_sql
from support.owned_process import OwnedProcess
from support.service import Master
from support.waiting import HANG_TIMEOUT, PATIENCE, wait_until

pytestmark = pytest.mark.extended

PAGE = ROOT / "docs/frameworks.md"
URL = "postgresql+psycopg://app@localhost/app"
"""The database on the page."""

BLOCKS = [*blocks_of(PAGE, PAGE.read_text())]
FILES = {
    re.match(r"# (\S+)\n", each.text)[1]: each.text
    for each in BLOCKS
    if each.language in {"python", "yaml"}
}
COMMANDS = [each.text.splitlines() for each in BLOCKS if each.language == "sh"]
(INIT, MASTER), FLASK, FASTAPI, MAKE_MIGRATIONS, (MIGRATE, DJANGO) = COMMANDS
[TABLE] = server_sql("frameworks.md")

MIGRATION = "members/migrations/0002_psched.py"

DJANGO_FILES = {
    "manage.py": """
import os
from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
execute_from_command_line()
""",
    "members/__init__.py": "",
    "shop/__init__.py": "",
    "shop/urls.py": """
from django.urls import path
from members.views import join

urlpatterns = [path("members/<name>", join)]
""",
    "shop/wsgi.py": """
import os
from django.core.wsgi import get_wsgi_application

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
application = get_wsgi_application()
""",
}

DJANGO_ENGINES = {"sqlite": "sqlite3", "mariadb": "mysql", "postgresql": "postgresql"}


def django_settings(database):
    """The module of Django's settings, for a database of a test."""
    url = make_url(database.url)
    options = {name: url.query[name] for name in url.query}
    socket = options.pop("unix_socket", None)
    host = socket or options.pop("host", None) or url.host
    connection = {
        "ENGINE": f"django.db.backends.{DJANGO_ENGINES[database.kind]}",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": host or "",
        "PORT": str(url.port or ""),
        # Django's own limit is 5 s for a lock, which a busy machine can exceed.
        "OPTIONS": {"timeout": PATIENCE} if database.kind == "sqlite" else {},
    }
    driver = "import pymysql\npymysql.install_as_MySQLdb()\n" if database.kind == "mariadb" else ""
    return f"""{driver}
DATABASES = {{"default": {connection!r}}}
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["members"]
ALLOWED_HOSTS = ["127.0.0.1"]
SECRET_KEY = "of a test"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
"""


class Site:
    """The programs of the page in a folder of their own, and what has been started there.

    Args:
        folder: an empty folder.
        database: the database that takes the place of the page's.
        changes: text to add to files, by their names.
    """

    def __init__(self, folder, database, changes):
        self._folder = folder
        self._engine = create_engine(database.url)
        self._started = []
        self._env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "RUNTIME_DIRECTORY": str(folder),
        }
        every = {**FILES, **DJANGO_FILES, "shop/settings.py": django_settings(database)}
        self._later = every.pop(MIGRATION)
        for name, content in every.items():
            file = folder / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(content.replace(URL, database.url) + changes.get(name, ""))

    def run(self, *commands):
        """Run commands of the page, each of which must succeed."""
        for command in commands:
            done = subprocess.run(
                ["/bin/bash", "-ec", command],
                cwd=self._folder,
                env=self._env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def set_up(self):
        """Create the tables of Flask and FastAPI."""
        with self._engine.begin() as connection:
            connection.exec_driver_sql(TABLE)
        self.run(INIT)

    def set_up_django(self):
        """Create the tables of Django."""
        self.run(*MAKE_MIGRATIONS)
        (self._folder / MIGRATION).write_text(self._later)
        self.run(MIGRATE)
        config = self._folder / "psched.yml"
        config.write_text(config.read_text().replace("jobs:app", "shop.worker:app"))

    def serve(self, command):
        """Start a web server, by a command of the page, on a free port."""
        self._started.append(WebServer(self._folder, self._env, command))
        return self._started[-1]

    def start_master(self):
        """Start psched-master, as the page says."""
        log = self._folder / "master.log"
        command = ["/bin/bash", "-ec", f"exec {MASTER}"]
        self._started.append(Master(command, log=log, folder=self._folder, env=self._env))
        return self._started[-1]

    def members(self, table="members"):
        """The names in the table of members."""
        with self._engine.connect() as connection:
            return {*connection.scalars(text(f"SELECT name FROM {table}"))}  # noqa: S608

    def close(self):
        """Stop all that was started."""
        for each in self._started:
            each.close()
        self._engine.dispose()


class WebServer:
    """A running web server."""

    def __init__(self, folder, env, command):
        program, *arguments = command.split()
        port = ["--bind=127.0.0.1:0"] if program == "gunicorn" else ["--port=0"]
        self._output = folder / "web.log"
        self._output.touch()
        self._process = OwnedProcess(
            [str(Path(sys.executable).parent / program), *port, *arguments],
            output=self._output,
            cwd=folder,
            env=env,
        )
        found = wait_until(
            lambda: re.search(r"http://127\.0\.0\.1:([1-9]\d*)", self.text),
            what=f"the port of {program}",
        )
        self._port = int(found[1])
        # uvicorn says the port before its workers listen.
        listens = "startup complete" if program == "uvicorn" else "Listening at"
        wait_until(lambda: listens in self.text, what=f"{program} to listen")

    def post(self, path):
        """Send a POST; return the status of the answer."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=HANG_TIMEOUT)) as server:
            server.request("POST", f"/{path}")
            return server.getresponse().status

    def post_all(self, paths):
        """Send POSTs, several at a time; return the statuses."""
        with ThreadPoolExecutor(8) as threads:
            return [*threads.map(self.post, paths)]

    @property
    def text(self):
        """What the server has printed."""
        return self._output.read_text()

    def stop(self):
        """TERM the server; return its exit status."""
        self._process.send(signal.SIGTERM)
        return self._process.wait()

    def close(self):
        """KILL the server, if it still runs."""
        self._process.close()


@pytest.fixture
def make_site(tmp_path, database):
    """A function that makes the programs of the page."""
    made = []

    def make(**changes):
        folder = tmp_path / "site"
        folder.mkdir()
        made.append(Site(folder, database, changes))
        return made[-1]

    yield make
    for site in made:
        site.close()


NAMES = [f"ann-{n}" for n in range(12)]


def check(site, command, paths=("members",), table="members"):
    """Post to a site by several threads, and run what it has pushed."""
    server = site.serve(command)
    posted = [f"{path}/{path}-{name}" for path in paths for name in NAMES]
    assert {*server.post_all(posted)} == {202}, server.text
    # The name is taken: neither a member nor a task.
    assert server.post(f"members/members-{NAMES[0]}") == 500
    # uvicorn shuts down, and then lets the signal end it.
    assert server.stop() in {0, -signal.SIGTERM}, server.text
    master = site.start_master()
    welcomed = [path.partition("/")[2] for path in posted]
    for name in welcomed:
        master.wait_for_log(rf"Welcome, {name}!")
    assert len(re.findall(r"Welcome, \S+-ann", master.text)) == len(welcomed)
    assert master.stop() == 0
    assert site.members(table) == {f"members-{name}" for name in NAMES}
    return master


BOTH = ("members", "greetings")


def test_flask(make_site):
    site = make_site()
    site.set_up()
    check(site, FLASK[0], BOTH)


def test_flask_that_has_pushed_before_gunicorn_forks(make_site):
    site = make_site(**{"flask_site.py": '\nwelcome.push(name="before the fork")\n'})
    site.set_up()
    master = check(site, FLASK[1], BOTH)
    assert master.text.count("Welcome, before the fork!") == 1


@pytest.mark.parametrize("command", FASTAPI)
def test_fastapi(make_site, command):
    site = make_site()
    site.set_up()
    check(site, command, BOTH)


@pytest.mark.parametrize("command", [DJANGO, f"{DJANGO} --preload"])
def test_django(make_site, command):
    site = make_site()
    site.set_up_django()
    check(site, command, table="members_member")


DJANGO_TEST = """
from django.db import connection
from django.test import Client, TestCase

class Joining(TestCase):
    def test_a_member_is_welcomed(self):
        assert Client().post("/members/ann").status_code == 202
        with connection.cursor() as cursor:
            cursor.execute("SELECT type, data FROM psched")
            [(type_, data)] = cursor.fetchall()
        assert type_ == "welcome" and "member" in str(data), (type_, data)
"""


def test_a_test_of_django_finds_what_was_pushed_in_its_own_database(make_site):
    site = make_site(**{"members/__init__.py": ""})
    site.set_up_django()
    site.run(f"cat >members/tests.py <<'END'\n{DJANGO_TEST}\nEND\npython manage.py test")
    assert site.members("members_member") == set()
