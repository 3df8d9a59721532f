"""The requests to a Redis server: one Lua script each, in the files of the folder ``lua``.

While a script runs, the server runs nothing else. A script reads the clock of its server. A script
that ends or extends a lease, or writes its row's data, compares the owner and the fence first.

``prelude.lua`` describes the layout of the data, and is put in front of each script. The first line
of each file contains the flags of the script
(https://redis.io/docs/latest/develop/programmability/lua-api/#script-flags): ``no-writes`` if the
script only reads, and ``allow-oom`` if it may run when the server's memory is full.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script in the form in which it is sent.

    Attributes:
        text: the source of the script.
        digest: the SHA-1 of the source, by which ``EVALSHA`` runs the script.
    """

    text: str
    digest: str


def _script(name: str) -> Script:
    # The flags stay on the first line, because a replica refuses each script whose first line does
    # not contain ``no-writes``.
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
