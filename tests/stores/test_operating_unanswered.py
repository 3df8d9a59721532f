"""Each verb whose answer is lost, on a schedule that is free, runs, or is held for an extra run.

The verb is applied once, is recorded once, and `psched verify` finds nothing.
"""

import itertools

import pytest

from psched.base.clock import SystemClock
from psched.client.auditor import Author
from psched.client.collection import ScheduleCollection
from psched.client.verifier import Verifier
from psched.stores.redis import scripts
from support.operating import DAY, FREE, HELD, REGULAR, VERBS, Operated, Times
from support.proxy import Fault
from support.stores import LONG, store_factory

pytestmark = [
    pytest.mark.parametrize(
        "database",
        [
            pytest.param("mariadb", marks=pytest.mark.mariadb),
            pytest.param("postgresql", marks=pytest.mark.postgresql),
            pytest.param("redis", marks=pytest.mark.redis),
        ],
        indirect=True,
    ),
    pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY]),
    pytest.mark.parametrize("verb", VERBS),
]

ADDING = {"trigger", "backfill"}


@pytest.fixture
def database(request, open_database):
    with open_database(request.param) as database:
        yield database


@pytest.fixture
def open_collection(settings):
    """A function that opens the Python API on a store."""
    numbers = itertools.count()

    def open_collection(store):
        return ScheduleCollection(
            store,
            settings,
            clock=SystemClock(),
            draw_nonce=lambda: f"n{next(numbers)}",
            author=lambda: Author("ann", "web1", "tests"),
        )

    return open_collection


@pytest.fixture
def far(database, proxy, store, open_collection):  # noqa: ARG001  # the table is there
    """The Python API, connected to the server through the proxy."""
    url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
    with store_factory(url, timeout=LONG) as open_store:
        yield open_collection(open_store())


def writes(verb, held, kind):
    """What only the request contains that applies the verb."""
    if kind == "redis":
        # The server knows all scripts by then, and each is one request.
        script = {"delete": scripts.find("delete"), **dict.fromkeys(ADDING, scripts.find("add"))}
        usual = scripts.find("replace_and_record") if verb == "skip" else scripts.find("replace")
        return script.get(verb, usual).digest.encode()
    if verb in ADDING:
        return b"INSERT"
    return b"DELETE" if verb == "delete" and held == FREE else b"UPDATE"


def test_a_verb_is_applied_once(
    database, fault, verb, *, far, open_collection, settings, store, proxy
):
    near = open_collection(store)
    times = Times(int(store.now()))
    cases = [Operated(verb, held, times) for held in HELD if (verb, held) != ("skip", REGULAR)]
    tasks = []
    for case in cases:
        if case.add(near, "t") is not None:
            tasks.append(near.poll())
        case.prepare(near)
    for case in cases:
        with proxy.fault(fault, writes(verb, case.held, database.kind)):
            case.apply(far)
    for task in tasks:
        task.finish()
    if verb == "delete":
        # A schedule that was deleted while an extra run held it is removed by the next claim.
        assert near.poll() is None
    for case in cases:
        case.check(near, died=False)
    found = Verifier(store, settings, lambda request: request()).verify(2 * DAY)
    assert found.violations == []
