"""fork(2), done the one safe way."""

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

    Orphans of what it forks come to it.

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
    """Fork a child that runs ``main``, and exits with its result.

    Args:
        main: the child's whole life; what it returns is its exit status. It begins with all
            signals blocked: they wait until it has its handlers and calls `signals.unblock`.
        keep: descriptors the child needs besides standard input, output and error.

    Returns:
        The child's pid.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread: the child would inherit whatever locks
            that thread holds, for ever.
    """
    _prepare()
    not_theirs = inherited(keep)

    def live() -> int:
        global _launched  # noqa: PLW0603  # it is the process's
        _launched = True
        forget_handlers()
        blank(not_theirs)
        return main()

    # Until the child has its own handlers, a signal would run ours in it: none may arrive.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return fork(live)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """What is to be done before a fork."""
    if (count := threads()) > 1:
        raise RuntimeError(
            f"this process has {count} threads and must not fork; a module that handlers"
            " import has started them at import: let it start them when a task runs"
        )
    flush_output()  # or what is buffered now would be written twice


def threads() -> int:
    """How many threads this process has, whoever has started them.

    Raises:
        OSError: no descriptor is left to look with.
    """
    return len(os.listdir("/proc/self/task"))


def fork(live: Callable[[], int]) -> int:
    """Fork a child, from its first instruction to its last; in the parent, its pid."""
    if pid := os.fork():
        return pid
    status = CRASHED
    try:
        status = _checked(live())
    except SystemExit as leaving:
        status = _checked(0 if leaving.code is None else leaving.code)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it has ended this process
        print(visible(traceback_of(error), lines=True), file=sys.stderr)  # noqa: T201
    finally:
        # Nothing of a child may reach its parent's frames, which would do the parent's work.
        try:
            flush_output()
        finally:
            # Not sys.exit: what the parent registered with atexit is the parent's.
            os._exit(status)


def _checked(status: object) -> int:
    """What a main function has returned, if that is an exit status."""
    if isinstance(status, int) and 0 <= status <= _HIGHEST:
        return status
    sys.stderr.write(f"psched: {status!r} is not an exit status\n")
    return CRASHED


def inherited(keep: Iterable[int]) -> list[tuple[int, bool]]:
    """The descriptors that a child would inherit, and whether what it executes would, too.

    Output and error are not meant, nor those that are to be kept.
    """
    found = []
    for number in {*map(int, os.listdir("/proc/self/fd"))}.difference((1, 2), keep):
        with suppress(OSError):  # the descriptor of the listing itself is gone by now
            found.append((number, os.get_inheritable(number)))
    return found


def blank(descriptors: Iterable[tuple[int, bool]]) -> None:
    """Turn inherited descriptors into /dev/null.

    The parent's links must go, or nobody would ever read the end of their streams; its database
    connection must not be spoken on. Closing them would not do: the objects that own them live
    on in this copy of the parent's memory, and would write their farewells into whatever file
    gets the number next.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, inheritable in descriptors:
        try:
            os.dup2(null, number, inheritable)
        except OSError:
            # It is above the limit, which somebody has lowered since: no other gets this number.
            os.close(number)
    os.close(null)


def flush_output() -> None:
    """Write out what was printed; whatever stands there for standard output."""
    for stream in (sys.stdout, sys.stderr):
        # There may be none, or one that is closed, full or of a user's making. Not by `suppress`,
        # which is three functions more: what a runner has not called before costs it 10 µs.
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112
            continue
