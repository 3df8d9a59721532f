"""The declarations of the settings of what the monitor does."""

import re
from dataclasses import dataclass
from typing import Annotated

from psched.config.kinds import Choice, Flag, MatchingText, Names, Number
from psched.config.monitoring.expect import NO_EXPECTATIONS, Expect, Expectations
from psched.config.monitoring.hooks import NO_HOOKS, HookNames, Hooks, HooksKind
from psched.config.monitoring.networks import Network, Networks
from psched.config.monitoring.pings import NO_PING, NO_PINGS, PING_NAME, Pings, PingUrls

_METRICS = MatchingText(
    "an address such as 127.0.0.1:9464, unix:/run/psched/metrics.sock or textfile:/path/name.prom",
    re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[\w.-]+):\d{1,5}|(unix:/|textfile:/.*[^/]\.prom$).*"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MonitorSettings:
    """The part of `psched.config.settings.Config` that is about the monitor."""

    monitor: Annotated[bool, Flag()] = True
    """Whether the master keeps a monitor: a process that observes, and runs no task."""

    metrics: Annotated[str | None, _METRICS] = None
    """Where the monitor shows metrics for Prometheus; None means nowhere."""

    metrics_keys: Annotated[tuple[str, ...], Names("a schedule")] = ()
    """Keys of schedules whose last success the metrics show, with the keys; at most 100."""

    expect: Annotated[Expectations, Expect()] = NO_EXPECTATIONS
    """What is expected of schedules: how late an occurrence may start (late), how long a run may
    take (longest), for how long a schedule may be without a success (silent), and how many times
    its usual duration a run may take (unusual). If it fails, the monitor raises an alert."""

    hooks: Annotated[Hooks, HooksKind()] = NO_HOOKS
    """Who or what can be told about alerts, and how: definitions, by their names."""

    alert_on: Annotated[str, Choice("given_up", "each_failure")] = "given_up"
    """When the hooks of on_failed are told of an occurrence with a limit of attempts: when it is
    given up (given_up), or of failed attempts before, too (each_failure)."""

    on_failed: Annotated[tuple[str, ...], HookNames()] = ()
    """Names of the hooks that are told when a task has failed, was given up, or is quarantined."""

    on_late: Annotated[tuple[str, ...], HookNames()] = ()
    """Names of the hooks that are told when a task does not start in time, runs for too long, or
    has not succeeded for too long, and when no slot is free for it."""

    on_lost: Annotated[tuple[str, ...], HookNames()] = ()
    """Names of the hooks that are told when a worker or a host has died while it ran a task, when
    workers of a host have died, and when a monitor cannot reach the database. In the last case,
    the hooks of on_failed and on_late are told, too."""

    on_recovered: Annotated[tuple[str, ...], HookNames()] = ()
    """Names of the hooks that are told when something is over that a hook was told about."""

    allow_private_addresses: Annotated[tuple[Network, ...], Networks()] = ()
    """Networks to which requests are sent although their addresses are not public. In a
    configuration, on means all networks, and off means none."""

    pings: Annotated[Pings, PingUrls()] = NO_PINGS
    """Names of pings, each with the URL of a check of Healthchecks, which is told of each run."""

    ping: Annotated[str, PING_NAME] = NO_PING
    """Name of the ping that is told of the runs of a schedule; none means that nobody is told."""

    ping_output: Annotated[int, Number(whole=True, unit="bytes", most=65_536)] = 10_240
    """Number of bytes of an attempt's output that its ping contains, the last ones; 0 means that
    none is sent."""
