"""Runs the command ``psched`` without importing psched and its packages each time.

    python -P command_server.py DESCRIPTOR

An import of SQLAlchemy takes longer than most commands. So this program imports everything once,
and forks a process for each command. In that process, the real program runs from its beginning to
its end. This program has one thread and opens no store. It exits when its standard input ends, as
it does when the process of the tests exits.

The descriptor is a socket that listens; see `support.commands`.
"""

import importlib
import json
import os
import select
import socket
import sys
import time
from contextlib import suppress

from psched.process import kernel

PRELOADED = (
    "psched.cli.commands",
    "psched.stores.sql.store",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
)


def serve(listening: socket.socket) -> None:
    """Fork a process for each command. The function returns in these processes only."""
    server = os.getpid()
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            sys.exit()
        connection, _ = listening.accept()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if os.fork() == 0:
            break
        connection.close()
    listening.close()
    kernel.die_with_parent(server)
    request, outputs, _, _ = socket.recv_fds(connection, 2**20, 2)
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
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
        os.close(output)
    become(**json.loads(request))


def become(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """Set what ``python -m psched`` finds when it starts, with nothing on standard input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.argv = ["psched", *arguments]
    sys.path.insert(0, cwd)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))

    from psched.cli import main

    main()
