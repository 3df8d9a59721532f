"""The nonces of a master's workers, on file: for the master that follows one that was killed.

A service manager that finds its master dead kills the workers with it, before they could release
what they hold. The next master has it released, once it is known that nothing of them is left:
it finds itself in the same cgroup as the dead one, and alone there.
"""

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files
from psched.base.clock import SystemClock
from psched.base.fault_log import FaultLog
from psched.master.status_socket import service_folder
from psched.process import cgroup, tree

_log = logging.getLogger("psched.master")


class NonceFile:
    """A master's file in a folder that masters may share.

    Args:
        folder: the folder; None: no file is kept.
        cgroup: the cgroup that this process is in, and all that comes of it stays in.
    """

    def __init__(self, folder: Path | None, cgroup: str = "") -> None:
        self._folder = folder
        self._cgroup = cgroup
        self._name = f"nonces.{os.getpid()}.{tree.start_time(os.getpid())}"
        self._written: frozenset[str] = frozenset()
        what = "if this master is killed, its tasks wait for alive_time"
        self._unwritten = FaultLog(what, _log, SystemClock())

    @property
    def kept(self) -> bool:
        """Whether there is a file."""
        return self._folder is not None

    def write(self, nonces: Collection[str]) -> None:
        """Have it list these; a file that lists none is removed."""
        if self._folder is None or self._written == frozenset(nonces):
            return
        path = self._folder / self._name
        try:
            if nonces:
                lines = "".join(f"{line}\n" for line in (self._cgroup, *nonces))
                regular_files.replace(path, lines.encode())
            else:
                regular_files.clear(path)
        except OSError as error:
            self._unwritten.failed(error)
            return
        self._unwritten.passed()
        self._written = frozenset(nonces)

    def inherit(self) -> list[str]:
        """Take over what dead masters in the same cgroup have left.

        The caller must see to it that nobody else is in that cgroup.
        """
        nonces: set[str] = set()
        taken = []
        for path, place, left in self._others():
            if place == self._cgroup:
                nonces.update(left)
                taken.append(path)
        self.write(self._written | nonces)
        for path in taken:
            with suppress(OSError):
                path.unlink()
        return sorted(nonces)

    def _others(self) -> Iterator[tuple[Path, str, list[str]]]:
        """The files of other masters, with what they say; what says nothing is removed.

        Tasks can write to the folder: what looks like such a file may be anything.
        """
        try:
            found = [] if self._folder is None else [*self._folder.glob("nonces.*")]
        except OSError:
            return
        for path in found:
            if path.name == self._name:
                continue
            try:
                place, *left = _lines(path)
            except (FileNotFoundError, PermissionError):
                continue  # its master has removed it; it is another user's
            except (OSError, ValueError) as error:
                _log.warning("%s: is no file of a master's, and is removed: %s", path, error)
                with suppress(OSError):
                    regular_files.clear(path)
            else:
                yield path, place, left


def _lines(path: Path) -> list[str]:
    """The lines of such a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none.
    """
    lines = regular_files.read(path).decode().splitlines()
    if not lines or not all(map(cgroup.is_nonce, lines[1:])):
        raise ValueError("not the nonces of workers")
    return lines


def make(environ: Mapping[str, str]) -> NonceFile:
    """The will of a systemd service that has a runtime folder, else none.

    Without a service manager nobody kills the workers of a dead master: they release what they
    hold themselves.

    Args:
        environ: the environment variables.
    """
    folder = service_folder(environ)
    if folder is None or "INVOCATION_ID" not in environ:
        return NonceFile(None)
    own = cgroup.own_path()
    return NonceFile(None) if own is None else NonceFile(folder, str(own))


def inherited(will: NonceFile) -> list[str]:
    """The nonces of workers that have died with the last master, if nothing of them lives."""
    return will.inherit() if will.kept and cgroup.is_alone() else []
