"""The contract of a store, on every database, claiming in every way that its server can do."""

from contextlib import ExitStack, closing, contextmanager

import pytest
from sqlalchemy import create_engine, make_url

from psched.core.model import Token
from psched.testing import (
    AlertsContract,
    AnnouncesContract,
    BackendContract,
    BacklogContract,
    HistoryContract,
    HoldsContract,
    LanesContract,
    LastRunsContract,
    OutputContract,
    OverviewContract,
    PausesContract,
    ReplaceAndRecordContract,
    ReplaceManyContract,
    RunSummaryContract,
    StatusContract,
    TableContract,
    TransactionContract,
    WatchingContract,
)
from psched.testing.store_contract.bench import add, claim, found, leased_for_a_moment
from support.conditional_contract import ObservedContract
from support.stores import KINDS, SOME, Sql, observing_factory, store_factory, takes_some_types

WAYS = {
    "sqlite": ("cas",),
    "mariadb": ("cas",),
    "postgresql": ("skip_locked", "cas"),
}

_MARKS = {
    "sqlite": (),
    "mariadb": (pytest.mark.mariadb,),
    "postgresql": (pytest.mark.postgresql,),
}


@pytest.fixture
def strategy(request):
    return request.param


@pytest.fixture
def backend_factory(database):
    with store_factory(database.url) as open_store:  # the tables are there, see support.tables
        yield open_store


@pytest.mark.parametrize(
    ("database", "strategy"),
    [
        pytest.param(kind, way, marks=_MARKS[kind], id=f"{kind}-{way}")
        for kind, ways in WAYS.items()
        if kind in KINDS
        for way in ways
    ],
    indirect=True,
)
class TestSqlStore(
    BackendContract,
    BacklogContract,
    TransactionContract,
    ReplaceManyContract,
    HoldsContract,
    LanesContract,
    PausesContract,
    OverviewContract,
    WatchingContract,
    TableContract,
    StatusContract,
):
    @pytest.fixture
    def backend_factory(self, database, strategy):
        with store_factory(database.url, claim_strategy=strategy) as open_store:
            yield open_store

    @pytest.fixture
    def open_host(self, database, strategy):
        with ExitStack() as opened:
            yield lambda name, *labels: opened.enter_context(
                store_factory(
                    database.url,
                    claim_strategy=strategy,
                    host_name=name,
                    host_labels=[*labels],
                )
            )()

    def test_a_store_that_takes_some_types_leaves_the_others_to_others(
        self, backend_factory, database, strategy
    ):
        with store_factory(database.url, claim_strategy=strategy, only=SOME) as open_some:
            takes_some_types(backend_factory(), open_some())

    @pytest.fixture
    def begin(self, database):
        engine = create_engine(database.url)
        yield engine.begin
        engine.dispose()

    @pytest.fixture
    def set_status(self, execute):
        change = "UPDATE {table} SET status = :status WHERE id = :key"
        return lambda key, status: execute(change, key=key, status=status)

    @pytest.fixture
    def execute(self, database, backend_factory):  # noqa: ARG002  # the table is there
        return Sql(database.url)


@pytest.mark.parametrize(
    ("database", "strategy"),
    [
        pytest.param(kind, WAYS[kind][0], marks=_MARKS[kind], id=kind)
        for kind in WAYS
        if kind in KINDS
    ],
    indirect=True,
)
class TestSqlStoreThatObserves(ObservedContract):
    @pytest.fixture
    def backend_factory(self, database, strategy):
        with observing_factory(database.url, claim_strategy=strategy) as open_store:
            yield open_store

    def test_a_lease_that_ran_out_is_taken_over(self, store, other):
        """What was observed comes first; the claim says that there is more."""
        (lost,) = leased_for_a_moment(store, "lost")
        add(store, "fresh")
        claimed = claim(other, "w.2")
        assert [row.key for row in claimed.rows] == ["lost"]
        assert claimed.more
        assert [row.key for row in claim(other, "w.3").rows] == ["fresh"]
        taken = found(other, "lost")
        assert taken.token not in {lost.token, Token("", 0)}
        assert taken.next_time == lost.next_time


class TestTransactionOfTheDriver(TransactionContract):
    """Programs without SQLAlchemy, such as Django's, give the connection of their driver."""

    @pytest.fixture(params=["rows are tuples", "rows are mappings"])
    def begin(self, database, request):
        url = make_url(database.url)
        dialect = url.get_dialect()
        driver = dialect.import_dbapi()
        positional, named = dialect().create_connect_args(url)
        by_name = request.param == "rows are mappings"
        if by_name and database.kind == "mariadb":
            named["cursorclass"] = driver.cursors.DictCursor
        elif by_name and database.kind == "postgresql":
            named["row_factory"] = driver.rows.dict_row

        @contextmanager
        def begin():
            with closing(driver.connect(*positional, **named)) as connection:
                if by_name and database.kind == "sqlite":
                    connection.row_factory = lambda cursor, row: {
                        column[0]: value
                        for column, value in zip(cursor.description, row, strict=True)
                    }
                yield connection
                connection.commit()

        return begin


class TestSqlHistory(
    HistoryContract,
    ReplaceAndRecordContract,
    LastRunsContract,
    RunSummaryContract,
    OutputContract,
    AlertsContract,
):
    pass


@pytest.mark.postgresql
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
class TestSqlAnnouncements(AnnouncesContract):
    pass
