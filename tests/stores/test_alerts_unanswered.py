"""Tests of requests about alerts that another one overtakes, or that a database does not answer."""

import contextlib

import pytest

from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.testing.store_contract.alerts import (
    LEASE,
    SINCE,
    alert,
    identities,
    now_ms,
    one_closed,
    one_raised,
    one_stored,
    stored,
    taken,
)
from support.proxy import Fault, Proxy
from support.servers import LOOPBACK
from support.stores import store_factory


@pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        *(pytest.param(k, marks=getattr(pytest.mark, k)) for k in ("mariadb", "postgresql")),
    ],
    indirect=True,
)
def test_what_another_monitor_raises_in_the_middle_is_left_out(store, open_store, monkeypatch):
    transact, other = store._connector.transact, open_store()
    theirs = [alert("same"), alert("subject", since=SINCE + 1)]

    def overtaken(*arguments, **options):
        assert len(other.alerts.raise_alerts(theirs)) == 2
        return transact(*arguments, **options)

    monkeypatch.setattr(store._connector, "transact", overtaken)
    ours = [alert("a"), alert("same", text="ours"), alert("subject"), alert("z")]
    assert identities(store.alerts.raise_alerts(ours)) == identities([ours[0], ours[3]])
    assert identities(stored(other)) == identities([ours[0], ours[3], *theirs])
    assert one_stored(other, "same").text == theirs[0].text


@pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        *(pytest.param(k, marks=getattr(pytest.mark, k)) for k in ("mariadb", "postgresql")),
    ],
    indirect=True,
)
def test_what_another_monitor_takes_in_the_middle_is_left_out(store, open_store, monkeypatch):
    transact, other = store._connector.transact, open_store()
    for key in "a", "b", "c":
        one_raised(store, key, on_raise=("mail",))

    def overtaken(*arguments, **options):
        monkeypatch.undo()
        assert len(taken(other, "theirs", limit=2)) == 2
        return transact(*arguments, **options)

    monkeypatch.setattr(store._connector, "transact", overtaken)
    assert len(taken(store, "ours")) == 1
    assert sorted(each.owner for each in stored(store)) == ["ours", "theirs", "theirs"]


@pytest.fixture
def far(database):
    """A function that opens the store behind a proxy, which it returns, too."""
    with contextlib.ExitStack() as stack:

        def far():
            proxy = stack.enter_context(Proxy(database.server.port))
            name = database.url.rpartition("/")[2]
            url = f"mysql+pymysql://root@{LOOPBACK}:{proxy.port}/{name}"
            store = stack.enter_context(store_factory(url))()
            assert store.alerts.problem() is None
            return store, proxy

        yield far


losses = pytest.mark.parametrize(
    ("loss", "is_applied"), [(Fault.LOSE_REQUEST, False), (Fault.LOSE_REPLY, True)]
)

mariadb = pytest.mark.parametrize(
    "database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)


@mariadb
@losses
def test_a_repeated_raise_raises_once(store, far, loss, is_applied):
    there, proxy = far()
    wanted = [alert("a", on_raise=("mail",)), alert("b", on_raise=("mail",))]
    with proxy.fault(loss, b"COMMIT"), pytest.raises(UnknownOutcomeError):
        there.alerts.raise_alerts(wanted)
    again = there.alerts.raise_alerts(wanted)
    assert identities(again) == ([] if is_applied else identities(wanted))
    assert identities(stored(store)) == identities(wanted)
    # Whichever of the two requests has raised them, some monitor delivers them.
    assert identities(taken(store)) == identities(wanted)


@mariadb
def test_a_raise_that_ends_before_its_commit_raises_nothing(store, far):
    there, proxy = far()
    with proxy.fault(Fault.LOSE_REPLY, b"INSERT"), pytest.raises(StoreUnavailableError):
        there.alerts.raise_alerts([alert()])
    assert stored(store) == []
    assert len(there.alerts.raise_alerts([alert()])) == 1


@mariadb
@losses
def test_a_repeated_close_closes_once(store, far, loss, is_applied):
    there, proxy = far()
    opened = one_raised(store, on_close=("mail",))
    with proxy.fault(loss, b"COMMIT"), pytest.raises(UnknownOutcomeError):
        there.alerts.close_alerts([opened], "it has run")
    closed = one_stored(store)
    again = there.alerts.close_alerts([opened], "another text")
    assert len(again) == (0 if is_applied else 1)
    if is_applied:
        assert one_stored(store) == closed
    assert identities(taken(store)) == identities([opened])


@mariadb
@losses
def test_an_alert_whose_take_has_no_answer_is_due_after_the_lease(store, far, loss, is_applied):
    there, proxy = far()
    one_raised(store, on_raise=("mail",))
    before = now_ms(store)
    with proxy.fault(loss, b"COMMIT"), pytest.raises(UnknownOutcomeError):
        there.alerts.take_alerts("lost", lease=LEASE, limit=1)
    found = one_stored(store)
    assert found.fence == int(is_applied)
    assert (found.next_try or 0) >= before + LEASE * 1000 or not is_applied
    assert len(taken(store)) == int(not is_applied)


@mariadb
@losses
def test_a_repeated_note_changes_nothing(store, far, loss, is_applied):
    there, proxy = far()
    one_closed(store, on_close=("mail",))
    (held,) = taken(store)
    with proxy.fault(loss, b"UPDATE"), pytest.raises(UnknownOutcomeError):
        there.alerts.note_deliveries(held)
    assert there.alerts.note_deliveries(held) is not is_applied
    found = one_stored(store)
    assert (found.owner, found.next_try, found.fence) == (None, held.next_try, held.fence)
