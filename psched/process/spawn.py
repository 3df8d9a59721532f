"""Forks processes; no other module calls fork(2)."""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader
from typing import NoReturn

from psched.base.log import Log, log_uncaught
from psched.base.texts import traceback_of, visible
from psched.process import kernel, tree
from psched.process.inheritance import reachable
from psched.process.kernel import set_title
from psched.process.link import Link
from psched.process.signals import SIGNALS, SignalInbox, forget_handlers

CRASHED = 70
"""Exit status of a child whose main function raised an exception (sysexits.h: EX_SOFTWARE)."""

_HIGHEST = 255

_launched = False


def is_launched() -> bool:
    """Whether this process, or an ancestor that it was forked from, was forked by `launch`."""
    return _launched


def spawn(main: Callable[[Link], int], *, keep: Iterable[int] = ()) -> tuple[int, Link]:
    """Fork a child that calls ``main`` with the child's end of a new link; see `launch`.

    The child is a subreaper: its orphaned descendants become its children.
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
    """Fork a child that runs ``main`` and exits with its result; return the child's pid."""

    def live() -> int:
        global _launched  # noqa: PLW0603  # a property of the process
        _launched = True
        forget_handlers()
        # They are listed here, because the fork itself can close some: a SQLite file is closed.
        blank(inherited(keep))
        return main()

    # Block all signals before the fork, because a signal that reached the child before it has set
    # its own handlers would run the parent's handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        prepare()
        return fork(live)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare() -> None:
    """Check that this process may fork, and flush its output."""
    # Flush before the fork, because parent and child would both write the buffered output later.
    flush_output()
    if threads() > 1:
        # Some libraries end their threads in a fork handler, such as OpenBLAS (pthread_atfork(3)),
        # so that these hold no lock when the process is copied. What is left after a fork counts.
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if len(left := _lasting_threads()) > 1:
            names = ", ".join(dict.fromkeys(_describe(left)))
            raise RuntimeError(
                f"this process has {len(left)} threads and must not fork: {names}; a module that"
                " handlers import has started them, at import or in a fork handler: let it start"
                " them when a task runs, or in after_fork"
            )


def threads() -> int:
    """The number of threads of this process, including those that no Python code has started."""
    return len(os.listdir("/proc/self/task"))


def _lasting_threads() -> dict[int, str]:
    """The threads of this process, but for those that are ending; the name of each, by its id."""
    found = {}
    for number in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # it has ended
            # The kernel lists a thread for a moment after pthread_join(3) has returned.
            if not tree.ending(number):
                name = tree.read(f"/proc/self/task/{number}/comm")
                found[number] = name.decode(errors="replace").strip()
    return found


def _describe(left: Mapping[int, str]) -> Iterator[str]:
    """Yield the name of each thread but the main one, and the module that has started it."""
    native = {
        name.partition(".")[0]
        for name, module in sys.modules.copy().items()
        if isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)
    } - sys.stdlib_module_names
    python = {each.native_id: each for each in threading.enumerate()}
    for number, name in left.items():
        if (thread := python.get(number)) is None:
            yield f"{name!r} of native code (loaded: {', '.join(sorted(native))})"
        elif thread is not threading.main_thread():
            # A thread that no variable leads to is the module's that has its function or class.
            code = getattr(thread, "_target", None) or type(thread)
            found = (name for each, name in reachable() if each is thread)
            module = next(found, getattr(code, "__module__", None))
            yield f"{thread.name!r} of the module {module!r}"


def run_users_code(log: Log, title: str) -> SignalInbox:
    """Set up the log, the title and the signals of a process that loads users' modules."""
    log_uncaught()
    with suppress(AttributeError, ValueError):
        # Output is flushed after each line, so that everything that handlers print is visible at
        # once. The runners inherit this setting.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    set_title(title)
    # A process that hangs gets ABRT before KILL. Because of the next line, it then logs its stack,
    # which shows where it hangs.
    log.dump_crashes()
    kernel.handle_signals_on_the_stack()
    return SignalInbox(SIGNALS)


def fork(live: Callable[[], int]) -> int:
    """Fork a child that calls ``live`` and exits; in the parent, return the child's pid."""
    if not (pid := os.fork()):
        exit_with(live)
    return pid


def exit_with(live: Callable[[], int]) -> NoReturn:
    """Call ``live``, and exit with its result as a process that was forked exits."""
    status = CRASHED
    try:
        status = _checked(live())
    except SystemExit as leaving:
        status = _checked(0 if leaving.code is None else leaving.code)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it ends this process
        print(visible(traceback_of(error), lines=True), file=sys.stderr)  # noqa: T201
    finally:
        # Exit here in every case, because after an exception or a return, the child would continue
        # the functions of the parent that have called this one.
        try:
            flush_output()
        finally:
            # Use os._exit, because sys.exit would call the functions that the parent has registered
            # with atexit.
            os._exit(status)


def _checked(status: object) -> int:
    """Return a value if it is an exit status from 0 to 255; otherwise `CRASHED`."""
    if isinstance(status, int) and 0 <= status <= _HIGHEST:
        return status
    sys.stderr.write(f"psched: {status!r} is not an exit status\n")
    return CRASHED


def inherited(keep: Iterable[int]) -> list[tuple[int, bool]]:
    """The descriptors that a child would inherit, each with whether it stays open after execve(2).

    The list leaves out standard output, standard error and the descriptors in ``keep``.
    """
    found = []
    for number in {*map(int, os.listdir("/proc/self/fd"))}.difference((1, 2), keep):
        # Ignore the descriptor by which the folder was listed, because it is closed already.
        with suppress(OSError):
            found.append((number, os.get_inheritable(number)))
    return found


def blank(descriptors: Collection[tuple[int, bool]]) -> None:
    """Replace inherited descriptors by ones that cannot be used; standard input by /dev/null.

    A child calls this, because the parent's links must not stay open in the child: the other sides
    would never read the end of their streams. The child also must not use the parent's database
    connection. The descriptors are replaced and not closed, because the child has copies of the
    objects that own the descriptors. If a new file got the number of a closed descriptor, the
    destructor of such an object would write to the new file.
    """
    # Such a descriptor can be neither read nor written: what uses it by mistake fails. SQLite, for
    # example, would take /dev/null for an empty database.
    unusable = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
    for number, inheritable in descriptors:
        try:
            os.dup2(unusable, number, inheritable)
        except OSError:
            # The limit for descriptors was lowered below this number after the descriptor had been
            # opened. Close the descriptor, because no new file can get a number above the limit.
            os.close(number)
    os.close(unusable)  # before the next one is opened: no more may be left
    if 0 in dict(descriptors):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.close(null)


def flush_output() -> None:
    """Flush standard output and standard error; ignore all errors."""
    for stream in (sys.stdout, sys.stderr):
        # Ignore every exception, because the stream might be None, closed, full or an object of a
        # user's class. Do not use `suppress`, because it would call three more functions, and each
        # function that a runner calls for the first time costs 10 µs.
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S112
            continue


def interpreter_options(command: Sequence[str]) -> list[str]:
    """The interpreter's own options in its command line, except ``-m`` and ``-c``."""
    options: list[str] = []
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument in ("-", "--"):
            break
        if argument.startswith("--"):
            options.append(argument)
            has_value = argument == "--check-hash-based-pycs"
        else:
            # One argument can hold several short options. The first one with a value ends it; the
            # value follows in the same argument or in the next: -Bm program, -BWignore.
            found = re.fullmatch("-([^cmWX]*)([cmWX]?)(.*)", argument)
            flags, letter, value = found.groups() if found else ("", "", "")
            if letter in ("c", "m"):
                options += [f"-{flags}"] if flags else []
                break
            options.append(argument)
            has_value = bool(letter) and not value
        if has_value:
            options.append(next(arguments, ""))
    return options
