"""Tests that every database stores large payloads compressed, and returns them unchanged."""

import base64
import json
import random
import zlib

import pytest

from psched.app import open_schedules
from psched.base.errors import InvalidError, StoreError, TransientStoreError, UnknownOutcomeError
from psched.core.columns import decode, parse_payload
from psched.core.model import QUARANTINED, Quarantine, Row
from psched.core.policy import Run, after_claim, after_run
from psched.stores.sql.store import SqlStore
from psched.testing.store_contract.history import made, runs
from support.stores import store_factory

MIB = 2**20

LARGE = {"rows": [{"id": n, "é": "鍵\u0000\\'\"%\n" * 3} for n in range(2000)]}
"""A few hundred kilobytes, with every character that could be misread."""


def noise(size):
    """A payload of that many bytes that can hardly be compressed."""
    drawn = random.Random(7).randbytes(size)  # noqa: S311
    letters = bytes(b for b in range(32, 127) if b not in b'"\\')
    table = bytes(letters[b % len(letters)] for b in range(256))
    return {"a": drawn[: size - len('{"a":""}')].translate(table).decode()}


@pytest.fixture
def compressing(database):
    """A function that opens a store that compresses almost every payload."""
    with store_factory(database.url, compress_above=100) as open_store:
        open_store().init()
        yield open_store


@pytest.fixture
def schedules(database, compressing):  # noqa: ARG001  # the table is there
    with open_schedules({"url": database.url, "compress_above": 1000}) as opened:
        yield opened


def stored_size(sql):
    return sql("SELECT LENGTH(data) FROM {table} WHERE id = 'k'")[0][0]


def test_large_data_are_small_in_the_table_and_whole_in_the_program(schedules, sql):
    schedules.push("k", "t", data=LARGE)
    size = len(json.dumps(LARGE, ensure_ascii=False).encode())
    assert size > 100_000
    assert stored_size(sql) < size / 10
    assert schedules["k"].metadata().data == LARGE
    assert [each.data for each in schedules.list()] == [LARGE]
    task = schedules.poll()
    assert task.data == LARGE
    changed = {**LARGE, "page": 2}
    task.update_data(changed)
    assert stored_size(sql) < size / 10
    assert schedules["k"].metadata().data == changed
    task.release()
    schedules["k"].modify(retry_wait=5)
    assert stored_size(sql) < size / 10
    assert schedules["k"].metadata().data == changed
    schedules["k"].modify(data={"small": 1})
    assert stored_size(sql) == len('{"small":1}')
    assert schedules.poll().data == {"small": 1}


def test_data_that_another_store_does_not_compress_it_can_read(compressing, open_store):
    row = Row(key="k", next_time=1, next_run_time=1, data=json.dumps(LARGE))
    compressing().add([row], nonce="n")
    plain = open_store()
    seen = plain.get("k")
    assert decode("data", seen.data) == LARGE
    # The payload that the worker writes back is intact.
    assert plain.replace(seen, seen)
    assert compressing().get("k").data == seen.data
    (held,) = plain.claim("w.1", limit=1, alive_time=60, shortest=1, horizon=0).rows
    assert decode("data", held.data) == LARGE


@pytest.mark.parametrize("compress_above", [0, 65_536])
@pytest.mark.usefixtures("store")
def test_as_much_as_may_be_is_stored_even_if_it_gets_no_smaller(database, compress_above):
    limit = 4 * MIB
    settings = {"url": database.url, "data_limit": limit, "compress_above": compress_above}
    with open_schedules(settings) as schedules:
        data = noise(limit)
        schedules.push("k", "t", data=data)
        assert schedules.poll().data == data
        with pytest.raises(InvalidError, match=rf"^data: has {limit + 1} bytes .* data_limit is"):
            schedules.push("other", "t", data=noise(limit + 1))
        with pytest.raises(InvalidError, match=r"^schedules\[0\].data: has"):
            schedules.push_many([{"key": "other", "type": "t", "data": noise(limit + 1)}])
        with pytest.raises(InvalidError, match=r"^data: has"):
            schedules["k"].modify(data=noise(limit + 1))
        assert schedules["k"].metadata().data == data


@pytest.mark.usefixtures("store")
def test_a_polled_task_cannot_grow_its_data_beyond_the_limit(database):
    with open_schedules({"url": database.url, "data_limit": 1024}) as schedules:
        schedules.push("k", "t", data={"a": 1})
        task = schedules.poll()
        with pytest.raises(InvalidError, match=r"^data: has"):
            task.update_data({"a": "x" * 1100})
        task.update_data({"a": "x" * 1000})


@pytest.mark.mariadb
def test_what_is_larger_than_the_server_takes_is_refused_with_the_mend(start_mariadb):
    server = start_mariadb("--max-allowed-packet=1M")
    settings = {"url": server.url(server.create_database()), "compress_above": 0}
    with store_factory(settings["url"]) as open_store:
        open_store().init()
    told = r"^the database refused: .1153.* bytes, and the server accepts 1,048,576: raise its max_"
    with open_schedules(settings) as schedules:
        with pytest.raises(StoreError, match=told) as refused:
            schedules.push("k", "t", data=noise(2 * MIB))
        assert not isinstance(refused.value, TransientStoreError)
        schedules.push("k", "t", data={"a": 1})
        task = schedules.poll()
        with pytest.raises(InvalidError, match=told.replace("^", "^data: ")):
            task.update_data(noise(MIB))
        task.update_data(noise(MIB // 2))
        task.finish()
        assert schedules["k"].metadata().data == noise(MIB // 2)


def test_many_large_ones_are_pushed_at_once(schedules):
    tasks = [{"key": f"k{n}", "data": {"n": n, "text": f"{n} " * 20_000}} for n in range(100)]
    schedules.push_many({"type": "t", **task} for task in tasks)
    found = {each.key: each.data for each in schedules.list()}
    assert found == {task["key"]: task["data"] for task in tasks}


def test_who_is_not_answered_knows_the_data_that_it_wrote_again(schedules, sql):
    """What is compared is the payload, not how it is stored."""
    schedules.push("k", "t", data=LARGE)
    backend = schedules._store
    replaced = []

    def replace(seen, new):
        replaced.append(new)
        assert SqlStore.replace(backend, seen, new)
        raise UnknownOutcomeError("no answer")

    backend.replace = replace
    schedules["k"].modify(data={**LARGE, "page": 2})
    assert len(replaced) == 1
    assert sql("SELECT version FROM {table}") == [(2,)]


def test_a_bomb_in_a_row_is_a_quarantined_row(database, open_store, settings, sql):
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b"[" * MIB) for _ in range(100)) + packer.flush()
    value = base64.b64encode(bomb).decode() if database.kind == "postgresql" else bomb
    sql("INSERT INTO {table} (id, data, next_time) VALUES ('bomb', :data, 1)", data=value)
    store = open_store()
    (held,) = store.claim("w.1", limit=1, alive_time=60, shortest=1, horizon=0).rows
    with pytest.raises(InvalidError) as refused:
        parse_payload(held.data, settings.data_limit)
    assert isinstance(after_claim(held, settings, store.now()), Run)
    verdict = after_run(held, held, Quarantine(str(refused.value)), settings)
    assert verdict.status == QUARANTINED
    assert verdict.reason == "data: is compressed, and has more than 16777216 bytes"
    assert [*store.settle([verdict]).values()]
    assert store.get("bomb").status == QUARANTINED


def test_many_records_with_large_errors_are_written_at_once(store):
    records = [made("k", owner=f"w.{n}", error=f"{n} " + "x" * 8000) for n in range(50)]
    store.history.record(records)
    assert runs(store) == records[::-1]
