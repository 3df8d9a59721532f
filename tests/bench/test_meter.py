"""What benchmarks count beside the time: processor time, idle cores, statements."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from support.clients import engine_of
from support.stores import Sql
from support.waiting import wait_until

PATH = Path(__file__).resolve().parents[2] / "bench" / "meter.py"

SPIN = """
import os, time
def spin():
    while time.process_time() < 0.3:
        pass
if os.fork() == 0:
    if os.fork() == 0:
        spin()
        os._exit(0)
    os.wait()
    print("worked", flush=True)
    input()
os.wait()
"""
"""Its grandchild works for 0.3 s and ends."""


@pytest.fixture(scope="module")
def meter():
    spec = importlib.util.spec_from_file_location("meter", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def spinning():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=pipe, stdout=pipe) as running:
        assert running.stdout.readline() == b"worked\n"
        yield running.pid
        running.communicate(b"\n")


def test_the_processor_time_of_a_tree_includes_what_has_ended(meter, spinning):
    assert 0.25 <= meter.cpu_of_tree(spinning) < 5
    # A Python that starts, and two forks of it.
    assert 100 < meter.spent_by_tree(spinning).faults < 20_000


def test_the_cost_of_a_task_is_given_with_the_server_and_without(meter):
    own, server = iter([meter.Spent(10.0, 100), meter.Spent(12.0, 300)]), iter([1.0, 2.0])
    with meter.Meter(lambda: next(own), lambda: next(server)) as measured:
        pass
    costs = measured.costs(4, 0, 0)
    assert (costs["own_cpu_ms"], costs["cpu_ms"]) == (500, 750)
    assert costs["page_faults"] == 50


def test_the_cost_of_a_server_that_is_not_ours_is_not_guessed(meter):
    with meter.Meter() as measured:
        pass
    assert measured.costs(1, 0, 0).keys() == {"own_cpu_ms", "page_faults", "idle_share"}


def test_the_idle_share_is_that_of_the_time_that_is_asked_for(meter):
    measured = meter.Meter()
    # Ticks of two cores, of which one is idle for a second, and then both.
    measured._looks = [(0.0, 0, 0), (1.0, 100, 200), (2.0, 300, 400)]
    shares = [measured.costs(1, *span)["idle_share"] for span in ((0, 1), (1.1, 1.9), (0, 2))]
    assert shares == [0.5, 1.0, 0.75]


def test_the_cores_are_looked_at_while_it_measures(meter):
    with meter.Meter() as measured:
        wait_until(lambda: len(measured._looks) > 1, what="looks at the cores")
    (_, idle, all_), *_, (_, idle_later, all_later) = measured._looks
    assert 0 <= idle_later - idle <= all_later - all_


@pytest.mark.mariadb
def test_statements_of_others_are_counted(meter, mariadb_server):
    url = mariadb_server.url(mariadb_server.create_database())
    with engine_of(url).connect() as other, Sql(url).session() as ask:
        other.exec_driver_sql("CREATE TABLE t (n INTEGER)").close()
        with meter.counting("mysql", ask) as counts:
            ask("SELECT 1").all()
            for statement in "BEGIN", "INSERT INTO t VALUES (1)", "COMMIT", "SELECT n FROM t":
                other.exec_driver_sql(statement).close()
    assert counts == {"statements": 2, "requests": 4}


@pytest.mark.postgresql
def test_transactions_are_counted(meter, postgresql_server):
    url = postgresql_server.url(postgresql_server.create_database())
    with Sql(url).session() as ask, meter.counting("postgresql", ask) as counts:
        for _ in range(5):
            Sql(url)("SELECT 1")
    assert counts["transactions"] >= 5


def test_a_database_without_a_server_counts_nothing(meter):
    with meter.counting("sqlite", None) as counts:
        pass
    assert counts == {}
