"""Opens the schedules for a command: by which settings, and in whose name they are changed.

Without a configured url, each user has an SQLite file of their own. A schedule that root adds to
root's own file is never run by the service. So if no url is configured and a service serves another
database, commands that write refuse, and commands that read warn.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psched import config
from psched.app import open_schedules, read_config
from psched.base.errors import ConfigError, NotSupportedError, StoreError
from psched.base.texts import brief, visible
from psched.cli.options import ConfigLocation
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.urls import MEMORY as MEMORY_URL
from psched.core.history.records import WorkerRecord
from psched.core.hosts import absent

if TYPE_CHECKING:
    from psched.service.service_file import Service

_UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""The folders in which an installed unit is searched, see systemd.unit(5)."""

_UNIT = "psched.service"

_SERVICE_CONFIG = "/etc/psched/psched.yml"  # the configuration file that the shipped unit names

_STATE_DIRECTORY = re.compile(r"^StateDirectory=(\S+)", re.MULTILINE)


message = click.option(
    "-m", "--message", metavar="TEXT", help="Why, for the audit trail; see psched audit."
)


def read_settings(location: ConfigLocation) -> Config:
    """Read the settings for a command. A store in memory is that of the master that runs here."""
    settings = read_config(*location)
    if settings.url == MEMORY_URL:
        from psched.memory import MEMORY  # noqa: PLC0415  # few installations have such a store

        MEMORY.use_running_master()
    return settings


def settings_to_write(location: ConfigLocation) -> Config:
    """Read the settings for a command that writes to the store."""
    settings = read_settings(location)
    if (other := _describe_other_database(settings)) is not None:
        raise ConfigError(other)
    return settings


def settings_to_read(location: ConfigLocation) -> Config:
    """Read the settings for a command that only reads the store.

    If no url is configured, and a service on this host uses another database, warn on standard
    error.
    """
    settings = read_settings(location)
    warn_of_other_database(settings)
    return settings


@contextmanager
def open_to_change(settings: Config, note: str | None = None) -> Iterator[ScheduleCollection]:
    """Open the schedules for the command that is running."""
    program = f"psched {click.get_current_context().info_name}"
    with open_schedules(settings, program=program) as schedules, schedules.audited(note):
        yield schedules


def warn_of_types(schedules: ScheduleCollection, types: Iterable[str]) -> None:
    """Warn on standard error about types that no worker of the last day takes, if that is known."""
    seen = [worker.taken_types for worker in _workers_seen(schedules)]
    taken = sorted({type_ for each in seen for type_ in each or ()})
    for each in dict.fromkeys(types) if seen and None not in seen else ():
        if each not in taken:
            text = f"takes the type {each!r} (they take only {brief(', '.join(taken))})"
            click.echo(f"Warning: no worker seen in the last day {visible(text)}", err=True)


def warn_of_hosts(schedules: ScheduleCollection, lanes: Iterable[str | None]) -> None:
    """Warn on standard error about hosts that were not seen in the last day, if that is known."""
    if not (wanted := [*filter(None, dict.fromkeys(lanes))]):
        return
    seen = _workers_seen(schedules)
    for lane in wanted if seen else ():
        if not any(worker.may_run(lane) for worker in seen):
            text = visible(absent(lane, " or "))
            click.echo(f"Warning: no host seen in the last day {text}", err=True)


def _workers_seen(schedules: ScheduleCollection) -> Sequence[WorkerRecord]:
    """The workers of the last day; none if they are not known, because these are only warnings."""
    try:
        return schedules.workers_seen(86_400)
    except (NotSupportedError, StoreError):
        return ()


def warn_of_other_database(settings: Config) -> None:
    """Warn on standard error if no url is configured and a service uses another database."""
    if (other := _describe_other_database(settings)) is not None:
        click.echo(f"Warning: {other}", err=True)


def _describe_other_database(settings: Config) -> str | None:
    """The text that names both databases; None if the command can use its own database."""
    if not settings.url_is_default:
        return None
    # Few commands need these modules, because most have a configured url.
    from psched.master.runtime_folders import volatile_folders  # noqa: PLC0415
    from psched.service.service_file import find_services  # noqa: PLC0415

    running = [*find_services(volatile_folders(os.environ))]
    if any(service.url == settings.url for service in running):
        return None  # a master runs the schedules of this database, whatever else is installed
    other = _described(running[0]) if running else _installed_service(settings.url)
    if other is None:
        return None
    why, fix = "none is configured", "set url in the configuration file"
    folder = Path(_SERVICE_CONFIG).parent
    if settings.origin is None and folder.exists() and not os.access(folder, os.X_OK):
        why = f"this user may not read {_SERVICE_CONFIG}"
        fix = "run this as root, or as a user who may read it"
    return (
        f"url: {why}, so this command would use {settings.safe_url}, but {other}; {fix}, or name a"
        " database with -c FILE or --database URL"
    )


def _described(service: "Service") -> str:
    """Name a master and its database. Tasks of the service can forge what it has published."""
    source = f", as {brief(service.config)} says" if service.config else ""
    return f"psched-master {service.pid} on this host serves {brief(service.url)}{source}"


def _installed_service(url: str) -> str | None:
    """Describe the database of the installed unit; None if there is no unit or if it is ``url``."""
    unit = _unit_text()
    if unit is None:
        return None
    try:
        Path(_SERVICE_CONFIG).lstat()
    except FileNotFoundError:
        return None  # the unit has not been configured yet
    except OSError:
        pass  # this user may not search the folder
    found = _STATE_DIRECTORY.search(unit)
    state = f"/var/lib/{found[1] if found else 'psched'}"
    try:
        # Like the service, with the state folder that systemd creates for it.
        theirs = config.load(_SERVICE_CONFIG, environ={**os.environ, "STATE_DIRECTORY": state})
    except ConfigError:
        # This user may not read the file, or a secret of the service that the file refers to.
        return f"the installed {_UNIT} uses the database that {_SERVICE_CONFIG} names"
    if theirs.url == url:
        return None
    return f"the installed {_UNIT} uses {theirs.safe_url}"


def _unit_text() -> str | None:
    """The installed unit; None if there is none, or if it is masked: a link to /dev/null."""
    for folder in _UNIT_FOLDERS:
        with suppress(OSError):
            return Path(folder, _UNIT).read_text(encoding="utf-8", errors="replace") or None
    return None
