"""Tests of extends, settles and holds in batches: a batch leaves out only rows with faults."""

import contextlib

import pytest

from psched.base.errors import StoreBusyError, StoreError, TransientStoreError
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}

TRIGGERS = {
    "mariadb": (
        (
            "CREATE TRIGGER odd BEFORE UPDATE ON {table} FOR EACH ROW"
            " IF NEW.id = 'b' THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1644; END IF"
        ),
    ),
    "postgresql": (
        (
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.id = 'b' THEN RAISE EXCEPTION 'odd'; END IF; RETURN NEW; END $$"
        ),
        "CREATE TRIGGER odd BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
}
"""By database: SQL that makes every update of one row fail, whatever its values are."""


@pytest.fixture
def free(store):
    """The keys of three rows."""
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in "abc"], nonce="n")
    return "abc"


@pytest.fixture
def held(store, free):  # noqa: ARG001  # they are leased
    """The leases on three rows."""
    return store.claim("w.1", **CLAIM).rows


def ends(rows, **wrong):
    return [
        Settlement(
            key=row.key,
            token=row.token,
            version=row.version,
            next_time=wrong.get(row.key, 5),
            not_before=4_000_000_000,
        )
        for row in rows
    ]


@pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in TRIGGERS],
    indirect=True,
)
class TestOddErrors:
    @pytest.fixture
    def odd(self, database, sql, held):  # noqa: ARG002  # it is not to stop the claim
        for statement in TRIGGERS[database.kind]:
            sql(statement)

    @pytest.mark.usefixtures("odd")
    @pytest.mark.parametrize("some", ["abc", "b"])
    def test_what_is_not_the_rows_own_fault_is_raised_and_preempts_nobody(self, store, held, some):
        rows = [row for row in held if row.key in some]
        requests = [
            lambda: store.extend({row.key: row.token for row in rows}, **LEASE),
            lambda: store.settle(ends(rows)),
        ]
        for request in requests:
            with pytest.raises(StoreError, match="refused") as raised:
                request()
            assert not isinstance(raised.value, TransientStoreError)

    @pytest.mark.usefixtures("odd")
    def test_it_is_done_when_it_can_be(self, store, database, held, sql):
        with pytest.raises(StoreError):
            store.settle(ends(held))
        sql("DROP TRIGGER odd" + (" ON {table}" if database.kind == "postgresql" else ""))
        assert set(store.settle(ends(held)).values()) == {Settled.DONE}


@pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in TRIGGERS],
    indirect=True,
)
def test_a_value_that_does_not_fit_leaves_its_row_out_and_no_other(store, held):
    results = store.settle(ends(held, b=2**70))
    assert results == {"a": Settled.DONE, "b": Settled.PREEMPTED, "c": Settled.DONE}
    assert store.get("b").owner == "w.1"


@pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in TRIGGERS],
    indirect=True,
)
class TestLockedRows:
    """Tests that rows which another session has locked do not delay the other rows of a batch."""

    @contextlib.contextmanager
    def locking(self, sql):
        with sql.session() as other:
            other("BEGIN")
            other("SELECT id FROM {table} WHERE id = 'b' FOR UPDATE")
            yield
            other("ROLLBACK")

    @pytest.fixture
    def locked(self, sql, held):  # noqa: ARG002  # it is not to stop the claim
        with self.locking(sql):
            yield

    @pytest.mark.usefixtures("locked")
    def test_leases_on_other_rows_are_extended(self, store, held):
        leases = {row.key: row.token for row in held}
        with pytest.raises(StoreBusyError) as busy:
            store.extend(leases, **LEASE)
        assert busy.value.answered == {"a": True, "c": True}

    @pytest.mark.usefixtures("locked")
    def test_other_leases_are_settled(self, store, held):
        with pytest.raises(StoreBusyError) as busy:
            store.settle(ends(held))
        assert busy.value.answered == {"a": Settled.DONE, "c": Settled.DONE}

    def test_other_schedules_are_held(self, store, free, sql):
        with self.locking(sql), pytest.raises(StoreBusyError) as busy:
            store.hold(dict.fromkeys(free, "w.1"), **LEASE)
        assert busy.value.answered == {"a": True, "c": True}
        assert {row.key for row in store.rows() if row.held_by == "w.1"} == {"a", "c"}
        assert store.hold(dict.fromkeys(free, "w.1"), **LEASE) == {*free}
