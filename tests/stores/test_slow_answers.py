"""Tests that requests and connecting end in time, however slowly a server answers."""

import contextlib

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.config.urls import Tls
from psched.core.model import Row
from support.proxy import Proxy
from support.stores import make_store

CLOCK = SystemClock()
CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}
TIMEOUT = 5.0
"""Seconds: longer than the pause between two bytes of an answer that drips, and shorter than such
an answer, which would be given if it was waited for."""

SERVERS = [
    pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("mariadb", "postgresql")
]


@contextlib.contextmanager
def not_at_once():
    begin = CLOCK.monotonic()
    yield
    assert CLOCK.monotonic() - begin > TIMEOUT * 0.8


@contextlib.contextmanager
def through_a_proxy(url, port, **more):
    """Open a store that is connected through a proxy; its table contains one row."""
    near = make_store(url, **more)
    near.init()
    near.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    near.disconnect()
    with Proxy(port) as proxy:
        store = make_store(url.replace(f":{port}/", f":{proxy.port}/"), timeout=TIMEOUT, **more)
        try:
            yield store, proxy
        finally:
            store.disconnect()


def check(store, proxy):
    with proxy.drip(), not_at_once(), pytest.raises(StoreUnavailableError, match="cannot connect"):
        store.now()
    (row,) = store.claim("w.1", **CLAIM).rows
    with (
        proxy.drip(),
        not_at_once(),
        pytest.raises(UnknownOutcomeError, match=r"no answer within|timed out"),
    ):
        store.extend({"k": row.token}, **LEASE)
    assert store.extend({"k": row.token}, **LEASE) == {"k"}


@pytest.mark.parametrize("database", SERVERS, indirect=True)
def test_a_server_whose_answers_drip_is_not_waited_for(database):
    with through_a_proxy(database.url, database.server.port) as (store, proxy):
        check(store, proxy)


@pytest.mark.mariadb
def test_nor_is_one_whose_answers_are_encrypted(start_mariadb, certificates):
    server = start_mariadb(certificates=certificates)
    url = server.url(server.create_database())
    tls = Tls(verify="ca", ca=certificates.authority, cert=None, key=None)
    with through_a_proxy(url, server.port, tls=tls) as (store, proxy):
        check(store, proxy)
