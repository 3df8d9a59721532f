"""The table of settings: names, types, bounds, meanings and defaults, in one place.

Each setting is a field of `Config`, annotated with its type, its kind and a line of help.
What checks a value and what documents it are derived from there: see `SETTINGS`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from psched.base import lease_times
from psched.base.compression import LARGEST
from psched.config import checking, references, urls, words
from psched.config.checking import RawValue, Setting
from psched.config.kinds import (
    Choice,
    Command,
    File,
    Folders,
    ModuleNames,
    Modules,
    Names,
    Number,
    Programs,
    Zone,
)
from psched.config.per_type import NO_TYPES, PerType, Types
from psched.config.problems import Problem
from psched.config.references import Context
from psched.config.store_settings import StoreSettings
from psched.config.tls import Tls, chosen_tls


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config(StoreSettings):
    """Every setting, checked. Made by `load`, `from_mapping` and `with_settings`.

    Times are in seconds and paths absolute. The url may hold a password.

    Attributes:
        origin: the file that the settings were read from, if any; not a setting.
        withheld: the environment variables that secrets refer to, which tasks are not to have; not
            a setting either.
    """

    origin: Path | None = field(default=None, compare=False)
    withheld: frozenset[str] = field(default=frozenset(), compare=False)

    poll_interval: Annotated[
        float, Number(above=0, most=60), "Longest time between two looks at the table."
    ] = 1.0
    timezone: Annotated[str, Zone(), "Timezone of the schedules that name none."] = "UTC"
    alive_time: Annotated[
        int,
        Number(whole=True, least=lease_times.SHORTEST_ALIVE_TIME),
        "Length of a lease: when its host has died, a task is run elsewhere after this time.",
    ] = 300
    retry_wait: Annotated[
        int, Number(whole=True), "Time from the failure of a task to its next attempt."
    ] = 300
    retry_backoff: Annotated[
        str,
        Choice("fixed", "exponential"),
        "Whether each further retry_wait is the same, or twice as long, less some jitter.",
    ] = "fixed"
    retry_wait_limit: Annotated[
        int, Number(whole=True), "Longest wait before an attempt that retry_backoff may come to."
    ] = 86_400
    max_attempts: Annotated[
        int,
        Number(whole=True, unit="attempts"),
        "Attempts after which an occurrence that fails is given up; 0 is never.",
    ] = 0
    on_return: Annotated[
        str,
        Choice("finish", "retry"),
        "What becomes of a task whose handler returns without having called finish().",
    ] = "finish"
    expire: Annotated[
        int,
        Number(whole=True),
        "Time after which a task that runs once and has not succeeded is given up; 0 is never.",
    ] = 345_600
    retention_time: Annotated[
        int, Number(whole=True), "Time for which a task that has ended keeps its key."
    ] = 864_000
    data_limit: Annotated[
        int,
        Number(whole=True, unit="bytes", least=1024, most=LARGEST),
        "Largest payload, as JSON, that is accepted.",
    ] = 16 * 2**20
    compress_above: Annotated[
        int,
        Number(whole=True, unit="bytes"),
        "Payloads that are larger as JSON are stored compressed; 0 is none.",
    ] = 64 * 2**10
    dst_policy: Annotated[
        str,
        Choice("debian", "wallclock"),
        "What becomes of a time of day that a clock change skips or repeats.",
    ] = "debian"
    catchup: Annotated[
        str, Choice("all", "latest", "skip"), "Which occurrences are run of those that were missed."
    ] = "all"
    catchup_limit: Annotated[
        int,
        Number(whole=True, unit="occurrences", least=1, most=10_000),
        "Most missed occurrences of one schedule that are run.",
    ] = 1000
    catchup_grace: Annotated[
        int, Number(whole=True), "An occurrence that starts no later than this is on time."
    ] = 60
    catchup_window: Annotated[
        int, Number(whole=True), "Missed occurrences older than this are dropped; 0 is never."
    ] = 0
    jitter: Annotated[
        int,
        Number(whole=True, most=86_400),
        "Each occurrence of a schedule starts up to so much later, by a share of its own.",
    ] = 0

    types: Annotated[
        Types,
        PerType(lambda name: SETTINGS[name].kind),
        "For some types of task, settings that are others than for all.",
    ] = NO_TYPES

    processors: Annotated[
        int, Number(whole=True, unit="processes", least=1, most=1000), "Workers on this host."
    ] = 1
    concurrency: Annotated[
        int,
        Number(whole=True, unit="tasks", least=1, most=1000),
        "Most tasks that one worker runs at the same time.",
    ] = 1
    max_tasks_per_child: Annotated[
        int,
        Number(whole=True, unit="tasks", least=1),
        "Tasks that one process runs before a fresh one takes its place.",
    ] = 1
    worker_max_tasks: Annotated[
        int,
        Number(whole=True, unit="tasks"),
        "Tasks after which a worker is replaced by a fresh one; 0 is never.",
    ] = 0
    worker_max_age: Annotated[
        float, Number(), "Age at which a worker is replaced by a fresh one; 0 is never."
    ] = 0.0
    kill_timeout: Annotated[float, Number(), "Longest time a task may run; 0 is for ever."] = 6000.0
    kill_interval: Annotated[
        float, Number(above=0), "Time between the TERM signals to a task that has to stop."
    ] = 60.0
    graceful_kill_limit: Annotated[
        float, Number(), "Time from the first TERM signal to a task until it is killed."
    ] = 150.0
    graceful_timeout: Annotated[
        float, Number(), "Time that a shutdown gives running tasks to finish."
    ] = 300.0
    start_timeout: Annotated[
        float, Number(above=0), "A worker that is not ready after this time is killed."
    ] = 60.0
    child_heartbeat_limit: Annotated[
        float, Number(least=3), "A worker that has been silent for longer is killed."
    ] = 60.0
    cgroup: Annotated[
        str, Choice("auto", "on", "off"), "Whether each task runs in a control group of its own."
    ] = "auto"

    load_path: Annotated[
        tuple[str, ...], Folders(), "Folders in which modules are looked for first."
    ] = ()
    triggers: Annotated[
        tuple[str, ...] | None,
        ModuleNames(),
        "Modules whose classes @call may name, with all below them; by default those in load_path.",
    ] = None
    require: Annotated[
        tuple[str, ...], Modules(), "Modules and Python files with handlers, to be loaded."
    ] = ()
    dispatch: Annotated[
        str | None,
        words.ATTRIBUTE,
        "The Dispatch that routes tasks to handlers, as module:attribute.",
    ] = None
    exec: Annotated[
        tuple[str, ...] | None, Command(), "A program that is run for tasks of every type."
    ] = None
    script: Annotated[
        tuple[str, ...] | None,
        Command(script=True),
        "A Python file with a class that runs tasks of every type.",
    ] = None
    script_class: Annotated[
        str | None, words.NAME, "The class in the script; by default Run, or the only one."
    ] = None

    exec_type: Annotated[
        bool | tuple[str, ...] | None,
        Programs(),
        "Whether rows of type exec may run any program, none, or those in a list.",
    ] = None

    only: Annotated[
        tuple[str, ...], Names(), "The only types of task that these workers take; by default all."
    ] = ()

    log: Annotated[Path | None, File(), "The log file; by default standard error."] = None
    log_level: Annotated[
        str, Choice("debug", "info", "warning", "error"), "The least serious events to be logged."
    ] = "info"
    pid_file: Annotated[
        Path | None, File(), "A file that holds the master's process id while it runs."
    ] = None

    @property
    def driver_timeout(self) -> float:
        """Seconds that a call to the database may take: the timeout T of `timing`."""
        if self.database_timeout is None:
            return lease_times.default_driver_timeout(self.alive_time)
        return self.database_timeout

    @property
    def allowed_programs(self) -> bool | tuple[str, ...]:
        """What rows of type exec may run: any program, none, or these."""
        if self.exec_type is None:
            return not (self.exec or self.script)
        return self.exec_type

    @property
    def tls(self) -> Tls | None:
        """How connections are encrypted; None: as the url's own options, or the driver, will."""
        return chosen_tls({name: getattr(self, name) for name in SETTINGS})

    @property
    def safe_url(self) -> str:
        """The url without its password, to be shown to people."""
        return urls.safe(self.url)

    def with_settings(self, *, cwd: Path | None = None, **changes: object) -> "Config":
        """These settings, but for some.

        Args:
            cwd: what relative paths among the changes start from; by default the current
                folder.
            changes: values by the names of their settings, as in a file, but taken as they
                are: ``${`` has no meaning here.

        Raises:
            ConfigError: a change is unknown or impossible, by itself or beside the others.
        """
        around = Context({}, (cwd or Path()).absolute(), literal=True)
        given = {name: RawValue(value) for name, value in changes.items()}
        current = {name: getattr(self, name) for name in SETTINGS}
        changed = check(given, around, start=current)
        return replace(changed, origin=self.origin, withheld=self.withheld)

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)} | {"url": self.safe_url}
        shown["password"] = self.password and "***"
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _settings() -> Iterator[Setting]:
    annotations = get_type_hints(Config, include_extras=True)
    for each in fields(Config):
        if each.name not in ("origin", "withheld"):
            value_type, kind, line_of_help = get_args(annotations[each.name])
            default = None if each.default is MISSING else each.default
            optional = type(None) in get_args(value_type)
            yield Setting(each.name, kind, line_of_help, default, optional)


SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _settings()}
"""Every setting by its name, in the order of `Config`."""


def _variables(value: object) -> set[str]:
    """The environment variables that a value refers to, as it was written."""
    if isinstance(value, Mapping):
        return set[str]().union(*map(_variables, value.values()))
    if isinstance(value, RawValue):
        return _variables(value.value)
    return {*references.variables(value).values()} if isinstance(value, str) else set()


_SECRETS: Mapping[str, Callable[[Any], set[str]]] = {
    "url": lambda value: urls.secret_variables(value) if isinstance(value, str) else set(),
    "password": _variables,
    "store": _variables,
}
"""What in the values of settings is secret; of a key and a password's file it is not the path."""


def check(
    given: Mapping[str, RawValue],
    around: Context,
    *,
    start: Mapping[str, Any] | None = None,
    origin: Path | None = None,
    problems: Iterable[Problem] = (),
) -> Config:
    """Make a `Config` of what was given.

    Args:
        given: values by the names of their settings.
        around: where references and relative paths lead.
        start: the values of all other settings; by default the defaults.
        origin: the file that was read.
        problems: what is known to be wrong with that file.

    Raises:
        ConfigError: there are problems; it tells all of them.
    """
    values = checking.check(SETTINGS, given, around, start=start, origin=origin, problems=problems)
    withheld = frozenset[str]().union(
        *(_SECRETS[name](each.value) for name, each in given.items() if name in _SECRETS)
    )
    return Config(origin=origin, withheld=withheld, **values)
