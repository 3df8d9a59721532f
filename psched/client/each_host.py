"""Keeps the rows of hosts: each host that a template names runs a row of its own (``each_host``).

The client that adds or changes a template also writes the rows of the hosts that are known. Each
host looks for itself when it starts and then about once a minute, so a host that comes later, or a
change that was cut short, is not missed. Only hosts with a configured name take part, because names
such as those of containers change.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from itertools import product
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
from psched.core.columns import LATEST_TIME
from psched.core.declare import as_template_says, resting_if_template, row_of_host
from psched.core.definition import Definition, parse_row
from psched.core.history.protocol import AuditSelection
from psched.core.history.records import GONE_AFTER, Fate, Skipped, WorkerRecord
from psched.core.hosts import ROWS_OF_HOSTS, TEMPLATES, has_name, own_lane, template_of
from psched.core.model import BEING_DELETED, DELETING, ENDED, MIGRATING, Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.operations.pausing import span_of
from psched.core.selection import Selection
from psched.triggers.custom import AskElsewhereError
from psched.triggers.trigger import first

_log = logging.getLogger("psched.hosts")

_BATCH = 100
"""The most rows of hosts that are looked at in one step."""

_SOON = 120
"""Within so many seconds, a host has seen a new template, although the client has died."""

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


def spread(access: Access, templates: Sequence[str], *, are_new: bool) -> None:
    """Give the known hosts their rows of templates, named by key, that were just written.

    What fails is left to the hosts, which look for themselves.
    """
    history, gone_after = access.store.history, _gone_after(access)
    if history is None:
        return
    try:
        now = access.send(access.store.now)
        since = floor(now) - gone_after if gone_after else 0
        hosts = named_hosts(access.send(partial(history.workers, since)))
        for _ in keep_rows(access, templates, [*hosts.values()], now, are_new=are_new):
            continue
    except PschedError as error:
        _log.warning("the hosts get their rows within a minute, not now: %s", error)


def rows_of_hosts(access: Access, template: str) -> Iterator[Row]:
    """The rows of all hosts for a template, sorted by key."""
    selection = Selection.of_hosts(template)
    found = read_each(access.send, lambda: access.store.rows(selection))
    # A store of the user's own may not know this condition.
    return (row for row in found if row.template == template)


def remove_rows(access: Access, template: str) -> None:
    """Delete the rows of all hosts, after their template was deleted."""
    for row in [*rows_of_hosts(access, template)]:
        with suppress(NotFoundError):
            delete(access, row.key)


def keep_own_rows(access: Access, *, known_for: float, retires: bool) -> Iterator[None]:
    """Make the rows of this host as the templates say, in steps of about one request.

    This host is ``known_for`` so many seconds at least. ``retires``: whether also to remove the
    rows of hosts that are gone, if it is this host's turn.
    """
    store, names = access.store, access.settings.host_names
    templates = list[str]()
    for row in read_each(access.send, lambda: store.rows(Selection(lanes=TEMPLATES))):
        templates.append(row.key)
        if row.next_run_time != LATEST_TIME:  # plain SQL has added it
            access.send(partial(store.replace, row, resting_if_template(row)))
    yield
    now = access.send(store.now)
    yield from keep_rows(access, templates, [Named(names, floor(now - known_for))], now)
    lane, known = own_lane(names[0]), {None, *templates}
    mine = Selection(lanes=(lane, f"{lane}{_AFTER_NAME}"))
    for row in [*read_each(access.send, lambda: store.rows(mine))]:
        if row.template not in known and _is_to_keep(row):
            yield from _remove_orphan(access, row)
    if retires and access.settings.host_gone_after and store.history is not None:
        yield
        workers = access.send(partial(store.history.workers, floor(now) - GONE_AFTER))
        if names[0] == _first_alive(workers):
            yield from retire_gone(access, store.history.workers)


def _remove_orphan(access: Access, row: Row) -> Iterator[None]:
    """Delete a row whose template was not found, unless that was added meanwhile."""
    template = access.send(partial(access.store.look, [row.template or ""])).get(row.template or "")
    yield
    if template is None or not template.each_host:
        with suppress(NotFoundError):
            delete(access, row.key)
        yield


def keep_rows(
    access: Access,
    templates: Sequence[str],
    hosts: Sequence[Named],
    now: float,
    *,
    are_new: bool = False,
) -> Iterator[None]:
    """Add, change or delete the rows of hosts, so that they are as the templates say.

    If the templates were added just now, no host has had a row of them.
    """
    pairs = [*product(templates, hosts)]
    for place in range(0, len(pairs), _BATCH):
        some = pairs[place : place + _BATCH]
        keys = dict.fromkeys(key for key, _ in some)
        rows = (f"{key}{own_lane(host.name)}" for key, host in some)
        # A template is read with its rows, because it may have been changed meanwhile.
        found = access.send(partial(access.store.look, [*keys, *rows]))
        yield
        for key in keys:
            template = found.get(key)
            if template is not None and template.each_host:
                here = [host for each, host in some if each == key]
                yield from _keep_rows_of(access, template, here, found, now, is_new=are_new)


def _keep_rows_of(
    access: Access,
    template: Row,
    hosts: Sequence[Named],
    found: Mapping[str, Row],
    now: float,
    *,
    is_new: bool,
) -> Iterator[None]:
    by_key = {f"{template.key}{own_lane(host.name)}": host for host in hosts}
    wanted = {key for key, host in by_key.items() if has_name(host.names, template.lane or "")}
    try:
        missing = (by_key[key] for key in by_key if key in wanted and key not in found)
        rows = (_new_row(access, template, host, now, is_new=is_new) for host in missing)
        if new := [*filter(None, rows)]:
            insert(access, new)
            yield
        for key, host in by_key.items():
            row = found.get(key)
            if row is None or not _is_to_keep(row):
                continue
            if row.template != template.key:
                _log.error("%s has no row of %s: the key is taken", key, template.key)
            elif key not in wanted:
                if not _another_wants(access, template, host, now):
                    delete(access, key)
                yield
            elif _as_template_says(access, row, template) is not None:
                change = partial(_as_template_says, access, template=template)
                replace(access, "modify", key, change, was_replaced)
                yield
    except InvalidError as error:
        _log.error("%s cannot run on its hosts: %s", template.key, error)
    except ScheduleError as error:
        # Somebody else has made or deleted a row meanwhile; the next look goes on.
        _log.info("%s: %s", template.key, error)


def _is_to_keep(row: Row) -> bool:
    """Whether nobody is removing a row already, or moving it here."""
    return row.status not in {*BEING_DELETED, MIGRATING}


def _another_wants(access: Access, template: Row, host: Named, now: float) -> bool:
    """Whether another master of this name runs, with a label that the template names.

    Otherwise two masters with different labels would add and delete the row in turn.
    """
    history = access.store.history
    if history is None:
        return False
    return any(
        each.is_named and each.host.lower() == host.name and each.may_run(template.lane)
        for each in access.send(partial(history.workers, floor(now) - GONE_AFTER))
        if each.ended is None
    )


def _new_row(access: Access, template: Row, host: Named, now: float, *, is_new: bool) -> Row | None:
    """The row that a host does not have yet; None if there is nothing more to run.

    A host that was known when the template was made has missed what has fallen due since. Later,
    its row was deleted, or the host was not wanted until now, so it begins now.
    """
    made, begin = template.created_at or 0, template.next_time
    is_late = host.since < made and now - made < _SOON
    if is_late and not is_new:
        is_late = not _has_had_row(access, template, host)
    start = begin if is_late or (begin is not None and begin > now) else None
    return row_of_host(template, host.name, access.settings, start, access.store.now)


def _has_had_row(access: Access, template: Row, host: Named) -> bool:
    """Whether a host has had a row since its template was made: what that has run is not known."""
    history, since = access.store.history, (template.created_at or 0) * 1000
    if history is None:
        return False
    key = f"{template.key}{own_lane(host.name)}"
    changes = AuditSelection(key=key, since=since, limit=1)
    return bool(access.send(lambda: [*history.audits(changes)]))


def _as_template_says(access: Access, row: Row, template: Row) -> Row | None:
    if not _is_to_keep(row):
        return None
    return as_template_says(row, template, access.settings, access.store.now)


# --- hosts that are gone --------------------------------------------------------------------


ReadWorkers = Callable[[int], Iterable[WorkerRecord]]
"""Reads the records of the workers that were seen since a time."""


def _gone_after(access: Access) -> int:
    """After how long a host is gone; one that is alive writes its record now and then only.

    Of a host that has been gone for ``history_keep``, nothing is known.
    """
    gone_after, keep = access.settings.host_gone_after, access.settings.history_keep
    return gone_after and max(min(gone_after, keep or gone_after), GONE_AFTER)


def _first_alive(workers: Iterable[WorkerRecord]) -> str | None:
    """The host that removes for all the rows of those that are gone."""
    return min(named_hosts(each for each in workers if each.ended is None), default=None)


def retire_gone(access: Access, workers: ReadWorkers) -> Iterator[None]:
    """Remove the rows of hosts of which the workers' records say nothing, or nothing for long."""
    gone_after = _gone_after(access)

    def lanes_here() -> Collection[str]:
        return {*map(own_lane, named_hosts(workers(floor(access.store.now()) - gone_after)))}

    here, rows = access.send(lanes_here), Selection(lanes=ROWS_OF_HOSTS)
    for place, row in enumerate(read_each(access.send, lambda: access.store.rows(rows))):
        if row.lane not in here and _is_of_host(row) and row.status != MIGRATING:
            with suppress(ScheduleError):
                _retire(access, row, gone_after, lanes_here)
            yield
        elif place % _BATCH == 0:
            yield


def _is_of_host(row: Row) -> bool:
    """Whether this is the row of a host for a template, or an extra run of such a row."""
    return template_of(schedule_key(row.key), row.lane or "") is not None


def _retire(
    access: Access, found: Row, gone_after: int, lanes_here: Callable[[], Collection[str]]
) -> None:
    """Let any host delete a row, and record that what its host has missed was skipped.

    The row is marked and gets no lane: whoever claims it records the run that its host has left
    behind, and deletes the row. The host is looked for once more, because it may be back: there can
    be so many rows that this takes long.
    """
    owner, reason = access.draw_nonce(), f"its host was not seen for {format_duration(gone_after)}"
    is_gone = False

    def change(seen: Row) -> Recorded | None:
        nonlocal is_gone
        now = access.store.now()
        runs = seen.owner is not None and (seen.next_run_time or 0) > now
        is_gone = not runs and seen.lane == found.lane and seen.lane not in lanes_here()
        if not is_gone:
            return None
        row, spans = _ended(access, seen, floor(now), reason)
        return Recorded(row, records_of(access, seen, spans, owner=owner, now=now))

    replace(access, "delete", found.key, change, was_replaced)
    if is_gone:
        _log.warning("%s: %s", found.key, reason)


def _ended(access: Access, seen: Row, now: int, reason: str) -> tuple[Row, Sequence[Skipped]]:
    row = changed(seen, lane=None, status=DELETING, next_run_time=now)
    if seen.status in {*ENDED, *BEING_DELETED}:
        return row, ()
    try:
        definition = parse_row(seen, access.settings)
    except InvalidError:
        return row, ()
    try:
        return _skipped(row, seen, definition, now, reason)
    except AskElsewhereError:  # a worker does not call a user's trigger, which can hang
        return row, ()


def _skipped(
    row: Row, seen: Row, definition: Definition, now: int, reason: str
) -> tuple[Row, Sequence[Skipped]]:
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
