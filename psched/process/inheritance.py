"""The descriptors that user code has opened in a worker, and which of them its tasks inherit.

Files, pipes, folders and devices work in tasks as after any fork(2). Sockets, databases and queues
of the kernel do not: two processes that use one connection read each other's answers, and SQLite's
locks belong to the process that has opened the file. Tasks find these closed, and `lost` names them.
"""

import fcntl
import gc
import io
import os
import re
import socket
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

_DATABASE = re.compile(
    r"(?:\.(?:db3?|sdb|s3db|sqlite3?|mdb|duckdb)|-wal|-shm|-journal|/etilqs_\w+)(?: \(deleted\))?",
    re.IGNORECASE,
)
"""Matches the end of the path of a database file, of one of its companions, or of a temporary file
of SQLite's."""

_COMPANION = re.compile(r"-(?:wal|shm|journal)$")

_SQLITE = b"SQLite format 3\0"

_QUEUE = "anon_inode:"
"""The beginning of what /proc shows instead of a path for epoll, inotify and their like."""

_FARTHEST, _MOST = 8, 500
"""The most references between a module and what it has opened, and the most objects that are
examined at one distance, if the module is to be named."""


class _Open(NamedTuple):
    """An open descriptor: its number, what /proc shows as its path, and its fstat(2)."""

    number: int
    path: str
    status: os.stat_result


def open_descriptors() -> frozenset[int]:
    """The numbers of this process's descriptors.

    Raises:
        OSError: no descriptor is left to read /proc with.
    """
    return frozenset(each.number for each in _all_open())


class UserDescriptors:
    """The descriptors that user code has opened, which this object finds when it is created.

    Files that user code has written to are flushed, because each task would write what is left in
    the buffers again.

    Args:
        own: the descriptors that were open before user code was run.

    Raises:
        OSError: no descriptor is left to read /proc with.
    """

    def __init__(self, own: Collection[int]) -> None:
        self._opened = [each for each in _all_open() if each.number not in own]
        self._marks = {mark for each in self._opened for mark in _marks(each)}
        if self._opened:
            _flush_files()

    def inherited(self) -> list[int]:
        """The descriptors that a process gets which is forked now.

        User code can have opened others since: a log handler opens its file again, or late. So a
        descriptor counts if it is the same file, has the same path, or if it is a file that was
        opened to append; psched itself appends only to its log.

        Raises:
            OSError: no descriptor is left to read /proc with.
        """
        return [
            each.number
            for each, database in _with_kinds([*_all_open()])
            if _is_file(each) and not database and (_is_log(each) or self._marks & _marks(each))
        ]

    def lost(self) -> Iterator[str]:
        """Yield a text for each descriptor that tasks find closed: what it is, and what to do.

        Call this after a fork: what a library closes in its own fork handler is not named.
        """
        now = {each.number: each for each in _all_open()}
        for each, database in _with_kinds(self._opened):
            still = now.get(each.number)
            if (_is_file(each) and not database) or still is None or _marks(still) != _marks(each):
                continue
            module = _module_of(each, is_database=database)
            opener = f"the module {module!r} has opened" if module else "was opened at import"
            yield (
                f"descriptor {each.number}, {_described(each, is_database=database)}, {opener}: tasks"
                " find it closed; open it in the task, or in after_fork"
            )


def _all_open() -> Iterator[_Open]:
    for name in os.listdir("/proc/self/fd"):
        # Ignore the descriptor by which the folder was listed, because it is closed already.
        with suppress(OSError):
            yield _Open(int(name), os.readlink(f"/proc/self/fd/{name}"), os.fstat(int(name)))


def _marks(each: _Open) -> set[object]:
    return {each.path, (each.status.st_dev, each.status.st_ino)}


def _is_file(each: _Open) -> bool:
    """Whether it is something that several processes can use: no socket, no queue of the kernel."""
    return not stat.S_ISSOCK(each.status.st_mode) and not each.path.startswith(_QUEUE)


def _is_log(each: _Open) -> bool:
    """Whether it is a regular file that was opened to append."""
    if not stat.S_ISREG(each.status.st_mode):
        return False
    return bool(fcntl.fcntl(each.number, fcntl.F_GETFL) & os.O_APPEND)


def _with_kinds(descriptors: list[_Open]) -> Iterator[tuple[_Open, bool]]:
    """Yield each descriptor with whether it is one of a database."""
    # A database that is being created has a journal, but no header yet.
    main = {_COMPANION.sub("", each.path) for each in descriptors if _COMPANION.search(each.path)}
    for each in descriptors:
        database = False
        if stat.S_ISREG(each.status.st_mode):
            database = each.path in main or _DATABASE.search(each.path) is not None
            with suppress(OSError):  # it can only be written
                database = database or os.pread(each.number, len(_SQLITE), 0) == _SQLITE
        yield each, database


def _described(each: _Open, *, is_database: bool) -> str:
    if is_database:
        return f"the database {each.path}"
    if not stat.S_ISSOCK(each.status.st_mode):
        return each.path.removeprefix(_QUEUE).strip("[]")
    # A copy, because the object closes its descriptor.
    with socket.socket(fileno=os.dup(each.number)) as end:
        for word, ask in (("to", end.getpeername), ("at", end.getsockname)):
            with suppress(OSError):
                if address := ask():
                    return f"a socket {word} {_text(address)}"
    return "a socket without an address"


def _text(address: object) -> str:
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return os.fsdecode(address) if isinstance(address, bytes) else str(address)


def _flush_files() -> None:
    for each in gc.get_objects():
        # The type is asked, because objects of users' classes can do anything when they are.
        if issubclass(type(each), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with suppress(Exception):
                each.flush()


def _module_of(each: _Open, *, is_database: bool) -> str | None:
    """The module whose variables lead to the object that has a descriptor; None if none do."""
    sqlite3 = sys.modules.get("sqlite3")
    path = _COMPANION.sub("", each.path)
    found = []
    # Garbage collection does not know some objects that refer to no others, such as of epoll.
    variables = (vars(module).values() for name, module in _modules() if _is_users(name))
    for known in chain(gc.get_objects(), *variables):
        if is_database and sqlite3 is not None and issubclass(type(known), sqlite3.Connection):
            with suppress(sqlite3.Error):
                files = known.execute("pragma database_list")
                found += [known for _, _, file in files if file == path]
        elif _number(known) == each.number:
            found.append(known)
    return module_of(found)


def _number(known: Any) -> int | None:  # noqa: ANN401  # any object
    # Only classes are asked for the method: an object of a user's can do anything.
    if isinstance(known, type) or not callable(getattr(type(known), "fileno", None)):
        return None
    with suppress(Exception):
        return int(known.fileno())
    return None


def module_of(wave: list[Any]) -> str | None:
    """The module whose variables lead to one of some objects by the fewest references.

    Of several, it is the one that was loaded first. None if no variables lead there. Modules of the
    standard library and psched's do not count.
    """
    modules = {id(vars(module)): name for name, module in _modules()}
    seen = {id(modules)}
    for _ in range(_FARTHEST):
        here = {*map(id, wave)}
        for number, name in modules.items():
            if number in here and _is_users(name):
                return name
        seen |= here | {id(wave)}
        # What refers to the variables of a module is no part of the way. And if there are many
        # objects, they refer to a class or the like, which says nothing.
        within = [each for each in wave if id(each) not in modules]
        seen.add(id(within))
        wave = [each for each in gc.get_referrers(*within) if id(each) not in seen][:_MOST]
    return None


def _modules() -> list[tuple[str, ModuleType]]:
    """The modules in the order in which they were loaded."""
    return [(name, each) for name, each in [*sys.modules.items()] if isinstance(each, ModuleType)]


def _is_users(name: str) -> bool:
    top = name.partition(".")[0]
    return name == "__main__" or (top != "psched" and top not in sys.stdlib_module_names)
