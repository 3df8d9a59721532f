"""The table of settings: names, types, bounds, meanings and defaults, in one place.

Each setting is a field of `Config`, annotated with its type, its kind and a line of help.
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

    type: Annotated[
        str,
        StoreType(),
        "Store: rdb (relational database), rdb_compat (PerfectSched's table), redis, module:Class.",
    ] = "rdb"
    store: Annotated[
        StoreOptions,
        Options(),
        "Options for a store class of your own (type: module:Class).",
    ] = NO_OPTIONS
    url: Annotated[str, urls.Url(), "Url of the database; by default an SQLite file on this host."]
    host: Annotated[str | None, redis_urls.HOST, "Redis, instead of a url: the server's host."] = (
        None
    )
    port: Annotated[
        int | None,
        Number(unit="", whole=True, least=1, most=65_535),
        "Redis, instead of a url: the server's port.",
    ] = None
    db: Annotated[
        int | None,
        Number(unit="", whole=True, most=999_999),
        "Redis, instead of a url: the number of the database.",
    ] = None
    path: Annotated[
        Path | None, File(), "Redis, instead of host and port: the server's socket."
    ] = None
    password: Annotated[str | None, SecretText(), "Redis, instead of a url: the password."] = None
    wait_replicas: Annotated[
        int,
        Number(unit="replicas", whole=True, most=100),
        "Redis: number of replicas that must confirm each write; 0: none.",
    ] = 0
    password_file: Annotated[
        Path | None, InputFile(private=True), "File with the password that the url leaves out."
    ] = None
    ssl_ca: Annotated[
        Path | None,
        InputFile(),
        "Certificate of the authority; if set, all connections are encrypted.",
    ] = None
    ssl_cert: Annotated[
        Path | None, InputFile(), "Our own certificate, for a server that requires one."
    ] = None
    ssl_key: Annotated[
        Path | None, InputFile(private=True), "Private key of our own certificate."
    ] = None
    ssl_verify: Annotated[
        str | None,
        Choice(*VERIFY),
        "What is checked of the server: certificate and name (full), certificate (ca), or none.",
    ] = None
    table: Annotated[str, _TABLE_NAME, "Table that holds the schedules."] = "psched"
    database_timeout: Annotated[
        float | None,
        Number(above=0),
        "Longest wait for an answer of the database; by default it follows from alive_time.",
    ] = None

    claim_strategy: Annotated[
        str,
        Choice("auto", "skip_locked", "cas", removed=["update_first"]),
        "How due rows are claimed; auto is the best way that the server supports.",
    ] = "auto"

    poll_interval: Annotated[
        float, Number(above=0, most=60), "Longest time between two polls of the table."
    ] = 1.0
    timezone: Annotated[str, ZoneName(), "Timezone of schedules that name none."] = "UTC"
    alive_time: Annotated[
        int,
        Number(whole=True, least=lease_times.SHORTEST_ALIVE_TIME),
        "Length of a lease: after this time, the tasks of a dead host run elsewhere.",
    ] = 300
    retry_wait: Annotated[
        int, Number(whole=True), "Time from the failure of a task to its next attempt."
    ] = 300
    retry_backoff: Annotated[
        str,
        Choice("fixed", "exponential"),
        "Whether retry_wait stays the same, or doubles with each attempt, less some jitter.",
    ] = "fixed"
    retry_wait_limit: Annotated[
        int, Number(whole=True), "Longest wait that an exponential retry_backoff reaches."
    ] = 86_400
    max_attempts: Annotated[
        int,
        Number(whole=True, unit="attempts"),
        "Attempts after which an occurrence that fails is given up; 0: never.",
    ] = 0
    on_return: Annotated[
        str,
        Choice("finish", "retry"),
        "What happens to a task whose handler returns without calling finish().",
    ] = "finish"
    expire: Annotated[
        int,
        Number(whole=True),
        "Age at which a one-off task that has not succeeded is given up; 0: never.",
    ] = 345_600
    retention_time: Annotated[
        int, Number(whole=True), "Time for which a one-off task keeps its key after it has ended."
    ] = 864_000
    data_limit: Annotated[
        int,
        Number(whole=True, unit="bytes", least=1024, most=LARGEST),
        "Largest payload, as JSON, that is accepted.",
    ] = 16 * 2**20
    compress_above: Annotated[
        int,
        Number(whole=True, unit="bytes"),
        "Payloads that are larger, as JSON, are stored compressed; 0: none.",
    ] = 64 * 2**10
    dst_policy: Annotated[
        str,
        Choice("debian", "wallclock"),
        "What happens to a time of day that a clock change skips or repeats.",
    ] = "debian"
    catchup: Annotated[
        str,
        Choice("all", "latest", "skip"),
        "Which missed occurrences are run: all, the latest one, or none (skip).",
    ] = "all"
    catchup_limit: Annotated[
        int,
        Number(whole=True, unit="occurrences", least=1, most=10_000),
        "Largest number of missed occurrences of one schedule that are run.",
    ] = 1000
    catchup_grace: Annotated[
        int, Number(whole=True), "An occurrence that starts at most this late is on time."
    ] = 60
    catchup_window: Annotated[
        int, Number(whole=True), "Missed occurrences older than this are dropped; 0: never."
    ] = 0
    jitter: Annotated[
        int,
        Number(whole=True, most=86_400),
        "Longest delay of an occurrence's start; each has its own, so that not all start at once.",
    ] = 0

    types: Annotated[
        Types,
        PerType(lambda name: SETTINGS[name].kind),
        "Settings of their own for some types of task.",
    ] = NO_TYPES

    processors: Annotated[
        int, Number(whole=True, unit="processes", least=1, most=1000), "Workers on this host."
    ] = 1
    concurrency: Annotated[
        int,
        Number(whole=True, unit="tasks", least=1, most=1000),
        "Largest number of tasks that one worker runs at the same time.",
    ] = 1
    max_tasks_per_child: Annotated[
        int,
        Number(whole=True, unit="tasks", least=1),
        "Tasks that one process runs before a new process replaces it.",
    ] = 1
    worker_max_tasks: Annotated[
        int,
        Number(whole=True, unit="tasks"),
        "Tasks after which a worker is replaced by a new one; 0: never.",
    ] = 0
    worker_max_age: Annotated[
        float, Number(), "Age at which a worker is replaced by a new one; 0: never."
    ] = 0.0
    kill_timeout: Annotated[float, Number(), "Longest time that a task may run; 0: no limit."] = (
        6000.0
    )
    kill_interval: Annotated[
        float, Number(above=0), "Time between the TERM signals to a task that must stop."
    ] = 60.0
    graceful_kill_limit: Annotated[
        float, Number(), "Time from the first TERM signal to a task until it is killed."
    ] = 150.0
    graceful_timeout: Annotated[
        float, Number(), "Time that running tasks get to finish at a shutdown."
    ] = 300.0
    start_timeout: Annotated[
        float, Number(above=0), "A worker that is not ready after this time is killed."
    ] = 60.0
    child_heartbeat_limit: Annotated[
        float,
        Number(least=3),
        "A worker that gives no sign of life for longer than this is killed.",
    ] = 60.0
    cgroup: Annotated[
        str, Choice("auto", "on", "off"), "Whether each task runs in a control group of its own."
    ] = "auto"

    load_path: Annotated[
        tuple[str, ...], Folders(), "Folders that are searched for modules first."
    ] = ()
    triggers: Annotated[
        tuple[str, ...] | None,
        ModuleNames(),
        "Modules whose classes @call may name, submodules included; by default those in load_path.",
    ] = None
    require: Annotated[
        tuple[str, ...],
        Modules(),
        "Modules and Python files with handlers, which are loaded at the start.",
    ] = ()
    dispatch: Annotated[
        str | None,
        _IMPORT_PATH,
        "The Dispatch that routes tasks to handlers, as module:attribute.",
    ] = None
    exec: Annotated[tuple[str, ...] | None, Command(), "Program that runs tasks of every type."] = (
        None
    )
    script: Annotated[
        tuple[str, ...] | None,
        Command(script=True),
        "Python file with a class that runs tasks of every type.",
    ] = None
    script_class: Annotated[
        str | None, _CLASS_NAME, "The class in the script; by default Run, or the only one."
    ] = None

    exec_type: Annotated[
        bool | tuple[str, ...] | None,
        Programs(),
        "Which programs rows of type exec may run: any (on), none (off), or those in a list.",
    ] = None

    only: Annotated[
        tuple[str, ...], TypeNames(), "Types of task that these workers run; by default all."
    ] = ()

    log: Annotated[Path | None, File(), "Log file; by default standard error."] = None
    log_level: Annotated[
        str, Choice("debug", "info", "warning", "error"), "Least serious events that are logged."
    ] = "info"
    pid_file: Annotated[
        Path | None, File(), "File that holds the master's process id while it runs."
    ] = None

    @property
    def store_kind(self) -> StoreKind:
        """How the kind of store differs from others."""
        return STORE_KINDS.get(self.type, USERS_OWN)

    @property
    def driver_timeout(self) -> float:
        """Seconds that a call to the database may take: the T of `psched.base.lease_times`."""
        if self.database_timeout is None:
            return lease_times.default_driver_timeout(self.alive_time)
        return self.database_timeout

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


def _settings() -> Iterator[Setting]:
    annotations = get_type_hints(Config, include_extras=True)
    for each in fields(Config):
        if each.name not in ("origin", "withheld"):
            value_type, kind, help_line = get_args(annotations[each.name])
            default = None if each.default is MISSING else each.default
            optional = type(None) in get_args(value_type)
            yield Setting(each.name, kind, help_line, default, optional)


SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _settings()}
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
