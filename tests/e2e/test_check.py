"""psched check: would a master start, would its workers find everything?"""

import re

import pytest

from psched.app import make_store
from psched.config import from_mapping
from psched.triggers import zone
from support.proxy import Proxy
from support.run_records import worker_record

DISPATCH = """
    from psched.application import Dispatch as BaseDispatch

    def report(task):
        pass

    class Dispatch(BaseDispatch):
        routes = {"report": report, "lazy": "lazily:report"}
"""

SERVERS = {
    "sqlite": ("SQLite 3.", "cas", "serializable"),
    "mariadb": ("MariaDB 1", "cas", "read committed"),
    "postgresql": ("PostgreSQL 1", "skip_locked", "read committed"),
}

UNRUN = """
from psched.application import Base as B, Dispatch as D
{handler}
class Dispatch(D): routes = {{"t": handler}}
"""


def test_a_good_installation_is_all_ok(make_service, database):
    service = make_service(database.url, dispatch="jobs:Dispatch")
    service.init()
    service.write("jobs.py", DISPATCH)
    service.write("lazily.py", "def report(task): pass")
    service.add("s1")

    done = service.psched("check")

    assert (done.returncode, done.stderr) == (0, "")
    first, (zones, store, *facts) = done.stdout.splitlines()[:5], done.stdout.splitlines()[5:]
    configuration, handlers, programs, triggers, workers = first
    assert configuration == f"configuration: {service.config}: ok"
    assert handlers == "handlers: 2 routes: ok"
    assert programs.startswith("programs: rows may run any program as user ")
    assert triggers.startswith("triggers: rows may call trigger classes as user ")
    assert workers == "workers: 1; slots of each: 1"
    assert zones.startswith("zones: tzdata 20")
    assert store.endswith(", table psched")
    shown = dict(line.strip().split(": ", 1) for line in facts)
    server, strategy, isolation = SERVERS[database.kind]
    assert shown["server"].startswith(server)
    assert shown["claims by"] == strategy
    assert shown["isolation"] == isolation
    assert shown["encrypted"] == ("no" if database.server else "no need to, a file")
    assert abs(float(shown["clock"].split()[0])) < 2
    assert shown["writable"] == "yes"
    assert float(shown["round trip"].removesuffix(" ms")) > 0
    assert shown["rights"] == "may be read and written: ok"
    assert float(shown["connecting"].removesuffix(" ms")) > 0
    assert "warning" not in shown


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "import nowhere",
            "importing 'jobs' failed: ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("def broken(:", "importing 'jobs' failed: SyntaxError: invalid syntax (jobs.py, line 1)"),
        ("raise ValueError('no')", "importing 'jobs' failed: ValueError: no"),
        ("raise ValueError('two\\nlines')", "importing 'jobs' failed: ValueError: two"),
        ("import sys; sys.exit(0)", "importing 'jobs' failed: SystemExit: 0"),
        ("pass", "the module 'jobs' has no 'Dispatch'"),
        ("Dispatch = 7", "jobs:Dispatch should be a subclass of psched.application.Dispatch"),
        (
            "from recorder import Dispatch as B\nclass Dispatch(B): routes = {'t': 'nowhere:run'}",
            "there is no module 'nowhere' on the load path",
        ),
        (
            "from recorder import Dispatch as B\nclass Dispatch(B): routes = {'t': 'jobs:nothing'}",
            "the module 'jobs' has no 'nothing'",
        ),
        (
            "from recorder import Dispatch as B\nclass Dispatch(B): routes = {'t': int}",
            "Dispatch: the route 't': the class int has no run() method",
        ),
        (
            "from recorder import Dispatch as B\nclass Dispatch(B): routes = {7: print}",
            "Dispatch: a route must be a text or a compiled pattern, not 7",
        ),
        # A call of one of these returns at once: its tasks would finish without having run.
        (
            UNRUN.format(handler="def handler(task): yield"),
            "Dispatch: the route 't': handler is a generator",
        ),
        (
            UNRUN.format(handler="class handler(B):\n async def perform(self): yield"),
            "Dispatch: the route 't': handler.perform is a generator",
        ),
    ],
)
def test_handlers_that_cannot_be_loaded_are_refused_in_one_line(service, code, says):
    service.configure(dispatch="jobs:Dispatch")
    service.write("jobs.py", code)

    done = service.psched("check")

    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {says}")
    assert done.stderr.count("\n") == 1


@pytest.mark.extended
@pytest.mark.postgresql
class TestSlowStore:
    """The length of the lease decides how long an answer may take."""

    @pytest.fixture
    def check(self, make_service, postgresql_server):
        """A function that runs psched check with a store that answers after some seconds."""
        name = postgresql_server.create_database()
        near = postgresql_server.url(name)
        make_service(near).init()

        def check(answer, **settings):
            with Proxy(postgresql_server.port) as proxy, proxy.slow(answer):
                far = near.replace(f":{postgresql_server.port}/", f":{proxy.port}/")
                return make_service(far, **settings).psched("check")

        yield check
        postgresql_server.drop_database(name)

    def test_one_that_leaves_no_room_is_warned_of(self, check):
        done = check(0.5, alive_time=6)
        assert (done.returncode, done.stderr) == (0, "")
        [line] = [line for line in done.stdout.splitlines() if "warning: answers" in line]
        assert "with alive_time 6, leases are lost when answers take 0.840 s or more" in line
        alive_time = int(re.search(r"set alive_time to (\d+) or more", line)[1])
        better = check(0.5, alive_time=alive_time + 1)
        assert "warning: answers" not in better.stdout

    def test_one_to_which_it_takes_long_to_connect_is_warned_of(self, check):
        done = check(0.3, alive_time=6)
        assert done.returncode == 0
        assert "warning: connecting takes " in done.stdout
        assert "times out after 2.16 s (twice database_timeout)" in done.stdout

    @pytest.mark.quiet  # what a busy machine adds to an answer reaches the timeout
    def test_one_that_is_too_slow_for_the_leases_is_refused(self, check):
        done = check(0.85, alive_time=6, database_timeout=1.19)
        assert done.returncode == 1
        assert re.match(
            "Error: alive_time: 6 is too short for a store that answers in 0.8", done.stderr
        )
        assert "set alive_time to " in done.stderr
        assert done.stderr.count("\n") == 1

    def test_one_that_answers_at_once_is_not(self, check):
        done = check(0, alive_time=6)
        assert (done.returncode, done.stderr) == (0, "")
        assert "warning" not in done.stdout


def test_a_database_that_is_away_is_refused(make_service):
    service = make_service("mysql://someone:s3cret@127.0.0.1:1/psched")

    done = service.psched("check")

    assert done.returncode == 1
    assert done.stderr.startswith(
        "Error: cannot connect to mysql+pymysql://someone:***@127.0.0.1:1/psched: "
    )
    assert done.stderr.count("\n") == 1


def test_a_missing_table_is_refused_with_the_mend(make_service, database):
    service = make_service(database.url)
    if database.kind == "sqlite":
        service.init()  # the file is there, but holds another table
        service.configure(table="another")
    table = "another" if database.kind == "sqlite" else "psched"

    done = service.psched("check")

    assert done.returncode == 1
    assert done.stderr == f"Error: the table '{table}' does not exist; run `psched init`\n"


def test_where_no_handlers_are_configured_that_is_said(service):
    service.configure(dispatch=None, load_path=None)

    done = service.psched("check")

    assert (done.returncode, done.stderr) == (0, "")
    assert "handlers: none configured\n" in done.stdout


@pytest.mark.extended
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("granted", "missing"),
    [
        ("SELECT", "INSERT, UPDATE, DELETE"),
        ("SELECT, INSERT, UPDATE", "DELETE"),
        ("SELECT, INSERT, DELETE", "UPDATE"),
        ("SELECT, UPDATE, DELETE", "INSERT"),
    ],
)
def test_a_missing_right_is_named(each_service, database, granted, missing):
    name = database.url.rpartition("/")[2]
    account, server = f"u_{name}@'%'", database.server
    each_service.add("s1")
    before = each_service.row("s1").row
    server.query(f"CREATE USER {account} IDENTIFIED BY 's3cret'")
    try:
        server.query(f"GRANT {granted} ON {name}.* TO {account}")
        each_service.configure(url=f"mysql://u_{name}:s3cret@127.0.0.1:{server.port}/{name}")
        done = each_service.psched("check")
    finally:
        server.query(f"DROP USER {account}")

    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot {missing} in the table 'psched': ")
    assert done.stderr.count("\n") == 1
    each_service.configure(url=database.url)
    assert each_service.psched("check").returncode == 0
    assert each_service.row("s1").row == before


def test_it_says_who_can_run_code(service):
    service.configure(exec_type=["date", "/no/such/program"])
    service.init()
    lines = service.psched("check").stdout.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("programs: "))
    assert lines[at].endswith(": date, /no/such/program (exec_type)")
    assert lines[at + 1] == "  /no/such/program: is not on this host, or not executable"
    assert lines[at + 2].startswith("triggers: rows may call trigger classes as user ")

    service.write(
        "jobs.py",
        "import psched.application as a\nclass D(a.Dispatch): routes = {'exec': print}\n",
    )
    service.configure(exec_type=None, dispatch="jobs:D")
    assert "programs: your own handler runs type exec" in service.psched("check").stdout


def test_it_lists_all_problems_and_not_only_the_first(service):
    service.configure(
        dispatch="nowhere:Dispatch", log="/nosuch/psched.log", url="mysql://u@127.0.0.1:1/x"
    )
    done = service.psched("check")
    assert done.returncode == 1
    handlers, log, database = done.stderr.splitlines()
    assert handlers.startswith("Error: there is no module 'nowhere' on the load path")
    assert log.endswith("cannot create /nosuch/psched.log: create its folder, and give it to the"
                        " user of the service")  # fmt: skip
    assert database.endswith("; start the server, or correct host and port in url")
    assert "triggers: " in done.stdout


class TestLog:
    def test_a_log_that_can_be_written_is_ok_and_is_not_created(self, service):
        log = service.folder / "psched.log"
        service.configure(log=str(log))
        for _ in range(2):
            done = service.psched("check")
            assert (done.returncode, done.stderr) == (0, "")
            assert re.search(
                rf"^log: {log}, which user \S+ can write: ok$", done.stdout, re.MULTILINE
            )
            if not log.exists():
                log.write_text("a line\n")
        assert log.read_text() == "a line\n"

    def test_a_log_that_is_no_file_is_a_problem(self, service):
        service.configure(log=str(service.folder))
        done = service.psched("check")
        assert done.returncode == 1
        assert f" cannot append to {service.folder}: is a folder, " in done.stderr
        assert done.stderr.endswith("; name a file\n")


class TestOptionsOfRun:
    def test_they_replace_what_the_file_says(self, service):
        service.configure(dispatch=None, load_path=None)
        service.write("more/jobs.py", DISPATCH)
        service.write("more/lazily.py", "def report(task): pass")
        done = service.psched("check", "-I", "more", "-r", "jobs", "Dispatch")
        assert (done.returncode, done.stderr) == (0, "")
        assert "handlers: 2 routes: ok\n" in done.stdout
        missing = service.psched("check", "-I", "more", "-r", "nowhere", "Dispatch")
        assert missing.returncode == 1
        assert "there is no module 'nowhere'" in missing.stderr

    def test_a_program_for_every_type_is_checked(self, service):
        done = service.psched("check", "--exec", "/bin/true", "--", "--quickly")
        assert (done.returncode, done.stderr) == (0, "")
        assert "handlers: /bin/true for every type: ok\n" in done.stdout

    def test_exit_functions_that_do_not_run_in_tasks_are_named(self, service):
        # `logging` is registered by the standard library, which psched ends itself.
        service.write("client.py", "import atexit\n@atexit.register\ndef flush(): pass")
        service.write("jobs.py", "import client, logging\nfrom psched.application import Dispatch")
        done = service.psched("check", "-I", ".", "-r", "jobs", "Dispatch")
        assert "  client: its exit function flush does not run in tasks; use before_exit\n" in (
            done.stdout
        )
        assert done.stdout.count("exit function") == 1

    def test_the_database_of_an_option_is_checked(self, service):
        done = service.psched("check", "--url", f"sqlite:///{service.folder}/none.db")
        assert done.returncode == 1
        assert f"Error: no database at {service.folder}/none.db: run" in done.stderr

    def test_an_interval_that_run_refuses_is_refused(self, service):
        done = service.psched("check", "-t", "60", "-b", "59")
        assert done.returncode == 1
        assert "heartbeat-interval: 59 s" in done.stderr


def test_a_database_in_memory_needs_no_running_master(service):
    service.configure(url="memory:")
    done = service.psched("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("database: memory:, which each master makes for itself: ok\n")


def test_hosts_with_other_zone_data_are_named(service):
    store = make_store(from_mapping({"url": service.url}))
    for number, release in enumerate(["2001a", zone.VERSION, None]):
        store.history.beat(
            worker_record(nonce=f"n{number}", host=f"web{number}", zone_data=release)
        )
    store.history.beat(worker_record(nonce="gone", host="gone", zone_data="2001a", ended=0))
    store.disconnect()
    warnings = [line for line in service.psched("check").stdout.splitlines() if "warning" in line]
    told = f"  warning: web0 has the zone data tzdata 2001a, this host {zone.VERSION}; install the"
    assert warnings == [f"{told} same release on all hosts"]
