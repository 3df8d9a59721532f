"""The requests to a Redis server: each request is a Lua script in a file of the folder ``lua``.

While a script runs, the server runs no other request, so nobody else changes the data meanwhile.
All scripts read the server's clock. A script that ends or extends a lease, or replaces the data of
a leased row, first checks that the row still has the given owner and fence.

The file ``prelude.lua``, which describes the layout of the data, is put in front of each script.
In the other files, each script begins with a line of three hyphens, its name and its flags
(https://redis.io/docs/latest/develop/programmability/lua-api/#script-flags): ``no-writes`` if the
script only reads, and ``allow-oom`` if the server must run the script even if its memory is full.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script in the form in which it is sent to the server.

    Attributes:
        text: the source of the script.
        digest: the SHA-1 of the source, by which ``EVALSHA`` runs the script.
        writes: whether it may change data.
    """

    text: str
    digest: str
    writes: bool


def _read(folder: Path) -> Mapping[str, tuple[str, str]]:
    """The flags and the text of each script, by its name."""
    found = dict[str, tuple[str, str]]()
    for path in folder.glob("*.lua"):
        for part in re.split(r"^--- ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, _, body = part.partition("\n")
            name, _, flags = head.partition(": ")
            found[name] = flags, body
    return found


@cache
def find(name: str, *, observed: bool = False) -> Script:
    """The script with this name; ``observed`` is for hosts with `takeover: observed`.

    If ``_and_record`` follows the name, it has no flags, so that the server refuses it if its
    memory is full.
    """
    # The flags must stay on the first line, where Redis reads them. Because of the flags, a replica
    # refuses to run a script that does not have the flag ``no-writes``.
    flags, body = _TEXTS[name.removesuffix("_and_record")]
    first = "#!lua" if name.endswith("_and_record") or not flags else f"#!lua flags={flags}"
    text = f"{first}\nlocal OBSERVED = {str(observed).lower()}\n{_PRELUDE}\n{body}"
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(text, digest, writes="no-writes" not in flags)


_PRELUDE = (_FOLDER / "prelude.lua").read_text()
_TEXTS = _read(_FOLDER)
