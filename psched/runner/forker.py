"""Inside a fork server: what it does with the orders that its worker sends; see `forkserver`."""

import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from psched.process import kernel
from psched.process.link import Link
from psched.process.signals import SIGNALS, SignalInbox
from psched.process.spawn import blank, fork, inherited, threads
from psched.process.titles import set_title
from psched.runner.channel import Channel

_log = logging.getLogger("psched.worker")

_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT

_UNIX, _STREAM = int(socket.AF_UNIX), int(socket.SOCK_STREAM)
"""Looked up here, as bare numbers: what a runner does before its task is paid for with each."""

NO_DESCRIPTOR = 71
"""Exit status of a fork server that has no descriptor left to begin with (sysexits.h: EX_OSERR)."""

_LONG = 3600.0
"""Seconds of a sleep that is not to end."""


class Forker:
    """It; for the arguments see `forkserver.ForkServer`."""

    _inbox: SignalInbox
    _line: Link

    def __init__(
        self,
        channel: Channel,
        main: Callable[[int, Link], int],
        *,
        keep: Sequence[int],
        before_fork: Callable[[], object],
    ) -> None:
        self._channel = channel
        self._main = main
        self._keep = keep
        self._before_fork = before_fork
        self._not_theirs: Sequence[tuple[int, bool]] = ()
        # Those that have not been buried; false: that has ended.
        self._alive: dict[int, bool] = {}

    def run(self, worker: int) -> int:
        """Its life; the exit status."""
        kernel.die_with_parent(worker)
        try:
            # Runners begin with these handlers, but for CHLD: to set them in each would cost each
            # much copying.
            self._inbox = SignalInbox(SIGNALS)
            self._not_theirs = inherited((0, *self._keep))
        except OSError:
            return NO_DESCRIPTOR
        set_title("fork server")
        # Runners share what is here now, if nobody searches it for garbage.
        gc.freeze()
        while not self._channel.closed:
            arrived = self._inbox.wait(_LONG, [self._channel])
            while (received := self._channel.receive()) is not None:
                self._obey(*received)
            if signal.SIGCHLD in arrived:
                self._tell()
        if self._channel.fault is not None:
            _log.error("the worker has sent %s", self._channel.fault)
        return 0

    def _obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "fork" in message:
            self._before_fork()
            # A handler's own children may be what it waits for. Each runner would pay for this.
            self._inbox.let_go(signal.SIGCHLD)
            answer = self._fork(message["fork"], descriptors)
            self._inbox.take_over()
            self._say(answer)
            # Of who has ended meanwhile nobody was told.
            self._tell()
        else:
            for pid in message["bury"]:
                # To wait for one that lives, or is nobody's child, would be the end of us.
                if self._alive.get(pid) is False:
                    os.waitpid(pid, 0)
                    del self._alive[pid]

    def _fork(self, places: Sequence[int], ends: list[int]) -> dict[str, Any]:
        """Fork some runners; the answer to that."""
        server = os.getpid()
        born: list[int] = []
        # Some descriptors are lost on the way if there can be no more of them here.
        error: int | None = errno.EMFILE
        # What handlers import may have asked for a thread after each fork, as ours was one.
        beside = 0
        try:
            beside = threads()
        except OSError as failed:
            error = failed.errno
        # Nothing is written in between that could be written before or after: see `forkserver`.
        for place, end in zip(places, ends, strict=False) if beside == 1 else ():
            try:
                born.append(fork(partial(self._live, server, place, end, ends)))
            except OSError as failed:
                error = failed.errno
                break
        for end in ends:
            os.close(end)
        self._alive.update((pid, True) for pid in born)
        return {"born": born, "error": error, "threads": beside}

    def _live(self, server: int, place: int, own: int, ends: Sequence[int]) -> int:
        """A runner's life, from its first instruction."""
        os.setsid()
        for end in ends:
            if end != own:
                os.close(end)
        blank(self._not_theirs)
        kernel.adopt_orphans()
        kernel.die_with_parent(server)
        # Of the class from which `socket.socket` is derived, which does more than we pay for. Kept
        # as long as the process lives: it would cost time to warn of a socket let go of.
        self._line = Link(socket.SocketType(_UNIX, _STREAM, 0, own))
        return self._main(place, self._line)

    def _tell(self) -> None:
        """Tell who has ended, and leave them as they are."""
        ended = []
        for pid, lives in self._alive.items():
            found = os.waitid(os.P_PID, pid, _PEEK) if lives else None
            if found is not None:
                exited = found.si_code == os.CLD_EXITED
                how = (found.si_status, None) if exited else (None, found.si_status)
                ended.append((pid, *how))
        self._alive.update((pid, False) for pid, _, _ in ended)
        if ended:
            self._say({"ended": ended})

    def _say(self, message: dict[str, Any]) -> None:
        # It takes hundreds of messages that nobody reads to hold this up.
        with suppress(OSError):  # the worker has died, and we are about to
            self._channel.send(message)
