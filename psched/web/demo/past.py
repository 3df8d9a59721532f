"""Fills an empty database with schedules and a made-up past."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import psched
from psched.core.history.records import RunRecord
from psched.stores.pages import batched
from psched.triggers.trigger import parse

HOST = "worker-1"
LATE_OFTEN = 0.03
"""How often a run starts much later than it was due."""


class Plan(NamedTuple):
    """A schedule, and how many seconds its runs usually take."""

    key: str
    type: str
    label: str
    cron: str
    usual: float


NAMED = (
    Plan("backup.database", "script", "storage", "10 */3 * * *", 2700),
    Plan("backup.files", "script", "storage", "40 */2 * * *", 1500),
    Plan("backup.verify", "script", "storage", "25 1-23/4 * * *", 900),
    Plan("billing.collect", "billing", "billing", "*/30 * * * *", 240),
    Plan("billing.dunning", "billing", "billing", "15 * * * *", 90),
    Plan("billing.export", "billing", "billing", "5 */2 * * *", 1100),
    Plan("billing.invoices", "billing", "billing", "0 * * * *", 420),
    Plan("cache.warm", "http", "shop", "*/10 * * * *", 45),
    Plan("cdn.purge", "http", "shop", "20,50 * * * *", 20),
    Plan("certificates.renew", "script", "storage", "33 */6 * * *", 60),
    Plan("crm.sync", "sync", "sales", "*/20 * * * *", 400),
    Plan("feeds.import", "sync", "shop", "*/15 * * * *", 300),
    Plan("fraud.score", "model", "billing", "*/12 * * * *", 200),
    Plan("images.resize", "script", "shop", "*/25 * * * *", 500),
    Plan("inventory.count", "sync", "shop", "45 */2 * * *", 1900),
    Plan("ledger.close", "billing", "billing", "55 */6 * * *", 800),
    Plan("logs.rotate", "script", "storage", "0 */4 * * *", 120),
    Plan("mail.digest", "mail", "sales", "30 */3 * * *", 700),
    Plan("mail.newsletter", "mail", "sales", "12 */5 * * *", 2400),
    Plan("mail.retry", "mail", "sales", "*/15 * * * *", 30),
    Plan("metrics.rollup", "sql", "ops", "2 * * * *", 200),
    Plan("orders.archive", "sql", "shop", "22 */4 * * *", 1300),
    Plan("orders.reconcile", "sql", "shop", "35 * * * *", 350),
    Plan("partners.push", "http", "sales", "*/40 * * * *", 150),
    Plan("prices.update", "sync", "shop", "8,38 * * * *", 260),
    Plan("probe.homepage", "http", "ops", "@every 5m", 4),
    Plan("probe.payments", "http", "ops", "@every 5m", 6),
    Plan("quota.reset", "sql", "ops", "0 */6 * * *", 15),
    Plan("recommend.train", "model", "shop", "18 */6 * * *", 5400),
    Plan("reports.daily", "report", "sales", "50 */8 * * *", 1500),
    Plan("reports.hourly", "report", "sales", "3 * * * *", 130),
    Plan("search.compact", "script", "shop", "28 1-23/6 * * *", 2100),
    Plan("search.index", "script", "shop", "*/30 * * * *", 600),
    Plan("sessions.expire", "sql", "ops", "*/10 * * * *", 12),
    Plan("sitemap.build", "script", "shop", "52 */3 * * *", 330),
    Plan("stock.alerts", "mail", "shop", "17,47 * * * *", 25),
    Plan("tickets.escalate", "http", "ops", "*/20 * * * *", 18),
    Plan("uploads.scan", "script", "ops", "*/15 * * * *", 170),
    Plan("warehouse.load", "sql", "sales", "7 */2 * * *", 2500),
    Plan("webhooks.replay", "http", "ops", "26 */1 * * *", 75),
)

ERROR = """Traceback (most recent call last):
  File "/srv/jobs/handlers.py", line 41, in run
    answer = self.client.fetch(self.task.data["account"])
  File "/srv/jobs/client.py", line 118, in fetch
    raise RefusedError(f"{response.status} {response.reason}")
client.RefusedError: 503 Service Unavailable
"""

WRONG: dict[str, tuple[str, float]] = {
    "crm.sync": ("failed", 0.2),
    "feeds.import": ("lost", 0.2),
    "fraud.score": ("failed", 0.15),
    "images.resize": ("skipped_overlap", 0.2),
    "inventory.count": ("stopped", 0.4),
    "ledger.close": ("skipped_calendar", 0.6),
    "mail.digest": ("timed_out", 0.4),
    "mail.retry": ("timed_out", 0.2),
    "partners.push": ("gave_up", 0.85),
    "sitemap.build": ("skipped", 0.5),
    "uploads.scan": ("released", 0.15),
    "webhooks.replay": ("gave_up", 0.5),
}
"""What goes wrong with some schedules, and how often."""

REFUSED = {"reason": "RefusedError: 503 Service Unavailable", "error": ERROR}

ENDS: dict[str, dict[str, Any]] = {
    "": {"outcome": "finished", "fate": "finished"},
    "failed": {"outcome": "failed", **REFUSED},
    "gave_up": {"outcome": "failed", "fate": "gave_up", **REFUSED},
    "lost": {"outcome": "lost", "reason": "its worker died"},
    "released": {"outcome": "released", "reason": "its worker was stopped"},
    "timed_out": {"outcome": "timed_out", "reason": "it ran longer than kill_timeout"},
    "stopped": {"outcome": "cancelled", "fate": "stopped", "reason": "stopped by ada on desk-3"},
    "skipped_overlap": {"fate": "skipped_overlap", "reason": "an earlier run took until then"},
    "skipped_calendar": {"fate": "skipped_calendar", "reason": "a holiday"},
    "skipped": {"fate": "skipped", "reason": "skipped by ada on desk-3: release day"},
}
"""The fields of the record of each end."""


def fill(url: str, number: int, hours: int) -> None:
    """Add so many schedules, and so many hours of their past, to an empty database."""
    draw = random.Random(7)  # noqa: S311  # the same picture each time
    with psched.open({"url": url, "timezone": "UTC"}) as schedules:
        store = schedules._store
        store.init()
        now = int(schedules.now())
        plans = [plan_of(place) for place in range(number)]
        schedules.add_many(
            [
                {
                    "key": each.key,
                    "type": each.type,
                    "label": each.label,
                    "cron": each.cron,
                    "data": {"seconds": each.usual, "fails": _fails(each)},
                }
                for each in plans
            ]
        )
        records = [record for plan in plans for record in _past(draw, now, plan, hours)]
        records.sort(key=lambda record: record.ended)
        history = store.history
        assert history is not None  # noqa: S101  # of every SQL store
        for some in batched(records, 500):
            history.record(some)
        _pause(schedules)


def _wrong(plan: Plan) -> tuple[str, float]:
    """What goes wrong with a schedule, and how often."""
    return WRONG.get(".".join(plan.key.split(".")[:2]), ("", 0.0))


def _fails(plan: Plan) -> float:
    wrong, often = _wrong(plan)
    return often if "error" in ENDS[wrong] else 0.0


def plan_of(place: int) -> Plan:
    """One of the named schedules, or a copy of it."""
    named, copy = NAMED[place % len(NAMED)], place // len(NAMED)
    return named._replace(key=f"{named.key}.{copy}") if copy else named


def _past(draw: random.Random, now: int, plan: Plan, hours: int) -> Iterator[RunRecord]:
    """The records of a schedule; an attempt that is tried again has a second one."""
    trigger = parse(plan.cron, "UTC")
    wrong, often = _wrong(plan)
    busy_until = 0
    time = trigger.next_after(now - hours * 3600)
    while time is not None and time < now - 60:
        end = ENDS[wrong if draw.random() < often else ""]
        common: dict[str, Any] = {
            "key": plan.key, "type": plan.type, "label": plan.label, "host": HOST, "fence": 1,
            "scheduled_time": time, **end,
        }  # fmt: skip
        if "outcome" not in end:
            yield RunRecord(**common, owner=f"w.{plan.key}.{time}", ended=1000 * time + 500)
        else:
            late = draw.expovariate(1 / 3) + (draw.random() < LATE_OFTEN) * draw.randint(300, 1500)
            begun = max(1000 * time + round(1000 * late), busy_until)
            for attempt in 1, 2:
                took = 1000 * plan.usual * draw.uniform(0.75, 1.2)
                busy_until = begun + round(took / 3 if "error" in common else took)
                if busy_until >= 1000 * now:
                    break
                yield RunRecord(
                    **common, attempt=attempt, owner=f"w.{plan.key}.{time}.{attempt}",
                    due=1000 * time, started=begun, ended=busy_until, pid=4000 + attempt,
                    cpu_ms=round(took / 9), peak_kb=40_000,
                )  # fmt: skip
                if "fate" in common:
                    break
                common = {**common, "reason": None, "error": None, **ENDS[""]}
                begun = busy_until + 300_000
        time = trigger.next_after(time)


def _pause(schedules: psched.ScheduleCollection) -> None:
    with schedules.audited("waits for the new partner API"):
        schedules.pause("partners.push")
    schedules.pause("mail.newsletter", until="+4h")
