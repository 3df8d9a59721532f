"""The metrics that the monitor shows, in the forms of prometheus-client.

This module is imported only if the setting ``metrics`` is set, and only in the monitor's process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from typing_extensions import override

from psched.core.history import counts
from psched.monitor.monitor import Observation, Observed
from psched.monitor.store_view import Seen


class _Counter(NamedTuple):
    """A counter."""

    name: str
    about: str  # what it means
    counted: str  # the name of its counts, see `psched.core.history.counts`
    labels: Sequence[str]  # the names of its labels


_COUNTERS = (
    _Counter(
        "psched_runs_total",
        "Occurrences, by what became of them.",
        counts.RUNS,
        ("type", "fate"),
    ),
    _Counter(
        "psched_attempts_total",
        "Attempts that have ended, by how they ended.",
        counts.ATTEMPTS,
        ("type", "outcome"),
    ),
    _Counter(
        "psched_claims_total",
        "Searches for due rows, by what they found.",
        counts.CLAIMS,
        ("result",),
    ),
    _Counter(
        "psched_store_errors_total",
        "Requests to the store that have failed.",
        counts.STORE_ERRORS,
        ("kind",),
    ),
    _Counter(
        "psched_skipped_total",
        "Occurrences that were skipped by a rule of their schedule.",
        counts.SKIPS,
        ("reason",),
    ),
)

_HISTOGRAMS: Mapping[str, tuple[str, str]] = {
    counts.LATENESS: (
        "psched_start_lateness_seconds",
        "Time from when a row was due until its task was started.",
    ),
    counts.DURATION: (
        "psched_run_duration_seconds",
        "How long attempts took that finished, failed or were stopped at their time limit.",
    ),
    counts.STORE_SECONDS: (
        "psched_store_seconds",
        "How long workers waited for answers of the store.",
    ),
}


class HostCollector(Collector):
    """Makes metrics of what is known about this host."""

    def __init__(self, observed: Observed, read_store: Callable[[], Seen]) -> None:
        self._observed = observed
        self._read_store = read_store

    @override
    def collect(self) -> Iterator[Metric]:
        seen = self._observed.now
        for counter in _COUNTERS:
            family = CounterMetricFamily(counter.name, counter.about, labels=counter.labels)
            for labels, count in seen.labelled(counter.counted).items():
                family.add_metric(labels[: len(counter.labels)], count)
            yield family
        for counted, (name, about) in _HISTOGRAMS.items():
            yield _histogram(name, about, counted, seen)
        yield from _of_host(seen)
        # The store is asked last, because it can be slow.
        yield from _of_store(self._read_store())


def text_of(collector: Collector) -> bytes:
    """The metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


def _histogram(name: str, about: str, counted: str, seen: Observation) -> Metric:
    totals = {label: count for (label, _), count in seen.labelled(counted).items()}
    bounds = [*map(str, map(float, counts.BUCKETS[counted])), "+Inf"]
    buckets, so_far = [], 0
    for number, bound in enumerate(bounds):
        so_far += totals.get(str(number), 0)
        buckets.append((bound, float(so_far)))
    family = HistogramMetricFamily(name, about)
    family.add_metric([], buckets, totals.get(counts.SUM, 0) / 1_000_000)
    return family


def _of_host(seen: Observation) -> Iterator[Metric]:
    if seen.host is None:
        return
    slots = GaugeMetricFamily(
        "psched_slots", "Slots of the workers of this host, free or busy.", labels=["state"]
    )
    slots.add_metric(["free"], seen.host.free)
    slots.add_metric(["busy"], max(0, seen.host.slots - seen.host.free))
    yield slots
    yield GaugeMetricFamily(
        "psched_leases", "Tasks that workers of this host run, each under a lease.", seen.host.tasks
    )
    yield CounterMetricFamily(
        "psched_worker_deaths_total",
        "Workers of this host that have died since the start of the master.",
        seen.host.deaths,
    )


def _of_store(seen: Seen) -> Iterator[Metric]:
    if seen.backlog is not None:
        yield GaugeMetricFamily(
            "psched_due",
            "Rows of the table that are due and not leased, at most 1000.",
            seen.backlog.due,
        )
        yield GaugeMetricFamily(
            "psched_oldest_due_seconds",
            "By how much the oldest of them is late.",
            seen.backlog.late,
        )
    if seen.successes:
        family = GaugeMetricFamily(
            "psched_last_success_timestamp_seconds",
            "When a schedule has last succeeded.",
            labels=["key"],
        )
        for key, ended in seen.successes.items():
            family.add_metric([key], ended)
        yield family
