"""Where metrics are shown: the value of the setting ``metrics``, taken apart."""

from dataclasses import dataclass
from pathlib import Path

_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Place:
    """Where metrics are shown; exactly one attribute is set.

    Attributes:
        tcp: host and port to listen on.
        socket: the path of a Unix socket to listen on.
        textfile: the path of a file to write.
    """

    tcp: tuple[str, int] | None = None
    socket: Path | None = None
    textfile: Path | None = None


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
