"""The descriptors that user code has opened in a worker, and which of them its tasks inherit.

Files, pipes, folders and devices work in tasks as after any fork(2). Sockets, databases and queues
of the kernel do not: two processes that use one connection read each other's answers, and SQLite's
locks belong to the process that has opened the file. Tasks find these closed; `lost` names them.
"""

import fcntl
import gc
import os
import re
import socket
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

_DATABASE = re.compile(r"(?i)(\.(db3?|sdb|s3db|sqlite3?|mdb|duckdb)|/etilqs_\w+)( \(deleted\))?$")
"""Matches the path of a database file, and of a temporary file of SQLite's."""

_COMPANION = re.compile(r"-(wal|shm|journal)$")
"""Matches the path of a file that SQLite keeps beside a database."""

_SQLITE = b"SQLite format 3\0"

_MOST = 10_000
"""The most references of one object that are followed if a module is to be named."""


class _Open(NamedTuple):
    """A descriptor; of two of the same file, the path or the inode is the same."""

    number: int
    path: str
    inode: tuple[int, int]
    mode: int


def open_descriptors() -> frozenset[int]:
    """The numbers of this process's descriptors."""
    return frozenset(each.number for each in _all_open())


class UserDescriptors:
    """The descriptors that user code has opened: those that are open now, and were not ``own``."""

    def __init__(self, own: Collection[int]) -> None:
        self._opened = [each for each in _all_open() if each.number not in own]
        self._known = {mark for each in self._opened for mark in (each.path, each.inode)}

    def inherited(self) -> list[int]:
        """The descriptors that a process gets which is forked now.

        A log handler can have opened its file since, or again. So files with the same path count,
        and those that were opened to append: psched itself appends only to its log.
        """
        now = {each.number: each for each in _all_open()}
        return [
            number
            for number in now.keys() - _not_shared([*now.values()])
            if not self._known.isdisjoint(now[number]) or was_opened(number, os.O_APPEND)
        ]

    def lost(self) -> Iterator[str]:
        """Yield a text for each descriptor that tasks find closed: what it is, and what to do.

        Call this after a fork: what a library closes in its own fork handler is not named.
        """
        still = [each for each in _all_open() if each in self._opened]
        if not (lost := _not_shared(still)):
            return
        modules = _modules_of({each.number: each.path for each in still})
        for number, what in lost.items():
            module = modules.get(number)
            opener = f"the module {module!r} has opened" if module else "was opened at import"
            yield (
                f"descriptor {number}, {what}, {opener}: tasks find it closed; open it in the task,"
                " or in after_fork"
            )


def _all_open() -> Iterator[_Open]:
    for name in os.listdir("/proc/self/fd"):
        # Ignore the descriptor by which the folder was listed, because it is closed already.
        with suppress(OSError):
            path, status = Path(f"/proc/self/fd/{name}").readlink(), os.fstat(int(name))
            yield _Open(int(name), str(path), (status.st_dev, status.st_ino), status.st_mode)


def was_opened(number: int, how: int) -> bool:
    """Whether it is a regular file that was opened to append (O_APPEND) or only to read."""
    flags = fcntl.fcntl(number, fcntl.F_GETFL) & (how or os.O_ACCMODE)
    return flags == how and stat.S_ISREG(os.fstat(number).st_mode)


def _not_shared(descriptors: list[_Open]) -> dict[int, str]:
    """What those descriptors are that tasks must not share, by their numbers."""
    # A database that is being created has a journal, but no header yet.
    main = {_COMPANION.sub("", each.path) for each in descriptors if _COMPANION.search(each.path)}
    found = {}
    for number, path, _, mode in descriptors:
        if stat.S_ISSOCK(mode):
            found[number] = f"a socket {_address(number)}"
        elif queue := path.partition("anon_inode:")[2]:  # epoll, inotify and their like
            found[number] = queue.strip("[]")
        elif stat.S_ISREG(mode):
            is_database = _COMPANION.sub("", path) in main or _DATABASE.search(path) is not None
            with suppress(OSError):  # it can only be written
                is_database = is_database or os.pread(number, len(_SQLITE), 0) == _SQLITE
            if is_database:
                found[number] = f"the database {path}"
    return found


def _address(number: int) -> str:
    # A copy, because the object closes its descriptor.
    with socket.socket(fileno=os.dup(number)) as end:
        try:
            word, address = "to", end.getpeername()
        except OSError:
            word, address = "at", end.getsockname()
    parts = address[:2] if isinstance(address, tuple) else [address]
    return f"{word} {':'.join(map(str, parts))}" if address else "without an address"


def _modules_of(paths: Mapping[int, str]) -> dict[int, str]:
    """The modules whose variables lead to the objects that have descriptors, as far as known."""
    sqlite3 = sys.modules.get("sqlite3")
    found: dict[int, str] = {}
    for each, module in reachable():
        # Only classes are asked for what they have: an object of a user's can do anything.
        kind = type(each)
        with suppress(Exception):
            if sqlite3 is not None and issubclass(kind, sqlite3.Connection):
                files = {file for _, _, file in each.execute("pragma database_list")}
                for number, path in paths.items():
                    if _COMPANION.sub("", path) in files:
                        found.setdefault(number, module)
            elif kind is not type and hasattr(kind, "fileno"):
                found.setdefault(each.fileno(), module)
    return found


def reachable() -> Iterator[tuple[Any, str]]:
    """Yield objects to which variables of users' modules lead, each with the module's name.

    What fewer references lead to comes first, and of several modules the one that was loaded first.
    """
    modules = _modules()
    # The way does not lead through other modules.
    seen = {number for _, each in modules for number in (id(each), id(vars(each)))}
    wave: list[tuple[Any, str]]
    wave = [(vars(module), name) for name, module in modules if is_users(name)]
    while wave:
        further = []
        for holder, name in wave:
            for each in gc.get_referents(holder)[:_MOST]:
                if id(each) not in seen:
                    seen.add(id(each))
                    yield each, name
                    further.append((each, name))
        wave = further


def _modules() -> list[tuple[str, ModuleType]]:
    """The modules in the order in which they were loaded."""
    # Users' code may put anything there.
    loaded: list[tuple[str, Any]] = [*sys.modules.items()]
    return [(name, each) for name, each in loaded if isinstance(each, ModuleType)]


def is_users(name: str) -> bool:
    """Whether a module with this name is neither psched's nor of Python's library."""
    top = name.partition(".")[0]
    return name == "__main__" or (top != "psched" and top not in sys.stdlib_module_names)
