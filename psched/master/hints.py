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

from psched.base.clock import Clock
from psched.master.runtime_folders import service_folder, short_address, socket_folders

HINT = b"look"  # the only content of a datagram that a master obeys: some row may be due

_NAME = re.compile(r"wake\.([0-9]{1,10})\.([0-9a-f]{1,64})\.sock")

_LISTING_INTERVAL = 1.0
"""Seconds between two listings of the host's sockets, while no master is found."""

_MOST_LISTED = 100_000
"""The most sockets of a host that are looked through for those of its masters."""

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


class HintSender:
    """Sends hints to the masters of this host that serve a table.

    A master whose socket is in none of the folders is found by the kernel's list of bound sockets:
    its service may have a runtime folder that this program has not heard of. Any process can bind a
    socket with such a name, and gets a word then that tells nothing but that rows may be due.
    """

    def __init__(self, folders: Sequence[Path], code: str, clock: Clock) -> None:
        self._folders = folders
        self._code = code
        self._clock = clock
        self._listed: list[Path] = []
        self._next_listing = 0.0

    def __call__(self) -> None:
        """Send a hint; this neither waits nor fails.

        A master that is dead, that does not permit it, or whose queue is full is left out. A full
        queue contains hints that the master has not read yet, so another one would change nothing.
        """
        paths = [path for folder in self._folders for path in self._in_folder(folder)]
        if _send(paths) or _send(self._listed):
            return
        # A listing takes longer the more sockets a host has: some 0.1 ms for a hundred.
        if (now := self._clock.monotonic()) >= self._next_listing:
            self._next_listing = now + _LISTING_INTERVAL
            self._listed = list(islice(listed_sockets(self._code), _MOST))
            _send(self._listed)

    def _in_folder(self, folder: Path) -> list[Path]:
        try:
            return [path for _, found, path in sockets(folder) if found == self._code]
        except OSError:
            return []


def listed_sockets(code: str) -> Iterator[Path]:
    """The paths at which this host's masters of a table have bound a socket for hints.

    The kernel tells every process, whatever the rights of folder and socket are; and only of
    sockets of the process's own network namespace, not of those of other containers.
    """
    named = re.compile(rb"[^/]*(/.*/wake\.[0-9]{1,10}\.%b\.sock)\n?" % os.fsencode(code))
    with suppress(OSError), Path("/proc/net/unix").open("rb") as listing:
        for line in islice(listing, _MOST_LISTED):
            if match := named.fullmatch(line):
                yield Path(os.fsdecode(match[1]))


def _send(paths: Sequence[Path]) -> bool:
    """Send a hint to each of these sockets; return whether one has it, or has unread ones."""
    reached = False
    if paths:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            for path in paths:
                # A link, which a task can leave here, could lead to the socket of another program.
                with suppress(OSError), short_address(path) as address:
                    if stat.S_ISSOCK(path.lstat().st_mode):
                        with suppress(BlockingIOError):
                            sender.sendto(HINT, address)
                        reached = True
    return reached
