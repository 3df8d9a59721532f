"""The code that runs inside a fork server: it obeys the orders of its worker; see `fork_server`."""

import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psched.base.texts import brief
from psched.process import kernel, program_runner
from psched.process.fork_hooks import forked, without_hooks
from psched.process.inheritance import was_opened
from psched.process.kernel import set_title
from psched.process.link import Channel, Link
from psched.process.signals import SIGNALS, SignalInbox
from psched.process.spawn import blank, fork, inherited, prepare

_log = logging.getLogger("psched.worker")

_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT

_UNIX, _STREAM = int(socket.AF_UNIX), int(socket.SOCK_STREAM)
"""Two constants of `socket` as plain integers. They are converted once, before the fork, so that no
runner spends time on this."""

NO_DESCRIPTOR = 71
"""Exit status: the fork server could not start, because no descriptor was left (sysexits.h:
EX_OSERR)."""

_PROGRAM_RUNNER = Path(program_runner.__file__).read_text()
"""What a program runner executes. It is read once, because an upgrade replaces the file."""

_UNTIL_WOKEN = 3600.0
"""The maximum length of one sleep in seconds; a message or a signal ends the sleep earlier."""

_OOM_RAISE = 500
"""By how much the score of runners, and of all that they start, exceeds that of other processes, in
thousandths of the memory: the kernel kills the processes of a task before those of psched."""


@dataclass(frozen=True, slots=True)
class Origin:
    """How a fork server comes into being.

    Attributes:
        become: makes a process that was forked from the worker a fork server, or executes one; its
            argument is the process's end of the channel, and its result the exit status.
        keep: descriptors that this process needs besides standard input, output and error.
        loads: whether the fork server loads the handlers, and tells when it has.
        code: if the fork server is executed: the checksums that the files of its code must have.
        contents: if the fork server is executed: what it gets as files in memory.
        files: if the fork server is executed: further descriptors that it gets.
    """

    become: Callable[[Channel], int]
    keep: Sequence[int]
    loads: bool = False
    code: Mapping[str, int] | None = None
    contents: Sequence[bytes] = ()
    files: Sequence[int] = ()


class Forker:
    """Forks runners, and reports to the worker when runners have ended.

    The other arguments are those of `ForkServer`.
    """

    _inbox: SignalInbox
    _oom_score: kernel.OomScore
    _line: Link

    def __init__(
        self,
        channel: Channel,
        main: Callable[[int, Link], int],
        *,
        keep: Sequence[int],
        before_fork: Callable[[], object],
        load_store: Callable[[], object],
        inbox: SignalInbox | None = None,
    ) -> None:
        self._channel = channel
        self._given_inbox = inbox
        self._main = main
        self._keep = keep
        self._before_fork = before_fork
        self._load_store = load_store
        self._to_blank: Sequence[tuple[int, bool]] = ()
        self._to_reopen: Sequence[tuple[int, bool]] = ()
        # The pids of the runners that have not been buried, and whether each runner is alive.
        self._alive: dict[int, bool] = {}

    def run(self, worker: int) -> int:
        """Obey orders until the worker closes the connection; return the exit status."""
        kernel.die_with_parent(worker)
        try:
            # The signal handlers are set here, so that runners inherit them (except the handler for
            # CHLD). If each runner set them itself, it would copy memory pages.
            self._inbox = self._given_inbox or SignalInbox(SIGNALS)
            self._oom_score = kernel.OomScore()
            self._to_blank = inherited((0, *self._keep))
            self._to_reopen = _readers(self._keep)
        except OSError:
            return NO_DESCRIPTOR
        set_title("fork server")
        # Garbage collection skips the objects that exist now. Otherwise it would write to their
        # memory pages, so that runners could not share these pages.
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
            # In runners, CHLD must have its default action, because a task's code can wait for its
            # own children. The default is restored before the fork, because it would cost time to
            # restore it in each runner.
            self._inbox.let_go(signal.SIGCHLD)
            # Runners inherit the score. They cannot raise it themselves, because they are hidden.
            self._oom_score.exceed(_OOM_RAISE)
            answer = self._fork(message["fork"], descriptors, programs=message["programs"])
            self._oom_score.exceed(0)
            self._inbox.take_back(signal.SIGCHLD)
            self._say(answer)
            # Runners that ended while CHLD had its default action caused no wake-up, so their ends
            # are reported now.
            self._tell_ends()
        elif "load" in message:
            self._load_store()
            gc.freeze()
        else:
            for pid in message["bury"]:
                # Only dead runners are waited for, because waitpid would block for a living runner,
                # and would raise an error for any other pid.
                if self._alive.get(pid) is False:
                    os.waitpid(pid, 0)
                    del self._alive[pid]

    def _fork(self, places: Sequence[int], ends: list[int], *, programs: bool) -> dict[str, Any]:
        """Fork some runners, or program runners; return the answer to the order."""
        server = os.getpid()
        born: list[int] = []
        # This error is reported if fewer links than runners have arrived. The kernel drops links if
        # this process has reached its limit of descriptors.
        error: int | None = errno.EMFILE
        # A module that handlers import might start a thread after each fork, even in this process.
        # If there is a second thread, nothing is forked.
        refused = None
        try:
            prepare()
        except RuntimeError as failed:
            places, refused = (), brief(str(failed))
        except OSError as failed:
            places, error = (), failed.errno
        # The loop writes as little memory as possible, because each page that is written between
        # two forks is copied.
        # The links come first, and then the pipes for the output, if there are any.
        pipes: Sequence[int | None] = ends[len(places) :] or [None] * len(places)
        for place, end, pipe in zip(places, ends, pipes, strict=False):
            try:
                live = partial(self._live, server, place, end, pipe, ends)
                with without_hooks():
                    born.append(fork(partial(live, programs=programs)))
            except OSError as failed:
                error = failed.errno
                break
        for end in ends:
            os.close(end)
        self._alive.update((pid, True) for pid in born)
        return {"born": born, "error": error, "refused": refused}

    def _live(
        self,
        server: int,
        place: int,
        own: int,
        pipe: int | None,
        ends: Sequence[int],
        *,
        programs: bool,
    ) -> int:
        """Set up a new runner's process, and run its `main`; return the exit status."""
        forked()
        os.setsid()
        if pipe is not None:
            os.dup2(pipe, 1)
            os.dup2(pipe, 2)
        for end in ends:
            if end != own:
                os.close(end)
        blank(self._to_blank)
        _reopen(self._to_reopen)
        kernel.adopt_orphans()
        kernel.die_with_parent(server)
        if programs:
            program_runner.execute(_PROGRAM_RUNNER, own, hidden=kernel.is_hidden())
        # The base class of `socket.socket` is used, because its objects are created faster. An
        # attribute refers to the link until the process ends, because otherwise Python would warn
        # about an unclosed socket, which costs time.
        self._line = Link(socket.SocketType(_UNIX, _STREAM, 0, own))
        return self._main(place, self._line)

    def _tell_ends(self) -> None:
        """Report to the worker which runners have ended.

        These runners stay zombies until the worker orders to ``bury`` them.
        """
        ended = []
        for pid, lives in self._alive.items():
            found = os.waitid(os.P_PID, pid, _PEEK) if lives else None
            if found is not None:
                exited = found.si_code == os.CLD_EXITED
                how = (found.si_status, None) if exited else (None, found.si_status)
                ended.append((pid, *how, *kernel.usage_of_zombie(pid)))
        self._alive.update((pid, False) for pid, *_ in ended)
        if ended:
            self._say({"ended": ended})

    def _say(self, message: dict[str, Any]) -> None:
        # The send can block, but only while the worker has left hundreds of messages unread. An
        # error is ignored, because it means that the worker has died, and this process then dies.
        with suppress(OSError):
            self._channel.send(message)


def _readers(numbers: Iterable[int]) -> list[tuple[int, bool]]:
    """Those that only read a file, and hold no lock; each with whether it outlives execve(2)."""
    return [
        (number, os.get_inheritable(number))
        for number in numbers
        if was_opened(number, os.O_RDONLY)
        and "\nlock:" not in Path(f"/proc/self/fdinfo/{number}").read_text()
    ]


def _reopen(descriptors: Iterable[tuple[int, bool]]) -> None:
    """Give this process a place of its own in files that it reads, because forks share theirs."""
    for number, inheritable in descriptors:
        with suppress(OSError):  # this user may not, or no descriptor is left
            fresh = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
            os.lseek(fresh, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(fresh, number, inheritable)
            os.close(fresh)


def forked_with(
    main: Callable[[int, Link], int],
    *,
    keep: Sequence[int],
    before_fork: Callable[[], object],
    load_store: Callable[[], object] = list,
) -> Origin:
    """A fork server that is forked from this process, which has loaded the handlers.

    Args:
        main: the function that a runner's process executes; it returns the exit status. Its
            arguments are the runner's slot number, which no other living runner of this fork server
            has, and the runner's end of a link. The process leads a new session. It has psched's
            signal handlers (`signals.receive`); only CHLD has its default action.
        keep: descriptors that runners need besides standard input, output and error.
        before_fork: a function that the fork server calls before it forks.
        load_store: a function that it calls when tasks have begun to use the store.
    """
    worker = os.getpid()

    def become(channel: Channel) -> int:
        forker = Forker(channel, main, keep=keep, before_fork=before_fork, load_store=load_store)
        return forker.run(worker)

    return Origin(become, keep)
