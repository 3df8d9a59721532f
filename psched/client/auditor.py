"""The audit trail: records in the store who has changed which schedule, from what to what."""

import json
import logging
import os
import pwd
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

from psched.base.clock import Clock
from psched.base.compression import readable
from psched.base.errors import PschedError, UnknownOutcomeError
from psched.base.texts import visible
from psched.core.columns import DECODER
from psched.core.history.protocol import AuditSelection, KeepsHistory
from psched.core.history.records import AuditRecord
from psched.core.model import BEING_DELETED, Row
from psched.core.store_protocol import Send, Store

_log = logging.getLogger("psched.audit")

_PLAIN = (
    "type", "cron", "timezone", "delay", "next_time", "next_run_time", "alive_time", "label",
    "lane", "run_as", "status", "reason", "paused_at", "paused_until", "pause_note",
)  # fmt: skip
_PAYLOADS = ("data", "options")

COLUMNS = (*_PLAIN, *_PAYLOADS)
"""The columns whose values are recorded."""

LONGEST_VALUE = 1000
"""The most characters of a column that are recorded. In place of a longer value, its length and its
SHA-256 are recorded."""

LONGEST_NOTE = 1000
"""The most characters of a note; the rest is cut off."""

_LONGEST_NAME = 255
"""The most characters of a user, a host or a program; the rest is cut off."""

_TRANSACTION = 1000
"""The most records that one transaction writes, because on SQLite workers wait for its end."""

_TOGETHER = 100
"""The most records that `Auditor.together` keeps in memory."""

_NEWEST = 20
"""How many changes of a key are searched for a record whose answer was lost."""

Changed = tuple[Row | None, Row | None]
"""The row before and after a change; None if the schedule does not exist before or after it."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change.

    Attributes:
        user: the name of the operating system's user.
        host: the name of the host.
        program: the name of the command or program.
    """

    user: str
    host: str
    program: str

    @property
    def name(self) -> str:
        """The user and the host, such as ``ann@web1``."""
        return f"{self.user}@{self.host}"


def this_process(program: str | None = None) -> Author:
    """The author of the changes that this process makes."""
    name = _script() if program is None else program
    return Author(
        *(visible(text)[:_LONGEST_NAME] for text in (_user(), socket.gethostname(), name))
    )


def _user() -> str:
    """The effective user; ``ann (as root)`` if ann has become root by ``sudo``."""
    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"uid {user}"  # for example in a container, whose users have no names
    # Anybody can set this variable, so the name that the kernel vouches for is always shown, too.
    before = os.environ.get("SUDO_USER")
    return name if before in {None, "", name} else f"{before} (as {name})"


def _script() -> str:
    given = sys.argv[0] if getattr(sys, "argv", None) else ""
    if given in {"", "-"}:
        return "python"
    if given in {"-c", "-m"}:
        return f"python {given}"
    path = Path(given)
    return path.parent.name if path.name == "__main__.py" else path.name


class Auditor:
    """Records the changes that one collection of schedules makes.

    A change is recorded after it was made. If it cannot be recorded, the change stands, and a
    warning is logged. If the store keeps no history, nothing is recorded and nothing is logged.
    ``author`` says who makes them, when the first record is written.
    """

    def __init__(
        self, store: Store, *, author: Callable[[], Author], clock: Clock, send: Send
    ) -> None:
        self._store = store
        self._clock = clock
        self._send = send
        self._find_author = author
        self._note: str | None = None
        self._waiting: list[AuditRecord] | None = None
        self._is_failing = False

    @cached_property
    def is_able(self) -> bool:
        """Whether the store can keep an audit trail; its tables can still be missing."""
        return self._store.history is not None

    @contextmanager
    def noting(self, note: str | None) -> Iterator[None]:
        """Add a note to the records of the changes within the block."""
        former, self._note = self._note, visible(note or "", lines=True)[:LONGEST_NOTE] or None
        try:
            yield
        finally:
            self._note = former

    @contextmanager
    def signed(self, author: Author) -> Iterator[None]:
        """Record the changes within the block as those of a person whom this program serves."""
        former, self.author = self.author, author
        try:
            yield
        finally:
            self.author = former

    @contextmanager
    def together(self) -> Iterator[None]:
        """Record the changes within the block together: every hundred of them, and at its end.

        Changes within the block are not recorded if the process is killed before that.
        """
        self._waiting = []
        try:
            yield
        finally:
            records, self._waiting = self._waiting, None
            self._write(records)

    def record(self, action: str, changes: Sequence[Changed]) -> None:
        """Record changes that were made."""
        if self.is_able:
            self._keep([each for change in changes if (each := self._record(action, *change))])

    def record_added(self, rows: Sequence[Row]) -> None:
        """Record that schedules were added."""
        if not self.is_able:
            return
        texts = dict[tuple[Any, ...], str]()
        added = []
        for row in rows:
            # Many schedules are often alike, except for their payloads, which are JSON already.
            columns = _plain_values(row)
            if (text := texts.get(columns)) is None:
                alike = changed(row, data=None, options=None)
                text = texts[columns] = _json(_definition(alike))[1:-1]
            parts = [text, _part("data", row.data), _part("options", row.options)]
            after = f"{{{','.join(filter(None, parts))}}}"
            added.append(self._made("add", row.key, before=None, after=after))
        self._keep(added)

    def record_about(self, action: str, key: str, about: Mapping[str, Any]) -> None:
        """Record something that was done with a schedule but has not changed it."""
        if self.is_able:
            shown = {name: _shown(name, value) for name, value in about.items()}
            self._keep([self._made(action, key, before="{}", after=_json(shown))])

    def _keep(self, records: Sequence[AuditRecord]) -> None:
        if self._waiting is None:
            self._write(records)
            return
        self._waiting += records
        if len(self._waiting) >= _TOGETHER:
            records, self._waiting = self._waiting, []
            self._write(records)

    def record_present(self, action: str, keys: Sequence[str]) -> None:
        """Record schedules that another object has written, with their present definitions."""
        if not self.is_able or not keys:
            return
        try:
            found = self._send(lambda: self._store.look(keys))
        except PschedError as error:
            self._warn(keys, error)
        else:
            self.record(action, [(None, row) for row in found.values()])

    @cached_property
    def author(self) -> Author:
        """Who makes the changes."""
        return self._find_author()

    @property
    def note(self) -> str | None:
        """Why the present change is made, see `noting`; None for no note."""
        return self._note

    def _record(self, action: str, before: Row | None, after: Row | None) -> AuditRecord | None:
        row = after or before
        if row is None:
            return None
        if before is None or after is None:
            old, new = _definition(before), _definition(after)
        else:
            old, new = _differences(before, after)
            if not new:
                return None
            if after.status in BEING_DELETED:
                # The definition is recorded now, because nobody reads it when the row is deleted.
                old = _definition(before)
        return self._made(
            action,
            row.key,
            before=None if before is None else _json(old),
            after=None if after is None else _json(new),
        )

    def _made(self, action: str, key: str, *, before: str | None, after: str | None) -> AuditRecord:
        return AuditRecord(
            key=key,
            action=action,
            user=self.author.user,
            host=self.author.host,
            program=self.author.program,
            note=self._note,
            before=before,
            after=after,
        )

    def _write(self, records: Sequence[AuditRecord]) -> None:
        history = self._store.history
        if not records or history is None:
            return
        written = 0
        try:
            if history.problem() is not None:
                return  # `psched check` shows it
            for start in range(0, len(records), _TRANSACTION):
                self._write_once(history, records[start : start + _TRANSACTION])
                written = start + _TRANSACTION
        except PschedError as error:
            self._warn([record.key for record in records[written:]], error)
        else:
            self._is_failing = False

    def _warn(self, keys: Sequence[str], error: PschedError) -> None:
        if not self._is_failing:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            text = "the change of %s%s was made, but is not in the audit trail: %s"
            _log.warning(text, visible(repr(keys[0])), more, error)
        self._is_failing = True

    def _write_once(self, history: KeepsHistory, records: Sequence[AuditRecord]) -> None:
        """Write records in one transaction, once even if the answer is lost."""
        begun, is_unknown = self._clock.boottime(), False

        def request() -> None:
            nonlocal is_unknown
            if is_unknown and self._is_written(history, records[0], begun):
                return
            try:
                history.audit(records)
            except UnknownOutcomeError:
                is_unknown = True
                raise

        self._send(request)

    def _is_written(self, history: KeepsHistory, record: AuditRecord, begun: float) -> bool:
        # The store may show whole seconds only, so one more second is searched.
        since = self._store.now() - (self._clock.boottime() - begun) - 1
        newest = AuditSelection(key=record.key, since=int(since * 1000), limit=_NEWEST)
        return any(changed(each, id=None, time=None) == record for each in history.audits(newest))


def _definition(row: Row | None) -> dict[str, Any]:
    """The recorded columns of a row, without those that have their default."""
    if row is None:
        return {}
    return {
        name: _shown(name, value)
        for name, value, default in zip(COLUMNS, _values(row), _DEFAULTS, strict=True)
        if value not in (default, "{}")
    }


def _differences(before: Row, after: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    old, new = dict[str, Any](), dict[str, Any]()
    for name, was, value in zip(COLUMNS, _values(before), _values(after), strict=True):
        if was == value or (name in _PAYLOADS and _plain(was) == _plain(value)):
            continue  # if the texts of a payload differ, one of the two can be compressed
        old[name], new[name] = _shown(name, was), _shown(name, value)
    return old, new


def _plain(stored: str | bytes | None) -> str:
    plain = readable(stored) or ""
    return plain.decode(errors="backslashreplace") if isinstance(plain, bytes) else plain


def _shown(name: str, value: Any) -> Any:  # noqa: ANN401  # a column
    """The value of a column as it is recorded: a short payload as a JSON object."""
    if not isinstance(value, str | bytes):
        return value
    text = _plain(value) if name in _PAYLOADS else str(value)
    if len(text) > LONGEST_VALUE:
        digest = sha256(text.encode(errors="backslashreplace")).hexdigest()
        return f"{len(text)} characters, SHA-256 {digest}"
    if name not in _PAYLOADS:
        return text
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return text  # a client has written it by plain SQL


def _part(name: str, payload: str | bytes | None) -> str | None:
    """A payload of a new schedule as a part of a JSON object, if it is recorded."""
    if payload is None or payload == "{}":
        return None
    text = _plain(payload)
    if len(text) > LONGEST_VALUE:
        text = _encode(_shown(name, payload))  # its length and its digest
    return f'"{name}":{text}'


def _json(fields: Mapping[str, Any]) -> str:
    # Half of a surrogate pair, which a payload can contain as an escape, becomes an escape again.
    return _encode(fields).encode(errors="backslashreplace").decode()


# The encoder is made once, because json.dumps would make it anew in each call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
_values = attrgetter(*COLUMNS)
_plain_values = attrgetter(*_PLAIN)
_DEFAULTS = _values(Row(key=""))
