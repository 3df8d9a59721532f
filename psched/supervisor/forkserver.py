"""The process that forks a worker's runners, and does nothing else.

::

    worker ─┬─ fork server ─┬─ runner
            │               └─ runner
            └─ what an ended run has left behind: orphans pass the fork server by

A fork costs by what the parent holds, and again by each page that either of them writes to
afterwards. A worker holds all that it needs to speak to its database, and works while its runners
run. The fork server is forked before the worker loads that, and sleeps between two forks: so a
task in a fresh process costs a quarter less.

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

from psched.supervisor import kernel, tree
from psched.supervisor.channel import MOST_DESCRIPTORS, Channel
from psched.supervisor.child import Exit
from psched.supervisor.link import Link
from psched.supervisor.signals import SIGNALS, SignalInbox
from psched.supervisor.spawn import blank, fork, inherited, launch
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
        main: a runner's whole life, in its own process: it is given what it was forked as, and
            its end of a link, and returns its exit status. It leads a session of its own, and
            has psched's handlers for signals (`signals.receive`).
        keep: descriptors that runners need besides standard input, output and error.
        patience: seconds after which it hangs, and is killed, if an order is not answered.
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
        keep: Sequence[int] = (),
        patience: float,
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
        self._patience = patience
        self._exits: list[Exit] = []

    def fork(self, places: Sequence[int]) -> list[tuple[int, Link]]:
        """Have some runners forked.

        Args:
            places: what they are forked as, one for each; at most `MOST_AT_ONCE`.

        Returns:
            Pids and links, in the order of ``places``: as many as could be forked, one at least.

        Raises:
            OSError: the system has no process or memory left, or the fork server has died.
        """
        pairs = _pairs(len(places))
        born: Sequence[int] = ()
        try:
            theirs = [end.fileno() for _, end in pairs]
            self.channel.send({"fork": places[: len(pairs)]}, theirs)
            answer = self._answer()
            born = answer["born"]
            if not born:
                raise OSError(answer["error"], os.strerror(answer["error"]))
        finally:
            for _, end in pairs:
                end.close()
            for end, _ in pairs[len(born) :]:
                end.close()
        return [(pid, end) for pid, (end, _) in zip(born, pairs, strict=False)]

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
        """These are not to be sent anything any more."""
        with suppress(OSError):
            self.channel.send({"bury": pids})

    def close(self) -> None:
        """Let it go, and with it all that it has forked."""
        self.channel.close()

    def _answer(self) -> dict[str, Any]:
        """What it says to the last order; exits that it tells before that are kept."""
        while (received := self.channel.receive(wait=self._patience)) is not None:
            if self._take(received[0]):
                return received[0]
        if not self.channel.closed:
            tree.send(self.pid, signal.SIGKILL)
        raise BrokenPipeError("the fork server has died")

    def _take(self, message: dict[str, Any]) -> bool:
        """Take down exits; whether it was something else."""
        if "ended" not in message:
            return True
        self._exits += [Exit(*each) for each in message["ended"]]
        return False


def _pairs(count: int) -> list[tuple[Link, Link]]:
    """Some links; half as many as there can be, if there cannot be as many."""
    pairs: list[tuple[Link, Link]] = []
    try:
        while len(pairs) < count:
            pairs.append(Link.pair())
    except OSError:
        if not pairs:
            raise
        # Each child needs a descriptor or two of its own.
        for _ in range((len(pairs) - 1) // 2):
            for end in pairs.pop():
                end.close()
    return pairs


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
        self._not_theirs = inherited((0, *self._keep))
        # What is here stays as it is: runners share it, if nobody searches it for garbage.
        gc.freeze()
        while not self._channel.closed:
            arrived = inbox.wait(_LONG, [self._channel])
            while (received := self._channel.receive()) is not None:
                self._obey(*received)
            if signal.SIGCHLD in arrived:
                self._tell()
        return 0

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
            gc.freeze()

    def _fork(self, places: Sequence[int], ends: list[int]) -> dict[str, Any]:
        """Fork some runners; the answer to that."""
        server = os.getpid()
        born: list[int] = []
        # Some descriptors are lost on the way if there can be no more of them here.
        error: int | None = errno.EMFILE
        # Nothing is written in between that could be written before or after: see above.
        for place, end in zip(places, ends, strict=False):
            try:
                born.append(fork(partial(self._live, server, place, end, ends)))
            except OSError as failed:
                error = failed.errno
                break
        for end in ends:
            os.close(end)
        self._alive.update((pid, True) for pid in born)
        return {"born": born, "error": error}

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
