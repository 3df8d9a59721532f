"""Notices that psched itself was upgraded while its master runs.

A master never loads its own code again, and forks its workers. So after an upgrade in place, a new
worker would consist of old modules, which the master has loaded, and of new ones, which the worker
loads: such a worker fails, or does what no version does.
"""

import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psched.master.generation_spec import GenerationSpec, ReadSpec, SpecError

PACKAGE = Path(__file__).parent.parent

UPGRADED = (
    "psched itself was changed on this host since this master was started, and a master does not"
    " load its own code again: stop it and start it again (systemctl restart psched)"
)


def unless_upgraded(read_spec: ReadSpec, package: Path = PACKAGE) -> ReadSpec:
    """A function like ``read_spec`` that refuses if psched's code has changed since this call.

    The contents of the files are compared, because an environment can be made anew with the same
    version of psched, and then only the times of the files differ.
    """
    before = _checksum(package)

    def read(reported: Mapping[str, Any] | None) -> GenerationSpec:
        if _checksum(package) != before:
            raise SpecError(UPGRADED)
        return read_spec(reported)

    return read


def _checksum(package: Path) -> int:
    total = 0
    for path in sorted(package.rglob("*.py")):
        total = zlib.crc32(bytes(path), total)
        with suppress(OSError):  # an upgrade is removing the file at this moment
            total = zlib.crc32(path.read_bytes(), total)
    return total
