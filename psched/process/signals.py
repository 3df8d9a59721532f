"""Signals as data: the handler notes them and wakes the loop, which takes them as a set."""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Protocol

_SHORT = 0.02
"""Seconds. A sleep that is not longer than this ends exactly in time."""

_receive: Callable[[int], object] = int


def _arrived(number: int, _frame: FrameType | None) -> None:
    """The handler of all signals that psched receives; it passes them to the last receiver.

    A forked child keeps the handler and only changes the receiver. To set the handlers again in
    each child would copy much of its parent's memory, for calls that change nothing.
    """
    _receive(number)


def receive(receiver: Callable[[int], object]) -> None:
    """Have this process's signals passed to another receiver from now on.

    For a child that was forked with the handlers of an inbox.

    Args:
        receiver: called with the signal's number, between two bytecodes.
    """
    global _receive  # noqa: PLW0603  # signals belong to the process, not to an object
    # Without this, a signal to the child would write into the pipe that wakes the parent.
    signal.set_wakeup_fd(-1)
    _receive = receiver


def is_received(number: signal.Signals) -> bool:
    """Whether psched's handler is set for a signal."""
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
"""Signals that masters and workers receive; not CONT: service managers send it after TERM."""


class Waitable(Protocol):
    """Something with a descriptor to wait on."""

    def fileno(self) -> int:
        """The descriptor."""
        ...

    @property
    def unsent(self) -> bool:
        """Whether it has something to send, and waits until the descriptor is writable."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the other side is gone, so that there is nothing to wait for."""
        ...


class SignalInbox:
    """Receives signals for a loop and lets it sleep until something happens.

    Signals that a process has no use for are received, too, and dropped by its loop. If the kernel
    ignored them, every program that a task executes would inherit that.

    Args:
        wanted: the signals to receive.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._pending: set[int] = set()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)  # noqa: FBT003  # its parameter has no name
        # The C handler writes a byte at once; the Python handler runs between two bytecodes. If
        # the pipe is full, no signal is lost: the loop is about to wake up anyway.
        self._wanted = tuple(wanted)
        self.watch(())
        self.take_over()

    def take_over(self) -> list[signal.Signals]:
        """Receive the signals from now on, whoever received them before.

        A module that the user's handlers import may have set signal handlers. If it ignores CHLD,
        the kernel reaps the children whose exit statuses we wait for.

        Returns:
            The signals that somebody else had received.
        """
        receive(self._add)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        lost = [number for number in self._wanted if not is_received(number)]
        for number in lost:
            signal.signal(number, _arrived)
        unblock()
        return lost

    def let_go(self, number: signal.Signals) -> None:
        """Restore a signal's default action, until `take_over`."""
        # The signal is blocked meanwhile: if it arrived between two steps, Python would report that
        # it has no handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
        signal.signal(number, signal.SIG_DFL)
        unblock()

    def _add(self, number: int) -> None:
        # `signal` keeps this bound method, and thereby the inbox, alive. Otherwise a signal in the
        # last moments of a process that has dropped its inbox would find the pipe closed.
        self._pending.add(number)

    def wait(self, timeout: float, links: Iterable[Waitable] = ()) -> set[signal.Signals]:
        """Sleep until a signal arrives, a link is ready, or the time is over.

        Args:
            timeout: seconds.
            links: see `watch`.

        Returns:
            The signals that have arrived since the last call.
        """
        self.watch(links)
        return self.take() if self.sleep(timeout) else set()

    def watch(self, links: Iterable[Waitable]) -> None:
        """Let these links end later sleeps, as signals do.

        Args:
            links: each is ready when it can be read, or when it has something to send and can be
                written.
        """
        self._poller = select.poll()
        self._poller.register(self._reader, select.POLLIN)
        for link in links:
            if not link.closed:
                events = select.POLLIN | (select.POLLOUT if link.unsent else 0)
                self._poller.register(link, events)

    def sleep(self, timeout: float) -> bool:
        """Sleep until a signal arrives, a watched link is ready, or the time is over.

        Args:
            timeout: seconds. A sleep that is not short may end late: by a millisecond, because
                poll(2) rounds to that, and by a thousandth of its length, because Linux does.

        Returns:
            Whether something has happened. If not, there is nothing to `take`.
        """
        if self._pending:
            return True
        if timeout > _SHORT:
            return bool(self._poller.poll(1000 * timeout) or self._pending)
        ends = time.monotonic() + timeout
        # poll(2) waits up to the last millisecond. The rest is slept without watching anything.
        if self._poller.poll(int(max(timeout, 0) * 1000)):
            return True
        left = ends - time.monotonic()
        if left > 0 and not self._pending:
            time.sleep(left)
        return bool(self._pending)

    def take(self) -> set[signal.Signals]:
        """The signals that have arrived since the last call."""
        # The pipe is emptied first: a signal that arrives in between ends the next sleep.
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        arrived = set()
        while self._pending:
            arrived.add(signal.Signals(self._pending.pop()))
        return arrived


def forget_handlers() -> None:
    """Restore the default actions of signals in a forked child.

    Call it while all signals are blocked. Otherwise a signal to the child would write into the
    pipe that wakes the parent, and the child would lose it.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # SIGPIPE, which Python ignores, stays ignored.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def unblock() -> None:
    """Receive the signals that were blocked during the fork; see `psched.process.spawn`."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
