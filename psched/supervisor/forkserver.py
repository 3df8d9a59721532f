"""The process that forks a worker's runners, and does nothing else.

::

    worker ─┬─ fork server ─┬─ runner
            │               └─ runner
            └─ what an ended run has left behind: orphans pass the fork server by

A fork costs by what the parent holds, and again by each page that either of them writes to
afterwards. A worker holds all that it needs to speak to its database, and works while its runners
run. The fork server is forked before the worker loads that, and sleeps between two forks: so a
task in a fresh process costs a third less.

Runners die with it (the kernel sees to that), and it dies with the worker. One that has ended
stays a zombie until the worker has taken that down: until then its pid is nobody else's, and
what is sent to it reaches nobody else.
"""

import errno
import gc
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from psched.clock import Clock
from psched.supervisor import kernel
from psched.supervisor.channel import MOST_DESCRIPTORS, Channel
from psched.supervisor.child import Exit
from psched.supervisor.link import Link
from psched.supervisor.signals import SIGNALS, SignalInbox
from psched.supervisor.spawn import blank, fork, inherited, launch, threads
from psched.supervisor.titles import set_title

MOST_AT_ONCE = MOST_DESCRIPTORS
"""Forks in a row: what runs meanwhile wants to be watched, and more would save nothing more."""

_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT

_UNIX, _STREAM = socket.AF_UNIX, socket.SOCK_STREAM
"""Looked up here: what a runner does before its task is paid for with each."""

_LONG = 3600.0
"""Seconds of a sleep that is not to end."""


class ForkServer:
    """The worker's side of it.

    Args:
        main: a runner's whole life, in its own process: it is given its place, a number that no
            other has that is alive, and its end of a link, and returns its exit status. It leads
            a session of its own, and has psched's handlers for signals (`signals.receive`).
        places: how many runners there can be.
        keep: descriptors that runners need besides standard input, output and error.
        clock: this host's clocks.
        hold_up: seconds for which the worker may be held up by a fork.
        before_fork: called in the fork server before it forks.
        preload: called there when `preload` is.

    Attributes:
        pid: the process.
        channel: the line to it; there is news when a runner has ended.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread.
    """

    def __init__(
        self,
        main: Callable[[int, Link], int],
        *,
        places: int,
        keep: Sequence[int],
        clock: Clock,
        hold_up: float,
        before_fork: Callable[[], object],
        preload: Callable[[], object],
    ) -> None:
        self.channel, theirs = Channel.pair()
        server = _Server(theirs, main, keep=keep, before_fork=before_fork, preload=preload)
        try:
            self.pid = launch(partial(server.run, os.getpid()), keep=[theirs.fileno(), *keep])
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self._clock = clock
        self._hold_up = hold_up
        self._free = [*range(places)]
        self._places: dict[int, int] = {}
        self._ordered: list[tuple[int, Link]] = []
        self._answer: dict[str, Any] | None = None
        self._exits: list[Exit] = []

    @property
    def owes(self) -> bool:
        """Whether it has not answered an order yet."""
        return bool(self._ordered) and self._answer is None

    @property
    def untaken(self) -> bool:
        """Whether it has told something that nobody has taken: the line has no news then."""
        return bool(self._exits) or self._answer is not None

    def fork(self, count: int) -> list[tuple[int, int, Link]]:
        """Have some runners forked, or wait for those that were ordered before.

        Args:
            count: so many, at least one; fewer are forked where there cannot be more.

        Returns:
            The place, the pid and the link of each; one at least.

        Raises:
            OSError: the system has no process, descriptor or memory left, or the fork server has
                died; or has not answered yet (TimeoutError): what it forks is `late`.
            RuntimeError: the fork server has a second thread.
        """
        if not self._ordered:
            self._order(min(count, MOST_AT_ONCE, len(self._free)))
        until = self._clock.monotonic() + self._hold_up
        while self.owes:
            left = until - self._clock.monotonic()
            if self.channel.closed:
                self._born(())
                raise BrokenPipeError("the fork server has died")
            if left <= 0:
                raise TimeoutError("the fork server does not answer")
            if (received := self.channel.receive(wait=left)) is not None:
                self._take(received[0])
        answer, self._answer = self._answer or {}, None
        born = self._born(answer["born"])
        if answer["threads"] > 1:
            raise RuntimeError(
                f"the process that forks runners has {answer['threads']} threads and must not; a"
                " module that handlers import has started them after a fork"
            )
        if not born:
            raise OSError(answer["error"], os.strerror(answer["error"]))
        return born

    def late(self) -> list[tuple[int, int, Link]]:
        """Runners that were forked when nobody waited for them any more; see `fork`."""
        if self._answer is None:
            return []
        answer, self._answer = self._answer, None
        return self._born(answer["born"])

    def preload(self) -> None:
        """Have loaded there, once for all, what runners have turned out to need."""
        with suppress(OSError):
            self.channel.send({"preload": True})

    def exits(self) -> list[Exit]:
        """How runners have ended, each once; their pids are kept until `bury`."""
        while (received := self.channel.receive()) is not None:
            self._take(received[0])
        exits, self._exits = self._exits, []
        return exits

    def bury(self, pids: Sequence[int]) -> None:
        """These are not to be sent anything any more, and their places are free."""
        self._free += [self._places.pop(pid) for pid in pids]
        with suppress(OSError):
            self.channel.send({"bury": pids})

    def close(self) -> None:
        """Let it go, and with it all that it has forked."""
        self.channel.close()
        self._born(())

    def _order(self, count: int) -> None:
        if count < 1:
            raise BlockingIOError("too many runners that were killed do not die")
        pairs = Link.pairs(count)
        ordered = [(self._free[place], end) for place, (end, _) in enumerate(pairs)]
        try:
            theirs = [end.fileno() for _, end in pairs]
            self.channel.send({"fork": [place for place, _ in ordered]}, theirs)
        except BaseException:
            for _, end in ordered:
                end.close()
            raise
        finally:
            for _, end in pairs:
                end.close()
        del self._free[: len(ordered)]
        self._ordered = ordered

    def _born(self, pids: Sequence[int]) -> list[tuple[int, int, Link]]:
        """Take down whom the last order has brought; what else it was to bring is not needed."""
        ordered, self._ordered = self._ordered, []
        for place, end in ordered[len(pids) :]:
            end.close()
            self._free.append(place)
        born = [(place, pid, end) for pid, (place, end) in zip(pids, ordered, strict=False)]
        self._places.update((pid, place) for place, pid, _ in born)
        return born

    def _take(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            self._exits += [Exit(*each) for each in message["ended"]]
        else:
            self._answer = message


class _Server:
    """The fork server's own side; for the arguments see `ForkServer`."""

    def __init__(
        self,
        channel: Channel,
        main: Callable[[int, Link], int],
        *,
        keep: Sequence[int],
        before_fork: Callable[[], object],
        preload: Callable[[], object],
    ) -> None:
        self._channel = channel
        self._main = main
        self._keep = keep
        self._before_fork = before_fork
        self._preload = preload
        self._not_theirs: Sequence[tuple[int, bool]] = ()
        # Those that have not been buried; false: that has ended.
        self._alive: dict[int, bool] = {}

    def run(self, worker: int) -> int:
        """Its life; the exit status."""
        kernel.die_with_parent(worker)
        # Runners begin with these handlers: to set them in each would cost each much copying.
        inbox = SignalInbox(SIGNALS)
        set_title("fork server")
        self._stay_so()
        while not self._channel.closed:
            arrived = inbox.wait(_LONG, [self._channel])
            while (received := self._channel.receive()) is not None:
                self._obey(*received)
            if signal.SIGCHLD in arrived:
                self._tell()
        return 0

    def _stay_so(self) -> None:
        """What is here now is here in each runner, too."""
        self._not_theirs = inherited((0, *self._keep))
        # They share it, if nobody searches it for garbage.
        gc.freeze()

    def _obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "fork" in message:
            self._before_fork()
            self._say(self._fork(message["fork"], descriptors))
        elif "bury" in message:
            for pid in message["bury"]:
                os.waitpid(pid, 0)
                del self._alive[pid]
        else:
            # It is to save time: what fails here fails again where somebody is told.
            with suppress(Exception):
                self._preload()
            self._stay_so()

    def _fork(self, places: Sequence[int], ends: list[int]) -> dict[str, Any]:
        """Fork some runners; the answer to that."""
        server = os.getpid()
        born: list[int] = []
        # Some descriptors are lost on the way if there can be no more of them here.
        error: int | None = errno.EMFILE
        # What handlers import may have asked for a thread after each fork, as ours was one.
        beside = threads()
        # Nothing is written in between that could be written before or after: see above.
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
        return self._main(place, Link(socket.socket(_UNIX, _STREAM, fileno=own)))

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
