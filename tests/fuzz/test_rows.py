"""Rows that any client may have written, in every store: each is run, or set aside with a reason.

A row is run only if an oracle of this suite's own finds nothing wrong with its columns; a row that
is not run comes to rest; and healthy rows beside it are run.
"""

import json
import random
import time
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import SQLAlchemyError

from psched import config
from psched.base.clock import SystemClock
from psched.base.errors import InvalidError
from psched.core import policy
from psched.core.columns import parse_payload
from psched.core.model import Finish, ReasonCode, Row
from psched.core.policy import Run, after_claim, after_run
from support.compat import compat_factory
from support.fuzzing import cases, told
from support.stores import Sql, make_store, store_factory
from support.wrong_rows import SOUND, problems, wrong_row

COUNT = 250
"""Odd rows in each store."""

MOST_CPU = 0.5
"""Seconds of CPU time that a worker may spend on one row, at most. The worst one costs 0.05 s."""

CLAIM = {"limit": 20, "alive_time": 60, "shortest": 6, "horizon": 0}

# --- the suite -----------------------------------------------------------------------------


def check_rows(store, insert, count, *, settings, judge=after_claim, judged=frozenset(SOUND)):
    """Insert odd rows and healthy ones, and work off all that is due.

    Args:
        store: a store with its table.
        insert: writes a row past psched; false if the store refuses it.
        count: of odd rows.
        settings: the installation's.
        judge: says what to do with a row that was claimed.
        judged: the columns in which the oracle looks for problems.
    """
    written = {}
    for number, case in enumerate(cases("rows", count)):
        columns = wrong_row(case, number)
        if insert(columns):
            written[columns["id"]] = (case, columns)
        if number % 25 == 0:
            key = f"healthy{number}"
            assert insert({"id": key, "type": "t", "next_time": 1, "next_run_time": 1})
            written[key] = (case, {"id": key})
    # A store refuses some: MariaDB texts that are too long, PostgreSQL those with a NUL.
    assert len(written) > count / 4
    ran = work_off(store, written, settings, judge)
    for key, (case, columns) in written.items():
        with told(case, columns):
            found = problems(columns) & judged
            if not found and columns == {"id": key}:
                assert key in ran
            if found:
                assert key not in ran, f"was run, although {found} make no sense"
            row = store.get(key)
            rests = row is None or row.next_run_time is None or row.next_run_time > 1
            assert rests, "is still due"


def work_off(store, written, settings, judge):
    """Claim and settle all that is due, as a worker does; the keys whose payload a runner gets."""
    ran = set()
    for number in range(10 * len(written)):
        claimed = store.claim(f"w.{number}", **CLAIM)
        ends = []
        for row in claimed.rows:
            case, columns = written[row.key]
            with told(case, columns):
                before = time.process_time()
                verdict = judge(row, settings, claimed.now)
                if isinstance(verdict, Run):
                    verdict = run(row, settings, ran)
                took = time.process_time() - before
                assert took < MOST_CPU, f"took {took:.2f} s of CPU time"
            ends.append(verdict)
        if ends:
            store.settle(ends)
        if not (claimed.rows or claimed.more):
            return ran
    raise AssertionError("the rows that are due come to no end")


def run(row, settings, ran):
    """What a runner does before it calls a handler, and how the lease ends then."""
    try:
        data = parse_payload(row.data, settings.data_limit)
    except InvalidError as error:
        return policy.quarantine(row, str(error))
    stored = row.data.decode() if isinstance(row.data, bytes) else row.data
    assert data == (json.loads(stored) if stored else {})
    ran.add(row.key)
    return after_run(row, row, Finish(), settings)


@pytest.fixture
def settings():
    # Of all that a cron line has missed since 1970, only the newest.
    return config.from_mapping({"url": "memory:", "alive_time": 60, "catchup": "latest"})


@pytest.fixture
def sql_store(database):
    """A store on each kind of database, and what inserts rows by plain SQL."""
    with store_factory(database.url) as open_store:
        store = open_store()
        store.init()
        with Sql(database.url).session() as execute:

            def insert(columns):
                return inserted(execute, columns)

            yield store, insert


def inserted(execute, columns):
    """Insert a row by plain SQL; false if the database refuses it."""
    names, values = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    try:
        execute(f"INSERT INTO {{table}} ({names}) VALUES ({values})", **columns)  # noqa: S608
    except (SQLAlchemyError, OverflowError, UnicodeError):
        return False
    return True


def test_rows_of_sql(sql_store, settings):
    check_rows(*sql_store, COUNT, settings=settings)


@pytest.fixture
def compat_store(database):
    """A store on PerfectSched's table, and what inserts rows by plain SQL."""
    with compat_factory(database.url, table="schedules") as open_store:
        store = open_store()
        store.init()
        with Sql(database.url, "schedules").session() as execute:

            def insert(columns):
                row = {name: columns[name] for name in COMPAT if name in columns}
                row = {"cron": "@daily", "delay": 0, "timeout": 1, "data": "{}", **row}
                return inserted(execute, row)

            yield store, insert


COMPAT = ("id", "cron", "delay", "data", "timezone", "next_time")
"""Columns of PerfectSched's table that psched's has as well."""


def test_rows_of_perfectsched(compat_store, database):
    settings = {"url": database.url, "type": "rdb_compat", "table": "schedules"}
    settings |= {"alive_time": 60, "catchup": "latest"}
    # Its data carry whatever is not a JSON object, and the type with it.
    judged = {"id", "cron", "timezone", "delay", "next_time"}
    check_rows(*compat_store, COUNT, settings=config.from_mapping(settings), judged=judged)


@pytest.mark.redis
def test_rows_of_redis(open_redis, settings):
    check_rows(*open_redis, COUNT, settings=settings)


@pytest.fixture
def open_redis(redis_server):
    """A store in Redis, and what inserts rows with its own commands."""
    database = redis_server.create_database()
    store = make_store(redis_server.url(database))
    store.init()

    def insert(columns):
        key, due = columns["id"], columns["next_run_time"]
        fields = [
            word
            for name, value in columns.items()
            if name not in ("id", "next_run_time") and value is not None
            for word in (name, value)
        ]
        redis_server.query("HSET", f"{{psched}}:row:{key}", *fields, db=int(database))
        redis_server.query("ZADD", "{psched}:due", due, key, db=int(database))
        return True

    yield store, insert
    store.disconnect()
    redis_server.drop_database(database)


def test_rows_of_a_plain_store(tmp_path, settings, file_store):
    store = file_store(tmp_path / "schedules.json")
    store.init()

    def insert(columns):
        fields = {name: value for name, value in columns.items() if name != "id"}
        row = Row(key=columns["id"], **fields)
        if any(isinstance(value, bytes) for value in fields.values()):
            return False  # the example keeps JSON
        with store.all() as rows:
            rows[row.key] = row
        return True

    # Each insert and each claim writes the whole file.
    check_rows(store, insert, COUNT // 5, settings=settings)


@pytest.fixture
def file_store(request):
    """Makes the store that the documentation has as an example."""
    path = request.config.rootpath / "docs/examples/filestore.py"
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)  # noqa: S102  # our own example

    def make(path):
        settings = SimpleNamespace(store={"path": str(path)}, only=(), host_names=())
        return scope["FileStore"](settings, clock=SystemClock(), rng=random.Random())  # noqa: S311

    return make


# --- planted faults ------------------------------------------------------------------------


def crashing(row, _settings, _now):
    raise KeyError(row.timezone)


def guessing(row, settings, now):
    """Takes what it does not understand for something else."""
    return after_claim(Row(**{**fields(row), "timezone": "UTC"}), settings, now)


def slow(row, settings, now):
    if row.options:
        until = time.process_time() + 2 * MOST_CPU
        while time.process_time() < until:
            pass
    return after_claim(row, settings, now)


def undecided(row, _settings, _now):
    """Gives every row back, so that it is due again at once."""
    return policy._repeat(row, wait=0, attempt=0, reason=None, code=ReasonCode.INTERRUPTED)


def fields(row):
    return {name: getattr(row, name) for name in Row.__slots__}


@pytest.mark.parametrize("fault", [crashing, guessing, slow, undecided])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_planted_fault_is_found(fault, sql_store, settings):
    with pytest.raises((AssertionError, KeyError)):
        check_rows(*sql_store, COUNT, settings=settings, judge=fault)
