"""Alerts in Redis, beside the rows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

from typing_extensions import override

from psched.base.texts import storable
from psched.core.alerts.alert import Alert, deliveries_in, deliveries_text
from psched.core.alerts.protocol import EVERY_ALERT, AlertSelection, KeepsAlerts
from psched.stores.pages import Page, Pages
from psched.stores.redis.encoding import (
    Argument,
    decoded,
    decoded_or_none,
    optional_number,
    text,
    whole,
)
from psched.stores.redis.side_store import TRIMMED, SideStore, batches

_BATCH = 100
"""The most alerts that one run of a script takes or returns."""

_PER_MS = 1024
"""The number of an alert is at least so many times ``raised``, see the script ``raise_alerts``."""

_LONGEST = 1000
"""The most characters of a text that are kept, as in the SQL stores."""

_LABEL = 255
"""The same of a label."""

_CONSTANT = ("key", "host", "rule", "since", "type", "label", "scheduled_time", "text",
             "on_raise", "on_close")  # fmt: skip
"""The fields of an alert that never change."""


class _Numbered(NamedTuple):
    id: int
    alert: Alert | None
    """None if its hash cannot be read: any client can have written it."""


class RedisAlerts(SideStore, KeepsAlerts):
    """Keeps alerts, as `KeepsAlerts` describes.

    Each script decides and writes at once, so that nobody else comes between. A request whose
    outcome is unknown can be repeated: an alert that was raised or closed by the first one is not
    raised or closed again, and its delivery is due in any case. One that was taken is due again
    after the lease. Deliveries that were noted have ended the lease, so that nothing is stored by a
    second request.
    """

    part = "alerts"

    @override
    def raise_alerts(self, alerts: Sequence[Alert]) -> Sequence[Alert]:
        inserted = list[Alert]()
        for batch in batches(alerts, lambda alert: len(alert.text)):
            arguments = (each for alert in batch for each in _raise_arguments(alert))
            inserted += _alerts(self._connector.run("raise_alerts", *arguments))
        return inserted

    @override
    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        closed = list[Alert]()
        why = _bytes(text[:_LONGEST])
        for batch in batches(alerts, lambda alert: len(alert.key)):
            found = self._connector.run("close_alerts", why, *map(_identity, batch))
            closed += _alerts(found)
        return closed

    @override
    def find_alerts(self, selection: AlertSelection = EVERY_ALERT) -> Iterator[Alert]:
        what, key = "all", tuple[bytes, ...]()
        if selection.key is not None:
            what, key = "key", (text(selection.key),)
        elif selection.only_open:
            what = "open"
        first = (selection.since or 0) * _PER_MS

        def read(place: Argument, most: int) -> Page[_Numbered]:
            answer = self._connector.run("alerts_page", what, place, first, min(most, _BATCH), *key)
            found = [_numbered(*each) for each in answer]
            matching = [each for each in found if each.alert and _fulfils(each.alert, selection)]
            return Page(matching, found[-1].id if found else None)

        return map(attrgetter("alert"), Pages(read, selection.limit, _BATCH, moves=True))

    @override
    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        taken = list[Alert]()
        left = limit
        while left > 0:
            most = min(left, _BATCH)
            wanted = text(owner), ceil(lease * 1000), most
            found = self._connector.run("take_alerts", *wanted)
            taken += _alerts(found)
            left = left - most if len(found) == most else 0
        return taken

    @override
    def note_deliveries(self, alert: Alert) -> bool:
        if alert.owner is None:
            return False
        done = self._connector.run(
            "note_deliveries",
            _identity(alert),
            text(alert.owner),
            alert.fence,
            optional_number(alert.closed),
            _bytes(deliveries_text(alert.deliveries)),
            optional_number(alert.next_try),
        )
        return bool(done)

    @override
    def trim_alerts(self, *, before: int, limit: int) -> int:
        # If `limit` is large, a call deletes fewer alerts.
        return int(self._connector.run("trim_alerts", before, min(limit, TRIMMED)))


def _raise_arguments(alert: Alert) -> Iterator[Argument]:
    """The arguments of the script ``raise_alerts`` for one alert."""
    values = {name: getattr(alert, name) for name in _CONSTANT}
    values["text"] = alert.text[:_LONGEST]
    values["label"] = None if alert.label is None else alert.label[:_LABEL]
    yield _identity(alert)
    yield text(alert.key)
    yield _bytes(json.dumps(values, ensure_ascii=False, separators=(",", ":")))
    yield int(bool(alert.on_raise))
    yield int(bool(alert.on_close))


def _identity(alert: Alert) -> bytes:
    """What identifies an alert: a text in which a zero byte ends each part but the last."""
    return text(f"{alert.key}\0{alert.host}\0{alert.rule}\0{alert.since}")


def _bytes(value: str) -> bytes:
    """A text of any origin, as bytes that can be read as text again."""
    return text(storable(value))


def _alerts(answer: Sequence[Sequence[Any]]) -> Sequence[Alert]:
    """The alerts in an answer that consists of numbers and hashes."""
    found = (_numbered(*each).alert for each in answer)
    return [alert for alert in found if alert is not None]


def _numbered(number: bytes, stored: Sequence[bytes]) -> _Numbered:
    """The alert in a hash, which consists of names and values in turn."""
    values = dict(zip(stored[::2], stored[1::2], strict=True))
    return _Numbered(int(number), _alert(values))


def _alert(values: Mapping[bytes, bytes]) -> Alert | None:
    try:
        constant: Any = json.loads(values[b"record"])
        given = {name: constant[name] for name in _CONSTANT}
        given["on_raise"], given["on_close"] = map(tuple, (given["on_raise"], given["on_close"]))
        return Alert(
            **given,
            raised=int(values[b"raised"]),
            closed=whole(values.get(b"closed")),
            closed_text=decoded_or_none(values.get(b"closed_text")),
            deliveries=deliveries_in(decoded(values.get(b"deliveries", b""))),
            next_try=whole(values.get(b"next_try")),
            owner=decoded_or_none(values.get(b"owner")),
            fence=whole(values.get(b"fence")) or 0,
        )
    except (ValueError, TypeError, KeyError):
        return None


def _fulfils(alert: Alert, selection: AlertSelection) -> bool:
    """Whether an alert fulfils what the set that it was found in does not say."""
    return (
        (not selection.rules or alert.rule in selection.rules)
        and not (selection.only_open and alert.closed is not None)
        and alert.raised >= (selection.since or 0)
    )
