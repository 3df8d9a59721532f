"""The contract of a store, on Redis."""

import pytest

from psched.testing import BackendContract
from support.stores import redis_factory

pytestmark = pytest.mark.redis


class TestRedisStore(BackendContract):
    @pytest.fixture
    def backend_factory(self, redis_database):
        with redis_factory(redis_database.url) as open_store:
            open_store().init()
            yield open_store
