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
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """A script in the form in which it is sent to the server.

    Attributes:
        text: the source of the script.
        digest: the SHA-1 of the source, by which ``EVALSHA`` runs the script.
    """

    text: str
    digest: str


def _read(folder: Path) -> Mapping[str, tuple[str, str]]:
    """The flags and the text of each script, by its name."""
    found = dict[str, tuple[str, str]]()
    for path in folder.glob("*.lua"):
        for part in re.split(r"^--- ", path.read_text(), flags=re.MULTILINE)[1:]:
            head, _, body = part.partition("\n")
            name, _, flags = head.partition(": ")
            found[name] = flags, body
    return found


def _script(name: str, *, flagged: bool = True) -> Script:
    # The flags must stay on the first line, where Redis reads them. Because of the flags, a replica
    # refuses to run a script that does not have the flag ``no-writes``.
    flags, body = _TEXTS[name]
    first = f"#!lua flags={flags}" if flags and flagged else "#!lua"
    text = f"{first}\n{_PRELUDE}\n{body}"
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(text, digest)


_PRELUDE = (_FOLDER / "prelude.lua").read_text()
_TEXTS = _read(_FOLDER)

ADD = _script("add")
ALERTS_PAGE = _script("alerts_page")
ASK_OUTPUT = _script("ask_output")
ASKED_OUTPUT = _script("asked_output")
AUDIT = _script("audit")
BACKLOG = _script("backlog")
BEAT = _script("beat")
CLAIM = _script("claim")
CLOSE_ALERTS = _script("close_alerts")
COUNT = _script("count")
DEAD = _script("dead")
DELETE = _script("delete")
DURATIONS = _script("durations")
EXTEND = _script("extend")
FAILURES = _script("failures")
HELD = _script("held")
HOLD = _script("hold")
HISTORY_PAGE = _script("history_page")
INIT = _script("init")
LAST_RUNS = _script("last_runs")
MARKED = _script("marked")
NOTE_DELIVERIES = _script("note_deliveries")
OUTPUT_OF = _script("output_of")
OUTPUT_PAGE = _script("output_page")
OVERVIEW = _script("overview")
PAGE = _script("page")
PAUSES = _script("pauses")
PURGE = _script("purge")
RAISE_ALERTS = _script("raise_alerts")
RECORD = _script("record")
RECOVER = _script("recover")
RECOVER_AND_RECORD = _script("recover", flagged=False)
RELEASE = _script("release")
REPLACE = _script("replace")
REPLACE_AND_RECORD = _script("replace", flagged=False)
ROWS = _script("rows")
SET_PAUSES = _script("set_pauses")
SETTLE = _script("settle")
SETTLE_AND_RECORD = _script("settle", flagged=False)
TAKE_ALERTS = _script("take_alerts")
TRIM = _script("trim")
TRIM_ALERTS = _script("trim_alerts")
TRIM_KEY = _script("trim_key")
TRIM_OUTPUT = _script("trim_output")
TRY = _script("try")
UPDATE_DATA = _script("update_data")
UPGRADE = _script("upgrade")
WATCH = _script("watch")
WORKERS = _script("workers")
WRITE_OUTPUT = _script("write_output")
