"""Inside a fork server: it obeys the orders of its worker; see `fork_server`."""

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
"""Bare numbers, made once: what a runner computes before its task costs time with every fork."""

NO_DESCRIPTOR = 71
"""Exit status of a fork server that has no descriptor left to begin with (sysexits.h: EX_OSERR)."""

_UNTIL_WOKEN = 3600.0
"""Seconds; a message or a signal ends this sleep earlier."""


class Forker:
    """Forks runners, and tells the worker how they end; for the arguments see `ForkServer`."""

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
        self._to_blank: Sequence[tuple[int, bool]] = ()
        # The runners that have not been buried, and whether each is alive.
        self._alive: dict[int, bool] = {}

    def run(self, worker: int) -> int:
        """The fork server's life; returns the exit status.

        Args:
            worker: the pid of its parent.
        """
        kernel.die_with_parent(worker)
        try:
            # Runners inherit these handlers, except CHLD's, because each runner that set them
            # itself would copy memory pages.
            self._inbox = SignalInbox(SIGNALS)
            self._to_blank = inherited((0, *self._keep))
        except OSError:
            return NO_DESCRIPTOR
        set_title("fork server")
        # Runners share the objects that are here now, because garbage collection skips them.
        gc.freeze()
        while not self._channel.closed:
            arrived = self._inbox.wait(_UNTIL_WOKEN, [self._channel])
            while (received := self._channel.receive()) is not None:
                self._obey(*received)
            if signal.SIGCHLD in arrived:
                self._tell_ends()
        if self._channel.fault is not None:
            _log.error("the worker has sent %s", self._channel.fault)
        return 0

    def _obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "fork" in message:
            self._before_fork()
            # CHLD gets its default action, because a handler may wait for its own children. It is
            # set before the fork, because setting it in each runner would cost time.
            self._inbox.let_go(signal.SIGCHLD)
            answer = self._fork(message["fork"], descriptors)
            self._inbox.take_over()
            self._say(answer)
            # No signal has told of the runners that have ended meanwhile.
            self._tell_ends()
        else:
            for pid in message["bury"]:
                # Only pids of dead runners are waited for: a living one would block, and another
                # pid would raise.
                if self._alive.get(pid) is False:
                    os.waitpid(pid, 0)
                    del self._alive[pid]

    def _fork(self, places: Sequence[int], ends: list[int]) -> dict[str, Any]:
        """Fork some runners; return the answer to the order."""
        server = os.getpid()
        born: list[int] = []
        # If this process can have no more descriptors, some were dropped when they arrived.
        error: int | None = errno.EMFILE
        # A module that handlers import may start a thread after each fork, also after the fork of
        # this process.
        beside = 0
        try:
            beside = threads()
        except OSError as failed:
            error = failed.errno
        # As little memory as possible is written between two forks, because each page that is
        # written is copied.
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
        """A runner's life, from its first instruction; returns its exit status."""
        os.setsid()
        for end in ends:
            if end != own:
                os.close(end)
        blank(self._to_blank)
        kernel.adopt_orphans()
        kernel.die_with_parent(server)
        # The base class is used, because `socket.socket` itself does more, which costs time. The
        # object is kept as long as the process lives, because a warning about an unclosed socket
        # would cost time.
        self._line = Link(socket.SocketType(_UNIX, _STREAM, 0, own))
        return self._main(place, self._line)

    def _tell_ends(self) -> None:
        """Tell the worker which runners have ended; they stay zombies until they are buried."""
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
        # Sending blocks only after hundreds of messages that the worker has not read.
        with suppress(OSError):  # the worker has died, and this process dies with it
            self._channel.send(message)
