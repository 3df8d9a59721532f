"""Receives signals for a process's main loop.

A signal handler stores each signal and wakes the loop; the loop then takes the stored signals as a
set.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

_SHORT = 0.02
"""Seconds. Sleeps up to this length end exactly in time; longer ones can end a little late."""

_receive: Callable[[int], object] = int


def _arrived(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: pass it to the function that was last given to `receive`.

    A forked child changes only the receiving function and leaves this handler set, because setting
    handlers again in each child would copy much of the parent's memory.
    """
    _receive(number)


def receive(receiver: Callable[[int], object]) -> None:
    """Pass this process's signals to a function from now on.

    A child calls this if it was forked by a process with a `SignalInbox`, whose handlers the child
    has inherited.
    """
    global _receive  # noqa: PLW0603  # signals belong to the process, not to an object
    # Clear the wakeup descriptor that a child has inherited, because a signal to the child would
    # otherwise write into the pipe that wakes the parent.
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
"""Signals that masters and workers receive. CONT has no meaning here, because service managers send
CONT after TERM."""


class Waitable(Protocol):
    """An object with a descriptor that a `SignalInbox` can wait for, such as a `Link`."""

    def fileno(self) -> int:
        """The number of the descriptor."""
        ...

    @property
    def unsent(self) -> bool:
        """Whether the object has bytes to send as soon as the descriptor is writable."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the object is closed; a `SignalInbox` does not wait for closed objects."""
        ...


class SignalInbox:
    """Receives signals for a loop and lets it sleep until something happens.

    The inbox also receives signals that its process does not use, and the process's loop drops
    them. They are not set to be ignored, because programs that a task executes would inherit this
    setting.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._pending: set[int] = set()
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)  # noqa: FBT003  # its parameter has no name
        # Python's C handler writes a byte into this pipe at once and so ends a sleep; `_add`, which
        # stores the signal, runs a little later. If the pipe is full, the byte is not needed,
        # because the bytes in the pipe end the sleep.
        self._wanted = tuple(wanted)
        self.watch(())
        self.take_over()

    def take_over(self) -> list[signal.Signals]:
        """Receive the wanted signals from now on, and replace handlers that other code has set.

        Call this after importing a user's module, because the module might have changed signal
        handlers. For example, if the module ignored CHLD, the kernel would reap our children, and
        we could not read their exit statuses. Return the wanted signals for which psched's handler
        was not set.
        """
        receive(self._add)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        lost = [number for number in self._wanted if not is_received(number)]
        for number in lost:
            signal.signal(number, _arrived)
        unblock()
        return lost

    def let_go(self, number: signal.Signals) -> None:
        """Restore a signal's default action, until `take_over` is called."""
        # Block the signal while its handler changes, because Python would report an error if the
        # signal arrived before the change and were handled after it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (number,))
        signal.signal(number, signal.SIG_DFL)
        unblock()

    def take_back(self, number: signal.Signals) -> None:
        """Receive a signal again that was let go."""
        signal.signal(number, _arrived)

    @contextmanager
    def standing_by(self) -> Iterator[None]:
        """Receive no signals within a ``with`` block; SIGINT raises KeyboardInterrupt there."""
        for number in self._wanted:
            self.let_go(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            self.take_over()

    def _add(self, number: int) -> None:
        # This is a bound method so that `_receive` refers to the inbox and its pipe stays open.
        # Otherwise a signal that arrives while a process exits might be written to a closed pipe.
        self._pending.add(number)

    def wait(self, timeout: float, links: Iterable[Waitable] = ()) -> set[signal.Signals]:
        """Sleep until a signal arrives, a link is ready, or the timeout ends."""
        self.watch(links)
        return self.take() if self.sleep(timeout) else set()

    def watch(self, links: Iterable[Waitable]) -> None:
        """Set the links that end later sleeps when they are ready; earlier links are dropped."""
        self._poller = select.poll()
        self._poller.register(self._reader, select.POLLIN)
        for link in links:
            if not link.closed:
                events = select.POLLIN | (select.POLLOUT if link.unsent else 0)
                self._poller.register(link, events)

    def sleep(self, timeout: float) -> bool:
        """Sleep until a signal arrives or a watched link is ready; False: the time is over."""
        if self._pending:
            return True
        if timeout > _SHORT:
            return bool(self._poller.poll(1000 * timeout) or self._pending)
        ends = time.monotonic() + timeout
        # poll(2) waits only for whole milliseconds, so sleep for the rest of the time afterwards. A
        # link that becomes ready during this rest is not noticed before the next call.
        if self._poller.poll(int(max(timeout, 0) * 1000)):
            return True
        left = ends - time.monotonic()
        if left > 0 and not self._pending:
            time.sleep(left)
        return bool(self._pending)

    def take(self) -> set[signal.Signals]:
        """The signals that have arrived since the last call."""
        # Empty the pipe before taking the signals: if a signal arrives between the two steps, its
        # byte stays in the pipe and ends the next sleep.
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        arrived = set()
        while self._pending:
            arrived.add(signal.Signals(self._pending.pop()))
        return arrived


def forget_handlers() -> None:
    """Restore the default actions of signals in a forked child.

    Call this while all signals are blocked. Otherwise a signal to the child could write into the
    pipe that wakes the parent, and the child would lose this signal.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        # Change only signals that have a Python handler, so that SIGPIPE stays ignored.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def suspend() -> None:
    """Stop this process as Ctrl-Z does; return when it is continued."""
    os.kill(os.getpid(), signal.SIGTSTP)


def end_by(number: int) -> None:
    """End this process by a signal, so that its parent sees by which one."""
    forget_handlers()
    os.kill(os.getpid(), number)


def unblock() -> None:
    """Unblock all signals, so that signals that arrived since the fork are handled now.

    `psched.process.spawn` blocks all signals in a child.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
