"""The folders in which masters create their sockets and files, and the names of the sockets."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_SOCKET = re.compile(r"master\.([0-9]{1,10})\.sock")


def service_folder(environ: Mapping[str, str]) -> Path | None:
    """The runtime folder that systemd has created for this service; None: it has created none.

    Args:
        environ: the environment variables.
    """
    # Use the first folder: systemd lists all folders of the unit, separated by colons.
    first, _, _ = environ.get("RUNTIME_DIRECTORY", "").partition(":")
    return Path(first) if first else None


def socket_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders where a master's socket may be, the preferred one first.

    Args:
        environ: the environment variables.
    """
    folders = volatile_folders(environ)
    if service_folder(environ) is None and environ.get("HOME"):
        folders.append(Path(environ["HOME"], ".local/state/psched"))
    return folders


def volatile_folders(environ: Mapping[str, str]) -> list[Path]:
    """The folders of `socket_folders` that no other host shares and that a boot empties.

    Args:
        environ: the environment variables.
    """
    if (own := service_folder(environ)) is not None:
        return [own]
    folders = [Path("/run/psched")]
    if environ.get("XDG_RUNTIME_DIR"):
        folders.append(Path(environ["XDG_RUNTIME_DIR"], "psched"))
    return folders


def socket_name(pid: int) -> str:
    """The name of the socket of the master with this pid."""
    return f"master.{pid}.sock"


def sockets(folder: Path) -> list[tuple[int, Path]]:
    """The pid and path of each socket of a master in a folder; the pid is part of the name.

    Raises:
        OSError: the folder cannot be read.
    """
    found = map(_SOCKET.fullmatch, os.listdir(folder))
    return sorted((int(match[1]), folder / match[0]) for match in found if match)


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A short address for the socket at a path of any length; valid inside the ``with`` block.

    A socket cannot be addressed by a long path, because sockaddr_un has room for only 107 bytes.

    Raises:
        OSError: the folder cannot be opened.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
