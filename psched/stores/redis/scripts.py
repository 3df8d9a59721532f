"""The requests to a Redis server: one Lua script each, in the files of the folder ``lua``.

A script runs alone, applies all of its writes or none, and reads the clock of its server. A write
about a lease names the lease's whole token. ``prelude.lua`` describes the layout of the data, and
stands in front of each script. The first line of a file has the flags of its script
(https://redis.io/docs/latest/develop/programmability/lua-api/#script-flags): ``no-writes``, and
``allow-oom`` for scripts that may run when the server's memory is full: all those that add no data.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script as it is sent.

    Attributes:
        text: its source.
        digest: the SHA-1 of its source, by which the server knows it.
    """

    text: str
    digest: str


def _script(name: str) -> Script:
    # A replica refuses each script whose first line does not say ``no-writes``, even one that would
    # not write.
    flags, _, body = (_FOLDER / f"{name}.lua").read_text().partition("\n")
    text = f"{flags}\n{_PRELUDE}\n{body}"
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(text, digest)


_PRELUDE = (_FOLDER / "prelude.lua").read_text()

ADD = _script("add")
CLAIM = _script("claim")
DELETE = _script("delete")
EXTEND = _script("extend")
HELD = _script("held")
INIT = _script("init")
MARKED = _script("marked")
PAGE = _script("page")
PURGE = _script("purge")
RECOVER = _script("recover")
REPLACE = _script("replace")
ROWS = _script("rows")
SETTLE = _script("settle")
TRY_COMMANDS = _script("try_commands")
UPDATE_DATA = _script("update_data")
