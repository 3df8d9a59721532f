"""Hosts whose clock is wrong: programs to which libfaketime shows another time.

Only the time of day is wrong. The clocks that count running time are the machine's own, as they
are on a host whose clock somebody has set; so the run log's stamps stay comparable.
"""

import importlib.util
from pathlib import Path

_LIBRARY = "libfaketime/src/libfaketime.so.1"
"""The library of the package on PyPI, compiled without the faked sleep that breaks Python's."""


class HostClock:
    """A clock of a host, which can be set while programs run on it.

    Args:
        path: a file for the clock's setting; it need not exist.
        ahead: seconds by which the clock is fast; negative if it is slow.
    """

    def __init__(self, path: Path, ahead: int = 0) -> None:
        self._path = path
        self.set(ahead)

    def set(self, ahead: int) -> None:
        """Set the clock; running programs notice within a second or so."""
        fresh = self._path.with_suffix(".new")
        # Every content has the same length, because threads of a server may read the file at the
        # same time into one buffer.
        fresh.write_text(f"{ahead:+06d}\n")
        fresh.replace(self._path)

    def command(self, *words: object) -> list[str]:
        """The command line by which a program runs on this host."""
        package = importlib.util.find_spec("libfaketime")
        assert package is not None, "the test extra is not installed"
        assert package.origin is not None
        return [
            "/usr/bin/env",
            f"LD_PRELOAD={Path(package.origin).with_name('vendor') / _LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={self._path}",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            # The file is read once a second, not at each call (FAKETIME_NO_CACHE): a server's
            # threads would parse it into one buffer all the time, and sometimes read nonsense.
            "FAKETIME_CACHE_DURATION=0",
            *map(str, words),
        ]
