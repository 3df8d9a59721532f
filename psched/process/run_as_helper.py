"""psched-run-as, the helper of root that starts programs as other users, if root's list allows it.

::

    psched-run-as (root)            listens on a socket that only the service's user may open
    └─ psched-run-as (root)         one for each program: it checks the request, and watches
       └─ program (another user)    in the control group of the task

This is the only part of psched that runs as root. It has no store and no configuration, and trusts
nothing that it is sent: who asks is what the kernel says, and what is allowed is in root's list
(`psched.process.run_as_list`), which is read at each request. A request names the user, the program
with its arguments, the working folder and variables, and brings the program's standard input,
output and error.

The program belongs to the task's control group, so that the worker, the master or systemd kill it
with the task. The helper kills the whole group as well when the process that has asked is gone: the
kernel lets that process die with its worker. When a helper dies, the kernel kills its program.
"""

import ctypes
import os
import pwd
import re
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, NoReturn

from psched.process import run_as_list
from psched.process.run_as_list import RefusedError

_PATIENCE = 10.0
"""Seconds within which a request must be complete, so that no slow peer keeps a process of root."""

_SHORTEST = 0.001
"""Seconds that are left to a request that is late; none at all would be another error."""

_LARGEST = 1 << 20
"""The most bytes of a request; the kernel accepts little more for a program."""

_LENGTHS = struct.Struct("!II")
_CREDENTIALS = struct.Struct("iII")  # of SO_PEERCRED: pid, user, group

_FIRST_SOCKET = 3  # see sd_listen_fds(3)

_STREAMS = 3
_DESCRIPTORS = _STREAMS + 1  # and a file that kills the control group of the task

_CGROUPS = "/sys/fs/cgroup"

_OF_A_TASK = re.compile(r"/psched\.[0-9]+\.[0-9]+/[A-Za-z0-9._-]+/run-[0-9]+$")
"""How the path of a task's control group ends; `psched.process.cgroup` makes it."""

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38

_MOST_DESCRIPTORS = 1 << 20


class Request(NamedTuple):
    """What is asked for."""

    is_question: bool  # only whether it is allowed
    user: str
    folder: str | None
    arguments: list[str]
    environment: dict[str, str]


def parse(head: bytes) -> Request:
    """The request in these fields."""
    try:
        verb, user, folder, count, *texts = map(os.fsdecode, head.split(b"\0"))
        number = int(count)
    except ValueError:
        raise RefusedError("the request cannot be understood") from None
    if verb not in {"run", "ask"} or not 0 < number <= len(texts):
        raise RefusedError("the request cannot be understood")
    variables = [text.partition("=") for text in texts[number:]]
    environment = {name: value for name, _, value in variables}
    return Request(verb == "ask", user, folder or None, texts[:number], environment)


class Helper:
    """Serves one connection, in a process of its own.

    Args:
        connection: of the process that asks.
        caller: the number of the service's user, who alone may have programs started.
        path: of root's list.
    """

    def __init__(
        self, connection: socket.socket, caller: int, path: str = run_as_list.PATH
    ) -> None:
        self._connection = connection
        self._caller = caller
        self._path = path
        self._given: list[int] = []

    def serve(self) -> None:
        """Start the program that is asked for, or refuse it; return when it has ended."""
        size = _CREDENTIALS.size
        packed = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, user, _ = _CREDENTIALS.unpack(packed)
        asked = f"asked by process {pid} of user {user}"
        try:
            request = self._receive(user)
            account = run_as_list.account_of(request.user)
            environment = self._check(request, account)
            if request.is_question:
                self._tell("allowed")
                return
            procs = open_group(pid, self._caller, self._given[_STREAMS])
            self._start(request, account, environment, procs)
        except RefusedError as refusal:
            text = _plain(str(refusal))
            _log(f"refused: {text} ({asked})")
            with suppress(OSError):
                self._tell(f"refused {text}")
            return
        kill = self._given.pop()
        for number in (*self._given, procs):
            os.close(number)
        what = _plain(request.arguments[0])
        key = _plain(request.environment.get("PSCHED_OCCURRENCE", "-"))
        _log(f"started as {account.pw_name}, process {self._program}: {what} (task {key}, {asked})")
        self._watch(kill)

    def _receive(self, user: int) -> Request:
        if user not in {0, self._caller}:
            raise RefusedError("only the user of the service may ask")
        head = b""
        until = time.monotonic() + _PATIENCE
        try:
            self._connection.settimeout(_PATIENCE)
            size = _LENGTHS.size
            chunk, self._given, _, _ = socket.recv_fds(self._connection, size, _DESCRIPTORS)
            length, more = _LENGTHS.unpack(chunk) if len(chunk) == size else (0, 0)
            while not more and len(head) < length <= _LARGEST and chunk:
                self._connection.settimeout(max(until - time.monotonic(), _SHORTEST))
                chunk = self._connection.recv(length - len(head))
                head += chunk
        except OSError as error:
            raise RefusedError(f"the request cannot be read: {error}") from None
        if more or len(head) < length:
            raise RefusedError("the request is too large, or ends early")
        request = parse(head)
        if not request.is_question and len(self._given) != _DESCRIPTORS:
            raise RefusedError("the request brings no input and output")
        return request

    def _check(self, request: Request, account: pwd.struct_passwd) -> dict[str, str]:
        """The environment of the program; refuses what root does not allow."""
        rules = run_as_list.read(self._path)
        arguments, asked = request.arguments, request.environment
        environment = run_as_list.allowed(
            rules, account, arguments, asked, request.folder, path=self._path
        )
        if (why := run_as_list.why_changeable(arguments[0], account.pw_uid)) is not None:
            raise RefusedError(f"{arguments[0]}: {why}")
        return environment

    def _start(
        self,
        request: Request,
        account: pwd.struct_passwd,
        environment: Mapping[str, str],
        procs: int,
    ) -> None:
        reader, writer = os.pipe()
        parent = os.getpid()
        try:
            self._program = os.fork()
            if self._program == 0:
                numbers = [*self._given[:_STREAMS], procs, self._connection.fileno(), writer]
                _become(request, account, environment, numbers, parent)
        except OSError as error:
            raise RefusedError(f"no process can be started: {error.strerror}") from None
        os.close(writer)
        why = os.read(reader, 1000).decode(errors="replace")  # the end: the program is executed
        os.close(reader)
        if why:
            os.waitpid(self._program, 0)
            raise RefusedError(why)

    def _watch(self, kill: int) -> None:
        """Tell how the program ends; kill its control group if nobody is there to be told."""
        self._connection.settimeout(None)
        ended = os.pidfd_open(self._program)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(self._connection, select.POLLIN)
        with suppress(OSError):
            self._tell("started")
        while ended not in dict(poll.poll()):
            try:
                asked = self._connection.recv(100)
            except OSError:
                asked = b""
            if asked:
                os.killpg(self._program, signal.SIGTERM)
                continue
            os.kill(self._program, signal.SIGKILL)
            with suppress(OSError):  # the group is gone
                os.write(kill, b"1")
            break
        _, status, used = os.wait4(self._program, 0)
        cpu_us = round((used.ru_utime + used.ru_stime) * 1_000_000)
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):
            self._tell(f"exited {code} {cpu_us} {used.ru_maxrss}")

    def _tell(self, line: str) -> None:
        self._connection.sendall(line.encode(errors="replace") + b"\n")


def open_group(pid: int, caller: int, kill: int) -> int:
    """Open the file by which a process joins the control group that another is in.

    It must be the group of a task, made by the caller: no other is joined, also if another process
    has got this pid. What kills a larger one would kill psched with it. Root writes to the file
    ``kill``, which the process has sent as the one that kills the group, so it must be no other.
    """
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:  # noqa: PTH123  # loads less
            names = [line[3:-1] for line in file if line.startswith("0::/")]
        if len(names) != 1 or ".." in names[0].split("/"):
            raise RefusedError("the task has no control group of version 2")
        folder = os.open(_CGROUPS + names[0], os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(folder).st_uid != caller or not _OF_A_TASK.search(names[0]):
                raise RefusedError(
                    "the task has no control group of its own, so nobody could kill it: let psched"
                    " run under its unit, with Delegate=yes and without cgroup: off"
                )
            ours = os.stat("cgroup.kill", dir_fd=folder, follow_symlinks=False)
            if not os.path.samestat(ours, os.fstat(kill)):
                raise RefusedError("the request brings no file that kills the task's control group")
            return os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise RefusedError(f"the control group of the task cannot be joined: {error}") from None


def _become(
    request: Request,
    account: pwd.struct_passwd,
    environment: Mapping[str, str],
    numbers: list[int],
    parent: int,
) -> NoReturn:
    """Execute the program in this process, which was forked for it; report why it cannot be."""
    *streams, procs, asking, report = numbers
    step = "its control group"
    try:
        os.setsid()
        os.write(procs, b"0")
        for number, given in enumerate(streams):
            os.dup2(given, number)
        step = f"user {account.pw_name}"
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
        user, group = account.pw_uid, account.pw_gid
        os.initgroups(account.pw_name, group)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        if os.getresuid() != (user,) * 3 or os.getresgid() != (group,) * 3 or user == 0:
            os._exit(1)
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # Now, because the kernel forgets it when a process changes its user.
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        os.umask(0o022)
        step = "its folder"
        try:
            os.chdir(request.folder or account.pw_dir)
        except OSError:
            if request.folder is not None:
                raise
            os.chdir("/")
        # The user's groups or folder may have taken long. If the task has been killed meanwhile, it
        # may run elsewhere; from now on, this process is killed with it, as it is in its group.
        if _has_left(asking):
            os.write(report, b"who has asked is gone")
            os._exit(1)
        os.closerange(_STREAMS, report)
        os.closerange(report + 1, _MOST_DESCRIPTORS)
        for signal_ in signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM:
            signal.signal(signal_, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = request.arguments[0]
        os.execve(request.arguments[0], request.arguments, environment)  # noqa: S606  # no shell
    except OSError as error:
        os.write(report, f"{step}: {error.strerror}".encode(errors="replace"))
    finally:
        os._exit(1)


def _has_left(connection: int) -> bool:
    """Whether the process at the other end of a connection has closed it, or has died."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


def _plain(text: str) -> str:
    """A text without line ends and other characters that would forge a log line."""
    shown = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)
    return shown if len(shown) <= 500 else shown[:500] + "…"  # noqa: PLR2004  # of a line


def _log(text: str) -> None:
    sys.stderr.write(f"psched-run-as: {text}\n")
    sys.stderr.flush()


def listen(listener: socket.socket, caller: int, path: str = run_as_list.PATH) -> NoReturn:
    """Serve every connection in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                if os.fork():
                    continue
            except OSError as error:
                _log(f"refused: no process can be forked: {error.strerror}")
                continue
            try:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                Helper(connection, caller, path).serve()
            except BaseException as error:  # noqa: BLE001  # it ends this process alone
                _log(f"failed: {error!r}")
            finally:
                os._exit(0)


def main() -> None:
    """The program psched-run-as, which systemd starts with a socket; see systemd/."""
    user = sys.argv[1] if len(sys.argv) == 2 else ""  # noqa: PLR2004  # its one argument
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not user or os.geteuid() != 0:
        sys.exit(
            "psched-run-as starts programs as other users. systemd starts it as root, with a"
            " socket, and names the user of the service: psched install-systemd --run-as"
        )
    try:
        caller = pwd.getpwnam(user).pw_uid
    except KeyError:
        sys.exit(f"psched-run-as: this host has no user {user!r}")
    listen(socket.socket(fileno=_FIRST_SOCKET), caller)


if __name__ == "__main__":
    main()
