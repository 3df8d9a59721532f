"""Keeps the rows of hosts: each host that a template names runs a row of its own (``each_host``).

The client that adds or changes a template also writes the rows of the hosts that are known. Each
host looks for itself when it starts and then about once a minute, so a host that comes later, or a
change that was cut short, is not missed. Only hosts with a configured name take part, because names
such as those of containers change.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from math import floor

from psched.base.errors import (
    InvalidError,
    NotFoundError,
    PschedError,
    ScheduleError,
)
from psched.base.quantities import format_duration
from psched.client.access import Access, Recorded, insert, read_each, replace, was_replaced
from psched.client.verbs import records_of
from psched.client.verbs.ending import delete
from psched.core.declare import as_template_says, row_of_host
from psched.core.definition import parse_row
from psched.core.history.records import Fate, Skipped, WorkerRecord
from psched.core.hosts import ROWS_OF_HOSTS, TEMPLATES, has_name, own_lane
from psched.core.model import BEING_DELETED, DELETING, Row
from psched.core.operations.pausing import span_of
from psched.core.selection import Selection
from psched.triggers.trigger import first

_log = logging.getLogger("psched.hosts")

_AFTER_NAME = "!"
"""No lane of another host lies between the lane of a host and that lane with this text: it comes
before every character of a name. (A blank would be no text at all for MySQL's comparison.)"""


@dataclass(frozen=True, slots=True)
class Named:
    """A host with a configured name: its name, then its labels; and since when it is known."""

    names: Sequence[str]
    since: int

    @property
    def name(self) -> str:
        """Its name."""
        return self.names[0]


def named_hosts(workers: Iterable[WorkerRecord]) -> Mapping[str, Named]:
    """The hosts with configured names, by their names; the newest record tells the labels."""
    found = dict[str, Named]()
    for each in sorted(workers, key=lambda worker: worker.seen):
        name = each.host.lower()
        if each.is_named:
            since = min(each.started, found[name].since) if name in found else each.started
            found[name] = Named(each.host_names, since)
    return found


def spread(access: Access, templates: Sequence[Row]) -> None:
    """Give the known hosts their rows of templates that were just written.

    What fails is left to the hosts, which look for themselves.
    """
    history, gone_after = access.store.history, access.settings.host_gone_after
    if history is None:
        return
    try:
        now = access.send(access.store.now)
        since = floor(now) - gone_after if gone_after else 0
        hosts = named_hosts(access.send(partial(history.workers, since)))
        # They are read, because a store may keep another form of what was written.
        found = access.send(partial(access.store.look, [each.key for each in templates]))
        for _ in keep_rows(access, [*found.values()], [*hosts.values()]):
            continue
    except PschedError as error:
        _log.warning("the hosts get their rows within a minute, not now: %s", error)


def remove_rows(access: Access, template: str) -> None:
    """Delete the rows of all hosts, after their template was deleted."""
    selection = Selection(prefix=f"{template}@", by_key=True)
    for row in [*read_each(access.send, lambda: access.store.rows(selection))]:
        if row.template == template:
            with suppress(NotFoundError):
                delete(access, row.key)


def keep_own_rows(access: Access, *, retires: bool) -> Iterator[None]:
    """Make the rows of this host as the templates say, in steps of about one request.

    Args:
        access: how the store is read and changed.
        retires: whether also to remove the rows of hosts that are gone.
    """
    store, settings, history = access.store, access.settings, access.store.history
    templates = [*read_each(access.send, lambda: store.rows(Selection(lanes=TEMPLATES)))]
    yield
    now = access.send(store.now)
    workers = () if history is None else access.send(history.workers)
    yield
    names = settings.host_names
    this = named_hosts(workers).get(names[0], Named(names, floor(now)))
    yield from keep_rows(access, templates, [Named(names, this.since)])
    lane, known = own_lane(names[0]), {each.key for each in templates}
    mine = Selection(lanes=(lane, f"{lane}{_AFTER_NAME}"))
    for row in [*read_each(access.send, lambda: store.rows(mine))]:
        if row.template not in known and row.status not in BEING_DELETED:
            with suppress(NotFoundError):
                delete(access, row.key)
            yield
    if retires and settings.host_gone_after and workers:
        yield from _retire_gone(access, workers, now)


def keep_rows(access: Access, templates: Sequence[Row], hosts: Sequence[Named]) -> Iterator[None]:
    """Add, change or delete the rows of hosts, so that they are as the templates say."""
    for template in templates:
        by_key = {f"{template.key}{own_lane(host.name)}": host for host in hosts}
        found = access.send(partial(access.store.look, [*by_key]))
        yield
        try:
            insert(access, [*_missing(access, template, by_key, found)])
            for row in found.values():
                if row.template != template.key:
                    _log.error("%s has no row of %s: the key is taken", row.key, template.key)
                elif row.status in BEING_DELETED:
                    continue
                elif not has_name(by_key[row.key].names, template.lane or ""):
                    delete(access, row.key)
                else:
                    _follow(access, row, template)
                yield
        except InvalidError as error:
            _log.error("%s cannot run on its hosts: %s", template.key, error)
        except ScheduleError as error:
            # Somebody else has made or deleted a row meanwhile; the next look goes on.
            _log.info("%s: %s", template.key, error)


def _missing(
    access: Access,
    template: Row,
    by_key: Mapping[str, Named],
    found: Mapping[str, Row],
) -> Iterator[Row]:
    """The rows that hosts do not have yet.

    A host that was known when the template was made has missed what has fallen due since.
    """
    made, begin = template.created_at or 0, template.next_time
    for key, host in by_key.items():
        if key not in found and has_name(host.names, template.lane or ""):
            start = None if host.since >= made else begin
            yield row_of_host(template, host.name, access.settings, start, access.store.now)


def _follow(access: Access, row: Row, template: Row) -> None:
    def change(seen: Row) -> Row | None:
        return as_template_says(seen, template, access.settings, access.store.now)

    if change(row) is not None:
        replace(access, "modify", row.key, change, was_replaced)


# --- hosts that are gone --------------------------------------------------------------------


def _retire_gone(access: Access, workers: Sequence[WorkerRecord], now: float) -> Iterator[None]:
    """Remove the rows of hosts of which nothing was heard for long."""
    gone_after = access.settings.host_gone_after
    here = {own_lane(each.host.lower()) for each in workers if each.seen >= now - gone_after}
    rows = Selection(lanes=ROWS_OF_HOSTS)
    for row in read_each(access.send, lambda: access.store.rows(rows)):
        if row.lane not in here and row.template is not None and row.status not in BEING_DELETED:
            _log.warning("%s: its host was not seen for %s", row.key, format_duration(gone_after))
            with suppress(ScheduleError):
                _retire(access, row.key, f"its host was not seen for {format_duration(gone_after)}")
        yield


def _retire(access: Access, key: str, reason: str) -> None:
    """Let any host delete a row, and record that what its host has missed was skipped.

    The row is marked and gets no lane: whoever claims it records the run that its host has left
    behind, and deletes the row.
    """
    owner = access.draw_nonce()

    def change(seen: Row) -> Recorded | None:
        now = access.store.now()
        if seen.owner is not None and (seen.next_run_time or 0) > now:
            return None  # its host is back, and runs it
        row, spans = _ended(access, seen, floor(now), reason)
        return Recorded(row, records_of(access, seen, spans, owner=owner, now=now))

    replace(access, "delete", key, change, was_replaced)


def _ended(access: Access, seen: Row, now: int, reason: str) -> tuple[Row, Sequence[Skipped]]:
    row = changed(seen, lane=None, status=DELETING, next_run_time=now)
    try:
        definition = parse_row(seen, access.settings)
    except InvalidError:
        return row, ()
    trigger, cursor = definition.trigger, seen.next_time
    if trigger is None or cursor is None:
        return row, ()
    begin = trigger.next_after(cursor) if seen.owner is not None else cursor
    if begin is None or begin > now:
        return row, ()
    span = span_of(trigger, definition, begin, now + 1, Fate.SKIPPED, reason=reason)
    following = first(trigger, now + 1)
    if seen.owner is None:
        row = changed(row, next_time=following, attempt=0)
    return row, (span,)
