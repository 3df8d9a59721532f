"""Whether psched's own code on disk is still that which this process has loaded.

The contents of the files are compared, because an environment can be made anew with the same
version of psched, and then only the times of the files differ.
"""

import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


@cache
def at_start() -> Mapping[str, int]:
    """The checksums of psched's files when this process, or its ancestor, has first asked."""
    return checksums(PACKAGE)


def checksums(package: Path) -> Mapping[str, int]:
    """The checksum of each file of Python's below a folder, by its path in the folder."""
    return _checksums(package, sorted(package.rglob("*.py")))


def loaded() -> Mapping[str, int]:
    """The checksums of the files of psched that this process has loaded, by their paths in it."""
    names = [each for each in sys.modules if f"{each}.".startswith("psched.")]
    files = [getattr(sys.modules[each], "__file__", None) for each in names]
    return _checksums(PACKAGE, [Path(each) for each in files if each is not None])


def _checksums(package: Path, paths: list[Path]) -> dict[str, int]:
    found = {}
    for path in paths:
        with suppress(OSError):  # an upgrade is removing the file at this moment
            found[str(path.relative_to(package))] = zlib.crc32(path.read_bytes())
    return found
