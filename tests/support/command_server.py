"""Runs psched's programs, and functions of tests, without importing psched each time.

    python -P command_server.py DESCRIPTOR

An import of SQLAlchemy takes longer than most commands. So this program imports everything once,
and forks a process for each command. In that process, the real program runs from its beginning to
its end. This program has one thread and opens no store. It exits when its standard input ends, as
it does when the process of the tests exits.

The descriptor is a socket that listens; see `support.commands`.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import setproctitle

from psched import cli
from psched.process import kernel

# The commands must not find there what tests share.
sys.path.insert(0, str(Path(__file__).parent))
import process_owner  # found there only

del sys.path[0]

TESTS = Path(__file__).parents[1]


def isolated() -> None:
    """Run a function of a test. Only here, not in commands, are the tests' modules found."""
    sys.path[0] = str(TESTS)  # in the place of the current folder
    importlib.import_module("support.isolated").main()


MAINS = {
    "psched": ("psched", cli.main),
    "psched.cli.daemon.master": ("psched-master", cli.master_main),
    "support.isolated": ("support.isolated", isolated),
}
"""What runs in place of ``python -m MODULE``: the name of the program, and its function."""

PRELOADED = (
    "psched.cli.commands",
    "psched.cli.daemon.master",
    "psched.service.run",
    "psched.stores.sql.store",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
)


def serve(listening: socket.socket) -> dict[str, Any]:
    """Fork a process for each command. The function returns in these processes only."""
    server = os.getpid()
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            with suppress(ChildProcessError):  # owners end now, too; their CPU time counts as ours
                while True:
                    os.wait()
            sys.exit()
        connection, _ = listening.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if os.fork() == 0:
            break
        connection.close()
    listening.close()
    text, descriptors, _, _ = socket.recv_fds(connection, 2**20, 3)
    request: dict[str, Any] = json.loads(text)
    leave_zombies = request.pop("leave_zombies", None)
    if leave_zombies is None:
        kernel.die_with_parent(server)
        run_to_its_end(connection, descriptors)
    else:
        connection.close()
        run_owned(descriptors, leave_zombies=leave_zombies)
    return request


def run_to_its_end(connection: socket.socket, outputs: list[int]) -> None:
    """Fork the command, and report its exit status. Returns in the command's process."""
    waiting = os.getpid()
    if command := os.fork():
        # Who reads the output must see its end.
        for output in outputs:
            os.close(output)
        _, status = os.waitpid(command, 0)
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    kernel.die_with_parent(waiting)
    connection.close()
    take(os.open(os.devnull, os.O_RDONLY), *outputs)


def run_owned(descriptors: list[int], *, leave_zombies: bool) -> None:
    """Fork the command, and own it. Returns in the command's process."""
    *own, output = descriptors
    os.setsid()
    take(*own)
    process_owner.become_owner()
    if command := os.fork():
        os.close(output)
        with suppress(ProcessLookupError):  # it may have done so itself, and ended
            os.setpgid(command, command)
        process_owner.own(command, leaves_zombies=leave_zombies)
        os._exit(0)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    take(os.open(os.devnull, os.O_RDONLY), output, os.dup(output))


def take(*descriptors: int) -> None:
    """Make these the standard input, output and error."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)


def become(module: str, arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """Set what ``python -m MODULE`` finds when it starts, and run it."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    name, main = MAINS[module]
    sys.argv = [name, *arguments]
    status: object = None
    try:
        main()
    except SystemExit as error:
        status = error.code
    # As at the end of an interpreter, but for the freeing of each object, which would copy all
    # the memory that is shared with the server.
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f"{status}\n")
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    for preloaded in PRELOADED:
        importlib.import_module(preloaded)
    gc.freeze()  # a collection in a command would copy the memory that is shared
    setproctitle.getproctitle()  # finds its place, which it cannot after `become`
    become(**serve(socket.socket(fileno=int(sys.argv[1]))))
