"""Stores that carry announcements; see `psched.core.operations.announcing`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import BackendFactory, WithStore

_PATIENCE = 60.0  # seconds in which an announcement must arrive, far more than it takes


class _Listener:
    """A store that listens in a thread of its own, which alone uses it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard = threading.Semaphore(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        assert self._store.announcements is not None
        self._store.announcements.listen(self._heard.release, self._over.is_set)

    def start(self) -> None:
        """Listen, and wait until the store does."""
        self._thread.start()
        self.wait()

    def wait(self) -> None:
        """Wait until an announcement was heard."""
        assert self._heard.acquire(timeout=_PATIENCE)

    def heard_nothing(self) -> bool:
        """Whether every announcement that was heard was waited for."""
        return not self._heard.acquire(blocking=False)

    def stop(self) -> None:
        """Stop listening, and wait until the store has returned."""
        self._over.set()
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def listening(store: Store) -> Iterator[_Listener]:
    """Listen with a store within a ``with`` block."""
    listener = _Listener(store)
    listener.start()
    try:
        yield listener
    finally:
        listener.stop()


def announce(store: Store) -> None:
    """Announce with a store that can."""
    assert store.announcements is not None
    store.announcements.announce()


class AnnouncesContract(WithStore):
    """Tests of a store that carries announcements. A subclass needs ``backend_factory``."""

    def test_everybody_who_listens_is_told_each_time(self, backend_factory: BackendFactory) -> None:
        with (
            listening(backend_factory()) as one,
            listening(backend_factory()) as another,
        ):
            store = backend_factory()
            for _ in range(3):
                announce(store)
                one.wait()
                another.wait()
            assert one.heard_nothing()
            assert another.heard_nothing()

    def test_who_listens_again_is_told_once_because_announcements_may_have_been_missed(
        self, store: Store
    ) -> None:
        for _ in range(2):
            with listening(store) as listener:  # which waits until it was told
                assert listener.heard_nothing()
            announce(store)

    def test_a_store_can_be_used_for_other_things_after_it_has_listened(self, store: Store) -> None:
        with listening(store):
            pass
        assert store.now() > 0
