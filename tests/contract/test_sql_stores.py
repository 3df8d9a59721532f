"""The contract of a store, on SQLite and MariaDB."""

import pytest

from psched.testing import BackendContract, TableContract
from support.stores import Sql, store_factory


class TestSqlStore(BackendContract, TableContract):
    @pytest.fixture
    def backend_factory(self, database):
        with store_factory(database.url) as open_store:
            open_store().init()
            yield open_store

    @pytest.fixture
    def execute(self, database, backend_factory):  # noqa: ARG002  # the table is there
        return Sql(database.url)
