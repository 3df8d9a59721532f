"""Extending leases whenever they are due: between any two requests, not once in a tick."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from math import ceil
from typing import Protocol

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.base.lease_times import Deadlines
from psched.config import Config
from psched.core.model import Row
from psched.core.store_protocol import Store
from psched.worker.store_backoff import StoreBackoff


class Lease(Protocol):
    """What is extended.

    Attributes:
        row: the row, as it was claimed.
        deadlines: of the lease.
        lost: the lease is another worker's, or nobody's.
    """

    row: Row
    deadlines: Deadlines
    lost: bool


class LeaseExtender:
    """Extends leases.

    Args:
        store: where the schedules are.
        asker: the pace of requests to it.
        settings: the installation's.
        clock: this host's clocks.
        held: the leases to look after, for `keep`.
    """

    def __init__(
        self,
        store: Store,
        asker: StoreBackoff,
        settings: Config,
        *,
        clock: Clock,
        held: Callable[[], Sequence[Lease]],
    ) -> None:
        self._store = store
        self._asker = asker
        self._settings = settings
        self._clock = clock
        self._held = held
        self._keeping = False

    def keep(self) -> bool:
        """Extend what is due. To be called between any two steps that may take long.

        A store that does not answer has been reported, and is not to be asked next.

        Returns:
            Whether leases were extended.
        """
        if self._keeping or not self._asker.ready:
            return False
        self._keeping = True
        try:
            return self.extend_due(self._held())
        except StoreUnavailableError:
            return False
        finally:
            self._keeping = False

    def extend_due(self, leases: Sequence[Lease]) -> bool:
        """Extend all of them, if one is due.

        Returns:
            Whether one was.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        boot = self._clock.boottime()
        held = [lease for lease in leases if not lease.lost]
        due = any(boot >= lease.deadlines.extend for lease in held)
        if due:
            self.extend(held)
        return due

    def extend(self, leases: Sequence[Lease]) -> None:
        """Extend leases, due or not; their ``deadlines`` and ``lost`` tell what came of it.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        for length in sorted({lease.deadlines.lease for lease in leases}):
            self._extend_alike([x for x in leases if x.deadlines.lease == length], length)

    def _extend_alike(self, leases: Sequence[Lease], length: float) -> None:
        """Extend leases of the same length, by that length at least.

        What the schedules say by now may be less: it is for their next leases. These are guarded
        by what they were claimed for.
        """
        tokens = {lease.row.key: lease.row.token for lease in leases}
        sent = 0.0

        def request() -> frozenset[str]:
            nonlocal sent
            sent = self._clock.boottime()
            return self._store.extend(
                tokens, alive_time=self._settings.alive_time, shortest=ceil(length)
            )

        try:
            held = self._asker.ask(request)
        except StoreBusyError as busy:
            # Somebody has locked one of the rows: that is no reason to lose the others.
            _note(leases, busy.answered, sent)
            raise
        _note(leases, {key: key in held for key in tokens}, sent)


def _note(leases: Sequence[Lease], held: Mapping[str, bool], sent: float) -> None:
    for lease in leases:
        if lease.row.key in held:
            lease.lost = not held[lease.row.key]
            if not lease.lost:
                lease.deadlines = changed(lease.deadlines, sent=sent)
