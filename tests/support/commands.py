"""Commands of ``psched`` that tests run in processes of their own, see `support.command_server`."""

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

_OF_INTERPRETERS = ("PYTHON", "LC_", "LANG", "LD_")


def can_be_forked(environment: Mapping[str, str]) -> bool:
    """Whether an interpreter that starts with this environment is like that of the server."""
    given = {name: text for name, text in environment.items() if name.startswith(_OF_INTERPRETERS)}
    return given == INTERPRETER


def run_psched(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``psched`` and wait for its end.

    Args:
        arguments: without the name of the program.
        cwd: the folder to run it in.
        env: its environment; `can_be_forked` is true for it.

    Raises:
        TimeoutError: it did not end.
    """
    request = json.dumps({"arguments": [*arguments], "cwd": str(cwd), "env": {**env}})
    with contextlib.ExitStack() as opened:

        def output() -> IO[bytes]:
            return opened.enter_context(tempfile.TemporaryFile())

        outputs = output(), output()
        connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(HANG_TIMEOUT)
        connection.connect(_server())
        socket.send_fds(connection, [request.encode()], [each.fileno() for each in outputs])
        status = int(connection.recv(100))
        for each in outputs:
            each.seek(0)
        out, err = (each.read().decode() for each in outputs)
    return subprocess.CompletedProcess(["psched", *arguments], status, out, err)


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
