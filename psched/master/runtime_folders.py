"""The folders in which masters create their sockets and files, and the names of the sockets."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SOCKET = re.compile(r"master\.([0-9]{1,10})\.sock")


def service_folder(environ: Mapping[str, str]) -> Path | None:
    """The runtime folder that systemd has created for this service; None if there is none."""
    # The variable contains all runtime folders of the unit, separated by colons. Use the first.
    first, _, _ = environ.get("RUNTIME_DIRECTORY", "").partition(":")
    return Path(first) if first else None


def socket_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders in which a master can create its socket, in the order in which it tries them."""
    folders = volatile_folders(environ)
    if service_folder(environ) is None and environ.get("HOME"):
        folders.append(Path(environ["HOME"], ".local/state/psched"))
    return folders


def volatile_folders(environ: Mapping[str, str]) -> list[Path]:
    """The `socket_folders` that are local to this host and are emptied at each boot."""
    if (own := service_folder(environ)) is not None:
        return [own]
    folders = [Path("/run/psched")]
    if environ.get("XDG_RUNTIME_DIR"):
        folders.append(Path(environ["XDG_RUNTIME_DIR"], "psched"))
    return folders


def usable_folder(environ: Mapping[str, str]) -> Path | None:
    """The first of the `volatile_folders` that can be used, made if it is missing; or None."""
    return next(filter(_is_usable, volatile_folders(environ)), None)


def _is_usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def socket_name(pid: int) -> str:
    """The file name of the socket of the master with this pid."""
    return f"master.{pid}.sock"


def sockets(folder: Path) -> list[tuple[int, Path]]:
    """The pid in the name, and the path, of each master's socket; the master might be dead."""
    found = map(_SOCKET.fullmatch, os.listdir(folder))
    return sorted((int(match[1]), folder / match[0]) for match in found if match)


LONGEST_ADDRESS = 107
"""The most bytes of a socket's address: sockaddr_un has no room for more."""


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield a short address of the socket at ``path``; it is valid within the ``with`` block.

    A path of more than `LONGEST_ADDRESS` bytes itself is no valid address.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
