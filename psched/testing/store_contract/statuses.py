"""Stores in which any client may set a row's status: a settle must not overwrite a new one."""

from collections.abc import Callable
from dataclasses import replace as changed

from psched.core.model import CANCELLED, ENDED, MARKS, PAUSED, WAITING
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import BackendFactory, add, claim, ending, found, leased

SetStatus = Callable[[str, str], None]
"""Sets only the status of the row with a key, as a client other than psched does."""


class StatusContract:
    """A settle does not overwrite a status that a client has set, if the holder has not seen it.

    Needs the fixtures ``backend_factory`` and ``set_status``, a `SetStatus`.
    """

    def test_its_holder_is_told_that_a_leased_row_is_to_end(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        words = {status: status for status in (*MARKS, PAUSED, WAITING, "nonsense")}
        add(store, *words)
        claim(store, "w.1", limit=len(words))
        for key, status in words.items():
            set_status(key, status)
        assert MARKS.keys() >= ENDED
        assert store.marked([*words]) == {status: status for status in MARKS}

    def test_a_settle_does_not_overwrite_a_status_that_it_has_not_seen(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        held, other = leased(store, "k"), leased(store, "other", "worker.2")
        set_status("k", CANCELLED)
        before = found(store, "k")
        results = store.settle([ending(held), ending(other)])
        assert results == {"k": Settled.REDEFINED, "other": Settled.DONE}
        assert store.settle([ending(held, remove=True)]) == {"k": Settled.REDEFINED}
        assert found(store, "k") == before
        rest = ending(before, rest=True, status=CANCELLED, retain=60)
        assert store.settle([rest]) == {"k": Settled.DONE}
        row = found(store, "k")
        assert (row.status, row.next_run_time, row.owner) == (CANCELLED, None, None)
        assert row.retain_until is not None

    def test_a_row_is_not_replaced_by_who_has_not_seen_its_status(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        leased(store, "leased")
        add(store, "free")
        for key in ("free", "leased"):
            seen = found(store, key)
            set_status(key, CANCELLED)
            assert not store.replace(seen, changed(seen, type="new"))
            seen = found(store, key)
            assert store.replace(seen, changed(seen, type="new"))
            assert (found(store, key).type, found(store, key).status) == ("new", CANCELLED)

    def test_a_status_that_nobody_knows_stands_in_nobodys_way(
        self, backend_factory: BackendFactory, set_status: SetStatus
    ) -> None:
        store = backend_factory()
        add(store, "k", "free")
        (held,) = claim(store, "w.1", limit=1).rows
        for key in ("k", "free"):
            set_status(key, "nonsense")
        row = found(store, held.key)
        assert store.settle([ending(row, rest=True, status=PAUSED)]) == {row.key: Settled.DONE}
        (other,) = {"k", "free"} - {held.key}
        seen = found(store, other)
        assert store.replace(seen, changed(seen, status=WAITING))
        assert [row.key for row in claim(store, "w.2").rows] == [other]
