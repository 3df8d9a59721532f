"""Calls the hooks of the configuration about alerts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace as changed
from typing import Any

from psched.config import Config
from psched.config.monitoring.hooks import READ_TEMPLATES, MailHook, TaskHook, Webhook
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.raising import hooks_of
from psched.core.alerts.watching import light_rows
from psched.core.columns import note_of
from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.history.records import Outcome
from psched.core.history.redaction import Redaction
from psched.core.model import WAITING
from psched.core.output.output import Output
from psched.core.output.protocol import KeepsOutput, OutputSelection
from psched.core.store_protocol import Store
from psched.notify.hooks import Deliverers
from psched.notify.notification import CLOSED, Context, Digest, Notification, Told
from psched.notify.webhook import WARNINGS
from psched.triggers.zone import find_zone

_OF_RUN = frozenset({Rule.LONGEST, Rule.UNUSUAL})
"""The rules about a run that is going on; they are over when it ends, however it ends."""

_PRINTED = frozenset({Rule.FAILED, Rule.GAVE_UP, Rule.LOST})
"""The rules about a run that may have printed why it has failed."""

_FAILED: Mapping[str, str] = {
    Outcome.FAILED: "the run has failed",
    Outcome.TIMED_OUT: "the run was stopped at its time limit",
    Outcome.LOST: "the run was lost",
    Outcome.PREEMPTED: "the run has lost its lease",
    Outcome.CANCELLED: "the run was stopped",
}

_BROKEN = frozenset(_FAILED) - {Outcome.CANCELLED}
"""The outcomes of attempts that may have printed why."""

_NEWEST = 5
"""The most records that are searched for the run of an alert."""

_TOLERANCE = 2000
"""Milliseconds: the claim's time, since which an alert counts, is known in whole seconds."""

_LINES, _CHARACTERS = 15, 2000
"""The most lines and characters of the output that are told."""


class HookCaller:
    """Delivers events of alerts; see `psched.monitor.delivering.Deliverer`."""

    def __init__(self, deliverers: Deliverers, settings: Config, host: str) -> None:
        self._deliverers = deliverers
        self._settings = settings
        self._host = host
        self._redaction = Redaction(settings.redact)
        self._zone = find_zone(settings.timezone)

    @property
    def names(self) -> Collection[str]:
        """The names of the hooks."""
        return self._deliverers.keys()

    def tries(self, hook: str) -> int:
        """The largest number of tries of a delivery by a hook."""
        return self._deliverers[hook].tries

    def is_read(self, hook: str) -> bool:
        """Whether people read what a hook tells; see `Deliverer.is_read`."""
        made = self._settings.hooks[hook]
        return isinstance(made, MailHook) or (
            isinstance(made, Webhook) and made.template in READ_TEMPLATES
        )

    def deliver(self, hook: str, told: Sequence[Told]) -> None:
        """Deliver an event by a hook, or several in one message."""
        common: dict[str, Any] = {
            "installation": self._settings.table,
            "host": self._host,
            "redaction": self._redaction,
            "zone": self._zone,
        }
        # A message about several events is as urgent as its first one.
        first, *others = (
            Notification(event=event, alert=alert, context=context, **common)
            for event, alert, context in sorted(
                told, key=lambda each: (each.event == CLOSED, each.alert.rule in WARNINGS)
            )
        )
        notification = first
        if others:
            notification = Digest(
                event=first.event, alert=first.alert, members=[first, *others], **common
            )
        self._deliverers[hook].deliver(notification)


def context_of(store: Store, event: str, alert: Alert) -> Context:
    """Read what people want to know besides an alert about a schedule."""
    row = light_rows(store, [alert.key]).get(alert.key) if alert.key else None
    if row is None:
        return Context()
    waits = row.status == WAITING and row.owner is None
    context = Context(note=note_of(row), next_run=row.next_run_time if waits else None)
    if not isinstance(store, KeepsHistory) or store.history_problem() is not None:
        return context
    if event == CLOSED:
        if alert.rule in _OF_RUN:
            runs = store.runs(RunSelection(key=alert.key, since=alert.since, limit=_NEWEST))
            ends = (run.outcome for run in runs if run.began <= alert.since + _TOLERANCE)
            context = changed(context, failed=_FAILED.get(next(ends, None) or ""))
        return context
    if alert.rule in _PRINTED and isinstance(store, KeepsOutput) and not store.output_problem():
        newest = RunSelection(key=alert.key, with_extra_runs=True, outcomes=_BROKEN, limit=1)
        for run in store.runs(newest):
            place = OutputSelection(key=run.key, scheduled_time=run.scheduled_time, limit=_NEWEST)
            for record in store.outputs(place):
                if record.attempt == run.attempt:
                    lines = Output(record).text.rstrip().splitlines()[-_LINES:]
                    return changed(context, output="\n".join(lines)[-_CHARACTERS:])
    return context


def hooks_without_store(rule: str, settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hooks that are told about an alert, without those that need the store."""

    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if not isinstance(settings.hooks.get(name), TaskHook))

    told, told_later = hooks_of(rule, settings)
    return kept(told), kept(told_later)
