import socket

import pymysql
import pytest

from support.servers import LOOPBACK

pytestmark = pytest.mark.galera


def test_a_cluster_survives_a_killed_node_which_comes_back_with_what_it_missed(galera):
    name = galera.create_database()
    one, other, killed = galera.nodes
    one.query("CREATE TABLE t (i INTEGER PRIMARY KEY)", database=name)
    # Without wsrep_sync_wait, this node can answer before it has applied what was written to the
    # first one: https://mariadb.com/docs/galera-cluster/reference/galera-cluster-system-variables
    other.query("SET STATEMENT wsrep_sync_wait=4 FOR INSERT INTO t VALUES (1)", database=name)

    killed.kill()
    one.query("INSERT INTO t VALUES (2)", database=name)
    killed.start()

    assert [node.query("SELECT @@wsrep_on") for node in galera.nodes] == [[(1,)]] * 3
    assert killed.query("SELECT i FROM t ORDER BY i", database=name) == [(1,), (2,)]
    assert len({node.pid for node in galera.nodes}) == 3


def test_a_cluster_that_lost_its_majority_works_no_more_and_is_founded_anew(galera):
    name = galera.create_database()
    survivor, *killed = reversed(galera.nodes)
    survivor.query("CREATE TABLE t (i INTEGER PRIMARY KEY)", database=name)
    survivor.query("INSERT INTO t VALUES (1)", database=name)

    for node in killed:
        node.kill()
    with pytest.raises(pymysql.err.Error):
        survivor.query("INSERT INTO t VALUES (2)", database=name)
    assert not survivor.primary
    galera.start()

    for node in galera.nodes:
        assert node.primary
        assert node.query("SELECT i FROM t", database=name) == [(1,)]


def test_a_cluster_that_was_stopped_starts_with_its_data(galera):
    name = galera.create_database()
    galera.nodes[0].query("CREATE TABLE t (i INTEGER PRIMARY KEY)", database=name)
    addresses = [node.port for node in galera.nodes]

    galera.stop()
    galera.start()

    assert [node.port for node in galera.nodes] == addresses
    for node in galera.nodes:
        assert node.query("SELECT i FROM t", database=name) == []


def test_a_cluster_is_founded_anew_as_soon_as_its_majority_is_dead(galera):
    """The survivor still takes itself for one of three."""
    survivor, *killed = galera.nodes
    for node in killed:
        node.kill()

    galera.start()

    assert [node.members for node in galera.nodes] == [3, 3, 3]
    assert survivor.query("SELECT 1") == [(1,)]


def test_a_node_that_was_not_brought_up_is_brought_up_later(galera):
    """That its first attempts have failed does not keep it from what it has missed."""
    name = galera.create_database()
    one, other, _ = galera.nodes
    one.query("CREATE TABLE t (i INTEGER PRIMARY KEY)", database=name)
    other.kill()
    one.query("INSERT INTO t VALUES (1)", database=name)

    taken = socket.create_server((LOOPBACK, other.transfer_port))
    with taken, pytest.raises(AssertionError, match="does not start"):
        other.start()
    other.start()

    assert other.query("SELECT i FROM t", database=name) == [(1,)]
