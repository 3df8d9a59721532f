"""Tests of writes of output that a database refuses or does not answer."""

import pytest

from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.core.output import RunningAttempt
from psched.stores.sql import raw_execute
from psched.stores.sql.errors import InvalidValueError
from psched.testing.store_contract.output import kept, noise, printed
from support.proxy import Fault, Proxy
from support.servers import LOOPBACK
from support.stores import store_factory


@pytest.mark.mariadb
def test_what_is_larger_than_the_server_takes_is_refused_at_once(start_mariadb):
    """No error says to repeat it, as one of a connection that the server has closed would."""
    server = start_mariadb("--max-allowed-packet=1M")
    with store_factory(server.url(server.create_database())) as open_store:
        store = open_store()
        store.init()
        with pytest.raises(InvalidValueError, match=r"1153.* the server accepts 1,048,576"):
            store.output.write_output([printed(output=noise(2**20))])
        many = [printed(owner=f"w.{n}", output=noise(65_536, n)) for n in range(16)]
        store.output.write_output(many)
        assert kept(store) == many[::-1]


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.parametrize("loss", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
@pytest.mark.parametrize(
    ("statement", "error"),
    [(b"COMMIT", UnknownOutcomeError), (b"INSERT", StoreUnavailableError)],
)
def test_a_write_without_an_answer_is_repeated(store, database, loss, statement, error):
    records = [printed(owner="w.1"), printed(owner="w.2", output=noise(5000))]
    store.output.write_output([printed(owner="w.2", is_live=True)])
    with Proxy(database.server.port) as proxy:
        name = database.url.rpartition("/")[2]
        with store_factory(f"mysql+pymysql://root@{LOOPBACK}:{proxy.port}/{name}") as open_far:
            far = open_far()
            assert far.output.problem() is None
            with proxy.fault(loss, statement), pytest.raises(error):
                far.output.write_output(records)
            for _ in range(2):
                far.output.write_output(records)
    assert kept(store) == records[::-1]


@pytest.mark.parametrize(
    "database",
    [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("mariadb", "postgresql")],
    indirect=True,
)
def test_a_request_of_a_reader_in_the_middle_of_a_write_does_not_cost_the_output(
    store, open_store, monkeypatch
):
    record = printed(owner="w.1")
    attempt = RunningAttempt(
        key=record.key, scheduled_time=record.scheduled_time, owner="w.1", attempt=record.attempt
    )
    insert, other = raw_execute.repeat, open_store()

    def ask_first(*arguments):
        monkeypatch.setattr(raw_execute, "repeat", insert)
        other.output.ask_for_output(attempt, now=1, until=2)
        return insert(*arguments)

    monkeypatch.setattr(raw_execute, "repeat", ask_first)
    store.output.write_output([record])
    assert kept(store) == [record]
