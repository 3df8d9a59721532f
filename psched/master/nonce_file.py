"""A file of workers' nonces, for the next master if a master and its workers are killed.

A nonce is a random text that identifies a worker in the leases of its tasks. A killed worker does
not release its leases, so its master has another worker release them. If the master is killed at
the same time, for example by ``pkill -9`` or by a service manager, the next master on the host
reads the nonces of the killed workers from this file and has their leases released.

Tasks whose leases are released run again, so all processes of the killed worker and of its tasks
must have ended before. Therefore the next master takes a nonce from the file (it inherits the
nonce) only if both conditions are true:

- The master that wrote the file is dead.
- No process is left in the cgroup that the worker was in. If the worker had its own cgroup (see
  `cgroup`), that cgroup must be empty or removed. A starting master kills the processes in the
  cgroups of dead masters when it creates its own cgroup. If the worker had no cgroup of its own, it
  was in the cgroup of its master. The next master must then be the only process in that cgroup, as
  after a restart by systemd.

If a condition is false or cannot be checked, the nonce stays in the file. The worker's leases are
then not released, but end when they expire.

The first line of a file identifies the boot, the pid namespace, the cgroup namespace and the cgroup
of the master that wrote it. A master inherits nonces only from files whose first line equals its
own, because pids and names of cgroups are not valid elsewhere. Each other line is a nonce, followed
by ``own`` if the worker was in its own cgroup.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files
from psched.base.clock import Clock
from psched.base.fault_log import FaultLog
from psched.master.kept_socket import CHECK_INTERVAL
from psched.master.runtime_folders import usable_folder
from psched.process import cgroup, tree
from psched.process.cgroup import Cgroup

_log = logging.getLogger("psched.master")

_NAME = re.compile(r"nonces\.([0-9]{1,20})\.([0-9]{1,20})")

_PLACE = re.compile(r"\S+ [0-9]+ [0-9]+ .+")

_OWN = "own"

_MOST = 5000
"""The most nonces that a starting master inherits. There is a limit because a task can write any
number of nonces, and a worker needs about a millisecond to release the leases of each. Three
generations of a thousand workers have fewer nonces."""


class NonceFile:
    """The nonce file of one master, in a folder with those of others; if it is None, no file."""

    def __init__(self, folder: Path | None, place: str, group: Cgroup | None, clock: Clock) -> None:
        self._folder = folder
        self._place = place
        self._group = group
        self._name = f"nonces.{os.getpid()}.{tree.start_time(os.getpid())}"
        self._in_own_cgroup: dict[str, bool] = {}
        self._written: Mapping[str, bool] = {}
        what = "if this master is killed, its tasks wait for alive_time"
        self._outage = FaultLog(what, _log, clock)
        self._clock = clock
        self._next_check = 0.0

    def add(self, nonce: str, *, own_cgroup: bool) -> None:
        """Add the nonce of a worker that holds no lease yet to the file."""
        self._in_own_cgroup[nonce] = own_cgroup
        self._write()

    def remove(self, nonces: Iterable[str]) -> None:
        """Remove nonces from the file, because their workers no longer hold a lease."""
        for nonce in nonces:
            self._in_own_cgroup.pop(nonce, None)
        self._write()

    def keep(self) -> None:
        """Write the file again if a task has removed it, or it could not be written."""
        now = self._clock.monotonic()
        if self._folder is None or now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        if self._written and not regular_files.is_regular(self._folder / self._name):
            self._written = {}
        self._write()

    def inherit(self) -> list[str]:
        """Take over each nonce in dead masters' files whose worker has no process; return all.

        A dead master's file is removed when all its nonces have been taken over.
        """
        is_alone = self._group is not None and self._group.pids == [os.getpid()]
        for path, nonces in self._of_dead_masters():
            if len(self._in_own_cgroup) + len(nonces) > _MOST:
                continue
            inherited = [nonce for nonce, own in nonces if (own.is_empty if own else is_alone)]
            # Write the nonces to this master's file before the other file is removed, so that no
            # nonce is lost if this master is killed in between. Mark the nonces as "own". The next
            # master can then inherit them, because it finds no cgroups for them below this master's
            # cgroup, and a missing cgroup counts as empty.
            self._in_own_cgroup |= dict.fromkeys(inherited, True)
            if self._write() and len(inherited) == len(nonces):
                with suppress(OSError):
                    path.unlink()
        return sorted(self._in_own_cgroup)

    def clear(self) -> None:
        """Remove dead masters' files if nobody will inherit their nonces, and the leases just end.

        Call this at a stop. These are files of workers without cgroups, which `inherit` has left.
        """
        for path, nonces in self._of_dead_masters():
            if not any(own for _, own in nonces):
                with suppress(OSError):
                    path.unlink()

    def _write(self) -> bool:
        """Write the nonces, or remove the file if there are none; return whether that succeeded."""
        if self._folder is None:
            return True
        if self._written == self._in_own_cgroup:
            self._outage.passed()
            return True
        path = self._folder / self._name
        try:
            if self._in_own_cgroup:
                lines = [f"{n} {_OWN}" if own else n for n, own in self._in_own_cgroup.items()]
                content = "\n".join([self._place, *lines, ""])
                regular_files.replace(path, content.encode())
            else:
                regular_files.clear(path)
        except OSError as error:
            self._outage.failed(error)
            return False
        self._outage.passed()
        self._written = {**self._in_own_cgroup}
        return True

    def _of_dead_masters(self) -> Iterator[tuple[Path, list[tuple[str, Cgroup | None]]]]:
        """Yield the path and the nonces of each file of a dead master.

        Each nonce is paired with its worker's own cgroup, or with None if the worker had no cgroup
        of its own. Files with another first line than this file are left out. Files that were
        written before the last boot are removed. Invalid files, which tasks might have written to
        the folder, are also removed.
        """
        try:
            found = [] if self._folder is None else [*self._folder.glob("nonces.*")]
        except OSError:
            return
        boot = self._place.partition(" ")[0]
        for path in found:
            if path.name == self._name:
                continue
            try:
                (pid, start), place, nonces = _parse(path)
                if place.partition(" ")[0] != boot:
                    path.unlink()
                elif place == self._place and _is_dead(pid, start):
                    name = cgroup.master_cgroup_name(pid, start)
                    yield path, [(nonce, self._below(name, nonce, own)) for nonce, own in nonces]
            except (FileNotFoundError, PermissionError):
                continue  # the file was removed by its master, or belongs to another user
            except (OSError, ValueError) as error:
                _log.warning("%s: is no file of a master's, and is removed: %s", path, error)
                with suppress(OSError):
                    regular_files.clear(path)

    def _below(self, master: str, nonce: str, own: str) -> Cgroup | None:
        if not own or self._group is None:
            return None
        return Cgroup(self._group.path / master / nonce)


def _parse(path: Path) -> tuple[tuple[int, int], str, list[tuple[str, str]]]:
    """The writer's pid and start time, the first line, and each nonce with "own" or ""."""
    name = _NAME.fullmatch(path.name)
    place, *lines = regular_files.read(path).decode().split("\n")
    nonces = [(nonce, own) for nonce, _, own in (line.partition(" ") for line in lines if line)]
    if name is None or _PLACE.fullmatch(place) is None:
        raise ValueError("not the nonces of workers")
    if not all(cgroup.is_nonce(nonce) and own in ("", _OWN) for nonce, own in nonces):
        raise ValueError("not the nonces of workers")
    return (int(name[1]), int(name[2])), place, nonces


def _is_dead(pid: int, start: int) -> bool:
    try:
        return not tree.lives(pid, start)
    except OSError:
        return False


def here() -> str:
    """A line of text that identifies this process's boot, pid and cgroup namespaces, and cgroup.

    A pid or a name of a cgroup that another process has written is valid in this process only if
    this function returns the same line in both processes.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "cgroup")]
    place = " ".join([boot, *map(str, namespaces), *(cgroup.own_names() or ["unknown"])])
    return place.encode(errors="backslashreplace").decode()


def make(environ: Mapping[str, str], clock: Clock) -> NonceFile:
    """The nonce file of this master, in the first of the `volatile_folders` that it can write to.

    If the master can write to none of them, its nonces are not written.
    """
    folder = usable_folder(environ)
    try:
        place = here()
    except OSError:
        folder, place = None, ""
    path = cgroup.own_path()
    return NonceFile(folder, place, None if path is None else Cgroup(path), clock)
