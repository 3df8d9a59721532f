"""The nonces of a master's workers, on file: for the master that follows one that was killed.

A service manager that finds its master dead kills the workers with it, before they could release
what they hold. The next master has it released, once it is known that nothing of them is left.
"""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from psched.supervisor import cgroup

_log = logging.getLogger("psched.master")


class Will:
    """A file that lists nonces.

    Args:
        path: the file; None: none is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written: frozenset[str] = frozenset()

    def write(self, nonces: Collection[str]) -> None:
        """Have it list these; a file that lists none is removed."""
        if self._path is None or self._written == frozenset(nonces):
            return
        try:
            if nonces:
                draft = self._path.with_suffix(".new")
                draft.write_text("".join(f"{nonce}\n" for nonce in nonces))
                draft.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("if this master is killed, its tasks wait for alive_time: %s", error)
            return
        self._written = frozenset(nonces)

    def read(self) -> list[str]:
        """What the last master has left."""
        if self._path is None:
            return []
        with suppress(OSError):
            return self._path.read_text().split()
        return []


def of_service(environ: Mapping[str, str]) -> Will:
    """The will of a systemd service that has a runtime folder of its own, else none.

    Without a service manager nobody kills the workers of a dead master: they release what they
    hold themselves.

    Args:
        environ: the environment variables.
    """
    folder = environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if not folder or "INVOCATION_ID" not in environ:
        return Will(None)
    return Will(Path(folder, "nonces"))


def inherited(will: Will) -> list[str]:
    """The nonces whose workers have died with the last master, and nothing else of them lives."""
    nonces = will.read()
    if nonces and not cgroup.is_alone():
        _log.warning("processes of the last master are left: its leases are left to run out")
        return []
    return nonces
