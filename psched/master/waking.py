"""A master receives hints that rows may be due, and has workers look for these rows.

The hints arrive on a datagram socket of its own, because the one of ``psched status`` belongs to
the service's user alone, and this one may be used by the service's group: a program that pushes
tasks need not run as the service's user. A hint carries no data, so the worst that a sender can do
is to make a worker look in vain; `Looks` limits how often. Each step may fail: workers poll the
table nevertheless.

One worker is told, not all of them: for one row, the others would ask the database in vain. A
worker that has no free slot left after it has looked says so, and the next worker is told, so that
many rows wake as many workers as they need. If no worker has a free slot, all are told in turn, and
each looks by itself as soon as a task of its own has ended.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psched.base.clock import Clock
from psched.master.generation_spec import GenerationSpec
from psched.master.hints import HINT, socket_name, sockets
from psched.master.kept_socket import CHECK_INTERVAL, KeptSocket
from psched.master.worker_child import WorkerChild
from psched.master.workers import Workers
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

_UMASK = 0o117  # the owner and the group of the socket may send to it

_MOST_AT_ONCE = 256
"""The most datagrams that one call of `WakeSocket.take` reads. Without a limit, a process that
sends without a pause could keep the master from everything else."""


class WakeSocket:
    """A master's socket for hints."""

    def __init__(self, folders: list[Path], clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self._code: str | None = None
        self._socket = KeptSocket(socket.SOCK_DGRAM, umask=_UMASK)
        self._next_check = 0.0
        self._failed = False

    @property
    def links(self) -> list[Waitable]:
        """The socket, if there is one. When it is ready, the master calls `take`."""
        return self._socket.links

    def keep(self, code: str | None) -> None:
        """Make sure that the socket exists under the name that senders look for."""
        now = self._clock.monotonic()
        if code != self._code:
            self.close()
            self._code = code
        elif now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        if code is None:
            return
        if self._socket.opened is None:
            self._create(code)
        else:
            self._socket.check()

    def take(self) -> bool | None:
        """Read what has arrived; return whether there was a hint, None if nothing has arrived."""
        hinted: bool | None = None
        if self._socket.opened is not None:
            with suppress(OSError):  # there are no more
                for _ in range(_MOST_AT_ONCE):
                    received = self._socket.opened.recv(len(HINT) + 1)
                    hinted = received == HINT or bool(hinted)
        return hinted

    def close(self) -> None:
        """Close the socket, and remove it from its folder."""
        self._code = None
        self._socket.close()

    def _create(self, code: str) -> None:
        name = socket_name(os.getpid(), code)
        problems = self._socket.create(self._folders, name, _sockets_of_masters)
        if problems and not self._failed:
            # Log this only once, because it is tried again.
            _log.warning("what is pushed on this host wakes no worker: %s", problems)
            self._failed = True


def _sockets_of_masters(folder: Path) -> Iterator[tuple[int, Path]]:
    return ((pid, path) for pid, _, path in sockets(folder))


_INTERVAL = 0.02
"""The least seconds between two hints that are obeyed. So hints cost the database at most fifty
requests of each worker in a second, however many they are."""


class Looks:
    """Has workers look for due rows when hints arrive.

    While `_INTERVAL` lasts, the socket is not read, so that hints neither wake the master nor get
    lost: they wait in the socket. Those that wait at its end count as one.
    """

    def __init__(self, socket: WakeSocket, workers: Workers, clock: Clock) -> None:
        self._socket = socket
        self._workers = workers
        self._clock = clock
        self._hinted = False
        self._not_before = 0.0
        self._left: list[WorkerChild] = []
        self._looking: WorkerChild | None = None
        self._told: dict[str, float] = {}

    @property
    def links(self) -> list[Waitable]:
        """The sockets that the master waits for. When one is ready, the master calls `step`."""
        return [] if self._clock.monotonic() < self._not_before else self._socket.links

    @property
    def wakes(self) -> float:
        """When to call `step` again, in seconds of the monotonic clock."""
        if self._clock.monotonic() < self._not_before:
            return self._not_before
        return 0.0 if self._hinted else float("inf")

    def step(self, spec: GenerationSpec | None) -> None:
        """Keep the socket, and tell a worker to look if a hint has arrived."""
        self._socket.keep(None if spec is None else spec.wake_code)
        if self._looking is not None and self._looking.exit is not None:
            self._tell_next()  # it has died, perhaps before it has looked
        now = self._clock.monotonic()
        if now < self._not_before:
            return
        arrived = self._socket.take()
        if arrived is None and not self._hinted:
            return
        # The interval follows other datagrams, too, so that they cannot keep the master busy.
        self._not_before = now + _INTERVAL
        if arrived or self._hinted:
            self._hinted = False
            self._left = self._in_order()
            self._tell_next()

    def hint(self) -> None:
        """Note that rows may be due; `step` tells a worker."""
        self._hinted = True

    def heard(self, message: Mapping[str, Any]) -> None:
        """Note what a worker tells about its slots, and about rows that others can run.

        If it has no free slot, the next worker is told to look. If it has given back rows, this
        counts as a hint.
        """
        if "gave_back" in message:
            self.hint()
        if "full" in message:
            self._tell_next()

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()

    def _in_order(self) -> list[WorkerChild]:
        """The workers that may look, the best first.

        That is one whose store answers, with many free slots as far as is known; of several, the
        one that was told longest ago, because the others may have started a task since.
        """
        able = [each for each in self._workers if each.ready and not each.draining]
        told = {each.identity.nonce: self._told.get(each.identity.nonce, 0.0) for each in able}
        self._told = told
        return sorted(
            able,
            key=lambda each: (
                each.store_fault is not None,
                -each.load.free,
                told[each.identity.nonce],
            ),
        )

    def _tell_next(self) -> None:
        self._looking = None
        while self._left and self._looking is None:
            worker = self._left.pop(0)
            if worker.exit is None and not worker.draining:
                self._told[worker.identity.nonce] = self._clock.monotonic()
                worker.tell(look=True)
                self._looking = worker
