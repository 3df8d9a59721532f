"""Where an HTTP server of psched listens: an address, or a Unix socket; or the file of metrics."""

import socket
import stat
from dataclasses import dataclass
from pathlib import Path

_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Place:
    """Where metrics are shown; exactly one attribute is set."""

    tcp: tuple[str, int] | None = None  # host and port to listen on
    socket: Path | None = None  # the path of a Unix socket to listen on
    textfile: Path | None = None  # the path of a file to write


def place_of(text: str) -> Place:
    """Take the value of the setting apart, which `psched.config` has checked."""
    kind, _, path = text.partition(":")
    if kind == "unix":
        return Place(socket=Path(path))
    if kind == "textfile":
        return Place(textfile=Path(path))
    host, _, port = text.rpartition(":")
    if not 0 < int(port) <= _HIGHEST_PORT:
        raise ValueError(f"there is no port {port}")
    return Place(tcp=(host.strip("[]"), int(port)))


_BACKLOG = 128  # the most clients that the kernel keeps until they are accepted


def listen(place: Place) -> socket.socket:
    """Listen at an address or a path."""
    if place.socket is not None:
        return _listen_on_path(place.socket)
    host, port = place.tcp or ("", 0)
    [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listener = socket.socket(family, kind, protocol)
    try:
        # A port that an earlier monitor has used is free again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _listen_on_path(path: Path) -> socket.socket:
    """Listen on a Unix socket, which only the user and the group of the service can connect to."""
    _remove_unused(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _remove_unused(path: Path) -> None:
    """Remove the Unix socket of a monitor that was killed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(f"{path} is no socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # a process listens that accepts nobody
    raise FileExistsError(f"another process listens on {path}")
