"""fork(2), done the one safe way."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from psched.supervisor import kernel
from psched.supervisor.link import Link
from psched.supervisor.signals import forget_handlers

CRASHED = 70
"""Exit status of a child whose main function raised (sysexits.h: EX_SOFTWARE)."""

_HIGHEST = 255


def spawn(main: Callable[[Link], int], *, keep: Iterable[int] = ()) -> tuple[int, Link]:
    """Fork a child that runs ``main`` with its end of a new link, and exits with its result.

    Args:
        main: the child's whole life; what it returns is its exit status. It begins with all
            signals blocked: they wait until it has its handlers and calls `signals.unblock`.
        keep: descriptors the child needs besides standard input, output and error.

    Returns:
        The child's pid and this side's end of the link.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread: the child would inherit whatever locks
            that thread holds, for ever.
    """
    _prepare()
    ours, theirs = Link.pair()
    inherited = _inherited(keep)

    def live() -> int:
        forget_handlers()
        _blank(inherited, theirs.fileno())
        kernel.adopt_orphans()
        return main(theirs)

    # Until the child has its own handlers, a signal would run ours in it: none may arrive.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = _fork(live)
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return pid, ours


def spawn_alike(
    mains: Sequence[Callable[[Link], int]], *, keep: Iterable[int] = ()
) -> list[tuple[int, Link]]:
    """Fork some children, fast, that die with this process; see `spawn`.

    Each leads a session of its own: signals from the terminal pass it by. It has this process's
    handlers for signals until it asks for them (`signals.receive`), and none are blocked; what
    comes before that is lost. Handlers that are not psched's stay as they are.

    What this process writes to its memory after a fork, and what a child does, is copied, page
    by page, at a price above that of the code that does it. So here is nothing between one fork
    and the next that could be done before or after, and in a child only what cannot.

    Returns:
        Pids and links, in the order of ``mains``: as many as could be forked, one at least.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread.
    """
    _prepare()
    parent = os.getpid()
    pairs = _pairs(len(mains))
    inherited = _inherited(keep)

    def live(main: Callable[[Link], int], link: Link) -> int:
        os.setsid()
        _blank(inherited, link.fileno())
        kernel.adopt_orphans()
        kernel.die_with_parent(parent)
        return main(link)

    born: list[int] = []
    try:
        for main, (_, theirs) in zip(mains, pairs, strict=False):
            born.append(_fork(partial(live, main, theirs)))
    except OSError:
        if not born:
            raise
    finally:
        for _, theirs in pairs:
            theirs.close()
        for ours, _ in pairs[len(born) :]:
            ours.close()
    return [(pid, ours) for pid, (ours, _) in zip(born, pairs, strict=False)]


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


def _fork(live: Callable[[], int]) -> int:
    """Fork a child, from its first instruction to its last; in the parent, its pid."""
    if pid := os.fork():
        return pid
    status = CRASHED
    try:
        status = _checked(live())
    except SystemExit as leaving:
        status = _checked(0 if leaving.code is None else leaving.code)
    except BaseException:  # noqa: BLE001  # whatever it is, it has ended this process
        traceback.print_exc()
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


def _inherited(keep: Iterable[int]) -> list[tuple[int, bool]]:
    """The descriptors that a child would inherit, and whether what it executes would, too.

    Output and error are not meant, nor those that are to be kept.
    """
    found = []
    for number in {*map(int, os.listdir("/proc/self/fd"))}.difference((1, 2), keep):
        with suppress(OSError):  # the descriptor of the listing itself is gone by now
            found.append((number, os.get_inheritable(number)))
    return found


def _blank(inherited: Iterable[tuple[int, bool]], own: int) -> None:
    """Turn inherited descriptors into /dev/null, but for the child's own end of its link.

    The parent's links must go, or nobody would ever read the end of their streams; its database
    connection must not be spoken on. Closing them would not do: the objects that own them live
    on in this copy of the parent's memory, and would write their farewells into whatever file
    gets the number next.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number, inheritable in inherited:
        if number == own:
            continue
        try:
            os.dup2(null, number, inheritable)
        except OSError:
            # It is above the limit, which somebody has lowered since: no other gets this number.
            os.close(number)
    os.close(null)


def flush_output() -> None:
    """Write out what was printed; whatever stands there for standard output."""
    for stream in (sys.stdout, sys.stderr):
        # There may be none, or one that is closed, full or of a user's making.
        with suppress(Exception):
            stream.flush()
