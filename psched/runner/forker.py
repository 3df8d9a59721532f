"""The code that runs inside a fork server: it obeys the orders of its worker; see `fork_server`."""

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
"""Plain integers, converted once before the fork, so that no runner spends time on it."""

NO_DESCRIPTOR = 71
"""Exit status of a fork server that could not start, because no descriptor was left (sysexits.h:
EX_OSERR)."""

_UNTIL_WOKEN = 3600.0
"""The most seconds of one sleep; a message or a signal ends the sleep earlier."""


class Forker:
    """Forks runners, and reports their ends to the worker.

    Args:
        channel: the connection to the worker.

    The other arguments are those of `ForkServer`.
    """

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
        # The pids of the runners that have not been buried, and whether each runner is alive.
        self._alive: dict[int, bool] = {}

    def run(self, worker: int) -> int:
        """Obey orders until the worker closes the connection; return the exit status.

        Args:
            worker: the pid of the worker, which is the parent of this process.
        """
        kernel.die_with_parent(worker)
        try:
            # The handlers are set here, and runners inherit them (except the one for CHLD). If each
            # runner set them itself, it would copy memory pages.
            self._inbox = SignalInbox(SIGNALS)
            self._to_blank = inherited((0, *self._keep))
        except OSError:
            return NO_DESCRIPTOR
        set_title("fork server")
        # Garbage collection skips the objects that exist now, so that runners share their memory.
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
            # In runners, CHLD must have its default action, because a handler may wait for its own
            # children. It is set before the fork, because setting it in each runner costs time.
            self._inbox.let_go(signal.SIGCHLD)
            answer = self._fork(message["fork"], descriptors)
            self._inbox.take_over()
            self._say(answer)
            # Runners that ended while CHLD had its default action caused no wake-up, so their ends
            # are reported now.
            self._tell_ends()
        else:
            for pid in message["bury"]:
                # Only dead runners are waited for, because waitpid would block for a living runner,
                # and would raise an error for any other pid.
                if self._alive.get(pid) is False:
                    os.waitpid(pid, 0)
                    del self._alive[pid]

    def _fork(self, places: Sequence[int], ends: list[int]) -> dict[str, Any]:
        """Fork some runners; return the answer to the order."""
        server = os.getpid()
        born: list[int] = []
        # Reported if links are missing: the kernel has dropped descriptors that were sent to this
        # process, because it may not have more.
        error: int | None = errno.EMFILE
        # Threads are counted, because a module that handlers import may start a thread after each
        # fork, even in this process.
        beside = 0
        try:
            beside = threads()
        except OSError as failed:
            error = failed.errno
        # The loop writes as little memory as possible, because each page that is written between
        # two forks is copied.
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
        """Set up a new runner's process, and run its `main`; return the exit status."""
        os.setsid()
        for end in ends:
            if end != own:
                os.close(end)
        blank(self._to_blank)
        kernel.adopt_orphans()
        kernel.die_with_parent(server)
        # The base class of `socket.socket` is used, because it costs less time. The link is kept in
        # an attribute until the process ends, because a warning about an unclosed socket would
        # cost time.
        self._line = Link(socket.SocketType(_UNIX, _STREAM, 0, own))
        return self._main(place, self._line)

    def _tell_ends(self) -> None:
        """Report ended runners to the worker; they stay zombies until it has them buried."""
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
        # A blocking send is no problem, because it blocks only if the worker has left hundreds of
        # messages unread. Errors are ignored, because this process dies with the worker.
        with suppress(OSError):
            self._channel.send(message)
