"""Tests of records of the run history that the database refuses: the settlement is applied."""

import contextlib
import logging
from dataclasses import replace as changed

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import (
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.core.history.records import AuditRecord, Fate, Outcome, RunRecord
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.stores.sql import raw_execute
from support.proxy import Fault
from support.stores import LONG, Sql, store_factory

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}

INTO_RUNS = b"psched_runs"
"""A part of each statement about the records, and of no other that a settlement sends."""

each_server = pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level(logging.WARNING, "psched.store")
    return caplog


@pytest.fixture
def lease(store):
    """A function that adds due rows, claims them, and returns settlements with records."""
    owners = iter(range(1000))

    def lease(*keys, **fields):
        store.add([Row(key=k, next_time=1, next_run_time=1) for k in keys], nonce="n")
        rows = store.claim(f"w.{next(owners)}", **CLAIM).rows
        assert {row.key for row in rows} == {*keys}
        return [
            Settlement.of(row, rest=True, status="finished", records=(record(row, **fields),))
            for row in sorted(rows, key=lambda row: row.key)
        ]

    return lease


def record(row, **fields):
    given = {"outcome": Outcome.FINISHED, "fate": Fate.FINISHED, "ended": 1_700_000_000_000}
    return RunRecord(
        key=row.key,
        type=row.type,
        scheduled_time=row.next_time,
        owner=row.owner,
        fence=row.fence,
        **{**given, **fields},
    )


def recorded(store):
    return {each.key for each in store.history.runs()}


def settles(store, ends):
    """Whether every settlement is applied."""
    return store.settle(ends) == {end.key: Settled.DONE for end in ends}


def refusals(logged):
    """The messages in the log about records that were not written."""
    return [each.message for each in logged.records if "wait to be written" in each.message]


def test_without_the_table_settlements_are_applied_and_it_is_logged_once(store, lease, sql, logged):
    assert settles(store, lease("before"))
    sql("ALTER TABLE psched_runs RENAME TO away")
    assert settles(store, lease("a", "b"))
    assert settles(store, lease("c"))
    sql("ALTER TABLE away RENAME TO psched_runs")
    assert settles(store, lease("after"))
    assert {row.status for row in store.rows()} == {"finished"}
    assert {row.owner for row in store.rows()} == {None}
    assert recorded(store) == {"before", "after"}
    assert len(store.history.unwritten) == 3
    (line,) = refusals(logged)
    assert line.startswith("records of the run history wait to be written: ")


class Later(SystemClock):
    ahead = 0.0

    def monotonic(self):
        return super().monotonic() + self.ahead


def test_the_end_of_the_refusals_is_logged(database, logged, sql, lease):
    """The lease's store and the one that settles have clocks of their own."""
    clock = Later()
    with store_factory(database.url, clock=clock) as open_store:
        store = open_store()
        sql("ALTER TABLE psched_runs RENAME TO away")
        assert settles(store, lease("lost", "too"))
        sql("ALTER TABLE away RENAME TO psched_runs")
        clock.ahead = 6
        assert settles(store, lease("kept"))
        assert [each.partition(": ")[2] for each in refusals(logged)][1:] == [
            "over, it happened once"
        ]


@contextlib.contextmanager
def limited(database):
    """The url of a user who may do everything with schedules, and only read their history."""
    name, query = database.url.rpartition("/")[2], database.server.query
    postgresql = database.kind == "postgresql"
    on, where = ("", {"database": name}) if postgresql else (f"{name}.", {})
    if postgresql:
        query("CREATE ROLE limited LOGIN PASSWORD 's3cret'")
    else:
        query("CREATE USER limited IDENTIFIED BY 's3cret'")
    try:
        query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {on}psched TO limited", **where)
        for table in "info", "runs", "workers", "audit", "output", "alerts":
            query(f"GRANT SELECT ON {on}psched_{table} TO limited", **where)
        administrator = "postgres@" if postgresql else "root@"
        yield database.url.replace(administrator, "limited:s3cret@")
    finally:
        if postgresql:
            query("DROP OWNED BY limited", **where)
        query("DROP USER limited")


@each_server
def test_without_the_right_to_insert_settlements_are_applied(lease, database, logged):
    ends = lease("a")
    with limited(database) as url, store_factory(url) as open_store:
        mine = open_store()
        assert settles(mine, ends)
        assert len(mine.history.unwritten) == 1
        assert recorded(mine) == set()
        (line,) = refusals(logged)
        assert "psched_runs" in line
        with pytest.raises(StoreError, match=r"^cannot INSERT, .* in the table 'psched_runs': "):
            mine.try_rights()


@each_server
def test_the_rights_on_the_tables_are_enough(store, database):
    """Above all, no right on a sequence is needed."""
    with limited(database) as url, store_factory(url) as open_store:
        name = database.url.rpartition("/")[2]
        on = "" if database.kind == "postgresql" else f"{name}."
        more = {"database": name} if database.kind == "postgresql" else {}
        for table in "runs", "workers", "audit", "output", "alerts":
            rights = f"GRANT INSERT, UPDATE, DELETE ON {on}psched_{table} TO limited"
            database.server.query(rights, **more)
        database.server.query(f"GRANT INSERT, DELETE ON {on}psched_info TO limited", **more)
        mine = open_store()
        mine.try_rights()
        assert mine.history.problem() is None
        mine.history.record([record(Row(key="k", next_time=1, owner="w.1"))])
        mine.history.audit([AuditRecord(key="k", action="add", user="u", host="h", program="p")])
        assert recorded(store) == {"k"}


@contextlib.contextmanager
def locked(database):
    """Another session has locked the table of the records."""
    with Sql(database.url).session() as session:
        if database.kind == "postgresql":
            session("BEGIN")
            session("LOCK TABLE psched_runs IN ACCESS EXCLUSIVE MODE")
        else:
            session("LOCK TABLES psched_runs WRITE")
        yield
        session("COMMIT" if database.kind == "postgresql" else "UNLOCK TABLES")


@each_server
def test_records_that_were_not_even_tried_wait_as_well(database, lease, logged):
    clock = Later()
    first, second = lease("a"), lease("b", "c", "d")
    with store_factory(database.url, clock=clock) as open_store:
        store = open_store()
        with locked(database):
            assert settles(store, first)
            assert settles(store, second)
        clock.ahead = 6
        assert settles(store, lease("kept"))
        assert len(store.history.unwritten) == 4
        assert refusals(logged)[1:] == [
            "records of the run history wait to be written: over, it happened once"
        ]


@contextlib.contextmanager
def statements(monkeypatch):
    """The list of all statements that a store sends within this context."""
    sent, execute = [], raw_execute._execute

    def note(connection, statement, *arguments, **more):
        sent.append(statement)
        return execute(connection, statement, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(raw_execute, "_execute", note)
        yield sent


@each_server
def test_a_table_that_somebody_has_locked_holds_up_one_settlement(
    store, lease, database, logged, monkeypatch
):
    first, second = lease("a", "b"), lease("c")
    with locked(database):
        assert settles(store, first)
        with statements(monkeypatch) as sent:
            assert settles(store, second)
        # The second settlement does not wait for the lock.
        assert sent
        assert not any("psched_runs" in statement for statement in sent)
    assert len(store.history.unwritten) == 3
    assert len(refusals(logged)) == 1
    store.history.refusals._resume_at = 0  # the pause is over
    assert settles(store, lease("after"))
    assert recorded(store) == {"after"}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_on_a_full_disk_settlements_are_applied(store, lease, logged):
    """The limit of the file's size belongs to a connection, and psched opens a new one."""
    ends = lease("a", error="x" * 8000, result="y" * 50_000)
    connection = store._connector._connection
    (pages,) = connection.exec_driver_sql("PRAGMA page_count").one()
    connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").close()
    assert settles(store, ends)
    assert len(store.history.unwritten) == 1
    assert "full" in refusals(logged)[0]
    assert settles(store, lease("b"))
    assert recorded(store) == {"b"}


@each_server
def test_a_value_that_does_not_fit_costs_only_its_own_record(store, lease, sql, database, logged):
    change = "MODIFY error" if database.kind == "mariadb" else "ALTER COLUMN error TYPE"
    sql(f"ALTER TABLE psched_runs {change} VARCHAR(10)")
    (bad,) = lease("bad", error="longer than ten characters")
    others = lease("a", "b", error="short")
    assert settles(store, [others[0], bad, others[1]])
    assert recorded(store) == {"a", "b"}
    assert len(store.history.unwritten) == 1
    assert len(refusals(logged)) == 1


def test_texts_of_any_origin_are_made_to_fit(store, lease):
    text = "\0 \ud800 " + "é" * 2000
    ends = lease("k", reason=text, host=text, error=text, result='"\udfff"', label=text)
    assert settles(store, ends)
    (kept,) = store.history.runs()
    assert kept.error == "\ufffd ? " + "é" * 2000
    assert kept.reason == kept.error[: len(kept.reason)]
    assert (len(kept.reason), len(kept.host), len(kept.label)) == (1000, 255, 255)
    assert kept.result == '"?"'
    assert len(store.history.unwritten) == 0


def test_a_refusal_by_a_trigger_is_one(store, lease, database, sql, logged):
    if database.kind == "postgresql":
        sql(
            "CREATE FUNCTION refuse() RETURNS TRIGGER AS $$ BEGIN RAISE 'quota'; END $$"
            " LANGUAGE plpgsql"
        )
    sql(
        {
            "sqlite": "CREATE TRIGGER refuse BEFORE INSERT ON psched_runs"
            " BEGIN SELECT RAISE(ABORT, 'quota'); END",
            "mariadb": "CREATE TRIGGER refuse BEFORE INSERT ON psched_runs"
            " FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'quota'",
            "postgresql": "CREATE TRIGGER refuse BEFORE INSERT ON psched_runs"
            " FOR EACH ROW EXECUTE FUNCTION refuse()",
        }[database.kind]
    )
    assert settles(store, lease("a", "b"))
    assert len(store.history.unwritten) == 2
    assert "quota" in refusals(logged)[0]
    sql("DROP TRIGGER refuse" + (" ON psched_runs" if database.kind == "postgresql" else ""))
    assert settles(store, lease("c"))
    assert recorded(store) == {"c"}


@pytest.mark.parametrize(
    "database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)],
    indirect=True,
)
def test_a_record_that_another_index_refuses_is_refused(store, lease, sql):
    sql("CREATE UNIQUE INDEX own ON psched_runs (pid)")
    assert settles(store, lease("a", pid=7))
    assert settles(store, lease("b", pid=7))
    assert recorded(store) == {"a"}
    assert len(store.history.unwritten) == 1


def test_a_preempted_settlement_loses_no_record(store, lease, sql):
    kept, lost = lease("kept", "lost")
    sql("UPDATE {table} SET leased_by = 'another.1' WHERE id = 'lost'")
    sql("ALTER TABLE psched_runs RENAME TO away")
    assert store.settle([kept, lost]) == {"kept": Settled.DONE, "lost": Settled.PREEMPTED}
    assert len(store.history.unwritten) == 1


@each_server
class TestBrokenConnections:
    """Nothing is lost when a connection breaks: the settlement is repeated with its records."""

    @pytest.fixture
    def far(self, database, store, proxy):  # noqa: ARG002  # ``store`` has created the table
        """A store that is connected through the proxy."""
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        with store_factory(url, timeout=LONG) as open_store:
            far = open_store()
            far.now()
            yield far

    @pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
    def test_at_the_records_nothing_is_applied(self, far, store, lease, proxy, fault):
        ends = lease("a", "b")
        with proxy.fault(fault, INTO_RUNS), pytest.raises(StoreUnavailableError):
            far.settle(ends)
        assert {row.owner for row in store.rows()} == {ends[0].token.owner}
        assert settles(far, ends)
        assert recorded(store) == {"a", "b"}
        assert len(far.history.unwritten) == 0

    @pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
    def test_at_the_commit_the_outcome_is_unknown(self, far, store, lease, proxy, fault):
        ends = lease("a", "b")
        with proxy.fault(fault, b"COMMIT"), pytest.raises(UnknownOutcomeError):
            far.settle(ends)
        assert settles(far, ends)
        assert sorted(each.key for each in store.history.runs()) == ["a", "b"]
        assert len(far.history.unwritten) == 0

    def test_what_breaks_the_connection_each_time_is_left_out(
        self, far, store, lease, proxy, logged
    ):
        ends = lease("a")
        for _ in range(3):
            with proxy.fault(Fault.LOSE_REQUEST, INTO_RUNS), pytest.raises(StoreUnavailableError):
                far.settle(ends)
        assert settles(far, ends)
        assert recorded(store) == set()
        assert len(far.history.unwritten) == 1
        assert len(refusals(logged)) == 1

    @pytest.mark.parametrize("share", [0.35, 0.6, 0.7])
    def test_a_database_that_is_too_slow_for_the_records_is_not_too_slow_to_settle(
        self, database, store, proxy, lease, share
    ):
        """The connection survives, and the second request leaves the records out."""
        timeout = 6.0
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        with store_factory(url, timeout=timeout) as open_store:
            far = open_store()
            far.now()
            ends = lease("a")
            before = proxy.answers
            with proxy.slow(share * timeout):
                with pytest.raises(StoreSlowError):
                    far.settle(ends)
                assert proxy.answers == before + 2  # of BEGIN and ROLLBACK
                assert settles(far, ends)
                assert proxy.answers == before + 3
            assert len(far.history.unwritten) == 1
            assert store.get("a").status == "finished"

    def test_what_is_skipped_is_not_settled_without_its_record(self, database, store, proxy, lease):
        timeout = 6.0
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        with store_factory(url, timeout=timeout) as open_store:
            far = open_store()
            far.now()
            ends = lease("a", outcome=None, fate=Fate.SKIPPED_OVERLAP)
            with proxy.slow(0.35 * timeout):
                for _ in range(2):
                    with pytest.raises(StoreSlowError):
                        far.settle(ends)
            assert store.get("a").token == ends[0].token
            assert settles(far, ends)
            assert recorded(store) == {"a"}

    def test_nor_is_one_that_becomes_slow_during_the_transaction(
        self, database, store, proxy, lease
    ):
        timeout = 6.0
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        with store_factory(url, timeout=timeout) as open_store:
            far = open_store()
            far.now()
            ends = lease("a")
            with contextlib.ExitStack() as slow:
                step = far._connector.step

                def slow_down(**arguments):
                    step(**arguments)
                    if "ahead" in arguments:
                        slow.enter_context(proxy.slow(0.6 * timeout))

                far._connector.step = slow_down
                with pytest.raises(StoreSlowError):
                    far.settle(ends)
                before = proxy.answers
                assert settles(far, ends)
                assert proxy.answers == before + 1
            assert len(far.history.unwritten) == 1
            assert store.get("a").status == "finished"


# --- replacements ------------------------------------------------------------------------


def replaces(store, key):
    """Whether a row is replaced together with a record; the row keeps the type "new"."""
    seen = store.get(key)
    span = record(changed(seen, owner="nonce"), outcome=None, fate=Fate.SKIPPED)
    return store.replace_and_record(seen, changed(seen, type="new"), [span])


def test_without_the_table_a_row_is_not_replaced(store, sql):
    store.add([Row(key=key, next_time=1) for key in "abc"], nonce="n")
    assert replaces(store, "a")
    sql("ALTER TABLE psched_runs RENAME TO away")
    with pytest.raises(StoreError):
        replaces(store, "b")
    sql("ALTER TABLE away RENAME TO psched_runs")
    assert replaces(store, "c")
    assert [store.get(key).type for key in "abc"] == ["new", "default", "new"]
    assert recorded(store) == {"a", "c"}


def test_a_row_that_was_not_replaced_has_no_lost_record(store, sql):
    store.add([Row(key="k", next_time=1)], nonce="n")
    seen = store.get("k")
    assert store.replace(seen, changed(seen, type="theirs"))
    sql("ALTER TABLE psched_runs RENAME TO away")
    span = record(changed(seen, owner="nonce"), outcome=None, fate=Fate.SKIPPED)
    assert not store.replace_and_record(seen, changed(seen, type="mine"), [span])
    assert store.get("k").type == "theirs"
