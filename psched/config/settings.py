"""The table of settings: names, types, bounds, meanings and defaults, in one place.

Each setting is a field of `Config`, annotated with its type and its kind.
`SETTINGS` is derived from them, and values are checked by it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from psched.base import lease_times
from psched.base.compression import LARGEST
from psched.config import redis_urls, references, urls
from psched.config.checking import Setting, check_values
from psched.config.input_files import InputFile
from psched.config.kinds import (
    NO_OPTIONS,
    Choice,
    Command,
    File,
    Folders,
    MatchingText,
    ModuleNames,
    Modules,
    Number,
    Options,
    Programs,
    RawValue,
    SecretText,
    StoreOptions,
    StoreType,
    TypeNames,
    ZoneName,
)
from psched.config.per_type import NO_TYPES, PerType, Types
from psched.config.problems import Problem
from psched.config.references import Context
from psched.config.store_kinds import STORE_KINDS, USERS_OWN, StoreKind
from psched.config.tls import VERIFY, Tls, tls_of

_TABLE_NAME = MatchingText(
    "a name of letters, digits and _ that begins with no digit and has at most 48 of them",
    re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}"),
)
_CLASS_NAME = MatchingText("the name of a class", re.compile(r"[^\W\d]\w*"))
_IMPORT_PATH = MatchingText(
    "module:attribute, such as myapp.schedules:Dispatch, or a name in what is required",
    re.compile(r"(?:(?:[^\W\d]\w*\.)*[^\W\d]\w*:(?:[^\W\d]\w*\.)*)?[^\W\d]\w*"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """The values of all settings, checked. Made by `load`, `from_mapping` and `with_settings`.

    Times are in seconds and paths absolute. The url may hold a password.

    Attributes:
        origin: the file that the settings were read from, if any; not a setting.
        withheld: the environment variables that secrets refer to, and that tasks do not get; not a
            setting either.
    """

    origin: Path | None = field(default=None, compare=False)
    withheld: frozenset[str] = field(default=frozenset(), compare=False)

    type: Annotated[str, StoreType()] = "rdb"
    """Store: rdb (relational database), rdb_compat (PerfectSched's table), redis, module:Class."""

    store: Annotated[StoreOptions, Options()] = NO_OPTIONS
    """Options for a store class of your own (type: module:Class)."""

    url: Annotated[str, urls.Url()]
    """Url of the database; by default an SQLite file on this host."""

    host: Annotated[str | None, redis_urls.HOST] = None
    """Redis, instead of a url: the server's host."""

    port: Annotated[int | None, Number(unit="", whole=True, least=1, most=65_535)] = None
    """Redis, instead of a url: the server's port."""

    db: Annotated[int | None, Number(unit="", whole=True, most=999_999)] = None
    """Redis, instead of a url: the number of the database."""

    path: Annotated[Path | None, File()] = None
    """Redis, instead of host and port: the server's socket."""

    password: Annotated[str | None, SecretText()] = None
    """Redis, instead of a url: the password."""

    wait_replicas: Annotated[int, Number(unit="replicas", whole=True, most=100)] = 0
    """Redis: number of replicas that must confirm each write; 0: none."""

    password_file: Annotated[Path | None, InputFile(private=True)] = None
    """File with the password that the url leaves out."""

    ssl_ca: Annotated[Path | None, InputFile()] = None
    """Certificate of the authority; if set, all connections are encrypted."""

    ssl_cert: Annotated[Path | None, InputFile()] = None
    """Our own certificate, for a server that requires one."""

    ssl_key: Annotated[Path | None, InputFile(private=True)] = None
    """Private key of our own certificate."""

    ssl_verify: Annotated[str | None, Choice(*VERIFY)] = None
    """What is checked of the server: certificate and name (full), certificate (ca), or none."""

    table: Annotated[str, _TABLE_NAME] = "psched"
    """Table that holds the schedules."""

    database_timeout: Annotated[float | None, Number(above=0)] = None
    """Longest wait for an answer of the database; by default it follows from alive_time."""

    claim_strategy: Annotated[
        str, Choice("auto", "skip_locked", "cas", removed=["update_first"])
    ] = "auto"
    """How due rows are claimed; auto is the best way that the server supports."""

    poll_interval: Annotated[float, Number(above=0, most=60)] = 1.0
    """Longest time between two polls of the table."""

    timezone: Annotated[str, ZoneName()] = "UTC"
    """Timezone of schedules that name none."""

    alive_time: Annotated[int, Number(whole=True, least=lease_times.SHORTEST_ALIVE_TIME)] = 300
    """Length of a lease: after this time, the tasks of a dead host run elsewhere."""

    retry_wait: Annotated[int, Number(whole=True)] = 300
    """Time from the failure of a task to its next attempt."""

    retry_backoff: Annotated[str, Choice("fixed", "exponential")] = "fixed"
    """Whether retry_wait stays the same, or doubles with each attempt, less some jitter."""

    retry_wait_limit: Annotated[int, Number(whole=True)] = 86_400
    """Longest wait that an exponential retry_backoff reaches."""

    max_attempts: Annotated[int, Number(whole=True, unit="attempts")] = 0
    """Attempts after which an occurrence that fails is given up; 0: never."""

    on_return: Annotated[str, Choice("finish", "retry")] = "finish"
    """What happens to a task whose handler returns without calling finish()."""

    expire: Annotated[int, Number(whole=True)] = 345_600
    """Age at which a one-off task that has not succeeded is given up; 0: never."""

    retention_time: Annotated[int, Number(whole=True)] = 864_000
    """Time for which a one-off task keeps its key after it has ended."""

    data_limit: Annotated[int, Number(whole=True, unit="bytes", least=1024, most=LARGEST)] = (
        16 * 2**20
    )
    """Largest payload, as JSON, that is accepted."""

    compress_above: Annotated[int, Number(whole=True, unit="bytes")] = 64 * 2**10
    """Payloads that are larger, as JSON, are stored compressed; 0: none."""

    dst_policy: Annotated[str, Choice("debian", "wallclock")] = "debian"
    """What happens to a time of day that a clock change skips or repeats."""

    catchup: Annotated[str, Choice("all", "latest", "skip")] = "all"
    """Which missed occurrences are run: all, the latest one, or none (skip)."""

    catchup_limit: Annotated[int, Number(whole=True, unit="occurrences", least=1, most=10_000)] = (
        1000
    )
    """Largest number of missed occurrences of one schedule that are run."""

    catchup_grace: Annotated[int, Number(whole=True)] = 60
    """An occurrence that starts at most this late is on time."""

    catchup_window: Annotated[int, Number(whole=True)] = 0
    """Missed occurrences older than this are dropped; 0: never."""

    jitter: Annotated[int, Number(whole=True, most=86_400)] = 0
    """Longest delay of an occurrence's start; each has its own, so that not all start at once."""

    types: Annotated[Types, PerType(lambda name: SETTINGS[name].kind)] = NO_TYPES
    """Settings of their own for some types of task."""

    processors: Annotated[int, Number(whole=True, unit="processes", least=1, most=1000)] = 1
    """Workers on this host."""

    concurrency: Annotated[int, Number(whole=True, unit="tasks", least=1, most=1000)] = 1
    """Largest number of tasks that one worker runs at the same time."""

    max_tasks_per_child: Annotated[int, Number(whole=True, unit="tasks", least=1)] = 1
    """Tasks that one process runs before a new process replaces it."""

    worker_max_tasks: Annotated[int, Number(whole=True, unit="tasks")] = 0
    """Tasks after which a worker is replaced by a new one; 0: never."""

    worker_max_age: Annotated[float, Number()] = 0.0
    """Age at which a worker is replaced by a new one; 0: never."""

    kill_timeout: Annotated[float, Number()] = 6000.0
    """Longest time that a task may run; 0: no limit."""

    kill_interval: Annotated[float, Number(above=0)] = 60.0
    """Time between the TERM signals to a task that must stop."""

    graceful_kill_limit: Annotated[float, Number()] = 150.0
    """Time from the first TERM signal to a task until it is killed."""

    graceful_timeout: Annotated[float, Number()] = 300.0
    """Time that running tasks get to finish at a shutdown."""

    start_timeout: Annotated[float, Number(above=0)] = 60.0
    """A worker that is not ready after this time is killed."""

    child_heartbeat_limit: Annotated[float, Number(least=3)] = 60.0
    """A worker that gives no sign of life for longer than this is killed."""

    cgroup: Annotated[str, Choice("auto", "on", "off")] = "auto"
    """Whether each task runs in a control group of its own."""

    load_path: Annotated[tuple[str, ...], Folders()] = ()
    """Folders that are searched for modules first."""

    triggers: Annotated[tuple[str, ...] | None, ModuleNames()] = None
    """Modules whose classes @call may name, submodules included; by default those in load_path."""

    require: Annotated[tuple[str, ...], Modules()] = ()
    """Modules and Python files with handlers, which are loaded at the start."""

    dispatch: Annotated[str | None, _IMPORT_PATH] = None
    """The Dispatch that routes tasks to handlers, as module:attribute."""

    exec: Annotated[tuple[str, ...] | None, Command()] = None
    """Program that runs tasks of every type."""

    script: Annotated[tuple[str, ...] | None, Command(script=True)] = None
    """Python file with a class that runs tasks of every type."""

    script_class: Annotated[str | None, _CLASS_NAME] = None
    """The class in the script; by default Run, or the only one."""

    exec_type: Annotated[bool | tuple[str, ...] | None, Programs()] = None
    """Which programs rows of type exec may run: any (on), none (off), or those in a list."""

    only: Annotated[tuple[str, ...], TypeNames()] = ()
    """Types of task that these workers run; by default all."""

    log: Annotated[Path | None, File()] = None
    """Log file; by default standard error."""

    log_level: Annotated[str, Choice("debug", "info", "warning", "error")] = "info"
    """Least serious events that are logged."""

    pid_file: Annotated[Path | None, File()] = None
    """File that holds the master's process id while it runs."""

    @property
    def store_kind(self) -> StoreKind:
        """How the kind of store differs from others."""
        return STORE_KINDS.get(self.type, USERS_OWN)

    @property
    def driver_timeout(self) -> float:
        """Seconds that a call to the database may take: the T of `psched.base.lease_times`."""
        return lease_times.effective_driver_timeout(self.database_timeout, self.alive_time)

    @property
    def allowed_programs(self) -> bool | tuple[str, ...]:
        """Whether rows of type exec may run any program; or the programs that they may run."""
        if self.exec_type is None:
            return not (self.exec or self.script)
        return self.exec_type

    @property
    def tls(self) -> Tls | None:
        """How connections are encrypted; None: the url's options or the driver decide."""
        return tls_of({name: getattr(self, name) for name in SETTINGS})

    @property
    def safe_url(self) -> str:
        """The url without its passwords, to be shown to people."""
        return urls.without_secrets(self.url)

    def with_settings(self, *, cwd: Path | None = None, **changes: object) -> "Config":
        """A copy with some settings changed.

        Args:
            cwd: the folder that relative paths among the changes start from; by default the
                current folder.
            changes: values by the names of their settings, as in a file; but ``${`` is plain
                text in them.

        Raises:
            ConfigError: a change is unknown or invalid, by itself or together with the others.
        """
        context = Context({}, (cwd or Path()).absolute(), literal=True)
        given = {name: RawValue(value) for name, value in changes.items()}
        current = {name: getattr(self, name) for name in SETTINGS}
        changed = check(given, context, start=current)
        return replace(changed, origin=self.origin, withheld=self.withheld)

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)} | {"url": self.safe_url}
        shown["password"] = self.password and "***"
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _settings() -> Iterator[tuple[str, Setting]]:
    annotations = get_type_hints(Config, include_extras=True)
    for each in fields(Config):
        if each.name not in ("origin", "withheld"):
            value_type, kind = get_args(annotations[each.name])
            default = None if each.default is MISSING else each.default
            optional = type(None) in get_args(value_type)
            yield each.name, Setting(kind, default, optional)


SETTINGS: Mapping[str, Setting] = dict(_settings())
"""Every setting by its name, in the order of `Config`."""


def _variables(value: object) -> set[str]:
    """The environment variables that an unexpanded value refers to."""
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
"""Functions from the unexpanded value of a setting to the variables that may hold a secret. The
settings that name a private key's or a password's file are left out: a path is no secret."""


def check(
    given: Mapping[str, RawValue],
    context: Context,
    *,
    start: Mapping[str, Any] | None = None,
    origin: Path | None = None,
    problems: Iterable[Problem] = (),
) -> Config:
    """A `Config` of the values that were written.

    Args:
        given: the values, by the names of their settings.
        context: what references and relative paths refer to.
        start: the values of all other settings; by default the defaults.
        origin: the file that was read, if any.
        problems: those already found in that file.

    Raises:
        ConfigError: there are problems; it lists all of them.
    """
    values = check_values(SETTINGS, given, context, start=start, origin=origin, problems=problems)
    withheld = frozenset[str]().union(
        *(_SECRETS[name](each.value) for name, each in given.items() if name in _SECRETS)
    )
    return Config(origin=origin, withheld=withheld, **values)
