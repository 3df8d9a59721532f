"""What fails in production, under a master that goes on running through all of it.

While quick tasks are worked off and a long one runs, something happens to the database, and
after a while it is mended. Whatever it was: every occurrence is run once and in its order, the
long task goes on, and the log has one line when it begins and one when it ends.
"""

import contextlib
import re
import signal
import sys
from dataclasses import dataclass

import psycopg
import pymysql
import pymysql.constants.ER
import pytest

from psched.base.clock import SystemClock
from psched.stores.redis import scripts
from psched.stores.sql.schema import VERSION
from support.disks import small_disk
from support.processes import kill
from support.proxy import Fault, Proxy
from support.run_log import exactly_once, in_order, never_two_at_once
from support.servers import LOOPBACK, SqlServer
from support.servers.base import run_tool
from support.service import Master, Service, services
from support.waiting import wait_until

pytestmark = pytest.mark.verified

CLOCK = SystemClock()
HOUR = 3600
KEYS = 12
OCCURRENCES = 4

SETTINGS = {"alive_time": 30, "database_timeout": 3, "concurrency": 4}

LONGEST_RECOVERY = 8
"""Seconds: the longest pause between two tries, a connection and a request that fail, and some."""

WHILE = 0.6
"""Seconds after a fault was noticed, in which the long task says that it goes on. Then the fault
is mended."""

REQUESTS = 150
"""What a worker may send in that time while the fault lasts: some tries, each with a connection."""

ACCOUNT = {
    "mariadb": ("CREATE USER u IDENTIFIED BY 'p'", "GRANT ALL ON work.* TO u"),
    "postgresql": ("CREATE ROLE u LOGIN PASSWORD 'p'", "ALTER DATABASE work OWNER TO u"),
}
"""Without the right to write on a server that is read-only, or to a connection kept for others."""

REASONS = {
    "the_server_is_killed": "cannot connect to",
    "the_database_becomes_read_only": "the database is read-only: ",
    "no_connection_is_left": "1040, 'Too many connections'",
    "no_connection_is_left_for_the_user": 'too many connections for role "u"',
    "the_server_becomes_a_replica": "is a replica; url must lead to the primary",
    "too_few_replicas_follow": "too few replicas follow it: NOREPLICAS",
    "the_data_are_of_a_newer_version": "have the layout 99, this psched knows 2",
    "the_table_is_of_a_newer_version": f"this psched knows {VERSION}; upgrade psched on this host",
}
"""What the log says besides: what keeps an outage up, where that is not what has begun it."""

FAULTS = {"mariadb": {}, "postgresql": {}, "redis": {}}

SQL = ("mariadb", "postgresql")

ANY = tuple(FAULTS)

SETTLING = dict.fromkeys(SQL, b"SET leased_by = NULL") | {
    "redis": scripts.find("settle_and_record").digest.encode()
}
CLAIMING = dict.fromkeys(SQL, b"fence = fence + 1") | {
    "redis": scripts.find("claim").digest.encode()
}
"""What is in the requests that do so."""


def fault(*kinds):
    """Something that happens to a plant, and is mended after the yield."""

    def known(happens):
        for kind in kinds or SQL:
            FAULTS[kind][happens.__name__] = contextlib.contextmanager(happens)
        return happens

    return known


@dataclass(frozen=True)
class Plant:
    """A server of its own, a proxy before it, a service behind that, and a master."""

    server: SqlServer
    proxy: Proxy
    service: Service
    master: Master

    def query(self, *statements):
        """Run statements as the administrator, beside the proxy."""
        return [self._ask(statement) for statement in statements][-1]

    def _ask(self, statement):
        # The only connection that is kept for administrators may not be free at once again.
        answer = []

        def asked():
            try:
                answer.append(self.server.query(statement, database="work"))
            except pymysql.err.OperationalError as error:
                if error.args[0] != pymysql.constants.ER.CON_COUNT_ERROR:
                    raise
            return answer

        return wait_until(asked, what="an administrator's connection")[0]

    def connect(self, **more):
        """A client's connection, beside the proxy."""
        place = {"host": LOOPBACK, "port": self.server.port, **more}
        if self.server.kind == "mariadb":
            return pymysql.connect(
                **{"user": "root", "database": "work", "ssl_disabled": True, **place}
            )
        return psycopg.connect(**{"user": "postgres", "dbname": "work", **place})

    def sessions(self):
        """The numbers of all that clients have open on a MariaDB."""
        found = self.query("SELECT id FROM information_schema.processlist WHERE user = 'u'")
        return {number for (number,) in found}

    def end_sessions(self):
        """End those of the master's workers, at least one."""
        # A worker may have none at this moment, because it is about to connect again.
        wait_until(self._end_sessions, what="a session to end")

    def _end_sessions(self):
        """End the sessions that there are; whether there was one."""
        if self.server.kind == "redis":
            return self.server.query("CLIENT", "KILL", "TYPE", "normal")
        if self.server.kind == "postgresql":
            pids = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            return self.query(f"{pids} WHERE usename = 'u'")
        sessions = self.sessions()
        for number in sessions:
            with contextlib.suppress(pymysql.err.OperationalError):
                self.query(f"KILL {number}")
        return sessions

    def restart(self, stop):
        """Stop the server, and start it again."""
        stop()
        yield
        self.server.start()


@fault(*ANY)
def the_server_is_killed(plant):
    yield from plant.restart(plant.server.kill)


@fault(*ANY)
def the_server_is_restarted(plant):
    yield from plant.restart(plant.server.stop)


@fault("postgresql")
def the_server_is_shut_down_at_once(plant):
    def stop():
        kill(plant.server.pid, signal.SIGQUIT)
        wait_until(lambda: not plant.server.running, what="the server's end")

    yield from plant.restart(stop)


@fault("mariadb")
def the_server_becomes_read_only(plant):
    plant.query("SET GLOBAL read_only = 1")
    yield
    plant.query("SET GLOBAL read_only = 0")


@fault("postgresql")
def the_database_becomes_read_only(plant):
    plant.query("ALTER DATABASE work SET default_transaction_read_only = on")
    plant.end_sessions()
    yield
    with plant.connect(dbname="postgres", autocommit=True) as connection:
        connection.execute("ALTER DATABASE work RESET default_transaction_read_only")


@fault("mariadb")
def no_connection_is_left(plant):
    [[limit]] = plant.query("SELECT @@max_connections")
    with contextlib.ExitStack() as taken:
        ours = set()
        with contextlib.suppress(pymysql.err.OperationalError):
            while True:
                one = taken.enter_context(plant.connect(user="u", password="p"))
                ours.add(one.thread_id())
        # No more than ours are allowed from when the worker's is ended: it might be quicker to
        # take its place than we.
        steps = [f"SET GLOBAL max_connections = {len(ours)}"]
        steps += [f"KILL {number}" for number in plant.sessions() - ours]
        plant.query(f"BEGIN NOT ATOMIC {'; '.join(steps)}; END")
        yield
        plant.query(f"SET GLOBAL max_connections = {limit}")


@fault("postgresql")
def no_connection_is_left_for_the_user(plant):
    plant.query("ALTER ROLE u CONNECTION LIMIT 0")
    plant.end_sessions()
    yield
    plant.query("ALTER ROLE u CONNECTION LIMIT -1")


@fault(*ANY)
def the_answer_to_a_settlement_is_lost(plant):
    with plant.proxy.fault(Fault.LOSE_REPLY, SETTLING[plant.server.kind]):
        yield


@fault(*ANY)
def the_answer_to_a_claim_is_lost(plant):
    with plant.proxy.fault(Fault.LOSE_REPLY, CLAIMING[plant.server.kind]):
        if plant.server.kind == "postgresql":
            # A new connection has prepared no statement, so that a request contains its text.
            plant.proxy.cut()
        yield


@fault("redis")
def the_server_becomes_a_replica(plant):
    plant.server.query("REPLICAOF", LOOPBACK, "1")
    yield
    plant.server.query("REPLICAOF", "NO", "ONE")


@fault("redis")
def too_few_replicas_follow(plant):
    plant.server.query("CONFIG", "SET", "min-replicas-to-write", "1")
    yield
    plant.server.query("CONFIG", "SET", "min-replicas-to-write", "0")


@fault("redis")
def the_data_are_of_a_newer_version(plant):
    plant.server.query("HSET", "{psched}:layout", "version", "99")
    plant.end_sessions()
    yield
    plant.server.query("HSET", "{psched}:layout", "version", "2")


@fault(*ANY)
def the_network_swallows_everything(plant):
    with plant.proxy.black_hole():
        yield


@fault()
def the_table_is_missing(plant):
    plant.query("ALTER TABLE psched RENAME TO away")
    yield
    plant.query("ALTER TABLE away RENAME TO psched")


@fault()
def the_table_is_locked(plant):
    with plant.connect() as other, other.cursor() as cursor:
        cursor.execute(
            "LOCK TABLES psched WRITE"
            if plant.server.kind == "mariadb"
            else "LOCK TABLE psched IN ACCESS EXCLUSIVE MODE"
        )
        yield


@fault()
def the_table_is_of_a_newer_version(plant):
    change = "UPDATE psched_info SET value = '{}' WHERE name = 'schema_version'"
    plant.query(change.format(VERSION + 1))
    plant.end_sessions()
    yield
    plant.query(change.format(VERSION))


class Work:
    """Many quick tasks, in several occurrences each, a long one, and one that ends on demand.

    Args:
        service: runs them.
        name: what their keys begin with.
    """

    def __init__(self, service, name):
        self._service = service
        self._name = name
        self.long = f"{name} long"
        service.runs.clear()
        with service.schedules() as schedules:
            schedules.add(self.long, "recorder", data={"until": name})
            [now] = [seen.next_time for seen in schedules.list() if seen.key == self.long]
            last = now - now % HOUR
            times = [last - number * HOUR for number in range(OCCURRENCES)]
            keys = [f"{name} {number}" for number in range(KEYS)]
            self.occurrences = {(key, time) for key in keys for time in times}
            self.occurrences |= {(self.long, now), *((f"{name} short", time) for time in times)}
            # When it is let go there is more to settle, and to claim.
            gate = {"until": f"{name} short"}
            schedules.add(
                f"{name} short", "recorder", cron="@hourly", next_time=times[-1], data=gate
            )
            for key in keys:
                schedules.add(key, "recorder", cron="@hourly", next_time=times[-1])
        service.runs.wait(self.long)
        service.runs.wait(f"{name} short")

    @property
    def runs(self):
        """The runs so far; what is due with the next hour is not of it."""
        found = [run for run in self._service.runs.runs() if run.key.startswith(f"{self._name} ")]
        return [run for run in found if run.occurrence in self.occurrences]

    def wait_for(self, number):
        """Wait until so many occurrences have been completed."""
        wait_until(
            lambda: len({run.occurrence for run in self.runs if run.completed}) >= number,
            what=f"{number} completed occurrences",
        )

    def has_gone_on(self, until):
        """Whether the long task has shown that it has lived until then; it must not have ended."""
        [run] = [run for run in self.runs if run.key == self.long]
        assert run.end is None
        return run.last_sign > until

    def end_one(self):
        """Let the one end that is to end on demand: the database is told of it."""
        self._service.open_gate(f"{self._name} short")

    def end(self):
        """Let the long task end, wait for all, and see what has been run."""
        self._service.open_gate(self._name)
        self.wait_for(len(self.occurrences))
        runs = self.runs
        exactly_once(runs, self.occurrences)
        in_order(runs)
        never_two_at_once(runs)


def go_through(happens, work, master, heard=lambda: 0):
    """Let something happen to a database, and see it mended.

    Args:
        happens: a context manager; in it, the database is of no use.
        work: what goes on meanwhile.
        master: runs it.
        heard: how much the database has been sent so far.

    Returns:
        The seconds from its mend until the work went on.
    """
    before = len(master.text)

    def said():
        """The lines of what is not as it should be."""
        lines = re.findall(r".* (?:WARNING|ERROR|CRITICAL) .*", master.text[before:])
        # psycopg warns by itself of a pipeline that was open when the connection broke. What was
        # due meanwhile may be late on a busy machine, which the master and the monitor tell. The
        # run history may meet an outage, too, and before the worker does.
        late = "no free slot: raise", ", no_slot, "
        ignored = ("of the run history", "error ignored terminating <psycopg.Pipeline", *late)
        ignored += ("the Sentinels name another primary",)
        lines = [line for line in lines if not any(text in line for text in ignored)]
        return [re.sub(r"^\S+( \S+)? \[\d+\] ", "", line) for line in lines]

    work.wait_for(KEYS // 2)
    with happens:
        work.end_one()
        wait_until(said, what="the line that says that it has begun")
        first, until = heard(), CLOCK.boottime() + WHILE
        sent = 0

        def goes_on():
            nonlocal sent
            # Some faults hit one request: the store answers again at once, and what is sent from
            # then on is work. So the requests are counted before the log is read.
            count = heard() - first
            if len(said()) == 1:
                sent = count
            return work.has_gone_on(until)

        wait_until(goes_on, what="what shows that the long task goes on")
    mended = CLOCK.monotonic()
    wait_until(lambda: len(said()) > 1, what="the line that says that it has ended")
    took = CLOCK.monotonic() - mended
    work.end()
    begun, ended, *others = said()
    sys.stdout.write(f"RECOVERED {took:.2f} requests {sent}\n  {begun}\n  {ended}\n")
    assert begun.endswith("running tasks go on while their leases last")
    assert re.search("the store answers again, after [0-9.]+ s$", ended)
    assert others == []
    assert sent < REQUESTS
    return took


@contextlib.contextmanager
def started_plant(server, folder):
    """A plant on a server that nobody else uses."""
    with contextlib.ExitStack() as started:
        started.enter_context(server)
        proxy = started.enter_context(Proxy(server.port))
        make = started.enter_context(services(folder))
        service = make(prepare(server).replace(f":{server.port}/", f":{proxy.port}/"), **SETTINGS)
        service.init()
        yield Plant(server, proxy, service, service.start())
        service.close()


@pytest.fixture(scope="module")
def mariadb_plant(servers, mariadb_server, tmp_path_factory):
    """A plant, the same for all that happens to it."""
    server = type(mariadb_server)(servers, "--max-connections=15")
    with started_plant(server, tmp_path_factory.mktemp("mariadb")) as plant:
        yield plant


@pytest.fixture(scope="module")
def postgresql_plant(servers, postgresql_server, tmp_path_factory):
    """A plant, the same for all that happens to it."""
    server = type(postgresql_server)(servers)
    with started_plant(server, tmp_path_factory.mktemp("postgresql")) as plant:
        yield plant


@pytest.fixture(scope="module")
def redis_plant(servers, redis_server, tmp_path_factory):
    """A plant, the same for all that happens to it."""
    with started_plant(type(redis_server)(servers), tmp_path_factory.mktemp("redis")) as plant:
        yield plant


def prepare(server, account=()):
    """Make a database, and a user who has rights on no other, if nothing else is said; its url."""
    if server.kind == "redis":
        return server.url()
    server.query("CREATE DATABASE work")
    for statement in account or ACCOUNT[server.kind]:
        server.query(statement)
    return re.sub("//.*@", "//u:p@", server.url("work"))


def see_through(plant, name, again=""):
    """See a plant through what is known by a name; how long it took to recover, in seconds."""
    work = Work(plant.service, name + again)
    happens = FAULTS[plant.server.kind][name](plant)
    before = len(plant.master.text)
    took = go_through(happens, work, plant.master, lambda: plant.proxy.heard)
    assert REASONS.get(name, "") in plant.master.text[before:]
    return took


AT_LANDING = {
    "mariadb": ["the_answer_to_a_settlement_is_lost"],
    "postgresql": [
        "the_answer_to_a_claim_is_lost",
        "the_answer_to_a_settlement_is_lost",
        "the_server_is_killed",
        "the_database_becomes_read_only",
    ],
    "redis": ["the_answer_to_a_settlement_is_lost"],
}
"""The faults that a landing sees: lost answers, a killed server, a database that refuses writes."""


def each_of(kind):
    """The faults of a kind of server."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in AT_LANDING[kind] else pytest.mark.extended)
            for name in FAULTS[kind]
        ],
    )


@pytest.mark.mariadb
@each_of("mariadb")
def test_nothing_is_lost_or_doubled_on_mariadb_when(mariadb_plant, name):
    see_through(mariadb_plant, name)


@pytest.mark.postgresql
@each_of("postgresql")
def test_nothing_is_lost_or_doubled_on_postgresql_when(postgresql_plant, name):
    see_through(postgresql_plant, name)


@pytest.mark.redis
@each_of("redis")
def test_nothing_is_lost_or_doubled_on_redis_when(redis_plant, name):
    see_through(redis_plant, name)


CLOSES_IDLE = {
    "mariadb": "SET GLOBAL wait_timeout = 1",
    "postgresql": "ALTER ROLE u SET idle_session_timeout = '1s'",
}

SESSIONS = {
    "mariadb": "SELECT id FROM information_schema.processlist WHERE user = 'u'",
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE usename = 'u'",
}


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in CLOSES_IDLE]
)
def test_an_idle_connection_that_the_server_closes_is_replaced_without_a_line(
    request, servers, tmp_path, kind
):
    with contextlib.ExitStack() as started:
        server = started.enter_context(type(request.getfixturevalue(f"{kind}_server"))(servers))
        make = started.enter_context(services(tmp_path))
        url = prepare(server)
        service = make(url, **SETTINGS, poll_interval=3)
        service.init()
        server.query(CLOSES_IDLE[kind])
        master = service.start()
        seen = set()

        def several():
            seen.update(server.query(SESSIONS[kind]))
            return len(seen) > 3

        wait_until(several, what="the worker to have connected some more times")
        with service.schedules() as schedules:
            schedules.push("last", "recorder")
        service.runs.wait("last")
        assert re.findall(".* (?:WARNING|ERROR|CRITICAL) .*", master.text) == []
        service.close()


@pytest.mark.quiet  # it measures how long it takes until the work goes on
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=getattr(pytest.mark, kind))
        for kind, names in FAULTS.items()
        for name in names
    ],
)
def test_the_work_goes_on_soon_when(request, kind, name):
    plant = request.getfixturevalue(f"{kind}_plant")
    assert see_through(plant, name, " again") < LONGEST_RECOVERY


# --- another server takes over --------------------------------------------------------


@pytest.fixture
def pair(request):
    """A primary, and a replica of it that has all that was committed."""
    return request.getfixturevalue(f"{request.param}_pair")


@pytest.fixture
def postgresql_pair(start_postgresql):
    primary = start_postgresql("--synchronous-standby-names=*")
    return primary, start_postgresql(primary=primary)


@pytest.fixture
def mariadb_pair(start_mariadb):
    binary_log = ["--log-bin=log", "--gtid-strict-mode=1"]
    primary = start_mariadb(
        *binary_log,
        "--server-id=1",
        "--rpl-semi-sync-master-enabled=1",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-master-timeout=60000",
    )
    replica = start_mariadb(
        *binary_log,
        "--server-id=2",
        "--read-only=1",
        "--rpl-semi-sync-slave-enabled=1",
    )
    replica.query(
        f"CHANGE MASTER TO master_host = '{LOOPBACK}', master_port = {primary.port},"
        " master_user = 'root', master_use_gtid = slave_pos"
    )
    replica.query("START SLAVE")
    follows = "SHOW STATUS WHERE Variable_name = 'Rpl_semi_sync_master_clients' AND Value = '1'"
    wait_until(lambda: primary.query(follows), what="the replica to follow")
    return primary, replica


def promote(replica):
    """Make a primary of a replica whose primary is gone, when it has written all it was sent."""
    if replica.kind == "postgresql":
        replica.promote()
        return
    replica.query("STOP SLAVE IO_THREAD")
    with (
        pymysql.connect(host=LOOPBACK, port=replica.port, user="root") as connection,
        connection.cursor(pymysql.cursors.DictCursor) as cursor,
    ):
        cursor.execute("SHOW SLAVE STATUS")
        sent = cursor.fetchone()["Gtid_IO_Pos"]
    assert replica.query(f"SELECT MASTER_GTID_WAIT('{sent}', 20)") == [(0,)]
    replica.query("STOP SLAVE")
    replica.query("SET GLOBAL read_only = 0")


@pytest.mark.parametrize(
    "pair",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in SQL],
    indirect=True,
)
@pytest.mark.extended
def test_a_failover_to_the_replica_loses_nothing_and_doubles_nothing(pair, make_service):
    primary, replica = pair
    url = prepare(primary).replace(
        f":{primary.port}/", f":{primary.port},{LOOPBACK}:{replica.port}/"
    )
    service = make_service(url, **SETTINGS)
    service.init()
    master = service.start()

    @contextlib.contextmanager
    def failover():
        primary.kill()
        yield
        promote(replica)

    go_through(failover(), Work(service, "failover"), master)
    assert master.stop() == 0


def ask_for_no_writes(primary):
    """Make a primary read-only, which stays up and lets everybody in, by what it knows itself."""
    if primary.kind == "mariadb":
        primary.query("SET GLOBAL read_only = 1")
        return
    primary.query("ALTER SYSTEM SET default_transaction_read_only = on")
    primary.query("SELECT pg_reload_conf()")
    primary.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'u'")


@pytest.mark.parametrize(
    ("pair", "account"),
    [
        pytest.param("mariadb", (), marks=pytest.mark.mariadb, id="mariadb"),
        # Whom the server lets write all the same.
        pytest.param(
            "mariadb",
            ("CREATE USER u IDENTIFIED BY 'p'", "GRANT ALL ON *.* TO u"),
            marks=pytest.mark.mariadb,
            id="mariadb-administrator",
        ),
        pytest.param("postgresql", (), marks=pytest.mark.postgresql, id="postgresql"),
    ],
    indirect=["pair"],
)
@pytest.mark.extended
def test_a_primary_that_was_demoted_and_stays_up_is_left_for_the_new_one(
    pair, account, make_service
):
    primary, replica = pair
    url = prepare(primary, account).replace(
        f":{primary.port}/", f":{primary.port},{LOOPBACK}:{replica.port}/"
    )
    service = make_service(url, **SETTINGS)
    service.init()
    master = service.start()
    seen = []

    def rows_of_the_old_one():
        return primary.query("SELECT id, next_time, leased_by, fence FROM psched", database="work")

    @contextlib.contextmanager
    def demotion():
        ask_for_no_writes(primary)
        yield
        seen.append(sorted(rows_of_the_old_one()))
        promote(replica)

    go_through(demotion(), Work(service, "demotion"), master)
    assert sorted(rows_of_the_old_one()) == seen[0]
    assert replica.query("SELECT COUNT(*) FROM psched WHERE fence > 0", database="work")
    assert master.stop() == 0


# --- its disk is full -----------------------------------------------------------------


@pytest.fixture
def on_small_disk(postgresql_server, servers):
    """A server with a disk of its own, and a function that leaves so many megabytes on it."""
    with small_disk(servers) as (folder, leave):
        template = "postgresql-template"  # it takes a while to make
        run_tool(["cp", "-a", str(servers / template), str(folder / template)])
        with type(postgresql_server)(folder) as server:
            yield server, leave


@pytest.mark.postgresql
@pytest.mark.extended
def test_a_server_that_stops_on_a_full_disk_loses_nothing_and_doubles_nothing(
    on_small_disk, make_service
):
    server, leave = on_small_disk
    service = make_service(prepare(server), **SETTINGS)
    service.init()
    master = service.start()

    @contextlib.contextmanager
    def full():
        leave(0)
        with pytest.raises(psycopg.OperationalError):
            # Nothing but the log grows.
            server.query(
                "SELECT pg_logical_emit_message(false, '', repeat('x', 1000000))"
                " FROM generate_series(1, 1000)"
            )
        yield
        leave(200)
        if not server.running:
            server.start()

    # The full disk can refuse a record before the server stops, which is told.
    go_through(full(), Work(service, "full"), master)
    assert master.stop() == 0


# --- nobody gets in -------------------------------------------------------------------


def is_said_at_the_start_and_by_commands(plant, fault, told):
    """Start a master, and ask for a list, while something is the matter."""
    with FAULTS[plant.server.kind][fault](plant):
        listed = plant.service.invoke("list", "--legacy")
        master = plant.service.start(generation=0)
        master.wait_for_log(f"cannot connect to .*{told}.* running tasks go on")
    assert listed.exit_code == 1
    assert re.fullmatch(f"Error: cannot connect to .*{told}.*\n", listed.output)
    master.wait_for_log("the store answers again")
    assert master.stop() == 0
    assert len(re.findall(" ERROR ", master.text)) == 1


@pytest.mark.mariadb
@pytest.mark.extended
def test_a_mariadb_without_a_connection_left_is_said(mariadb_plant):
    told = r"1040, 'Too many connections'\); raise the server's max_connections"
    is_said_at_the_start_and_by_commands(mariadb_plant, "no_connection_is_left", told)


@pytest.mark.postgresql
@pytest.mark.extended
def test_a_postgresql_without_a_connection_left_is_said(postgresql_plant):
    told = "too many connections for role .*; correct what the server names"
    fault = "no_connection_is_left_for_the_user"
    is_said_at_the_start_and_by_commands(postgresql_plant, fault, told)


@pytest.mark.redis
@pytest.mark.extended
def test_nothing_is_lost_when_sentinels_promote_a_replica(start_watched, make_service):
    watched = start_watched()
    service = make_service(watched.url(), **SETTINGS)
    service.init()
    master = service.start()
    work = Work(service, "failover")

    @contextlib.contextmanager
    def killed():
        watched.primary.kill()
        yield

    go_through(killed(), work, master)
    assert watched.replica.role == "master"
