"""Forking: the only module that calls fork(2)."""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from psched.base.texts import traceback_of, visible
from psched.process import kernel
from psched.process.link import Link
from psched.process.signals import forget_handlers

CRASHED = 70
"""Exit status of a child whose main function raised (sysexits.h: EX_SOFTWARE)."""

_HIGHEST = 255

_launched = False


def is_launched() -> bool:
    """Whether this process, or one above it, was forked by `launch`."""
    return _launched


def spawn(main: Callable[[Link], int], *, keep: Iterable[int] = ()) -> tuple[int, Link]:
    """Fork a child that runs ``main`` with its end of a new link; see `launch`.

    The child is a subreaper: orphans below it become its children.

    Returns:
        The child's pid and this side's end of the link.
    """
    ours, theirs = Link.pair()

    def live() -> int:
        kernel.adopt_orphans()
        return main(theirs)

    try:
        pid = launch(live, keep=[theirs.fileno(), *keep])
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return pid, ours


def launch(main: Callable[[], int], *, keep: Iterable[int] = ()) -> int:
    """Fork a child that runs ``main`` and exits with its result.

    Args:
        main: the child's whole life; what it returns is its exit status. It begins with all
            signals blocked: they are pending until it has set its handlers and has called
            `signals.unblock`.
        keep: descriptors that the child needs besides standard input, output and error.

    Returns:
        The child's pid.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread. The child would inherit the locks that the
            thread holds, and nobody would ever release them.
    """
    _prepare()
    not_theirs = inherited(keep)

    def live() -> int:
        global _launched  # noqa: PLW0603  # a property of the process
        _launched = True
        forget_handlers()
        blank(not_theirs)
        return main()

    # A signal that the child receives before it has set handlers would run the parent's handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return fork(live)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """Check that this process may fork, and empty its buffers."""
    if (count := threads()) > 1:
        raise RuntimeError(
            f"this process has {count} threads and must not fork; a module that handlers"
            " import has started them at import: let it start them when a task runs"
        )
    flush_output()  # otherwise parent and child would both write the buffered output


def threads() -> int:
    """The number of threads of this process, including those that no Python code has started.

    Raises:
        OSError: no descriptor is left to read /proc with.
    """
    return len(os.listdir("/proc/self/task"))


def fork(live: Callable[[], int]) -> int:
    """Fork a child that calls ``live`` and exits; in the parent, return the child's pid."""
    if pid := os.fork():
        return pid
    status = CRASHED
    try:
        status = _checked(live())
    except SystemExit as leaving:
        status = _checked(0 if leaving.code is None else leaving.code)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this process
        print(visible(traceback_of(error), lines=True), file=sys.stderr)  # noqa: T201
    finally:
        # An exception or a return would let the child continue the parent's functions.
        try:
            flush_output()
        finally:
            # sys.exit would call the functions that the parent has registered with atexit.
            os._exit(status)


def _checked(status: object) -> int:
    """The value that a main function has returned if it is an exit status, otherwise `CRASHED`."""
    if isinstance(status, int) and 0 <= status <= _HIGHEST:
        return status
    sys.stderr.write(f"psched: {status!r} is not an exit status\n")
    return CRASHED


def inherited(keep: Iterable[int]) -> list[tuple[int, bool]]:
    """The descriptors that a child would inherit, and whether they survive execve(2).

    Standard output, standard error and those to keep are left out.
    """
    found = []
    for number in {*map(int, os.listdir("/proc/self/fd"))}.difference((1, 2), keep):
        with suppress(OSError):  # the descriptor by which they were listed is closed
            found.append((number, os.get_inheritable(number)))
    return found


def blank(descriptors: Iterable[tuple[int, bool]]) -> None:
    """Replace inherited descriptors by /dev/null.

    The parent's links must not stay open, or the other sides would never read the end of their
    streams. Its database connection must not be used. They are not closed, because the objects
    that own them exist in this copy of the parent's memory, too: their destructors would write to
    whatever file gets the number next.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, inheritable in descriptors:
        try:
            os.dup2(null, number, inheritable)
        except OSError:
            # The number is above the limit, which was lowered after it had been opened. No other
            # file can get it.
            os.close(number)
    os.close(null)


def flush_output() -> None:
    """Flush standard output and standard error, whatever objects they are."""
    for stream in (sys.stdout, sys.stderr):
        # The stream may be None, closed, full or an object of a user's class. `suppress` is
        # avoided, because it would be three more functions: each function that a runner calls for
        # the first time costs 10 µs.
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112
            continue
