"""The declarations of all settings: their names, types, bounds, meanings and defaults.

Each setting is a field of `Config`, annotated with the type of its value and with its `Kind`.
`SETTINGS` is derived from these fields, and is the table that `checking` uses to check values.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from psched.base import file_rights, lease_times
from psched.base.compression import LARGEST
from psched.base.log_lines import FORMATS
from psched.config import redis_urls, references, urls
from psched.config.checking import Setting, check_values
from psched.config.input_files import InputFile
from psched.config.kinds import (
    NO_OPTIONS,
    Choice,
    Command,
    FieldNames,
    File,
    Flag,
    Folders,
    MatchingText,
    ModuleNames,
    Modules,
    Names,
    Number,
    Options,
    Programs,
    RawValue,
    SecretText,
    StoreOptions,
    StoreType,
    ZoneName,
)
from psched.config.monitoring.hooks import secret_parts
from psched.config.monitoring.settings import MonitorSettings
from psched.config.per_type import NO_TYPES, PerType, Types
from psched.config.problems import Problem
from psched.config.references import Context
from psched.config.rules import automatic_processors
from psched.config.store_kinds import STORE_KINDS, USERS_OWN, StoreKind
from psched.config.tls import VERIFY, Tls, tls_of

_SECRET_NAME = re.compile("pass|pwd|secret|token|credential|key$", re.IGNORECASE)
"""Matches the name of an option whose value is a secret."""


def secrets_among(options: Mapping[str, object]) -> set[str]:
    """Return the texts of options that are secret by their names, and the passwords in urls.

    Options within options are searched, too.
    """
    found = set[str]()
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_among(value)
        elif isinstance(value, str):
            found |= {value} if _SECRET_NAME.search(name) else set()
            found |= urls.secrets(value) if "://" in value else set()
    return found


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
class Config(MonitorSettings):
    """The checked values of all settings. Created by `load`, `from_mapping` and `with_settings`.

    Times are in seconds. Paths are absolute. The url can contain a password.

    Attributes:
        origin: the file that the settings were read from; None if there is no file. It is not a
            setting.
        withheld: the names of the environment variables that the configuration refers to and that
            can contain secrets; tasks do not inherit these variables. It is not a setting.
        url_is_default: whether no url is configured, so that the url is that of the default SQLite
            file, which depends on the user. It is not a setting.
    """

    origin: Path | None = field(default=None, compare=False)
    withheld: frozenset[str] = field(default=frozenset(), compare=False)
    url_is_default: bool = field(default=False, compare=False)

    type: Annotated[str, StoreType()] = "rdb"
    """Kind of store: rdb (relational database), rdb_compat (PerfectSched's table) or redis; or the
    import path of a store class of your own, module:Class."""

    store: Annotated[StoreOptions, Options()] = NO_OPTIONS
    """Options for a store class of your own (type: module:Class)."""

    url: Annotated[str, urls.Url()]
    """Url of the database; by default, an SQLite file on this host."""

    host: Annotated[str | None, redis_urls.HOST] = None
    """Host of the Redis server, used if no url is set; None means localhost."""

    port: Annotated[int | None, Number(unit="", whole=True, least=1, most=65_535)] = None
    """Port of the Redis server, used if no url is set; None means 6379."""

    db: Annotated[int | None, Number(unit="", whole=True, most=999_999)] = None
    """Number of the database on the Redis server, used if no url is set; None means 0."""

    path: Annotated[Path | None, File()] = None
    """Unix socket of the Redis server, used in place of host and port if no url is set; None means
    that host and port are used."""

    password: Annotated[str | None, SecretText()] = None
    """Password for the Redis server, used if no url is set; None means that no password is sent."""

    wait_replicas: Annotated[int, Number(unit="replicas", whole=True, most=100)] = 0
    """Number of Redis replicas that must confirm each write; 0 means that psched waits for none."""

    password_file: Annotated[Path | None, InputFile(private=True)] = None
    """File with the password for the database; None if the url contains the password, or if there
    is no password."""

    ssl_ca: Annotated[Path | None, InputFile()] = None
    """File with the certificate of the server's CA. All connections are encrypted, unless it is
    None."""

    ssl_cert: Annotated[Path | None, InputFile()] = None
    """File with psched's own certificate, for a server that requires client certificates; None if
    psched has no certificate."""

    ssl_key: Annotated[Path | None, InputFile(private=True)] = None
    """File with the private key of the certificate in ssl_cert; None if ssl_cert is None."""

    ssl_verify: Annotated[str | None, Choice(*VERIFY)] = None
    """What psched checks when it connects to the server: the server's certificate and name (full),
    only the certificate (ca), or nothing (none). None means full if ssl_ca is set; without ssl_ca,
    None means that the settings do not require TLS."""

    table: Annotated[str, _TABLE_NAME] = "psched"
    """Name of the table that contains the schedules; in Redis, the prefix of all keys."""

    create_table: Annotated[bool, Flag()] = False
    """Whether workers create the table when they start, if it does not exist. They never change a
    table that exists."""

    database_timeout: Annotated[float | None, Number(above=0)] = None
    """Longest wait for an answer of the database, in seconds; None means that the wait is derived
    from alive_time."""

    claim_strategy: Annotated[
        str, Choice("auto", "skip_locked", "cas", removed=["update_first"])
    ] = "auto"
    """How workers claim due rows: with FOR UPDATE SKIP LOCKED (skip_locked), by compare-and-swap
    (cas), or in the best way that the server supports (auto)."""

    poll_interval: Annotated[float, Number(above=0, most=60)] = 1.0
    """Longest time between two polls of the table for due rows, in seconds."""

    wake: Annotated[str, Choice("local", "notify", "off")] = "local"
    """What is told at once of rows that programs make due: the masters of this host (local), those
    of all hosts by the database (notify), or nobody (off)."""

    timezone: Annotated[str, ZoneName()] = "UTC"
    """Timezone of schedules that have no timezone of their own."""

    alive_time: Annotated[int, Number(whole=True, least=lease_times.SHORTEST_ALIVE_TIME)] = 300
    """Length of a lease, in seconds. If a host dies, other hosts run its tasks after this time."""

    retry_wait: Annotated[int, Number(whole=True)] = 300
    """Time from the failure of a task to its next attempt, in seconds."""

    retry_backoff: Annotated[str, Choice("fixed", "exponential")] = "fixed"
    """How long a failed task waits for its next attempt: always retry_wait (fixed), or a time that
    doubles with each attempt and is shortened at random (exponential)."""

    retry_wait_limit: Annotated[int, Number(whole=True)] = 86_400
    """Longest wait for the next attempt if retry_backoff is exponential, in seconds."""

    max_attempts: Annotated[int, Number(whole=True, unit="attempts")] = 0
    """Number of failed attempts after which an occurrence is given up; 0 means no limit."""

    pause_after_failures: Annotated[int, Number(whole=True, unit="failures", most=1000)] = 0
    """Number of failed attempts in a row after which a schedule is paused; 0 means never."""

    on_return: Annotated[str, Choice("finish", "retry")] = "finish"
    """What happens to a task whose handler returns without calling finish(): the task is finished
    (finish), or counts as failed and is attempted again (retry)."""

    expire: Annotated[int, Number(whole=True)] = 345_600
    """Seconds after which a one-off task that has not succeeded is given up, counted from the time
    at which the task was first due; 0 means no limit."""

    retention_time: Annotated[int, Number(whole=True)] = 864_000
    """Seconds for which the row of a one-off task is kept after the task has ended. During this
    time, no other task can be added with its key."""

    data_limit: Annotated[int, Number(whole=True, unit="bytes", least=1024, most=LARGEST)] = (
        16 * 2**20
    )
    """Largest size in bytes of a payload, as JSON; larger payloads are refused."""

    compress_above: Annotated[int, Number(whole=True, unit="bytes")] = 64 * 2**10
    """Size in bytes above which a payload, as JSON, is compressed before it is stored; 0 means that
    no payload is compressed."""

    dst_policy: Annotated[str, Choice("debian", "wallclock")] = "debian"
    """What a schedule does if a clock change skips or repeats a scheduled time of day. debian: a
    skipped time runs right after the change, and a repeated time runs once. wallclock: a skipped
    time does not run, and a repeated time runs twice."""

    catchup: Annotated[str, Choice("all", "latest", "skip")] = "all"
    """Which missed occurrences are run: all, only the latest one (latest), or none (skip)."""

    catchup_limit: Annotated[int, Number(whole=True, unit="occurrences", least=1, most=10_000)] = (
        1000
    )
    """Largest number of missed occurrences of one schedule that are run; older ones are dropped."""

    catchup_grace: Annotated[int, Number(whole=True)] = 60
    """An occurrence that starts at most this many seconds late counts as on time, not as missed."""

    catchup_window: Annotated[int, Number(whole=True)] = 0
    """Age in seconds above which missed occurrences are dropped; 0 means no limit."""

    jitter: Annotated[int, Number(whole=True, most=86_400)] = 0
    """Longest delay, in seconds, that is added to the start of an occurrence. Occurrences get
    different delays, so that not all tasks start at once."""

    history: Annotated[str, Choice("all", "failures", "none")] = "all"
    """Which runs the run history records: all; failed and skipped ones only (failures); or none."""

    history_keep: Annotated[int, Number(whole=True)] = 2_592_000
    """Age in seconds at which records of the run history are deleted; 0 means no limit."""

    history_keep_per_key: Annotated[int, Number(whole=True, unit="records")] = 1000
    """Number of records that the run history keeps of one schedule, the newest ones; 0 means no
    limit."""

    output: Annotated[str, Choice("both", "history", "service", "raw", "none")] = "both"
    """Where the output of tasks goes: to the service's output, each line with key and time
    (service); to the store (history); both; to the service's output unchanged (raw); or nowhere
    (none)."""

    output_limit: Annotated[int, Number(whole=True, unit="bytes", most=2**20)] = 65_536
    """Number of bytes of an attempt's output that the store keeps, the last ones."""

    output_keep: Annotated[int, Number(whole=True)] = 604_800
    """Age in seconds at which the output of attempts is deleted; 0 means no limit."""

    output_budget: Annotated[int, Number(whole=True, unit="bytes", most=2**50)] = 268_435_456
    """Number of bytes that the output of all attempts may take in the store; the oldest is deleted.
    0 means no limit."""

    result: Annotated[str, Choice("explicit", "return")] = "explicit"
    """What the result of a task is: what its handler assigns to task.result (explicit); or also
    what its handler returns, if JSON can represent this (return)."""

    redact: Annotated[tuple[str, ...] | None, FieldNames()] = None
    """Names of fields, such as password or *token*, whose values are hidden wherever the command
    psched shows payloads, results and errors; None: in changes, those that look like secrets."""

    types: Annotated[Types, PerType(lambda name: SETTINGS[name].kind)] = NO_TYPES
    """For single types of task: settings that override the settings of the installation."""

    processors: Annotated[
        int, Number(whole=True, unit="processes", least=1, most=1000, auto=automatic_processors)
    ]
    """Number of workers on this host. In a configuration, the word auto, which is the default,
    means one worker for each core that psched may use, but at most 4 workers."""

    concurrency: Annotated[int, Number(whole=True, unit="tasks", least=1, most=1000)] = 5
    """Largest number of tasks that one worker runs at the same time."""

    max_tasks_per_child: Annotated[int, Number(whole=True, unit="tasks", least=1)] = 1
    """Number of tasks that one process runs before a new process replaces it."""

    worker_max_tasks: Annotated[int, Number(whole=True, unit="tasks")] = 0
    """Number of tasks that a worker runs before a new worker replaces it; 0 means no limit."""

    worker_max_age: Annotated[float, Number()] = 0.0
    """Age of a worker, in seconds, at which a new worker replaces it; 0 means no limit."""

    kill_timeout: Annotated[float, Number()] = 6000.0
    """Time after which a task that is still running is stopped, in seconds; 0 means no limit."""

    kill_interval: Annotated[float, Number(above=0)] = 60.0
    """Time between the TERM signals to a task that must stop, in seconds."""

    graceful_kill_limit: Annotated[float, Number()] = 150.0
    """Time from the first TERM signal to a task until it gets the KILL signal, in seconds."""

    graceful_timeout: Annotated[float, Number()] = 300.0
    """Time in which running tasks can finish after a shutdown has begun, in seconds."""

    start_timeout: Annotated[float, Number(above=0)] = 60.0
    """Time after which a starting worker that is not ready yet is killed, in seconds."""

    child_heartbeat_limit: Annotated[float, Number(least=3)] = 60.0
    """Time after which a worker that sends no heartbeat is killed, in seconds."""

    cgroup: Annotated[str, Choice("auto", "on", "off")] = "auto"
    """Whether each task runs in a control group of its own: always (on), never (off), or only if
    this is possible on the host (auto)."""

    task_signals: Annotated[str, Choice("any", "own")] = "any"
    """Which processes a task can send signals to: all that its user may (any), or only those that
    it has started itself (own). This needs Linux 6.12 with Landlock, and keeps sudo from working
    in tasks."""

    load_path: Annotated[tuple[str, ...], Folders()] = ()
    """Folders that are searched for Python modules before all other folders."""

    triggers: Annotated[tuple[str, ...] | None, ModuleNames()] = None
    """Modules whose classes a trigger (@call) is allowed to use. Each module includes its
    submodules. None means all modules in load_path."""

    require: Annotated[tuple[str, ...], Modules()] = ()
    """Modules and Python files that define handlers; each worker loads them when it starts."""

    dispatch: Annotated[str | None, _IMPORT_PATH] = None
    """Import path (module:attribute) of the Dispatch object that routes tasks to handlers; None if
    there is no such object."""

    exec: Annotated[tuple[str, ...] | None, Command()] = None
    """Path and arguments of a program that runs the tasks of every type; None if there is no such
    program."""

    script: Annotated[tuple[str, ...] | None, Command(script=True)] = None
    """Path and arguments of a Python file with a class that runs the tasks of every type; None if
    there is no such file."""

    script_class: Annotated[str | None, _CLASS_NAME] = None
    """Name of the class in the script. None means the class Run, or the only class in the script if
    no class is named Run."""

    exec_type: Annotated[bool | tuple[str, ...] | None, Programs()] = None
    """Programs that tasks of type exec are allowed to run: any (on), none (off), or those in a
    list. None means any if only_this_user_adds_rows and neither exec nor script is set, else
    none."""

    only: Annotated[tuple[str, ...], Names("a type")] = ()
    """Types of task that the workers of this host run; an empty list means all types."""

    log: Annotated[Path | None, File()] = None
    """Log file; None means that the log is written to standard error."""

    log_level: Annotated[str, Choice("debug", "info", "warning", "error")] = "info"
    """Lowest level of the messages that are logged."""

    log_format: Annotated[str, Choice(*FORMATS)] = "text"
    """Form of the messages in the log: lines of text, or one JSON object per line."""

    pid_file: Annotated[Path | None, File()] = None
    """File that contains the master's process id while the master runs; None means that no file is
    written."""

    @property
    def store_kind(self) -> StoreKind:
        """The properties of the kind of store that the setting ``type`` selects."""
        return STORE_KINDS.get(self.type, USERS_OWN)

    @property
    def driver_timeout(self) -> float:
        """The database driver's timeout, in seconds; called T in `psched.base.lease_times`."""
        return lease_times.effective_driver_timeout(self.database_timeout, self.alive_time)

    @property
    def names_handlers(self) -> bool:
        """Whether the settings name handlers that may run tasks of any type.

        If they do not, workers with these settings run only tasks of the built-in types; unless
        options of ``psched run``, or the program that starts the workers, add handlers.
        """
        return bool(self.dispatch or self.exec or self.script)

    @property
    def allowed_programs(self) -> bool | tuple[str, ...]:
        """The programs that tasks of type exec are allowed to run; True means any, False none."""
        if self.exec_type is None:
            return not (self.exec or self.script) and self.only_this_user_adds_rows
        return self.exec_type

    @property
    def only_this_user_adds_rows(self) -> bool:
        """Whether the store is a file that only this user and root may write, or in memory."""
        file = urls.file_of(self.url)
        if ":" in self.type:
            return False
        return self.url == urls.MEMORY or (file is not None and file_rights.only_mine(file))

    @property
    def has_exec_handler(self) -> bool:
        """Whether workers with these settings run tasks of type exec by the built-in handler.

        A dispatch with a route for the type is not considered, because clients do not load it.
        """
        is_left = bool(self.only) and "exec" not in self.only
        # Without the setting, the workers decide, who may be other users, or on other hosts.
        allowed = not (self.exec or self.script) if self.exec_type is None else self.exec_type
        return not is_left and allowed is not False

    @property
    def tls(self) -> Tls | None:
        """How connections are encrypted; None if no setting requires TLS."""
        return tls_of({name: getattr(self, name) for name in SETTINGS})

    @property
    def safe_url(self) -> str:
        """The url with ``***`` in place of its passwords, so that messages can show the url."""
        return urls.without_secrets(self.url)

    @property
    def secrets(self) -> frozenset[str]:
        """What must not occur in tasks' output.

        These are the passwords, the values of `withheld`, the credentials that systemd has passed,
        the secrets of hooks, the URLs of pings, and the options of a store class of your own that
        are secret by their names.
        """
        found = {*urls.secrets(self.url), *references.values(self.withheld), self.password or ""}
        found |= self.hooks.secrets | self.pings.secrets
        return frozenset((found | references.credentials() | secrets_among(self.store)) - {""})

    @property
    def captures_output(self) -> bool:
        """Whether the output of some type of task is not ``raw``; else no schedule's output is."""
        places = {self.output, *(own.get("output", "raw") for own in self.types.values())}
        return places != {"raw"}

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
        context = Context({}, cwd and cwd.absolute(), literal=True)
        given = {name: RawValue(value) for name, value in changes.items()}
        current = {name: getattr(self, name) for name in SETTINGS}
        changed = check(given, context, start=current)
        default = self.url_is_default and "url" not in changes and changed.url == self.url
        return replace(changed, origin=self.origin, withheld=self.withheld, url_is_default=default)

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)} | {"url": self.safe_url}
        shown["password"] = self.password and "***"
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_NOT_SETTINGS = ("origin", "withheld", "url_is_default")
"""The fields of `Config` that are not settings."""


def _settings() -> Iterator[tuple[str, Setting]]:
    annotations = get_type_hints(Config, include_extras=True)
    for each in fields(Config):
        if each.name not in _NOT_SETTINGS:
            value_type, kind = get_args(annotations[each.name])
            default = None if each.default is MISSING else each.default
            optional = type(None) in get_args(value_type)
            yield each.name, Setting(kind, default, optional)


SETTINGS: Mapping[str, Setting] = dict(_settings())
"""Every setting by its name, in the order of `Config`."""


def _variables(value: object) -> set[str]:
    """Return the names of the environment variables that an unexpanded value refers to."""
    if isinstance(value, Mapping):
        return set[str]().union(*map(_variables, value.values()))
    if isinstance(value, RawValue):
        return _variables(value.value)
    return {*references.variables(value).values()} if isinstance(value, str) else set()


_SECRETS: Mapping[str, Callable[[Any], set[str]]] = {
    "url": lambda value: urls.secret_variables(value) if isinstance(value, str) else set(),
    "password": _variables,
    "store": _variables,
    "hooks": lambda value: set[str]().union(*map(_variables, secret_parts(value))),
    "pings": _variables,
}
"""For each setting whose value can contain a secret: a function that takes the unexpanded value and
returns the names of the environment variables that can contain the secret. Settings that are paths
of files with private keys or passwords are not listed, because a path is not secret."""


def check(
    given: Mapping[str, RawValue],
    context: Context,
    *,
    start: Mapping[str, Any] | None = None,
    origin: Path | None = None,
    problems: Iterable[Problem] = (),
) -> Config:
    """Check values, and return them as a `Config`."""
    values = check_values(SETTINGS, given, context, start=start, origin=origin, problems=problems)
    withheld = frozenset[str]().union(
        *(_SECRETS[name](each.value) for name, each in given.items() if name in _SECRETS)
    )
    default = start is None and "url" not in given and values["url"].startswith("sqlite")
    return Config(origin=origin, withheld=withheld, url_is_default=default, **values)
