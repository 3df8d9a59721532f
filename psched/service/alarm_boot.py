"""Creates the monitor's duty that raises alerts and tells hooks."""

import random
import threading
from functools import partial

from psched.app import CLOCK, make_store, new_nonce, open_in_worker
from psched.config import Config
from psched.master.totals import Host
from psched.monitor.alarms import AlarmLoop, Alarms, Outage, Source, pause_of
from psched.monitor.delivering import Deliveries, HookCaller, context_of
from psched.monitor.host_alerts import HostAlerts
from psched.monitor.monitor import Observed
from psched.notify.hooks import deliverers
from psched.reports.failures import Failures
from psched.reports.judge import Judge


def alarms(settings: Config, observed: Observed) -> Alarms:
    """The duty of the monitor that finds reasons for alerts, see `Alarms`."""
    wake = threading.Event()
    return Alarms(partial(_alarm_loop, settings, observed, wake), wake)


def _alarm_loop(settings: Config, observed: Observed, wake: threading.Event) -> AlarmLoop | None:
    """What raises alerts and tells hooks; None if the store keeps no alerts."""
    store = make_store(settings)
    alerts, history = store.alerts, store.history
    if alerts is None:
        return None
    host = settings.this_host
    deliverer = HookCaller(
        deliverers(settings, partial(open_in_worker, settings), CLOCK), settings, host
    )
    deliveries = Deliveries(
        alerts,
        new_nonce(),
        deliverer,
        clock=CLOCK,
        wake=wake,
        context_of=partial(context_of, store),
    )
    outage = Outage(settings, host=host, deliverer=deliverer, clock=CLOCK, wake=wake)
    rng = random.Random()  # noqa: S311  # only spreads requests
    sources: list[Source] = [Judge(store, alerts, settings, clock=CLOCK, rng=rng)]
    if history is not None:

        def observe() -> Host | None:
            return observed.now.host

        sources += [
            HostAlerts(
                store,
                history,
                alerts,
                settings,
                host=host,
                observe=observe,
                clock=CLOCK,
            ),
            Failures(store, history, alerts, settings, clock=CLOCK),
        ]
    return AlarmLoop(
        store,
        alerts,
        sources,
        deliveries,
        outage,
        keep=settings.history_keep,
        pause=pause_of(settings.poll_interval),
        clock=CLOCK,
    )
