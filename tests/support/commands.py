"""Programs that tests run in processes of their own, forked by `support.command_server`."""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from support.waiting import HANG_TIMEOUT

SERVER = Path(__file__).with_name("command_server.py")

INTERPRETER = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
"""The variables by which the server's interpreter is started."""

PROGRAMS = "psched", "psched.cli.daemon.master", "support.isolated"
"""The modules that are run: ``python -m`` one of them."""

READ_AT_ITS_START = ("PYTHON", "LC_", "LANG", "LD_")
"""The beginnings of the names of variables that an interpreter reads at its start."""


def can_be_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether it is a program of ours, by an interpreter that starts like that of the server."""
    given = {name: text for name, text in env.items() if name.startswith(READ_AT_ITS_START)}
    ours = [[sys.executable, "-m", module] for module in PROGRAMS]
    return [*command[:3]] in ours and given == INTERPRETER


def run_forked(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command that can be forked, with nothing on its input, and wait for its end.

    Raises:
        TimeoutError: it did not end.
    """
    with contextlib.ExitStack() as opened:

        def output() -> IO[bytes]:
            return opened.enter_context(tempfile.TemporaryFile())

        outputs = output(), output()
        connection = opened.enter_context(_connection())
        _send(connection, command, cwd, env, [each.fileno() for each in outputs])
        status = int(connection.recv(100))
        for each in outputs:
            each.seek(0)
        out, err = (each.read().decode() for each in outputs)
    return subprocess.CompletedProcess(command, status, out, err)


def fork_owned(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    descriptors: tuple[int, int],
    output: Path,
    leave_zombies: bool,
) -> None:
    """Start a command that can be forked below an owner, see `support.process_owner`.

    Args:
        command: the program and its arguments.
        cwd: the folder to run it in.
        env: its environment.
        descriptors: the owner's standard input and output.
        output: the file to which the command's output is appended.
        leave_zombies: whether orphans that have exited are left unreaped.
    """
    with output.open("ab") as file, _connection() as connection:
        given = [*descriptors, file.fileno()]
        _send(connection, command, cwd, env, given, leave_zombies=leave_zombies)
        connection.recv(1)  # the end: the owner has its descriptors


def _connection() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(HANG_TIMEOUT)
    connection.connect(_server())
    return connection


def _send(
    connection: socket.socket,
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    descriptors: Sequence[int],
    **owner: bool,
) -> None:
    _, _, module, *arguments = command
    request = {"module": module, "arguments": arguments, "cwd": str(cwd), "env": {**env}, **owner}
    socket.send_fds(connection, [json.dumps(request).encode()], descriptors)


@cache
def _server() -> bytes:
    """Start the server of this process; return its address.

    Two threads that call this at the same time start two servers, of which one is used.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind("")  # the kernel chooses a free address
        listening.listen(100)
        address: bytes = listening.getsockname()
        server = subprocess.Popen(
            [sys.executable, "-P", str(SERVER), str(listening.fileno())],
            env=INTERPRETER | {"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )
    atexit.register(_end, server)
    return address


def _end(server: subprocess.Popen[bytes]) -> None:
    server.communicate()
