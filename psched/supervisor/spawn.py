"""fork(2), done the one safe way."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

from psched.supervisor import kernel
from psched.supervisor.link import Link
from psched.supervisor.signals import forget_handlers

_STANDARD = frozenset({0, 1, 2})

CRASHED = 70
"""Exit status of a child whose main function raised (sysexits.h: EX_SOFTWARE)."""

_HIGHEST = 255


def spawn(
    main: Callable[[Link], int],
    *,
    keep: Iterable[int] = (),
    leader: bool = False,
    dies_with_parent: bool = False,
) -> tuple[int, Link]:
    """Fork a child that runs ``main`` with its end of a new link, and exits with its result.

    Args:
        main: the child's whole life; what it returns is its exit status. It begins with all
            signals blocked: they wait until it has its handlers and calls `signals.unblock`.
        keep: descriptors the child needs besides standard input, output and error.
        leader: the child leads a session of its own: signals from the terminal pass it by.
        dies_with_parent: the kernel KILLs the child when this process dies.

    Returns:
        The child's pid and this side's end of the link.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread: the child would inherit whatever locks
            that thread holds, for ever.
    """
    _refuse_threads()
    _flush()  # or what is buffered now would be written twice
    ours, theirs = Link.pair()
    parent = os.getpid()
    # Until the child has its own handlers, a signal would run ours in it: none may arrive.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _live(main, theirs, keep, leader=leader, parent=parent if dies_with_parent else None)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return pid, ours


def _live(
    main: Callable[[Link], int],
    link: Link,
    keep: Iterable[int],
    *,
    leader: bool,
    parent: int | None,
) -> NoReturn:
    """The child, from its first instruction to its last."""
    status = CRASHED
    try:
        forget_handlers()
        if leader:
            os.setsid()
        _blank_descriptors({link.fileno(), *keep})
        kernel.adopt_orphans()
        if parent is not None:
            kernel.die_with_parent(parent)
        status = _checked(main(link))
    except SystemExit as leaving:
        status = _checked(0 if leaving.code is None else leaving.code)
    except BaseException:  # noqa: BLE001  # whatever it is, it has ended this process
        traceback.print_exc()
    finally:
        # Nothing of a child may reach its parent's frames, which would do the parent's work.
        try:
            _flush()
        finally:
            # Not sys.exit: what the parent registered with atexit is the parent's.
            os._exit(status)


def _checked(status: object) -> int:
    """What a main function has returned, if that is an exit status."""
    if isinstance(status, int) and 0 <= status <= _HIGHEST:
        return status
    sys.stderr.write(f"psched: {status!r} is not an exit status\n")
    return CRASHED


def _blank_descriptors(keep: set[int]) -> None:
    """Turn every inherited descriptor that is not kept into /dev/null.

    The parent's links must go, or nobody would ever read the end of their streams; its database
    connection must not be spoken on. Closing them would not do: the objects that own them live
    on in this copy of the parent's memory, and would write their farewells into whatever file
    gets the number next.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number in _STANDARD or number in keep or number == null:
            continue
        with suppress(OSError):  # the descriptor of the listing itself is gone by now
            os.dup2(null, number, inheritable=os.get_inheritable(number))
    os.close(null)


def _refuse_threads() -> None:
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        raise RuntimeError(
            f"this process has {len(threads)} threads and must not fork; a module that handlers"
            " import has started them at import: let it start them when a task runs"
        )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # There may be none, or one that is closed, full or of a user's making.
        with suppress(Exception):
            stream.flush()
