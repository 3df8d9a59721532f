"""Tests of a store whose claims leave the rows of other hosts alone; see `psched.core.hosts`."""

from collections.abc import Callable
from dataclasses import replace as changed

from psched.core.hosts import ROWS_OF_HOSTS, TEMPLATES
from psched.core.selection import Selection
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import (
    LONG_AGO,
    WithStore,
    claim,
    due,
    ending,
    found,
)

_MANY = 60

OpenHost = Callable[..., Store]
"""Opens the test's store as a host with the first name, and with the others as labels."""


class LanesContract(WithStore):
    """Tests of the field ``lane``. Needs the fixtures ``backend_factory`` and ``open_host``."""

    def test_a_host_claims_what_its_name_or_a_label_may_run(
        self, store: Store, open_host: OpenHost
    ) -> None:
        _add(store, every=None, by_name="db1", by_label="eu", other="db2", other_label="us")
        assert _claimed(open_host("db1", "db", "eu")) == ["by_label", "by_name", "every"]
        assert _claimed(open_host("db2")) == ["other"]
        assert found(store, "by_name").lane == "db1"

    def test_a_host_claims_what_a_pattern_or_one_of_several_names_says(
        self, store: Store, open_host: OpenHost
    ) -> None:
        _add(store, web="*web*", other="*db* us?", listed="*db1 web1", name_only="web")
        assert _claimed(open_host("web1")) == ["listed", "web"]
        assert _claimed(open_host("x", "us1")) == ["other"]
        assert _claimed(open_host("us12")) == []

    def test_a_host_claims_the_rows_of_its_name_for_templates_and_nobody_a_template(
        self, store: Store, open_host: OpenHost
    ) -> None:
        _add(store, own="@db1", other="@db2", longer="@db1-a", template="&db*", every="&*")
        assert _claimed(open_host("db1", "db2")) == ["own"]
        assert _claimed(open_host("x", "db1")) == []

    def test_the_rows_of_some_lanes_are_selected(self, store: Store) -> None:
        _add(store, none=None, name="db1", some="*db*", template="&db*", every="&*", row="@db1")
        _add(store, longer="@db1-a", capital="@DB1")
        rests = store.look(["row"])["row"]
        assert store.replace(rests, changed(rests, status="cancelled", next_run_time=None))

        def selected(*lanes: str) -> list[str]:
            first, end = lanes
            return sorted(row.key for row in store.rows(Selection(lanes=(first, end))))

        assert selected(*TEMPLATES) == ["every", "template"]
        assert selected(*ROWS_OF_HOSTS) == ["capital", "longer", "row"]
        assert selected("@db1", "@db1!") == ["row"]
        assert selected("b", "c") == []

    def test_the_rows_that_hosts_have_of_a_template_are_selected(self, store: Store) -> None:
        lanes = {
            "t": "&*",
            "t@db1": "@db1",
            "t@x": "@x",
            "t@y": "@db1",
            "t@db1!extra": "@db1",
            "t@z@db1": "@db1",
            "tt@db1": "@db1",
            "t@none": None,
        }
        _add(store, **lanes)

        def selected(template: str) -> list[str]:
            return [row.key for row in store.rows(Selection.of_hosts(template))]

        assert selected("t") == ["t@db1", "t@x"]
        assert selected("t@z") == ["t@z@db1"]
        assert selected("none") == []
        rests = store.look(["t@x"])["t@x"]
        assert store.replace(rests, changed(rests, status="cancelled", next_run_time=None))
        assert selected("t") == ["t@db1", "t@x"]

    def test_without_lanes_every_host_claims_everything(
        self, store: Store, open_host: OpenHost
    ) -> None:
        _add(store, a=None, b=None)
        assert _claimed(open_host("db1")) == ["a", "b"]

    def test_what_is_due_longest_comes_first_whatever_its_lane(
        self, store: Store, open_host: OpenHost
    ) -> None:
        lanes = {"e": None, "d": "db1", "c": "*db*", "b": "db1", "a": None}
        rows = [due(key, LONG_AGO + i, lane=lane) for i, (key, lane) in enumerate(lanes.items())]
        store.add(rows, nonce="n")
        host = open_host("db1")
        taken = [claim(host, f"w.{i}", limit=1) for i in range(6)]
        assert [[row.key for row in each.rows] for each in taken] == [*map(list, "edcba"), []]
        assert [each.more for each in taken] == [True] * 5 + [False]

    def test_a_host_that_is_gone_leaves_others_their_rows(
        self, store: Store, open_host: OpenHost
    ) -> None:
        store.add([due(f"gone{i}", LONG_AGO - 1, lane="gone") for i in range(_MANY)], nonce="n")
        _add(store, every=None, own="db1")
        host = open_host("db1")
        assert host.backlog(100).due in {0, 2}  # a store may count none
        assert _claimed(host) == ["every", "own"]
        assert len(claim(open_host("gone"), "gone.1", limit=2 * _MANY).rows) == _MANY

    def test_a_row_stays_with_its_host_after_its_lease(
        self, store: Store, open_host: OpenHost
    ) -> None:
        _add(store, k="db1")
        host = open_host("db1")
        for number in range(3):
            (row,) = claim(host, f"w.{number}").rows
            assert row.lane == "db1"
            assert not claim(host, f"again.{number}").rows
            assert host.extend({"k": row.token}, alive_time=60, shortest=1) == {"k"}
            host.settle([ending(row, next_time=LONG_AGO)])
            assert not claim(store, f"other.{number}").rows

    def test_a_change_gives_a_row_another_host(self, store: Store, open_host: OpenHost) -> None:
        _add(store, k="db1", kept="db1")
        hosts = {name: open_host(name) for name in ("db1", "db2", "db3")}
        for lane in ("db2", None, "db3"):
            seen = found(store, "k")
            assert store.replace(seen, changed(seen, lane=lane))
            for name, host in hosts.items():
                got = [row for row in claim(host, f"{name}.{lane}").rows if row.key == "k"]
                assert bool(got) == (lane in {None, name})
                if got:
                    host.settle([ending(got[0], next_time=LONG_AGO)])
                    break

    def test_a_leased_row_can_get_another_host(self, store: Store, open_host: OpenHost) -> None:
        _add(store, k="db1")
        host, other = open_host("db1"), open_host("db2")
        (row,) = claim(host, "w.1").rows
        seen = found(store, "k")
        assert store.replace(seen, changed(seen, lane="db2"))
        version = found(store, "k").version
        host.settle([changed(ending(row, next_time=LONG_AGO), version=version)])
        assert not claim(host, "w.2").rows
        assert [row.key for row in claim(other, "x.1").rows] == ["k"]

    def test_a_deleted_row_is_no_longer_claimed(self, store: Store, open_host: OpenHost) -> None:
        _add(store, k="db1")
        store.delete("k")
        host = open_host("db1")
        assert not claim(host, "w.1").rows
        _add(store, k=None)
        assert _claimed(open_host("db2")) == ["k"]


def _add(store: Store, **lanes: str | None) -> None:
    store.add([due(key, lane=lane) for key, lane in lanes.items()], nonce="n")


def _claimed(store: Store) -> list[str]:
    """The keys of the rows that a claim has leased, sorted."""
    owner = f"worker-{id(store)}.1"
    return sorted(row.key for row in claim(store, owner).rows)
