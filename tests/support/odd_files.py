"""What a task can leave where psched expects a file: FIFOs, links, sockets, folders, devices."""

import os
import socket
import stat
from pathlib import Path

EMPTY = ("fifo", "socket", "link to a file", "link to a fifo", "link to itself", "folder")
"""The kinds of things that hold no data."""

KINDS = (*EMPTY, "full folder", "device")


def leave(kind: str, path: Path) -> None:
    """Put a thing of this kind in place of a file, as a task can."""
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
        case "link to a file":
            path.with_name(f"{path.name}.precious").write_text("content")
            path.symlink_to(path.with_name(f"{path.name}.precious"))
        case "link to a fifo":
            fifo = path.with_name(f"{path.name}.fifo")
            fifo.unlink(missing_ok=True)
            os.mkfifo(fifo)
            path.symlink_to(fifo)
        case "link to itself":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "full folder":
            path.mkdir()
            (path / "file").touch()
        case "device":
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
