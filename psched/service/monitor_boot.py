"""Turns a process that the master has forked into its monitor."""

import gc
import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from psched.app import CLOCK, hint_of, make_store
from psched.base.errors import ConfigError
from psched.base.fault_log import FaultLog
from psched.base.log import Log, log_uncaught
from psched.client.access import NOTIFY
from psched.config import Config, withhold
from psched.config.urls import MEMORY as MEMORY_URL
from psched.master.generation_spec import BAD_CONFIG
from psched.memory import MEMORY
from psched.monitor.address import place_of
from psched.monitor.listening import Listening
from psched.monitor.monitor import Duty, Monitor, Observed
from psched.monitor.pinging import Pinging
from psched.monitor.showing import ServesMetrics, WritesMetrics
from psched.monitor.store_view import StoreView
from psched.process import kernel
from psched.process.cgroup import Cgroup
from psched.process.kernel import set_title
from psched.process.link import Link
from psched.process.signals import SIGNALS, SignalInbox
from psched.service.worker_boot import redirect_log

if TYPE_CHECKING:
    from psched.monitor.ping_delivery import PingDelivery

_log = logging.getLogger("psched.monitor")

_BEATS = 4
"""How many signs of life the monitor sends within the time after which it counts as silent."""


def check_metrics(settings: Config) -> None:
    """Check that the monitor can show the metrics that are asked for."""
    if settings.metrics is None:
        return
    try:
        place = place_of(settings.metrics)
    except ValueError as error:
        raise ConfigError(f"metrics: {error}") from None
    needed = {"prometheus_client": "prometheus-client"}
    if place.textfile is None:
        needed["waitress"] = "waitress"
    for module, package in needed.items():
        if find_spec(module) is None:
            raise ConfigError(f"metrics: needs the package {package}: pip install psched[metrics]")


def run_monitor(settings: Config, log: Log, master: int, link: Link, cgroup: Cgroup | None) -> int:
    """Run this process, a fork of the master, as its monitor; return the exit status."""
    kernel.die_with_parent(master)
    # The master reaps and kills what a hook's killed guard leaves. The monitor cannot: its threads
    # wait for children of their own.
    kernel.leave_orphans()
    if cgroup is not None:
        with suppress(OSError):  # it then stays in the cgroup of the master
            cgroup.add(0)
    log.process = "monitor"
    log.recent.clear()
    log_uncaught()
    set_title("monitor")
    # If the monitor hangs, its stack can be asked for by ABRT.
    log.dump_crashes()
    kernel.handle_signals_on_the_stack()
    inbox = SignalInbox(SIGNALS)
    try:
        redirect_log(log, settings.log, settings.log_level, settings.log_format)
        if settings.url == MEMORY_URL:
            MEMORY.join(master, holds=False)
    except ConfigError as error:
        _log.error("%s", error)
        return BAD_CONFIG
    withhold(settings.withheld)
    observed = Observed(CLOCK)
    pinging = _pinging(settings)
    duties = [*_duties(settings, observed), pinging]
    gc.freeze()
    try:
        return Monitor(
            link,
            duties,
            observed=observed,
            inbox=inbox,
            log=log,
            clock=CLOCK,
            beat=settings.child_heartbeat_limit / _BEATS,
            on_run=pinging.note,
        ).run()
    finally:
        MEMORY.leave()


def _duties(settings: Config, observed: Observed) -> Iterator[Duty]:
    """What a monitor with these settings does."""
    # Loaded only here, because the modules for HTTP, TLS and mail take memory in every worker.
    from psched.service.alarm_boot import alarms  # noqa: PLC0415

    yield alarms(settings, observed)
    if settings.wake == NOTIFY and (hint := hint_of(settings)) is not None:
        yield Listening(partial(make_store, settings), hint, CLOCK)
    if not settings.metrics:
        return
    # Loaded only here, because the package is optional, and takes memory.
    from psched.monitor.metrics import HostCollector, text_of  # noqa: PLC0415

    view = StoreView(
        partial(make_store, settings),
        settings.metrics_keys,
        clock=CLOCK,
        faults=FaultLog("the store does not answer the monitor", _log, CLOCK),
    )
    read = partial(text_of, HostCollector(observed, view.read))
    place = place_of(settings.metrics)
    if place.textfile is None:
        yield ServesMetrics(place, read, observed, CLOCK)
    else:
        yield WritesMetrics(place.textfile, read)


def _pinging(settings: Config) -> Pinging:
    """The duty to ping. A row can name a ping that is not defined, so there always is this duty."""

    def open_delivery() -> "PingDelivery":
        # Loaded only here, because the modules for HTTP and TLS take memory.
        from psched.monitor.ping_delivery import PingDelivery  # noqa: PLC0415
        from psched.notify.http_client import HttpClient  # noqa: PLC0415

        client = HttpClient(allowed=settings.allow_private_addresses, clock=CLOCK)
        return PingDelivery(client, CLOCK)

    return Pinging(
        settings.pings,
        open_delivery,
        clock=CLOCK,
        secrets=settings.secrets,
        redact=settings.redact or (),
    )
