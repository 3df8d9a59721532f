"""Signals as data: a handler only wakes the loop; the loop sees them one set at a time."""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Protocol

_SHORT = 0.02
"""Seconds; who sleeps no longer than this is woken at the very instant."""

_receive: Callable[[int], object] = int


def _arrived(number: int, _frame: FrameType | None) -> None:
    """The handler of all signals that psched receives: it tells who has asked last.

    A forked child takes it over as it is, and only asks in its own name. To set handlers again
    in each child would copy much memory of its parent, for calls that change nothing.
    """
    _receive(number)


def receive(told: Callable[[int], object]) -> None:
    """Have this process's signals told to somebody else from now on.

    For a child that was forked with the handlers of an inbox.

    Args:
        told: called with the number, between two bytecodes.
    """
    global _receive  # noqa: PLW0603  # signals are the process's, not an object's
    # Not into the pipe that wakes the parent.
    signal.set_wakeup_fd(-1)
    _receive = told


def is_received(number: signal.Signals) -> bool:
    """Whether the handler of a signal is psched's."""
    return signal.getsignal(number) is _arrived


SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGWINCH,
    signal.SIGCHLD,
)
"""What masters and workers receive. CONT is not: service managers send it after TERM."""


class Waitable(Protocol):
    """Something with a descriptor to wait on, and perhaps something still to send."""

    def fileno(self) -> int:
        """The descriptor."""
        ...

    @property
    def unsent(self) -> bool:
        """Whether it waits to be writable."""
        ...

    @property
    def closed(self) -> bool:
        """Whether there is nothing to wait for any more."""
        ...


class SignalInbox:
    """Receives signals for a loop and lets it sleep until something happens.

    A signal that a process wants nothing of is received too, and dropped by its loop: to ignore
    it in the kernel's sense would be inherited by every program a task executes.

    Args:
        wanted: the signals to receive.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._pending: set[int] = set()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)  # noqa: FBT003  # its parameter has no name
        # The C handler writes a byte at once; the Python handler runs between two bytecodes.
        # A full pipe loses no signal, only a wake-up that is due already.
        self._wanted = tuple(wanted)
        self.watch(())
        self.take_over()

    def take_over(self) -> list[signal.Signals]:
        """Receive the signals from now on, whoever has received them meanwhile.

        A module that handlers import may have set handlers of its own. Were its way with CHLD
        to stay, the kernel could take away the children whose ends we wait for.

        Returns:
            The signals that had been somebody else's.
        """
        receive(self._add)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        lost = [number for number in self._wanted if not is_received(number)]
        for number in lost:
            signal.signal(number, _arrived)
        unblock()
        return lost

    def let_go(self, number: signal.Signals) -> None:
        """Have a signal do what it does by default, until `take_over`."""
        # One that comes in the midst would find no handler any more, and Python would report that.
        signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
        signal.signal(number, signal.SIG_DFL)
        unblock()

    def _add(self, number: int) -> None:
        # A method of ours, so that we live as long as signals come to us: a process whose work
        # is done lets go of us, and a signal in its last moments would find our pipe closed.
        self._pending.add(number)

    def wait(self, timeout: float, links: Iterable[Waitable] = ()) -> set[signal.Signals]:
        """Sleep until a signal arrives, a link has news, or the time is over.

        Args:
            timeout: seconds.
            links: see `watch`.

        Returns:
            The signals that have arrived since the last call.
        """
        self.watch(links)
        return self.take() if self.sleep(timeout) else set()

    def watch(self, links: Iterable[Waitable]) -> None:
        """Have links end the sleep, too.

        Args:
            links: wake the loop when they can be read, and when they can take what they still
                have to send.
        """
        self._poller = select.poll()
        self._poller.register(self._reader, select.POLLIN)
        for link in links:
            if not link.closed:
                events = select.POLLIN | (select.POLLOUT if link.unsent else 0)
                self._poller.register(link, events)

    def sleep(self, timeout: float) -> bool:
        """Sleep until a signal arrives, a link that is watched has news, or the time is over.

        Args:
            timeout: seconds. A time that is not short may end late: by a millisecond, to which
                poll(2) rounds, and by a thousandth of it, which is what Linux allows itself.

        Returns:
            Whether anything has happened; if not, there is nothing to `take`.
        """
        if self._pending:
            return True
        if timeout > _SHORT:
            return bool(self._poller.poll(1000 * timeout) or self._pending)
        ends = time.monotonic() + timeout
        # To the millisecond before; the rest is slept through without a look at anything else.
        if self._poller.poll(int(max(timeout, 0) * 1000)):
            return True
        left = ends - time.monotonic()
        if left > 0 and not self._pending:
            time.sleep(left)
        return bool(self._pending)

    def take(self) -> set[signal.Signals]:
        """The signals that have arrived since the last call."""
        # Emptied before the signals are taken: one that comes in between wakes the next sleep.
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        arrived = set()
        while self._pending:
            arrived.add(signal.Signals(self._pending.pop()))
        return arrived


def forget_handlers() -> None:
    """Make a forked child deaf to its parent's inbox: signals do again what they do by default.

    To be called while all signals are blocked. Otherwise a signal to the child would write into
    the pipe that wakes the parent, and be lost to the child.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # What Python ignores, SIGPIPE, stays ignored.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def unblock() -> None:
    """Let the signals in that a fork has kept waiting; see `psched.process.spawn`."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
