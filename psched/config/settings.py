"""The table of settings: names, types, bounds, meanings and defaults, in one place.

Each setting is a field of `Config`, annotated with its type and its kind. `SETTINGS` is derived
from these fields, and contains what `checking` needs to check values.
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
    """The checked values of all settings. Created by `load`, `from_mapping` and `with_settings`.

    Times are in seconds. Paths are absolute. The url may hold a password.

    Attributes:
        origin: the file that the settings were read from; None: there is no file. Not a setting.
        withheld: the names of the environment variables that may hold secrets; tasks do not get
            these variables. Not a setting.
    """

    origin: Path | None = field(default=None, compare=False)
    withheld: frozenset[str] = field(default=frozenset(), compare=False)

    type: Annotated[str, StoreType()] = "rdb"
    """Kind of store: rdb (relational database), rdb_compat (PerfectSched's table) or redis; or the
    import path of a store class of your own, module:Class."""

    store: Annotated[StoreOptions, Options()] = NO_OPTIONS
    """Options for a store class of your own (type: module:Class)."""

    url: Annotated[str, urls.Url()]
    """Url of the database; by default an SQLite file on this host."""

    host: Annotated[str | None, redis_urls.HOST] = None
    """Host of a Redis server, if there is no url; None: localhost."""

    port: Annotated[int | None, Number(unit="", whole=True, least=1, most=65_535)] = None
    """Port of a Redis server, if there is no url; None: 6379."""

    db: Annotated[int | None, Number(unit="", whole=True, most=999_999)] = None
    """Number of the database on a Redis server, if there is no url; None: 0."""

    path: Annotated[Path | None, File()] = None
    """Socket of a Redis server, if there is no url; it replaces host and port."""

    password: Annotated[str | None, SecretText()] = None
    """Password for a Redis server, if there is no url; None: no password."""

    wait_replicas: Annotated[int, Number(unit="replicas", whole=True, most=100)] = 0
    """Number of Redis replicas that must confirm each write; 0: writes need no confirmation."""

    password_file: Annotated[Path | None, InputFile(private=True)] = None
    """File with the password for the database, if the url does not contain it."""

    ssl_ca: Annotated[Path | None, InputFile()] = None
    """File with the certificate of the server's CA; if set, all connections are encrypted."""

    ssl_cert: Annotated[Path | None, InputFile()] = None
    """File with psched's own certificate, for a server that requires client certificates."""

    ssl_key: Annotated[Path | None, InputFile(private=True)] = None
    """File with the private key of the certificate in ssl_cert."""

    ssl_verify: Annotated[str | None, Choice(*VERIFY)] = None
    """What is checked about the server: its certificate and name (full), only its certificate (ca),
    or nothing (none). None: full if ssl_ca is set."""

    table: Annotated[str, _TABLE_NAME] = "psched"
    """Table that holds the schedules."""

    database_timeout: Annotated[float | None, Number(above=0)] = None
    """Longest wait for an answer of the database; None: it is derived from alive_time."""

    claim_strategy: Annotated[
        str, Choice("auto", "skip_locked", "cas", removed=["update_first"])
    ] = "auto"
    """How workers claim due rows; auto: the best way that the server supports."""

    poll_interval: Annotated[float, Number(above=0, most=60)] = 1.0
    """Longest time between two polls of the table."""

    timezone: Annotated[str, ZoneName()] = "UTC"
    """Timezone of schedules that have no timezone of their own."""

    alive_time: Annotated[int, Number(whole=True, least=lease_times.SHORTEST_ALIVE_TIME)] = 300
    """Length of a lease: after this time, the tasks of a dead host run elsewhere."""

    retry_wait: Annotated[int, Number(whole=True)] = 300
    """Time from the failure of a task to its next attempt."""

    retry_backoff: Annotated[str, Choice("fixed", "exponential")] = "fixed"
    """Whether the wait before a new attempt is always retry_wait (fixed), or doubles with each
    attempt and is shortened at random (exponential)."""

    retry_wait_limit: Annotated[int, Number(whole=True)] = 86_400
    """Longest wait before a new attempt if retry_backoff is exponential."""

    max_attempts: Annotated[int, Number(whole=True, unit="attempts")] = 0
    """Number of failed attempts after which an occurrence is given up; 0: no limit."""

    on_return: Annotated[str, Choice("finish", "retry")] = "finish"
    """What happens to a task whose handler returns without calling finish()."""

    expire: Annotated[int, Number(whole=True)] = 345_600
    """Age at which a one-off task that has not succeeded is given up; 0: no limit."""

    retention_time: Annotated[int, Number(whole=True)] = 864_000
    """Time for which a one-off task keeps its key after it has ended."""

    data_limit: Annotated[int, Number(whole=True, unit="bytes", least=1024, most=LARGEST)] = (
        16 * 2**20
    )
    """Size in bytes of the largest payload that is accepted, as JSON."""

    compress_above: Annotated[int, Number(whole=True, unit="bytes")] = 64 * 2**10
    """Size in bytes above which a payload, as JSON, is stored compressed; 0: none is compressed."""

    dst_policy: Annotated[str, Choice("debian", "wallclock")] = "debian"
    """How a schedule treats times of day that a clock change skips or repeats."""

    catchup: Annotated[str, Choice("all", "latest", "skip")] = "all"
    """Which missed occurrences are run: all, the latest one, or none (skip)."""

    catchup_limit: Annotated[int, Number(whole=True, unit="occurrences", least=1, most=10_000)] = (
        1000
    )
    """Largest number of missed occurrences of one schedule that are run."""

    catchup_grace: Annotated[int, Number(whole=True)] = 60
    """An occurrence that starts at most this much late counts as on time, not as missed."""

    catchup_window: Annotated[int, Number(whole=True)] = 0
    """Age above which missed occurrences are dropped; 0: no limit."""

    jitter: Annotated[int, Number(whole=True, most=86_400)] = 0
    """Longest delay that is added to the start of an occurrence. The delays differ, so that not all
    tasks start at once."""

    types: Annotated[Types, PerType(lambda name: SETTINGS[name].kind)] = NO_TYPES
    """Settings that apply to single types of task only."""

    processors: Annotated[int, Number(whole=True, unit="processes", least=1, most=1000)] = 1
    """Number of workers on this host."""

    concurrency: Annotated[int, Number(whole=True, unit="tasks", least=1, most=1000)] = 1
    """Largest number of tasks that one worker runs at the same time."""

    max_tasks_per_child: Annotated[int, Number(whole=True, unit="tasks", least=1)] = 1
    """Number of tasks that one process runs before a new process replaces it."""

    worker_max_tasks: Annotated[int, Number(whole=True, unit="tasks")] = 0
    """Number of tasks after which a new worker replaces a worker; 0: no limit."""

    worker_max_age: Annotated[float, Number()] = 0.0
    """Age at which a new worker replaces a worker; 0: no limit."""

    kill_timeout: Annotated[float, Number()] = 6000.0
    """Longest time that a task may run; 0: no limit."""

    kill_interval: Annotated[float, Number(above=0)] = 60.0
    """Time between the TERM signals to a task that must stop."""

    graceful_kill_limit: Annotated[float, Number()] = 150.0
    """Time from the first TERM signal to a task until it is killed."""

    graceful_timeout: Annotated[float, Number()] = 300.0
    """Time that running tasks have to finish during a shutdown."""

    start_timeout: Annotated[float, Number(above=0)] = 60.0
    """Time after which a starting worker that is not ready yet is killed."""

    child_heartbeat_limit: Annotated[float, Number(least=3)] = 60.0
    """Time without a sign of life after which a worker is killed."""

    cgroup: Annotated[str, Choice("auto", "on", "off")] = "auto"
    """Whether each task runs in its own control group (on, off); auto: if possible."""

    load_path: Annotated[tuple[str, ...], Folders()] = ()
    """Folders that are searched for Python modules before all others."""

    triggers: Annotated[tuple[str, ...] | None, ModuleNames()] = None
    """Modules, with their submodules, whose classes may be used by @call; None: the modules in
    load_path."""

    require: Annotated[tuple[str, ...], Modules()] = ()
    """Modules and Python files with handlers; workers load them when they start."""

    dispatch: Annotated[str | None, _IMPORT_PATH] = None
    """Import path (module:attribute) of the Dispatch that routes tasks to handlers."""

    exec: Annotated[tuple[str, ...] | None, Command()] = None
    """Program that runs tasks of every type, and its arguments; None: there is none."""

    script: Annotated[tuple[str, ...] | None, Command(script=True)] = None
    """Python file with a class that runs tasks of every type, and its arguments; None: there is
    none."""

    script_class: Annotated[str | None, _CLASS_NAME] = None
    """Name of the class in the script; None: Run, or the only class in the script."""

    exec_type: Annotated[bool | tuple[str, ...] | None, Programs()] = None
    """Programs that rows of type exec may run: any (on), none (off), or those in a list. None: any,
    unless exec or script is set."""

    only: Annotated[tuple[str, ...], TypeNames()] = ()
    """Types of task that the workers of this host run; empty: all types."""

    log: Annotated[Path | None, File()] = None
    """Log file; None: the log is written to standard error."""

    log_level: Annotated[str, Choice("debug", "info", "warning", "error")] = "info"
    """Lowest level of the events that are logged."""

    pid_file: Annotated[Path | None, File()] = None
    """File that holds the master's process id while the master runs; None: no file is written."""

    @property
    def store_kind(self) -> StoreKind:
        """The kind of the store, with its differences from other kinds."""
        return STORE_KINDS.get(self.type, USERS_OWN)

    @property
    def driver_timeout(self) -> float:
        """Seconds that a call to the database may take: the T of `psched.base.lease_times`."""
        return lease_times.effective_driver_timeout(self.database_timeout, self.alive_time)

    @property
    def allowed_programs(self) -> bool | tuple[str, ...]:
        """The programs that rows of type exec may run; True: any program, False: none."""
        if self.exec_type is None:
            return not (self.exec or self.script)
        return self.exec_type

    @property
    def tls(self) -> Tls | None:
        """How connections are encrypted; None: the url's options or the driver decide."""
        return tls_of({name: getattr(self, name) for name in SETTINGS})

    @property
    def safe_url(self) -> str:
        """The url with ``***`` in place of its passwords, so that messages can show it."""
        return urls.without_secrets(self.url)

    def with_settings(self, *, cwd: Path | None = None, **changes: object) -> "Config":
        """Return a copy with some settings changed.

        Args:
            cwd: the folder that relative paths among the changes start from; by default the
                current folder.
            changes: the new values by the names of their settings. They have the same form as in a
                file, except that ``${`` is plain text.

        Raises:
            ConfigError: a setting is unknown, a value is invalid, or the new settings contradict
                each other.
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
    """Return the environment variables that an unexpanded value refers to."""
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
"""For each setting with secrets, a function from the unexpanded value to the names of the
environment variables that may hold a secret. Settings for the files of private keys and passwords
are not listed, because a path is not secret."""


def check(
    given: Mapping[str, RawValue],
    context: Context,
    *,
    start: Mapping[str, Any] | None = None,
    origin: Path | None = None,
    problems: Iterable[Problem] = (),
) -> Config:
    """Check values, and return them as a `Config`.

    Args:
        given: the values in the configuration, by the names of their settings.
        context: what references and relative paths refer to.
        start: the values of the settings that are not given; None: their defaults.
        origin: the file that was read; None if there is no file.
        problems: the problems that were already found in that file.

    Raises:
        ConfigError: there are problems; the error lists all of them.
    """
    values = check_values(SETTINGS, given, context, start=start, origin=origin, problems=problems)
    withheld = frozenset[str]().union(
        *(_SECRETS[name](each.value) for name, each in given.items() if name in _SECRETS)
    )
    return Config(origin=origin, withheld=withheld, **values)
