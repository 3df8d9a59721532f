"""A file that tells all users of this host which database a master serves.

The status socket of a service belongs to the service's user, so other users cannot ask it. With
this file, their commands find out that the service uses another database than they would, before
they write to it. The file contains no secrets. Tasks of the service can change or forge it, so it
is information only: commands show its content to the user, and do nothing else with it.

The file's name contains the pid and the start time of its master, so that files of dead masters are
recognised.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from psched.base import regular_files
from psched.process import tree

_NAME = re.compile(r"service\.([0-9]{1,10})\.([0-9]{1,20})\.json")

_MOST = 1000
"""The most files that are examined in one folder. There is a limit because tasks can create any
number of files."""

_MODE = 0o644


class Service(NamedTuple):
    """What a master has published."""

    pid: int
    url: str  # without secrets
    table: str
    config: str  # the path of its configuration file; empty if it has none


class ServiceFile:
    """The file of this master; none if there is no folder for it."""

    def __init__(self, folder: Path | None) -> None:
        self._path: Path | None = None
        self._published: Mapping[str, str] = {}
        if folder is not None:
            pid = os.getpid()
            self._path = folder / f"service.{pid}.{tree.start_time(pid)}.json"
            _remove_stale(folder)

    def publish(self, about: Mapping[str, str]) -> None:
        """Write the file if this master does not yet publish these values.

        Nothing is written before the master knows its database. If the file cannot be written, the
        next call of `check` or with other values tries again.
        """
        if self._path is None or "url" not in about or about == self._published:
            return
        self._published = about
        self._write(self._path)

    def check(self) -> None:
        """Write the file again if a task has removed or replaced it."""
        if self._path is not None and self._published and not regular_files.is_regular(self._path):
            self._write(self._path)

    def _write(self, path: Path) -> None:
        shown = {name: self._published.get(name, "") for name in ("url", "table", "config")}
        content = json.dumps({**shown, "namespace": _pid_namespace()}).encode()
        # The umask of a service keeps others from reading new files. This file is for others.
        before = os.umask(0o022)
        try:
            with suppress(OSError):
                regular_files.replace(path, content, _MODE)
        finally:
            os.umask(before)

    def close(self) -> None:
        """Remove the file."""
        if self._path is not None and self._published:
            with suppress(OSError):
                regular_files.clear(self._path)


def find_services(folders: Sequence[Path]) -> Iterator[Service]:
    """Yield what the living masters of this host have published; other files are left out."""
    for folder in folders:
        for pid, start, path in _files(folder):
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                told = json.loads(regular_files.read(path))
                # In another pid namespace, such as that of a container, the pid has no meaning.
                if told["namespace"] == _pid_namespace() and tree.lives(pid, start):
                    yield Service(pid, str(told["url"]), str(told["table"]), str(told["config"]))


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the pid, the start time and the path of each file in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        found = (match for entry in entries if (match := _NAME.fullmatch(entry.name)))
        for match in islice(found, _MOST):
            yield int(match[1]), int(match[2]), folder / match[0]


def _remove_stale(folder: Path) -> None:
    """Remove the files of masters that were killed."""
    for pid, start, path in _files(folder):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            told = json.loads(regular_files.read(path))
            if told["namespace"] == _pid_namespace() and not tree.lives(pid, start):
                path.unlink()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
