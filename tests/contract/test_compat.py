"""The parts of the store contract that PerfectSched's table can keep."""

import pytest

from psched.testing import CoreContract
from support.compat import compat_factory
from support.stores import Sql


class TestCompatStore(CoreContract):
    @pytest.fixture
    def backend_factory(self, database):
        if database.kind == "mariadb":
            # PerfectSched leaves the character set to the database; the suite has keys in Chinese.
            Sql(database.url)("ALTER DATABASE CHARACTER SET utf8mb4")
        with compat_factory(database.url) as open_store:
            open_store().init()
            yield open_store
