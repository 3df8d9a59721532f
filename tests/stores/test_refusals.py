"""Tests that psched refuses a database that it cannot use, and names the reason."""

import contextlib

import pytest
from sqlalchemy import text

from psched.base.errors import StoreError
from psched.core.model import Row
from support.stores import make_store, store_factory

CLAIM = {"limit": 1, "alive_time": 60, "shortest": 6, "horizon": 0}


@pytest.mark.postgresql
def test_a_database_that_keeps_what_is_no_text_is_refused(postgresql_server):
    name = "ascii"
    postgresql_server.query(
        f"CREATE DATABASE {name} ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0"
    )
    try:
        with pytest.raises(StoreError, match="its encoding is SQL_ASCII; create a database with"):
            make_store(postgresql_server.url(name)).init()
    finally:
        postgresql_server.query(f"DROP DATABASE {name}")


@pytest.mark.postgresql
def test_a_missing_right_is_not_taken_for_a_missing_ability(postgresql_server):
    name = postgresql_server.create_database()
    postgresql_server.query("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    url = postgresql_server.url(name)
    try:
        with store_factory(url) as open_store:
            open_store().init()
        postgresql_server.query("GRANT SELECT ON psched, psched_info TO reader", database=name)
        reader = url.replace("postgres@", "reader:secret@")
        with store_factory(reader) as open_reader, pytest.raises(StoreError, match="42501"):
            open_reader().claim("w.1", **CLAIM)
    finally:
        postgresql_server.drop_database(name)
        postgresql_server.query("DROP ROLE reader")


def test_a_claim_strategy_that_the_database_does_not_support_is_refused(tmp_path):
    with store_factory(
        f"sqlite:///{tmp_path}/psched.db", claim_strategy="skip_locked"
    ) as open_store:
        store = open_store()
        store.init()
        with pytest.raises(StoreError, match=r"cannot do skip_locked; set it to auto$"):
            store.claim("w.1", **CLAIM)


@pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
class TestServerWithoutSkipLocked:
    """A proxy or a fork, for example: it does not understand the statement."""

    @pytest.fixture
    def open_limited(self, database):
        with contextlib.ExitStack() as opened:

            def open_limited(**parameters):
                store = opened.enter_context(store_factory(database.url, **parameters))()
                store.init()
                store._sql.skip_locked_probe = text("WITH due AS MATERIALISED (")
                return store

            yield open_limited

    def test_it_is_claimed_from_by_compare_and_swap(self, open_limited):
        store = open_limited()
        assert ("claims by", "cas") in store.examine()
        store.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
        assert [row.key for row in store.claim("w.1", **CLAIM).rows] == ["k"]

    def test_it_is_refused_if_nothing_else_will_do(self, open_limited):
        with pytest.raises(StoreError, match=r"cannot do skip_locked; set it to auto$"):
            open_limited(claim_strategy="skip_locked").claim("w.1", **CLAIM)
