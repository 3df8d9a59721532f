"""The settings of a generation, from a configuration file that the master reads.

`psched.service.program` has the other source: a user's program, which reports its settings.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psched.app import ConfigLike, load_store, read_config
from psched.base.errors import ConfigError
from psched.base.log import Log, allow_basic_config
from psched.config import Config, withhold
from psched.config.urls import wake_code
from psched.master.generation_spec import (
    GenerationSpec,
    MonitorSpec,
    SpecError,
    WorkerIdentity,
    nothing,
)
from psched.master.reports.health import Limits
from psched.process.inheritance import open_descriptors
from psched.process.link import Link
from psched.service.monitor_boot import check_metrics, run_monitor
from psched.service.worker_boot import (
    WorkerBoot,
    redirect_log,
    settings_report,
)
from psched.worker.worker import prepare_process

_log = logging.getLogger("psched.worker")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Creates a `GenerationSpec` from a configuration that the master reads again at each restart.

    ``overrides`` are the settings of the command line, ``log`` is that of master and workers.
    """

    given: ConfigLike
    environment: str | None
    overrides: Mapping[str, object]
    log: Log

    def read_spec(self, _reported: Mapping[str, Any] | None) -> GenerationSpec:
        """Read the configuration; the master calls this as its `ReadSpec`."""
        try:
            settings = read_config(self.given, self.environment, self.overrides)
            check_metrics(settings)
        except ConfigError as error:
            raise SpecError(str(error)) from error
        load_store(settings)
        monitor = None
        if settings.monitor:
            main = partial(run_monitor, settings, self.log, os.getpid())
            limits = Limits.for_polls(settings.poll_interval)
            monitor = MonitorSpec(main, settings.child_heartbeat_limit, limits)
        boot = partial(self._boot, settings)
        return generation_spec(settings_report(settings), boot, self.log, monitor=monitor)

    def _boot(self, settings: Config, worker: WorkerBoot) -> int:
        # Withhold secrets from tasks here, in the worker, and not in the master, because the master
        # needs the secrets to read the configuration of the next generation.
        withhold(settings.withheld)
        return worker.serve(settings, None, report=False)


def generation_spec(
    report: Mapping[str, Any],
    boot: Callable[[WorkerBoot], int],
    log: Log,
    *,
    monitor: MonitorSpec | None = None,
) -> GenerationSpec:
    """The parameters of a generation with the settings of a `settings_report`.

    Before a program has reported its settings, ``report`` has only `MASTER_NUMBERS`.
    """
    master = os.getpid()
    about = report.get("about", {})

    def work(link: Link, place: WorkerIdentity, nonces: Sequence[str] | None = None) -> int:
        inbox = prepare_process(log, place)
        allow_basic_config(log)
        return boot(WorkerBoot(link, place, inbox, log, master, nonces, open_descriptors()))

    return GenerationSpec(
        processors=report["processors"],
        work=work,
        clean_up=work,
        start_timeout=report["start_timeout"],
        heartbeat_limit=report["child_heartbeat_limit"],
        graceful_timeout=report["graceful_timeout"],
        kill_limit=report["graceful_kill_limit"],
        about=about,
        adopt=partial(_adopt, log, report) if about else nothing,
        monitor=monitor,
        wake_code=(
            wake_code(about["url"], about["table"]) if about and report["wake"] != "off" else None
        ),
    )


def _adopt(journal: Log, report: Mapping[str, Any]) -> None:
    """Set the master's log to that of a new generation, and log what its rows can use."""
    path = Path(report["log"]) if report["log"] else None
    try:
        redirect_log(journal, path, report["log_level"], report["log_format"])
    except ConfigError as error:
        _log.error("%s; the master keeps its log", error)
    _log.info("%s", report["about"]["programs"])
    _log.info("%s", report["about"]["triggers"])
