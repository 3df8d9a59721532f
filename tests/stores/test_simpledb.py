"""What is special about the store on SimpleDB: parts of 1,024 bytes, and one condition."""

import json
import random
from bisect import bisect

import pytest

from psched.base.errors import (
    InvalidError,
    MissingTableError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.core.model import Row
from psched.core.operations.pauses import PauseRule
from psched.core.store_protocol import Settled
from psched.stores.conditional.items import Item
from psched.stores.simpledb.encoding import check_size, decode, digits, encode
from psched.testing.store_contract.bench import claim, due, ending, found, leased
from support.dynamodb_faults import troubled
from support.stores import store_factory

pytestmark = pytest.mark.dynamodb


@pytest.fixture
def table(simpledb):
    return simpledb.new_domain()


@pytest.fixture
def store(simpledb, table):
    with store_factory(simpledb.url(), table=table) as open_store:
        open_store().init()
        yield open_store()


@pytest.mark.parametrize(
    "data", [None, "", "{}", "\u0000\U0001f600 <&'", "x" * 5000, b"\x00\xff", b"\x00\xff" * 5000]
)
def test_every_payload_is_read_as_it_was_written(data):
    item = Item(Row(key="k", data=data, label="<\u00e9>"), beat=3, lease=60)
    attributes = encode(item)
    assert decode("k", attributes) == item
    assert all(value.isascii() and len(value) <= 1024 for value in attributes.values())


def test_numbers_of_the_index_are_in_the_order_of_texts():
    numbers = [-5, 0, 9, 10, 1_000_000_000, 4_000_000_000, 2**62, 2**80]
    assert [*map(digits, numbers)] == sorted(map(digits, numbers))


def _noise(size):
    return json.dumps({"k": random.Random(1).randbytes(size // 2).hex()})  # noqa: S311


def test_data_of_many_parts_shrink_and_grow(store):
    row = leased(store, "k")
    for size in (300_000, 3_000, 0, 250_000):
        assert store.update_data("k", row.token, _noise(size))
        assert found(store, "k").data == _noise(size)
    before = found(store, "k")
    with pytest.raises(InvalidError, match="data: makes the schedule too large for SimpleDB"):
        store.update_data("k", row.token, _noise(1_000_000))
    assert found(store, "k") == before
    assert store.settle([ending(before)]) == {"k": Settled.DONE}


def test_the_largest_row_can_be_run_and_settled(store):
    size = 100 * (bisect(range(0, 500_000, 100), 0, key=_is_too_large) - 1)
    assert size > 300_000
    store.add([due("k", data=_noise(size))], nonce="n")
    (row,) = claim(store, "w" * 40 + ".1").rows
    assert store.extend({"k": row.token}, alive_time=60, shortest=1) == {"k"}
    longest = {"reason": "\U0001f600" * 460, "pause_note": "\U0001f600" * 250}
    assert store.settle([ending(row, local_time="y" * 40, **longest)]) == {"k": Settled.DONE}
    assert found(store, "k").pause_note == longest["pause_note"]


def _is_too_large(size):
    try:
        check_size(encode(Item(due("k", data=_noise(size)))))
    except InvalidError:
        return True
    return False


def test_many_rules_of_pauses_are_kept_and_replaced(store):
    rules = [
        PauseRule(id=f"r{n}", type=f"t{n}", since=1, by="ann", note="\u00e9" * 90)
        for n in range(40)
    ]
    store.change_pause_rules(drop=[], store=rules)
    store.add([due("k", type="t7")], nonce="n")
    assert not claim(store, "w.1").rows
    store.change_pause_rules(drop=[rule.id for rule in rules[1:]], store=[])
    assert store.pause_rules() == rules[:1]
    assert len(claim(store, "w.2").rows) == 1


def test_reads_that_are_not_consistent_would_miss_the_last_write(store, monkeypatch):
    store.add([due("k")], nonce="n")
    row = found(store, "k")
    ask = store._domain._connector.ask

    def ask_carelessly(action, parameters, **how):
        careless = {k: v for k, v in parameters.items() if k != "ConsistentRead"}
        return ask(action, careless, **how)

    monkeypatch.setattr(store._domain._connector, "ask", ask_carelessly)
    assert store.get("k") is None
    assert not claim(store, "w.1").rows
    monkeypatch.undo()
    assert found(store, "k") == row
    assert len(claim(store, "w.1").rows) == 1


def test_a_missing_domain_is_named_and_made(simpledb):
    with store_factory(simpledb.url(), table=simpledb.new_domain()) as open_store:
        for use in (open_store().examine, lambda: open_store().get("k")):
            with pytest.raises(MissingTableError, match=r"run `psched init`"):
                use()
        [line] = open_store().init()
        assert line.startswith("created psched_")
        assert open_store().init() == []
        open_store().try_rights()
        facts = dict(open_store().examine())
        assert (facts["size"], facts["claims by"]) == ("0 items", "conditional writes")


def _refusing(code, status):
    said = f"<Response><Errors><Error><Code>{code}</Code></Error></Errors></Response>"
    return lambda request: request.answer(status, said.encode())


@pytest.fixture
def faulty(simpledb):
    """A server with faults in front of the service."""
    with troubled(simpledb.port) as server:
        yield server


@pytest.fixture
def open_faulty(store, faulty, table):  # noqa: ARG001  # the domain is there
    """A store behind that server."""
    with store_factory(faulty.url.replace("dynamodb", "simpledb"), table=table) as open_store:
        yield open_store()


def test_a_throttled_read_is_sent_again_and_what_becomes_of_a_write_is_unknown(open_faulty, faulty):
    store, throttled = open_faulty, _refusing("ServiceUnavailable", 503)
    faulty.faults |= {"PutAttributes": [throttled], "Select": [throttled] * 2}
    with pytest.raises(UnknownOutcomeError, match="is overloaded, or its limits are too low"):
        store.add([due("k")], nonce="n")
    store.add([due("k")], nonce="n")
    assert [row.key for row in claim(store, "w.1").rows] == ["k"]
    assert faulty.faults["Select"] == []


def test_who_may_not_create_a_domain_is_told_what_to_create(simpledb, faulty):
    domain = simpledb.new_domain()
    with store_factory(faulty.url.replace("dynamodb", "simpledb"), table=domain) as open_store:
        command = f"aws sdb create-domain --region eu-west-1 --domain-name {domain}"
        assert [plan for plan, _ in open_store().plan_init()] == [command]
        faulty.faults["CreateDomain"] = [_refusing("AccessDenied", 403)]
        with pytest.raises(StoreError, match=f"AccessDenied.*; .* run: {command}"):
            open_store().init()
        open_store().init()
        assert open_store().plan_init() == []


def test_a_wrong_secret_is_told_without_it(store, monkeypatch):
    store.disconnect()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not this one")
    store._connector._session = None
    with pytest.raises(StoreUnavailableError, match="correct the secret key") as refused:
        store.get("k")
    assert "not this one" not in str(refused.value)
