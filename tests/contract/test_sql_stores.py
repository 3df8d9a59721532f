"""The contract of a store, on every database, claiming in every way that its server can do."""

import pytest

from psched.model import Row
from psched.testing import BackendContract, TableContract
from support.stores import Sql, store_factory

WAYS = {
    "sqlite": ("cas",),
    "mariadb": ("cas", "update_first", "skip_locked"),
    "postgresql": ("skip_locked", "update_first", "cas"),
}
"""The first is what the server is given if nobody chooses."""


_MARKS = {
    "sqlite": (),
    "mariadb": (pytest.mark.mariadb,),
    "postgresql": (pytest.mark.postgresql,),
}


def _marks(kind, way):
    chosen = (pytest.mark.chosen,) if way != WAYS[kind][0] else ()
    return (*_MARKS[kind], *chosen)


@pytest.fixture
def strategy(request):
    return request.param


@pytest.mark.parametrize(
    ("database", "strategy"),
    [
        pytest.param(kind, way, marks=_marks(kind, way), id=f"{kind}-{way}")
        for kind, ways in WAYS.items()
        for way in ways
    ],
    indirect=True,
)
class TestSqlStore(BackendContract, TableContract):
    @pytest.fixture
    def backend_factory(self, database, strategy):
        with store_factory(database.url, strategy=strategy) as open_store:
            open_store().init()
            yield open_store

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(
        self, backend_factory, database, strategy
    ):
        store = backend_factory()
        soon = int(store.now()) + 1
        rows = [
            Row(key=f"{type_}{time}", type=type_, next_time=time, next_run_time=time)
            for time in (1, 2, soon)
            for type_ in ("ours", "its", "b'o\"o")
        ]
        store.add(rows, nonce="n")
        claim = {"limit": 2, "alive_time": 60, "shortest": 6, "horizon": 30}
        with store_factory(database.url, strategy=strategy, only=("b'o\"o", "ours")) as open_some:
            some = open_some()
            first, second = some.claim("w.1", **claim), some.claim("w.2", **claim)
            assert {row.key for row in first.rows} == {"ours1", "b'o\"o1"}
            assert {row.key for row in second.rows} == {"ours2", "b'o\"o2"}
            assert (first.more, second.more) == (True, True)
            last = some.claim("w.3", **claim)
            assert last.rows or last.next_due == soon
        assert {row.key for row in store.claim("w.4", **claim).rows} == {"its1", "its2"}

    @pytest.fixture
    def execute(self, database, backend_factory):  # noqa: ARG002  # the table is there
        return Sql(database.url)
