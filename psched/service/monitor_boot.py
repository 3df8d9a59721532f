"""Turns a process that the master has forked into its monitor."""

import gc
import logging
from contextlib import suppress

from psched.app import CLOCK
from psched.base.errors import ConfigError
from psched.base.log import Log, log_uncaught
from psched.config import Config, withhold
from psched.config.urls import MEMORY as MEMORY_URL
from psched.master.generation_spec import BAD_CONFIG
from psched.memory import MEMORY
from psched.monitor.monitor import Monitor
from psched.process import kernel
from psched.process.cgroup import Cgroup
from psched.process.kernel import set_title
from psched.process.link import Link
from psched.process.signals import SIGNALS, SignalInbox
from psched.service.worker_boot import redirect_log

_log = logging.getLogger("psched.monitor")

_BEATS = 4
"""How many signs of life the monitor sends within the time after which it counts as silent."""


def run_monitor(settings: Config, log: Log, master: int, link: Link, cgroup: Cgroup | None) -> int:
    """Run this process, a fork of the master, as its monitor; return the exit status.

    Args:
        settings: the settings of the generation.
        log: the log of this process.
        master: the pid of the master. If it dies, the kernel kills this process.
        link: the connection to the master.
        cgroup: the cgroup that this process enters; None if it stays in that of the master.
    """
    kernel.die_with_parent(master)
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
            MEMORY.join(master)
    except ConfigError as error:
        _log.error("%s", error)
        return BAD_CONFIG
    withhold(settings.withheld)
    gc.freeze()
    try:
        return Monitor(
            link,
            (),
            inbox=inbox,
            log=log,
            clock=CLOCK,
            beat=settings.child_heartbeat_limit / _BEATS,
        ).run()
    finally:
        MEMORY.leave()
