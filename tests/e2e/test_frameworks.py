"""The page about web applications: its programs run under real servers, and psched runs the tasks.

Tests add what the page leaves out: the tables, and Django's settings and urls.
"""

import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from support.code_blocks import ROOT, blocks_of
from support.owned_process import OwnedProcess
from support.waiting import HANG_TIMEOUT, wait_until

PAGE = ROOT / "docs/frameworks.md"
URL = "postgresql+psycopg://app@localhost/app"
"""The database on the page."""

BLOCKS = [*blocks_of(PAGE, PAGE.read_text())]
FILES = {
    re.match(r"# (\S+)\n", each.text)[1]: each.text
    for each in BLOCKS
    if each.language in {"python", "yaml"}
}
COMMANDS = [
    line for each in BLOCKS if each.language == "sh" for line in each.text.splitlines() if line
]

DJANGO_FILES = {
    "members/__init__.py": "",
    "members/models.py": """
from django.db import models

class Member(models.Model):
    name = models.TextField()

    class Meta:
        db_table = "members"
        managed = False
        app_label = "members"
""",
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
    }
    driver = "import pymysql\npymysql.install_as_MySQLdb()\n" if database.kind == "mariadb" else ""
    return f"""{driver}
DATABASES = {{"default": {connection!r}}}
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["members"]
ALLOWED_HOSTS = ["127.0.0.1"]
SECRET_KEY = "of a test"
"""


class WebServer:
    """A web server, started by a command of the page, on a free port.

    Args:
        service: the installation in whose folder it runs.
        command: a command of the page.
    """

    def __init__(self, service, command):
        program, *arguments = command.split()
        port = ["--bind=127.0.0.1:0"] if program == "gunicorn" else ["--port=0"]
        self._output = service.folder / "web.log"
        self._output.touch()
        self._process = OwnedProcess(
            [str(Path(sys.executable).parent / program), *port, *arguments],
            output=self._output,
            cwd=service.folder,
            env=service.env,
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
        self._process.close()


@pytest.fixture
def make_site(make_service, database):
    """A function that makes the programs of the page, starts a web server, and returns both."""
    started = []
    engine = create_engine(database.url)

    def make(command, *, dispatch="jobs:app", **changes):
        service = make_service(database.url, dispatch=dispatch)
        service.init()
        with engine.begin() as connection:
            serial = {
                "sqlite": "INTEGER PRIMARY KEY",
                "mariadb": "INT AUTO_INCREMENT PRIMARY KEY",
                "postgresql": "SERIAL PRIMARY KEY",
            }[database.kind]
            connection.execute(
                text(f"CREATE TABLE members (id {serial}, name VARCHAR(50) UNIQUE NOT NULL)")
            )
        every = {**FILES, **DJANGO_FILES, "shop/settings.py": django_settings(database)}
        for name, content in every.items():
            if name != "psched.yml":  # the service has its own
                file = service.folder / name
                file.parent.mkdir(exist_ok=True)
                file.write_text(content.replace(URL, database.url) + changes.get(name, ""))
        started.append(WebServer(service, command))
        return service, started[-1]

    def members():
        with engine.connect() as connection:
            return {*connection.scalars(text("SELECT name FROM members"))}

    make.members = members
    yield make
    for server in started:
        server.close()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS members"))
    engine.dispose()


DJANGO = "shop.wsgi"
NAMES = [f"ann-{n}" for n in range(12)]


def check_site(make_site, command, paths=("members",), **changes):
    """Post to a site by several threads, and run what it has pushed."""
    dispatch = "shop.worker:app" if DJANGO in command else "jobs:app"
    service, server = make_site(command, dispatch=dispatch, **changes)
    posted = [f"{path}/{path}-{name}" for path in paths for name in NAMES]
    assert {*server.post_all(posted)} == {202}, server.text
    # The name is taken: neither a member nor a task.
    assert server.post(f"members/members-{NAMES[0]}") == 500
    # uvicorn shuts down, and then lets the signal end it.
    assert server.stop() in {0, -signal.SIGTERM}, server.text
    master = service.start()
    welcomed = [path.partition("/")[2] for path in posted]
    for name in welcomed:
        master.wait_for_log(rf"Welcome, {name}!")
    assert len(re.findall(r"Welcome, \S+-ann", master.text)) == len(welcomed)
    assert master.stop() == 0
    assert make_site.members() == {f"members-{name}" for name in NAMES}
    return service, master


PUSH_BEFORE_THE_FORK = '\nwelcome.push(name="before the fork")\n'


def test_flask(make_site):
    check_site(make_site, COMMANDS[0], ("members", "greetings"))


def test_flask_that_has_pushed_before_gunicorn_forks(make_site):
    changes = {"flask_site.py": PUSH_BEFORE_THE_FORK}
    _, master = check_site(make_site, COMMANDS[1], ("members", "greetings"), **changes)
    assert master.text.count("Welcome, before the fork!") == 1


@pytest.mark.parametrize("command", COMMANDS[2:4])
def test_fastapi(make_site, command):
    check_site(make_site, command, ("members", "greetings"))


def test_django(make_site):
    check_site(make_site, COMMANDS[4])


def test_django_that_was_loaded_before_gunicorn_forks(make_site):
    check_site(make_site, f"{COMMANDS[4]} --preload")


def test_the_commands_of_the_page_are_those_that_are_tested():
    assert [
        "gunicorn --workers 2 --threads 4 flask_site:site",
        "gunicorn --workers 2 --preload flask_site:site",
        "uvicorn fastapi_site:site",
        "uvicorn --workers 2 fastapi_site:site",
        f"gunicorn --workers 2 --threads 4 {DJANGO}",
    ] == COMMANDS
