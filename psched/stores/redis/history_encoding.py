"""Converts records of the run history to texts in Redis, and these texts to records.

The layout of the data is described in ``lua/prelude.lua``.
"""

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
from psched.stores.redis.encoding import Argument, text, whole

T = TypeVar("T", RunRecord, AuditRecord)

WORKER_FIELDS = ("seen", "started", "ended", "host", "pid", "number", "generation", "slots", "busy",
                 "types", "clock_offset", "zone_data")  # fmt: skip
"""The fields of a worker's hash. The first one is in each hash."""

_MISSING = object()

_DEFAULTS = {
    kind: [
        (field.name, _MISSING if field.default is MISSING else field.default)
        for field in fields(kind)
        if field.name not in unwritten
    ]
    for kind, unwritten in ((RunRecord, {"id"}), (AuditRecord, {"id", "time"}))
}
"""The fields that a text contains, with their defaults."""

_GIVEN = WORKER_FIELDS[3:]
_TEXTS = frozenset({"host", "types", "zone_data"})

_SEQUENCE_BITS = 20


def encode_run(record: RunRecord) -> bytes:
    """The text of a run record: the time when the run ended, a space and a JSON object."""
    return _encoded(record, record.ended)


def encode_change(change: AuditRecord) -> bytes:
    """The text of a change; the server knows its time."""
    return _encoded(change, 0)


def decode_run(stored: bytes, entry: bytes) -> RunRecord | None:
    """The record in a text.

    Returns:
        The record; None if it is incomplete, or no record.
    """
    return _decoded(RunRecord, stored, id=entry_number(entry))


def decode_change(stored: bytes, entry: bytes) -> AuditRecord | None:
    """The change in a text, as `decode_run` describes."""
    return _decoded(AuditRecord, stored, id=entry_number(entry), time=entry_time(entry))


def beat_arguments(worker: WorkerRecord, keep: int) -> Sequence[Argument]:
    """The arguments of the script `scripts.BEAT`; ``keep`` is a number of seconds, or 0."""
    named: list[Argument] = [
        text(worker.nonce),
        worker.started,
        "" if worker.ended is None else worker.ended,
        keep,
    ]
    for name in _GIVEN:
        value = getattr(worker, name)
        if value is not None:
            named += (name, text(str(value)))
    return named


def decode_worker(answer: Sequence[bytes | None]) -> WorkerRecord:
    """The record in an answer of `scripts.WORKERS`: the nonce, then `WORKER_FIELDS`."""
    nonce, *stored = answer
    values: dict[str, Any] = {"nonce": (nonce or b"").decode(errors="replace")}
    for name, value in zip(WORKER_FIELDS, stored, strict=True):
        if name in _TEXTS:
            values[name] = None if value is None else value.decode(errors="replace")
        else:
            values[name] = whole(value)
    return WorkerRecord(**values)


def known_worker(nonce: str, stored: Sequence[bytes | None]) -> WorkerRecord | None:
    """The record of a worker, given its `WORKER_FIELDS`; None if there is none."""
    if not stored or stored[0] is None:
        return None
    return decode_worker((text(nonce), *stored))


def entry_number(entry: bytes) -> int | None:
    """A number for an entry of a stream, which is larger for later entries."""
    milliseconds, _, sequence = entry.partition(b"-")
    time, place = whole(milliseconds), whole(sequence)
    return None if time is None or place is None else (time << _SEQUENCE_BITS) | place


def entry_time(entry: bytes) -> int:
    """When the server has added an entry to a stream, in milliseconds."""
    return whole(entry.partition(b"-")[0]) or 0


def _encoded(record: RunRecord | AuditRecord, time: int) -> bytes:
    """A text with the fields of a record, except those that have their default."""
    values = {
        name: value
        for name, default in _DEFAULTS[type(record)]
        if (value := getattr(record, name)) != default
    }
    return text(f"{time} {json.dumps(values, ensure_ascii=False, separators=(',', ':'))}")


def _decoded(kind: type[T], stored: bytes, **known: int | None) -> T | None:
    try:
        found = json.loads(stored.partition(b" ")[2])
        # Another version of psched may have written more fields than this one knows.
        values = {name: found[name] for name, _ in _DEFAULTS[kind] if name in found}
        values.update(known)
        return kind(**values)
    except (ValueError, TypeError):
        return None
