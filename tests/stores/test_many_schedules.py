"""Tests of adding very many schedules in one call, and of listing them."""

import itertools
import json
import os
import subprocess
import sys

import pytest
import yaml

from psched.base.clock import SystemClock
from psched.base.errors import AlreadyExistsError, UnknownOutcomeError
from psched.client.collection import ScheduleCollection
from psched.core.history.protocol import AuditSelection
from psched.core.history.records import AuditRecord
from psched.core.model import Row
from psched.stores.sql import batches, raw_execute
from psched.stores.sql.batches import insert_batches
from psched.stores.sql.statements import _inserted_of
from support.big_tables import fill, joined, number
from support.proxy import Fault
from support.stores import store_factory

pytestmark = pytest.mark.twins

MANY = 10_000

LATER = 4_000_000_000

each_server = pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("mariadb", "postgresql")],
    indirect=True,
)


@pytest.fixture
def far(proxy, database, store, settings):  # noqa: ARG001  # the table is there
    """The Python API behind the proxy."""
    url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
    numbers = itertools.count()
    with store_factory(url) as open_store:
        yield ScheduleCollection(
            open_store(), settings, clock=SystemClock(), draw_nonce=lambda: f"n{next(numbers)}"
        )


def many(count):
    return ({"key": f"k{n}", "next_time": LATER} for n in range(count))


def rows(count):
    return [Row(key=f"k{n}", next_time=LATER, next_run_time=LATER) for n in range(count)]


def count(sql):
    return sql("SELECT COUNT(*) FROM {table}")[0][0]


def plain(value):
    """A value as it was given: some drivers read texts as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def inserts_sent(monkeypatch):
    """A list to which the text of each insert is added that is sent from now on."""
    sent, execute = [], raw_execute._execute

    def watched(connection, text, *args, **kwargs):
        sent.extend([text] if text.startswith("INSERT") else [])
        return execute(connection, text, *args, **kwargs)

    monkeypatch.setattr(raw_execute, "_execute", watched)
    return sent


class TestAdding:
    def test_each_value_is_stored_in_its_place(self, store):
        given = [
            Row(
                key=f"k{n} %s %(id)s ? :id",
                type="100 %",
                data=None if n else '{"a":"%s %% ? :nonce"}',
                cron=None if n else "0 0 * * *",
                timezone="UTC",
                delay=n,
                next_time=LATER + n,
                next_run_time=LATER + 2 * n,
                alive_time=300 + n,
                options=None if n else '{"note":"%"}',
            )
            for n in range(3)
        ]
        store.add(given, nonce="n %s")
        for row in given:
            found = store.get(row.key)
            assert found.settled_by == "n %s"
            assert [*map(plain, _inserted_of(found))] == [*_inserted_of(row)]

    def test_ten_thousand_are_one_transaction_of_few_statements(self, store, sql):
        connector, requests = store._connector, []
        transact, renew = connector.transact, connector.renew

        def watching(work):
            def watched(connection):
                work(connection)
                # Another connection does not see the new schedules yet.
                assert count(sql) == 0

            transact(watched)

        connector.transact, connector.renew = watching, lambda: requests.append(renew())
        store.add(rows(MANY), nonce="n")
        assert count(sql) == MANY
        assert 1 < len(requests) <= MANY / 200

    def test_their_changes_are_recorded_in_few_statements_and_in_their_order(
        self, store, monkeypatch
    ):
        sent = inserts_sent(monkeypatch)
        written = {"action": "add", "user": "ann", "host": "here", "program": "test"}
        store.history.audit([AuditRecord(key=f"k{n}", **written) for n in range(1000)])
        assert len(sent) == 1000 / batches.INSERT_BATCH
        found = [*store.history.audits(AuditSelection())]
        assert [each.key for each in found] == [f"k{n}" for n in reversed(range(1000))]
        first = found[-1]
        assert (first.before, first.after, first.note, first.user) == (None, None, None, "ann")

    def test_long_changes_are_recorded_in_more_statements(self, store, monkeypatch):
        sent = inserts_sent(monkeypatch)
        after = '{"k":"' + "x" * 3000 + '"}'
        written = {"action": "add", "user": "ann", "host": "here", "program": "test"}
        store.history.audit([AuditRecord(key=f"k{n}", after=after, **written) for n in range(1000)])
        assert len(sent) > 1000 / batches.INSERT_BATCH
        assert {each.after for each in store.history.audits(AuditSelection())} == {after}

    def test_when_the_last_one_is_taken_none_is_added(self, store, sql):
        store.add([Row(key=f"k{MANY - 1}")], nonce="n")
        with pytest.raises(AlreadyExistsError):
            store.add(rows(MANY), nonce="m")
        assert count(sql) == 1
        store.add(rows(MANY - 1), nonce="m")

    def test_payloads_that_are_too_much_for_one_statement_go_in_several(self, store, sql):
        """MariaDB accepts at most 16 MB in one statement."""
        data = '{"k":"' + "x" * 900_000 + '"}'
        large = [Row(key=f"k{n}", data=data, next_run_time=LATER) for n in range(20)]
        store.add(large, nonce="n")
        assert count(sql) == len(large)
        assert sql("SELECT MIN(LENGTH(data)) FROM {table}")[0][0] == len(data)


@each_server
class TestUnknownOutcome:
    """Tests of a connection that breaks while very many schedules are being added."""

    FEW = 3 * batches.INSERT_BATCH

    @pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
    @pytest.mark.parametrize("met", [b"INSERT", b"COMMIT"], ids=bytes.decode)
    def test_they_are_added_all_the_same_and_once(self, far, proxy, sql, fault, met):
        far["k"].exists()  # connected
        with proxy.fault(fault, met):
            assert len(far.add_many(many(self.FEW))) == self.FEW
        assert count(sql) == self.FEW

    def test_those_that_another_has_added_meanwhile_are_not_taken_for_ours(
        self, far, proxy, store, sql
    ):
        far["k"].exists()
        add = far._store.add

        def add_late(rows, *, nonce):
            try:
                add(rows, nonce=nonce)
            except UnknownOutcomeError:
                store.add([Row(key="k7")], nonce="theirs")
                raise

        far._store.add = add_late
        with (
            proxy.fault(Fault.LOSE_REQUEST, b"COMMIT"),
            pytest.raises(AlreadyExistsError, match=r"^the key 'k7' is taken$"),
        ):
            far.add_many(many(self.FEW))
        assert count(sql) == 1


class TestParcels:
    def test_they_hold_every_row_in_order(self):
        everything = rows(3 * batches.INSERT_BATCH + 1)
        found = [*insert_batches(everything)]
        assert [len(parcel) for parcel in found] == [batches.INSERT_BATCH] * 3 + [1]
        assert [*itertools.chain(*found)] == everything
        assert [*insert_batches([])] == []

    def test_they_are_bounded_in_size_too(self):
        half = "x" * (batches.INSERT_SIZE // 2)
        large = [Row(key=f"k{n}", data=half, options="y" * (n == 4)) for n in range(6)]
        assert [len(parcel) for parcel in insert_batches(large)] == [2, 2, 1, 1]
        huge = [Row(key=f"k{n}", data=half * 3) for n in range(3)]
        assert [len(parcel) for parcel in insert_batches(huge)] == [1, 1, 1]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_list_is_written_while_it_is_read(database, store, tmp_path):
    """A long list prints its first line as soon as a short one, and takes as little memory."""
    config = tmp_path / "psched.yml"
    config.write_text(yaml.safe_dump({"url": database.url}))

    def listed(lines):
        """The CPU seconds and the kilobytes that listing that many lines took."""
        command = [sys.executable, "-m", "psched", "-c", str(config), "list"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            found = sum(1 for _ in itertools.islice(process.stdout, lines))
            process.stdout.close()  # as head does
            said = process.stderr.read()
            _, _, used = os.wait4(process.pid, 0)
            process.returncode = 0
        assert (found, said) == (lines, b"")
        return used.ru_utime, used.ru_maxrss

    short_time, short_memory = listed(1)  # says that there are none
    rows = 200_000
    store._connector.run(
        lambda c: fill(
            c,
            "sqlite",
            rows,
            id=joined("sqlite", "'k'", number("sqlite", "i")),
            data=f"'{json.dumps({'k': 'x' * 100})}'",
            next_run_time="i / 1000 + 4000000000",
        )
    )
    first_time, _ = listed(1)
    whole_time, whole_memory = listed(rows + 2)
    assert first_time - short_time < (whole_time - short_time) / 4
    assert whole_memory - short_memory < 20_000
