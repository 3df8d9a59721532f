"""How a change of the schedules wakes an idle worker of the same host before its next poll.

A program that has made a row due sends a hint, a datagram without any data, to the sockets of the
masters that serve its table; `psched.master.waking` obeys it.
"""

import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from psched.master.runtime_folders import service_folder, short_address, socket_folders

HINT = b"look"  # the only content of a datagram that a master obeys: some row may be due

_NAME = re.compile(r"wake\.([0-9]{1,10})\.([0-9a-f]{1,64})\.sock")

_MOST = 1000
"""The most files of a folder that are examined, and the most sockets that get a hint. There is a
limit because tasks can create any number of files in the folder."""


def socket_name(pid: int, code: str) -> str:
    """The file name of the socket on which the master with this pid receives hints."""
    return f"wake.{pid}.{code}.sock"


def sockets(folder: Path) -> Iterator[tuple[int, str, Path]]:
    """Yield the pid, the code and the path of each such socket; the master might be dead."""
    with os.scandir(folder) as entries:
        for entry in islice(entries, _MOST):
            if match := _NAME.fullmatch(entry.name):
                yield int(match[1]), match[2], folder / match[0]


def hint_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders in which the sockets of a host's masters can be, as far as this process knows.

    A program that is itself a service has a runtime folder of its own, which is not that of psched,
    unless this process is one of psched's.
    """
    others = {name: value for name, value in environ.items() if name != "RUNTIME_DIRECTORY"}
    own = service_folder(environ)
    return [*([] if own is None else [own]), *socket_folders(others)]


def send_hint(folders: Sequence[Path], code: str) -> None:
    """Send a hint to the masters of this host that serve a table.

    This neither waits nor fails: a master that is dead, that does not permit it, or whose queue is
    full is left out. A full queue contains hints that the master has not read yet, so another one
    would change nothing.
    """
    for folder in folders:
        with suppress(OSError):
            paths = [path for _, found, path in sockets(folder) if found == code]
            if paths:
                _send(paths)


def _send(paths: Sequence[Path]) -> None:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_UNIX, kind) as sender:
        for path in paths:
            # A link, which a task can leave here, could lead to the socket of another program.
            with suppress(OSError), short_address(path) as address:
                if stat.S_ISSOCK(path.lstat().st_mode):
                    sender.sendto(HINT, address)
