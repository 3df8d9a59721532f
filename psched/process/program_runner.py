"""A process that runs programs for tasks, one after the other; it starts each and waits for it.

::

    fork server
    └─ program runner    leads a session, is in a cgroup of its own, adopts orphans
       └─ program        leads a session of its own, too

A runner is a bad parent for a program, because it contains the users' handlers: to copy it costs
several times what the program itself costs. So a program runner contains as little as possible. It
executes the interpreter anew, with the text of this file alone, which therefore imports no module
of psched and none that is slow to load. After an upgrade there is no difference between this text
and that of the worker, because the fork server has read it at its own start.

A program that is to run as another user is started by a helper of root, see
`psched.process.run_as_helper`; a child of the program runner then stands in for it.

The worker sends an order: two lengths, that of its head and that of the program's input; the head,
fields that end with NUL; the input. It is followed by `STOP` and by TERM if the program is to be
stopped: TERM alone may have been sent to all processes of a service. The answers are those of
`psched.runner.messages.FROM_PROGRAM_RUNNER`.
"""

import ctypes
import errno
import os
import struct
import sys

TYPE_CHECKING = False  # as `typing` has it, which takes long to load
if TYPE_CHECKING:
    import resource
    import signal
    import socket
    from collections.abc import Iterator, MutableMapping

    Environment = MutableMapping[bytes, bytes]
else:
    # `signal` wraps these functions to return enumerations, which costs a tenth of a program.
    import _signal as signal

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_KILL, _TERM, _CHLD = int(signal.SIGKILL), int(signal.SIGTERM), int(signal.SIGCHLD)
_IGNORED_BY_PYTHON = (int(signal.SIGPIPE), int(signal.SIGXFSZ))

_LENGTHS = struct.Struct("!II")

_CHUNK = 1 << 16

STOP = _LENGTHS.pack(0, 0)
"""Sent before a TERM that the program is to receive."""

IDLE = "psched runner: idle"

_NO_COMMAND = 127
"""The exit status of a process that could not execute its program, as in shells."""

SOCKET = "/run/psched-run-as.socket"
"""Where `psched.process.run_as_helper` listens, which starts programs as other users."""

_CGROUPS = b"/sys/fs/cgroup"

_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def packed_order(
    title: str,
    arguments: list[str],
    environment: dict[str, str],
    folder: str | None,
    stdin: bytes,
    *,
    quiet: bool,
    user: str | None = None,
) -> bytes:
    """An order to run a program.

    Args:
        title: that of the program runner meanwhile.
        arguments: the program and its arguments.
        environment: variables that are added to those of the fork server.
        folder: the program's working folder; None: that of the fork server.
        stdin: what it reads from its standard input.
        quiet: whether its output is thrown away.
        user: as whom it runs; None: as this user.

    Raises:
        ValueError: a text cannot be given to a process.
    """
    variables = [f"{name}={value}" for name, value in environment.items()]
    fields = [title, "quiet" if quiet else "", user or "", folder or "", str(len(arguments))]
    return packed([os.fsencode(text) for text in (*fields, *arguments, *variables)], stdin)


def packed(fields: list[bytes], data: bytes = b"") -> bytes:
    """Fields that end with NUL, and further data, after their lengths."""
    if any(b"\0" in field for field in fields):
        raise ValueError("embedded null byte")
    head = b"\0".join(fields)
    return _LENGTHS.pack(len(head), len(data)) + head + data


class RefusedError(Exception):
    """A program is not started as the user that it is for; the text says why."""


def start(
    arguments: list[bytes],
    environment: "Environment",
    folder: bytes | None,
    stdin: bytes | None,
    *,
    quiet: bool = False,
    user: bytes | None = None,
    used: int = -1,
) -> int:
    """Start a program as a child of this process, and return its pid once it is executed.

    It leads a session of its own and inherits no further descriptor. Its input is a file in memory,
    which it can read again; None: what this process has. The kernel kills it when this process
    dies.

    With ``user``, the child stands in for the program, which the helper of root starts as that
    user: see `_stand_in`. Then ``environment`` is what is added to the user's, and the child writes
    to the file ``used`` what the program has used, see `usage`.

    Raises:
        RefusedError: the helper does not start it.
        OSError: it was not executed. ``filename`` is the folder if that is the reason, and the
            program if it cannot be executed; otherwise None, because something was lacking.
    """
    parent = os.getpid()
    numbers: list[int] = []
    try:
        if stdin is not None:
            numbers.append(os.memfd_create("input"))
            _write(numbers[0], stdin)
            os.lseek(numbers[0], 0, os.SEEK_SET)
        numbers += os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                who = None if user is None else (user, used)
                _become(arguments, environment, folder, numbers, parent, quiet=quiet, who=who)
            finally:
                os._exit(_NO_COMMAND)
        os.close(numbers.pop())
        # The end of the pipe: it is closed when the program is executed.
        report = os.read(numbers[-1], _CHUNK)
    finally:
        for number in numbers:
            os.close(number)
    if not report:
        return pid
    os.waitpid(pid, 0)
    if user is not None:
        raise RefusedError(os.fsdecode(report))
    error, at_folder = map(int, report.split())
    raise OSError(error, os.strerror(error), os.fsdecode((at_folder and folder) or arguments[0]))


def _become(
    arguments: list[bytes],
    environment: "Environment",
    folder: bytes | None,
    numbers: list[int],
    parent: int,
    *,
    quiet: bool,
    who: "tuple[bytes, int] | None" = None,
) -> None:
    """Execute a program in this process, which was forked for it; report why it cannot be."""
    *stdin, _, report = numbers
    os.setsid()
    # The signal first: afterwards, a parent that has died meanwhile is seen.
    _prctl(_PR_SET_PDEATHSIG, _KILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    at_folder = 0
    try:
        for number in stdin:
            os.dup2(number, 0)
        if quiet:
            _silence()
        if who is not None:
            _stand_in(who, arguments, environment, folder, report)
        if folder is not None:
            at_folder = 1
            os.chdir(folder)
            at_folder = 0
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _execute(arguments, environment)
    except OSError as error:
        os.write(report, b"%d %d" % (error.errno or 0, at_folder))


def _execute(arguments: list[bytes], environment: "Environment") -> None:
    failure = OSError()
    for path in _paths(arguments[0], environment):
        try:
            os.execve(path, arguments, environment)  # noqa: S606  # no shell
        except OSError as error:
            # A file that cannot be executed tells more than one that is not there.
            if failure.errno in {None, errno.ENOENT, errno.ENOTDIR}:
                failure = error
    raise failure


def _silence() -> None:
    """Throw away what this process prints."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _stand_in(
    who: "tuple[bytes, int]",
    arguments: list[bytes],
    environment: "Environment",
    folder: bytes | None,
    report: int,
) -> None:
    """Have the helper start the program as another user, and end as it ends; never return.

    The program joins the control group of this process, and so of the task. When this process dies,
    the helper kills all that is in the group.
    """
    import socket  # noqa: PLC0415  # few programs need it

    signal.pthread_sigmask(signal.SIG_BLOCK, (_TERM, signal.SIGIO))
    (user, used), is_started = who, False
    try:
        kill = _open_group()
    except OSError as error:
        why = (
            f"its task has no control group of its own, by which it could be killed"
            f" ({error.strerror}): let psched run under its unit, without cgroup: off"
        )
        os.write(report, os.fsencode(why))
        os._exit(_NO_COMMAND)
    try:
        _open_pipes(report)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(SOCKET)
        variables = [name + b"=" + value for name, value in environment.items()]
        fields = [b"run", user, folder or b"", b"%d" % len(arguments), *arguments, *variables]
        request = packed(fields)
        # The descriptors come with the lengths, which are never sent in parts.
        socket.send_fds(connection, [request[: _LENGTHS.size]], [0, 1, 2, kill])
        connection.sendall(request[_LENGTHS.size :])
        for answer in _answers(connection):
            word, _, rest = answer.partition(b" ")
            if word == b"exited":
                code, _, rest = rest.partition(b" ")
                os.write(used, rest)
                _end(int(code))
            elif word == b"started":
                os.close(report)
                is_started = True
            else:
                os.write(report, rest)
                os._exit(_NO_COMMAND)
    except OSError as error:
        why = f"the helper psched-run-as cannot be asked: {error.strerror} ({SOCKET})"
        os.write(2 if is_started else report, os.fsencode(why + "\n" * is_started))
        os._exit(_NO_COMMAND)


def _answers(connection: "socket.socket") -> "Iterator[bytes]":
    """Yield each line that the helper sends; meanwhile, tell it each TERM."""
    import fcntl  # noqa: PLC0415  # few programs need it

    # A signal tells that there is an answer, so that TERM and answers are waited for together.
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    answer = b""
    while True:
        try:
            chunk = connection.recv(_CHUNK)
        except BlockingIOError:
            if signal.sigwait((_TERM, signal.SIGIO)) == _TERM:
                try:  # noqa: SIM105  # loads less
                    connection.send(b"T")
                except BrokenPipeError:
                    pass  # what it has told before is still to be read
            continue
        if not chunk:
            raise OSError(errno.ECONNRESET, "it has ended")
        *lines, answer = (answer + chunk).split(b"\n")
        yield from lines


def _open_group() -> int:
    """Let root's helper move a program to this control group; return the file that kills all in it.

    The helper is in this group of users. Others of it could move nothing: the kernel asks for the
    same right on the groups above as well.
    """
    with open("/proc/self/cgroup", "rb") as file:  # noqa: PTH123  # loads less
        names = [line[3:-1] for line in file if line.startswith(b"0::")]
    if not names or not names[0].rpartition(b"/")[2].startswith(b"run-"):
        # It may be that of all tasks, which must not be killed for one program.
        raise OSError(errno.ENOENT, names[0].decode() if names else "no cgroup2")
    folder = _CGROUPS + names[0]
    os.chmod(folder + b"/cgroup.procs", 0o664)  # noqa: PTH101  # loads less
    return os.open(folder + b"/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)


def _open_pipes(pipe: int) -> None:
    """Let the program open /dev/stdout and /dev/stderr anew, as it could if it ran as this user.

    Only who has a pipe can open it so, because it has no other name; the helper must not do it.
    """
    for number in 1, 2:
        found = os.fstat(number)
        if found.st_dev == os.fstat(pipe).st_dev and found.st_uid == os.geteuid():
            os.fchmod(number, 0o622)


def _end(code: int) -> None:
    """End as a program has ended: with its status, or by its signal (a negative number)."""
    if code >= 0:
        os._exit(code)
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # it is not this process that has crashed
    if -code not in (_KILL, int(signal.SIGSTOP)):
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (-code,))
    os.kill(os.getpid(), -code)


def usage(used: int) -> tuple[int, int]:
    """The CPU time in microseconds and the most KiB that are noted in a file of `start`; close it.

    Both are 0 if nothing is noted, because the program was killed with its stand-in.
    """
    noted = os.pread(used, 100, 0).split()
    os.close(used)
    return (int(noted[0]), int(noted[1])) if noted else (0, 0)


def _paths(program: bytes, environment: "Environment") -> list[bytes]:
    """Where a program is looked for, in that order."""
    if b"/" in program:
        return [program]
    folders = environment.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    return [os.path.join(folder, program) for folder in folders]  # noqa: PTH118  # loads less


def _write(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]


def execute(text: str, link: int, *, hidden: bool) -> None:
    """Turn this process, which the fork server has forked, into a program runner.

    ``text`` is the text of this file, ``link`` the descriptor of its end of the link to the worker.
    If it is ``hidden``, other processes of the user must not read its memory; see `secrecy`. An
    OSError says that the interpreter cannot be executed.
    """
    # No signal must end the interpreter before it runs this text.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.set_inheritable(link, True)  # noqa: FBT003  # its parameter has no name
    # -I and -S: neither the environment nor a package decides what is loaded. Warnings are ignored,
    # because Python takes a process for one with threads if its name contains blanks.
    options = ("-I", "-S", "-W", "ignore", "-c", text)
    arguments = (str(link), str(os.getppid()), "hidden" if hidden else "")
    os.execv(sys.executable, [sys.executable, *options, *arguments])  # noqa: S606


class _ProgramRunner:
    """A program runner, in its own process."""

    def __init__(self, link: int) -> None:
        self._link = link
        self._environment = dict(os.environb)
        self._waits_for = (_TERM, _CHLD)
        # The kernel shows this part of the memory as the process's title. The text of this file is
        # there, so that there is room.
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  # loads less
            first, end = file.read().rpartition(b")")[2].split()[45:47]
        self._title, self._room = int(first), int(end) - int(first)

    def run(self) -> None:
        """Obey orders until the worker closes the link."""
        self._show(os.fsencode(IDLE))
        self._tell(b'{"ready":true}')
        while (order := self._next_order()) is not None:
            while self._reap():
                pass
            (title, quiet, user, folder, count, *texts), stdin = order
            arguments, added = texts[: int(count)], texts[int(count) :]
            self._show(title)
            variables = (text.partition(b"=") for text in added)
            environment = {name: value for name, _, value in variables}
            if not user:
                environment = self._environment | environment
            used = os.memfd_create("used") if user else -1
            whose = user or None
            try:
                pid = start(
                    arguments, environment, folder or None, stdin,
                    quiet=bool(quiet), user=whose, used=used,
                )  # fmt: skip
            except RefusedError as error:
                import json  # noqa: PLC0415  # few programs need it

                os.close(used)
                self._tell(json.dumps({"refused": str(error)}).encode())
            except OSError as error:
                what = 0 if error.filename is None else 1 + (error.filename == os.fsdecode(folder))
                self._tell(b'{"unstarted":[%d,%d]}' % (error.errno or 0, what))
            else:
                self._tell(self._wait(pid, used))
            self._show(os.fsencode(IDLE))

    def _next_order(self) -> tuple[list[bytes], bytes] | None:
        """The next order: its fields, and the program's input; None at the end of the link."""
        while (lengths := self._read(_LENGTHS.size)) is not None:
            head, data = _LENGTHS.unpack(lengths)
            if head:  # else it is `STOP`, and came when the program had ended
                order, stdin = self._read(head), self._read(data)
                return None if order is None or stdin is None else (order.split(b"\0"), stdin)
        return None

    def _read(self, size: int) -> bytes | None:
        found = bytearray()
        while len(found) < size:
            chunk = os.read(self._link, min(size - len(found), _CHUNK))
            if not chunk:
                return None
            found += chunk
        return bytes(found)

    def _wait(self, program: int, of_other: int) -> bytes:
        """Wait for the end of a program, and reap its orphans; return how it has ended."""
        peak_kb = 0
        while True:
            if signal.sigwait(self._waits_for) == _TERM and self._is_stop():
                try:  # noqa: SIM105  # loads less
                    os.killpg(program, _TERM)
                except (ProcessLookupError, PermissionError):
                    pass
            while (ended := self._reap()) is not None:
                pid, status, used = ended
                peak_kb = max(peak_kb, used.ru_maxrss)
                if pid == program:
                    code = os.waitstatus_to_exitcode(status)
                    how = b"%d,null" % code if code >= 0 else b"null,%d" % -code
                    cpu_us = round((used.ru_utime + used.ru_stime) * 1_000_000)
                    if of_other >= 0:
                        cpu_us, peak_kb = usage(of_other)
                    return b'{"exited":[%s,%d,%d]}' % (how, cpu_us, peak_kb)

    def _is_stop(self) -> bool:
        """Whether the worker has sent `STOP`."""
        found = False
        os.set_blocking(self._link, False)
        try:
            while data := os.read(self._link, len(STOP)):
                found = True
            if data == b"":
                os._exit(0)  # the worker has died, and so does the program
        except BlockingIOError:
            return found
        finally:
            os.set_blocking(self._link, True)
        return found

    @staticmethod
    def _reap() -> "tuple[int, int, resource.struct_rusage] | None":
        try:
            ended = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        return ended if ended[0] else None

    def _show(self, title: bytes) -> None:
        name = ctypes.create_string_buffer(title)
        _prctl(_PR_SET_NAME, ctypes.addressof(name), 0, 0, 0)
        if len(title) < self._room:
            ctypes.memmove(self._title, title.ljust(self._room, b"\0"), self._room)

    def _tell(self, text: bytes) -> None:
        _write(self._link, _LENGTHS.pack(len(text), 0) + text)


def main() -> None:
    """Run programs, in a process that `execute` has prepared."""
    link, server = map(int, sys.argv[1:3])
    # Again, because the interpreter's file can have capabilities: then the kernel forgets it.
    _prctl(_PR_SET_PDEATHSIG, _KILL, 0, 0, 0)
    if os.getppid() != server:
        return
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != link:  # noqa: PLR2004  # standard error
            try:  # noqa: SIM105  # loads less
                os.close(number)
            except OSError:
                pass  # the descriptor by which the folder was listed
    os.set_blocking(link, True)
    os.set_inheritable(link, False)  # noqa: FBT003  # its parameter has no name
    runner = _ProgramRunner(link)
    if sys.argv[3]:
        _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:  # noqa: SIM105  # loads less
        runner.run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the worker has died


if __name__ == "__main__":
    main()
