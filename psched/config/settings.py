"""The declarations of all settings. Each is a field of `Config`: name, type, kind, default, text.

The annotation of a field has the type of its value, the `Kind` that reads values and knows their
unit and bounds, and `PER_SCHEDULE` if types of task and schedules can have a value of their own.
The text below the field is Markdown: it is shown in docs/settings.md, in etc/psched.yml.example and
in the JSON schema, its first sentence in ``--help``. It can end with an example. `bin/settings`
renews the two files.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple, get_args, get_type_hints

from psched.base import file_rights, lease_times
from psched.base.compression import LARGEST
from psched.base.texts import visible
from psched.config import references, urls
from psched.config.kinds import (
    FIELD_NAMES,
    FILE,
    FOLDERS,
    HOST,
    HOST_LABELS,
    MODULE_NAMES,
    MODULES,
    NO_OPTIONS,
    NO_TYPES,
    SECRET,
    ZONE_NAME,
    Choice,
    Command,
    Flag,
    InputFile,
    Kind,
    MatchingText,
    Network,
    Networks,
    Number,
    Options,
    PerType,
    Programs,
    RawValue,
    StoreOptions,
    Text,
    Types,
    names,
)
from psched.config.monitoring import (
    NO_EXPECTATIONS,
    NO_HOOKS,
    NO_PING,
    NO_PINGS,
    PING_NAME,
    Expect,
    Expectations,
    HookNames,
    Hooks,
    HooksKind,
    Pings,
    PingUrls,
)
from psched.config.references import Context
from psched.config.rules import USUAL_CLOCK_OFFSET, automatic_processors


class StoreKind(NamedTuple):
    """A kind of store.

    Attributes:
        class_path: the import path ``module:Class`` of the store class, which `psched.stores` then
            loads like a user's own store class. None if `psched.stores` imports the class itself,
            or if the setting ``type`` is the import path.
        cron_reading: how cron lines are interpreted, ``crontab`` or ``perfectsched``; see
            `psched.triggers.cron.parse_cron`.
        new_trigger_starts_at_cursor: where a new trigger starts if a schedule's trigger is changed
            while its task runs. True: after the scheduled time of the occurrence that runs. False:
            at the time at which the task ends.
        keeps_status: whether rows have a status. In a store without it, schedules cannot be
            cancelled, and ended rows are not kept.
        keeps_options: whether a row can store settings of its own, and a label.
        keeps_lanes: whether a claim leaves the rows of other hosts alone, see `psched.core.hosts`.
    """

    class_path: str | None = None
    cron_reading: str = "crontab"
    new_trigger_starts_at_cursor: bool = False
    keeps_status: bool = True
    keeps_options: bool = True
    keeps_lanes: bool = True


STORE_KINDS: Mapping[str, StoreKind] = MappingProxyType(
    {
        "rdb": StoreKind(),
        "rdb_compat": StoreKind(
            class_path="psched.contrib.perfectsched.store.store:PerfectSchedStore",
            cron_reading="perfectsched",
            new_trigger_starts_at_cursor=True,
            keeps_status=False,
            keeps_options=False,
            keeps_lanes=False,
        ),
        "redis": StoreKind(),
        "dynamodb": StoreKind(keeps_lanes=False),
        "simpledb": StoreKind(keeps_lanes=False),
    }
)
"""The kinds of store by their names. Each name is a value of the setting ``type``.

The store class of ``rdb_compat`` is given by its import path, because no package imports it.
"""

USERS_OWN = StoreKind()
"""The kind of every store class that a user has written. For such a class, the setting ``type`` is
its import path."""


class Setting(NamedTuple):
    """One setting. Its default is None if it has none, or if it depends on others or on the host.

    ``optional`` says whether null is valid, ``per_schedule`` whether a type of task, and a
    schedule, can have a value of its own.
    """

    kind: Kind
    default: object
    optional: bool
    per_schedule: bool


_SECRET_NAME = re.compile("pass|pwd|secret|token|credential|key$", re.IGNORECASE)
"""Matches the name of an option whose value is a secret."""


def secrets_among(options: Mapping[str, object]) -> set[str]:
    """Texts of options, at any depth, that are secret by their names; and passwords in urls."""
    found = set[str]()
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_among(value)
        elif isinstance(value, str):
            found |= {value} if _SECRET_NAME.search(name) else set()
            found |= urls.secrets(value) if "://" in value else set()
    return found


_STORE_TYPE = Text(
    f"{', '.join(STORE_KINDS)}, or module:Class, the import path of a store of your own",
    lambda text, _context: (
        text if text in STORE_KINDS or re.fullmatch(r"\w[\w.]*:\w+", text) else None
    ),
)
_TABLE_NAME = MatchingText(
    "a name of letters, digits and _ that begins with no digit and has at most 48 of them",
    re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}"),
)
_CLASS_NAME = MatchingText("the name of a class", re.compile(r"[^\W\d]\w*"))
_IMPORT_PATH = MatchingText(
    "module:attribute, such as myapp.schedules:Dispatch, or a name in what is required",
    re.compile(r"(?:(?:[^\W\d]\w*\.)*[^\W\d]\w*:(?:[^\W\d]\w*\.)*)?[^\W\d]\w*"),
)
_METRICS = MatchingText(
    "an address such as 127.0.0.1:9464, unix:/run/psched/metrics.sock or textfile:/path/name.prom",
    re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[\w.-]+):\d{1,5}|(unix:/|textfile:/.*[^/]\.prom$).*"),
)

PER_SCHEDULE = "a type of task, and a schedule, can have a value of its own"
"""Marks the annotation of a setting."""

SECTIONS: Mapping[str, str] = {
    "type": "Store: where the schedules are kept",
    "poll_interval": "Scheduling",
    "processors": "Processes",
    "history": "What is kept of runs",
    "load_path": "Handlers: the Python code that tasks run",
    "monitor": "Monitoring",
    "log": "Logging and daemon",
}
"""The title of each section of settings, by the section's first setting."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
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

    type: Annotated[str, _STORE_TYPE] = "rdb"
    """Kind of store; with a url of Redis or AWS you can leave it out.
    - `rdb`: a relational database, with a table of psched's own: SQLite, PostgreSQL, MySQL, MariaDB
    - `rdb_compat`: PerfectSched's table, shared with PerfectSched's workers: see [another
      scheduler](migration.md#on-perfectscheds-table); set `url` and `table`, too
    - `redis`: a Redis server, which may lose its last writes: see [Redis](redis.md); needs
      psched[redis]
    - `dynamodb`: a table of Amazon DynamoDB: see [DynamoDB](redis.md#dynamodb); needs psched[aws]
    - `simpledb`: a domain of Amazon SimpleDB: see [SimpleDB](redis.md#simpledb); the same
    - `module:Class`: a [store of your own](contributing.md#a-store-of-your-own), by its
      import path
    """

    store: Annotated[StoreOptions, Options()] = NO_OPTIONS
    """Options for a [store of your own](contributing.md#a-store-of-your-own), for example
    `store: {path: /var/lib/psched/schedules.json}`."""

    url: Annotated[str, urls.Url()]
    """Url of the database. All hosts that share the work must use the same database.

        mysql://USER:PASSWORD@HOST:PORT/DATABASE        MySQL; mariadb:// is the same
        postgresql://USER:PASSWORD@HOST:PORT/DATABASE   needs psched[postgresql]
        sqlite:////var/lib/psched/psched.db             an SQLite file: note the four slashes
        sqlite:///psched.db, sqlite://psched.db         an SQLite file in the current folder
        redis://USER:PASSWORD@HOST:PORT/DB              Redis; only the host is required
        rediss://...                                    the same, encrypted
        unix://USER:PASSWORD@/PATH?db=DB                Redis, by a socket on this host
        redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME/DB
                                                        the primary that these Sentinels know by
                                                        NAME; rediss+sentinel:// encrypted
        dynamodb://REGION                               Amazon DynamoDB; without a region that of
                                                        AWS_REGION, or of AWS' files
        simpledb://REGION                               Amazon SimpleDB; the same
        memory:                                         a database in memory (write it in quotes),
                                                        which all workers of one master share, and
                                                        which is lost when the master exits

    An SQLite file is for one host. Without a url, each user has a database of their own: the SQLite
    file psched.db in `$STATE_DIRECTORY` (set by systemd's `StateDirectory=`), else in
    `$XDG_STATE_HOME/psched`, else in `~/.local/state/psched`. For a primary with replicas, name all
    servers: HOST:PORT,HOST:PORT. psched uses the one that accepts writes, and finds the new primary
    after a failover. If user or password is a reference, its value may contain any characters. If
    you write a password here, write %40 for @, %3A for :, %2F for /, %3F for ?, %23 for # and %25
    for %. With type `rdb_compat` you must set url and table, and the url is read as in
    PerfectSched: sqlite:///FILE is an absolute path, sqlite://FILE a path in the current folder. In
    `psched.yml.example` it is the file of the service that systemd/psched.service starts, so that
    the service and all users of a host use the same file. Example: `url:
    mysql://psched:${PSCHED_DB_PASSWORD}@db.example.com/psched`
    """

    read_url: Annotated[str | None, urls.Url()] = None
    """Url of a replica, from which [`psched web`](web.md#read-from-a-replica) reads its pages;
    actions use `url`. PostgreSQL, MySQL and MariaDB only. Without a user, user and password are
    those of `url`; the `ssl_` settings and the table are the same, but the options after the
    `?` of `url` do not hold for it. Example: `read_url: mysql://replica.example.com/psched`"""

    host: Annotated[str | None, urls.REDIS_HOST_NAME] = None
    """Host of the Redis server, if no url is set; by default localhost. Instead of a url you can
    set type redis and the host, port, db, password and path. Example: `host: redis.example.com`"""

    port: Annotated[int | None, Number(unit="", whole=True, least=1, most=65_535)] = None
    """Port of the Redis server, if no url is set; by default 6379. Example: `port: 6380`"""

    db: Annotated[int | None, Number(unit="", whole=True, most=999_999)] = None
    """Number of the database on the Redis server, if no url is set; by default 0. Example: `db:
    2`"""

    path: Annotated[Path | None, FILE] = None
    """Unix socket of the Redis server, instead of host and port. Example: `path:
    /run/redis/redis-server.sock`"""

    password: Annotated[str | None, SECRET] = None
    """Password for the Redis server, if no url is set. Example: `password: ${REDIS_PASSWORD}`"""

    wait_replicas: Annotated[int, Number(unit="replicas", whole=True, most=100)] = 0
    """Redis: number of replicas that must confirm a write before psched relies on it. If fewer have
    confirmed it after `database_timeout`, psched finds out whether the server has executed the
    write, and if not, repeats it. With 0 psched does not wait for replicas, and a failover loses
    the last writes: see [Redis](redis.md)."""

    max_clock_offset: Annotated[float, Number(least=2, most=3600)] = USUAL_CLOCK_OFFSET
    """DynamoDB and SimpleDB: how far a host's clock may be off. A worker whose host is further off
    claims nothing, and says so in its log: see [DynamoDB](redis.md#clocks)."""

    password_file: Annotated[Path | None, InputFile(private=True)] = None
    """File that contains the password for the url, and nothing else. The url then names only the
    user: mysql://psched@db.example.com/psched. psched reads the file again at each restart and
    reload, and refuses a file that everybody on this host may read: `chown root:psched FILE; chmod
    640 FILE`. Here and in the `ssl_` settings, `${CREDENTIALS_DIRECTORY}/NAME` means the file, not
    its content. Example: `password_file: /etc/psched/password`"""

    ssl_ca: Annotated[Path | None, InputFile()] = None
    """File with the certificate of the authority that has signed the server's: see
    [TLS](databases.md#tls). With it a connection is encrypted, or it fails. For a certificate of a
    public authority use the system's file, such as /etc/ssl/certs/ca-certificates.crt. Without
    these settings, connections are encrypted if the server offers it, but the server's identity is
    not verified. `psched check` reports how the connection is encrypted. `sslca` is an alias of
    `ssl_ca`. Example: `ssl_ca: /etc/psched/ca.pem`"""

    ssl_cert: Annotated[Path | None, InputFile()] = None
    """File with psched's own certificate, for a server that requires client certificates. The files
    of all `ssl_` settings are read again for each new connection, so that they can be replaced at
    any time. Example: `ssl_cert: /etc/psched/client.pem`"""

    ssl_key: Annotated[Path | None, InputFile(private=True)] = None
    """File with the private key of the certificate in `ssl_cert`. The key must not be encrypted,
    and is refused if everybody on this host may read it. Example: `ssl_key:
    /etc/psched/client.key`"""

    ssl_verify: Annotated[str | None, Choice(*urls.TLS_VERIFY)] = None
    """What is checked of the server.
    - `full`: its certificate, and that it is for the host in the url; the default with `ssl_ca`
    - `ca`: its certificate, which may be for any host
    - `none`: nothing; only without `ssl_ca`. This stops eavesdroppers, but not impostors

    Example: `ssl_verify: full`
    """

    table: Annotated[str, _TABLE_NAME] = "psched"
    """Name of the table; in Redis, the prefix of all keys. Change it to keep several installations
    in one database. At most 48 letters, digits and _."""

    create_table: Annotated[bool, Flag()] = False
    """Whether workers, when they start, create the table if it does not exist. With SQLite they
    create the file, too. They never change a table that exists: after an upgrade, run `psched
    init`, which also creates the table. The user in the url needs the right to create tables.
    Programs that use [`psched.start`](api.md#a-program-that-is-a-schedule) create a missing table
    in any case."""

    database_timeout: Annotated[float | None, Number(above=0)] = None
    """Longest wait for an answer of the database. The default follows from `alive_time`, and is at
    most 5s. Raise it for a slow or distant database; `psched check` warns if it or `alive_time` is
    too short. Twice this time must be less than 15s, and less than 0.4 times `alive_time`, so that
    a task can still be stopped in time when the database hangs. Example: `database_timeout: 5s`"""

    claim_strategy: Annotated[
        str, Choice("auto", "skip_locked", "cas", removed=["update_first"])
    ] = "auto"
    """How workers claim due rows; all ways are equally safe.
    - `auto`: the best way that the server supports; `psched check` says which that is
    - `skip_locked`: by FOR UPDATE SKIP LOCKED; PostgreSQL only
    - `cas`: by compare-and-swap

    With `rdb_compat` and Redis, only auto is accepted.
    """

    takeover: Annotated[str, Choice("clock", "observed")] = "clock"
    """When a lease that nobody extends is over, for example because its host has died.
    - `clock`: when it has ended by the clock of the database
    - `observed`: when it has, and this worker has seen it unchanged for `alive_time` by a clock
      that nobody can set. A step of the database's clock then starts no task twice; what a dead
      host ran starts later

    Set it on all hosts, with the same `alive_time`: see [Without trust in
    clocks](faults.md#without-trust-in-clocks). DynamoDB and SimpleDB have no clock, so there
    leases are always observed.
    """

    poll_interval: Annotated[float, Number(above=0, most=60)] = 1.0
    """Longest time between two searches for due tasks. A task that was just pushed may start this
    much late, unless a worker is woken. Raise it to reduce the load of the database."""

    wake: Annotated[str, Choice("local", "notify", "off")] = "local"
    """Who is told at once when a program makes a row due, to wake a worker: see [How soon a task
    starts](queue.md#how-soon-a-task-starts).
    - `local`: the masters of its host
    - `notify`: the masters of all hosts, by PostgreSQL or Redis
    - `off`: nobody
    """

    timezone: Annotated[str, ZONE_NAME] = "UTC"
    """Timezone of schedules that name none."""

    alive_time: Annotated[
        int, Number(whole=True, least=lease_times.SHORTEST_ALIVE_TIME), PER_SCHEDULE
    ] = 300
    """Length of a lease: if a host dies, other hosts run its tasks after this time. A worker
    extends the leases of its tasks each time that a quarter of it has passed (earlier if it is
    shorter than about 40s). It is a compromise:
    - `takeover`: shorter is better: when a host dies or is cut off, its tasks run elsewhere after
      this time. (If only a process dies, its tasks run again within a second.)
    - `failover`: longer is better: when the database cannot be reached, running tasks get TERM 30
      seconds before their leases end, and KILL 20 seconds before. If the lease is shorter than 60s,
      they get TERM when half of it has passed; if it is shorter than about 40s, KILL without TERM
      before half of it has passed. So after the last extend, tasks survive for 30 seconds with 60s,
      and for 4.5 minutes with 5m. A failover of the database may take that long, less up to a
      quarter of the lease, because the last extend may be that old when the failover begins.

    60s is right for most. 6s is possible if the database is near and never unreachable. Without
    this setting, the length is 5m, as in PerfectSched. A type's `alive_time` is stored with a task
    when it is added or pushed; a row that was inserted by plain SQL uses its own, or that of the
    installation.
    """

    catchup: Annotated[str, Choice("all", "latest", "skip"), PER_SCHEDULE] = "all"
    """Which [missed occurrences](schedules.md#missed-occurrences) run. An occurrence is missed if
    no worker could run it when it was due.
    - `all`: all of them, one after another, oldest first
    - `latest`: only the newest
    - `skip`: none, except one that is at most `catchup_grace` late
    """

    catchup_limit: Annotated[
        int, Number(whole=True, unit="occurrences", least=1, most=10_000), PER_SCHEDULE
    ] = 1000
    """With catchup all, the largest number of missed occurrences of one schedule that run. Older
    ones are dropped, which is logged."""

    catchup_grace: Annotated[int, Number(whole=True), PER_SCHEDULE] = 60
    """An occurrence that starts at most this long after it was due counts as on time, not as
    missed. Raise it if workers are often busy and catchup is skip."""

    catchup_window: Annotated[int, Number(whole=True), PER_SCHEDULE] = 0
    """Missed occurrences that were due longer ago than this are dropped, even if catchup is all or
    latest; 0: never."""

    jitter: Annotated[int, Number(whole=True, most=86_400), PER_SCHEDULE] = 0
    """Longest delay of an occurrence's start, so that not all schedules start at once. The delay of
    an occurrence is a deterministic amount, the same on all hosts and for all attempts. Its
    scheduled time does not change. One-off tasks are not delayed."""

    dst_policy: Annotated[str, Choice("debian", "wallclock"), PER_SCHEDULE] = "debian"
    """What happens to a time of day that a [clock change](schedules.md#clock-changes) skips or
    repeats.
    - `debian`: as in Debian's cron: a skipped time runs right after the change, a repeated one runs
      once. Schedules whose minute or hour begins with * are not adjusted
    - `wallclock`: as in PerfectSched: a skipped time does not run, a repeated one runs twice; the
      default with type `rdb_compat`
    """

    retry_wait: Annotated[int, Number(whole=True), PER_SCHEDULE] = 300
    """Time from the failure of a task to its next attempt. With type `rdb_compat`, the default is
    `alive_time`."""

    retry_backoff: Annotated[str, Choice("fixed", "exponential"), PER_SCHEDULE] = "fixed"
    """Whether the wait for the next attempt stays the same (fixed) or doubles with each attempt
    (exponential). An exponential wait is shortened by a random part of up to a half, so that tasks
    that failed together are not retried together. Not with `rdb_compat`."""

    retry_wait_limit: Annotated[int, Number(whole=True), PER_SCHEDULE] = 86_400
    """Longest wait that an exponential `retry_backoff` reaches."""

    max_attempts: Annotated[int, Number(whole=True, unit="attempts"), PER_SCHEDULE] = 0
    """Number of failed attempts after which an occurrence is given up; 0: never. Then a schedule
    continues with its next occurrence; a one-off task has the status failed, and is kept until
    `psched requeue` or `psched delete`. Not with `rdb_compat`."""

    pause_after_failures: Annotated[
        int, Number(whole=True, unit="failures", most=1000), PER_SCHEDULE
    ] = 0
    """Number of failed attempts in a row after which a schedule is
    [paused](operate.md#pause-after-failures), until `psched resume`; 0: never. The attempts of one
    occurrence count, and with a run history also those of the occurrences before it that were given
    up. Not with `rdb_compat`."""

    on_return: Annotated[str, Choice("finish", "retry"), PER_SCHEDULE] = "finish"
    """What happens to a task whose handler returns without calling finish(), retry() or release().
    - `finish`: it has finished
    - `retry`: it has failed, and runs again after `retry_wait`, as with PerfectSched and
      PerfectQueue; the default with [type `rdb_compat`](migration.md#on-perfectscheds-table)

    This does not apply to programs (exec, and type exec): exit status 0 means that the task has
    finished.
    """

    expire: Annotated[int, Number(whole=True), PER_SCHEDULE] = 345_600
    """Age at which a one-off task that has not succeeded is given up; 0: never. It is counted from
    the push, or from the time for which it was pushed, whichever is later."""

    retention_time: Annotated[int, Number(whole=True), PER_SCHEDULE] = 864_000
    """Time for which a one-off task keeps its key after it has finished, expired or been cancelled.
    So it is not pushed again by mistake. Then its row is removed. With 0 the row is removed, and
    its key is free, as soon as the task has ended; then `push --wait` cannot report the outcome,
    and exits with status 3."""

    data_limit: Annotated[int, Number(whole=True, unit="bytes", least=1024, most=LARGEST)] = (
        16 * 2**20
    )
    """Largest data of a task or schedule, as JSON. Keep it below `max_allowed_packet` of MySQL or
    MariaDB; MariaDB's default is 16 MiB, which is 16M."""

    compress_above: Annotated[int, Number(whole=True, unit="bytes")] = 64 * 2**10
    """Data larger than this are stored compressed, if that makes them smaller; 0: never. Data that
    are not compressed can be read in the table by any client."""

    types: Annotated[Types, PerType(lambda: OF_A_TYPE)] = NO_TYPES
    """Settings that apply only to some types of task. A task's own settings override those of its
    type. For example:

        types:
          report: {alive_time: 2m, kill_timeout: 2h, retry_wait: 10s, max_attempts: 5}
          mail:
            retry_backoff: exponential
    """

    processors: Annotated[
        int, Number(whole=True, unit="processes", least=1, most=1000, auto=automatic_processors)
    ]
    """Number of workers on this host, or auto: one for each core that psched may use, but at most
    4. Each is a process with a connection to the database."""

    concurrency: Annotated[int, Number(whole=True, unit="tasks", least=1, most=1000)] = 5
    """Largest number of tasks that one worker runs at the same time, each in a process of its own.
    The host runs at most processors times concurrency tasks at once. If all slots are taken, due
    schedules wait; then psched logs a warning and `psched status` shows how many wait."""

    max_tasks_per_child: Annotated[int, Number(whole=True, unit="tasks", least=1)] = 1
    """Number of tasks that one process runs before a new process replaces it. Raise it for many
    short tasks that clean up after themselves. With 1, no task inherits anything from another.
    Above 1: after ten minutes without tasks, each worker keeps only one waiting process."""

    worker_max_tasks: Annotated[int, Number(whole=True, unit="tasks")] = 0
    """Number of tasks after which a worker is replaced by a new one, in case handlers' modules leak
    memory; 0: never. It finishes its running tasks while the new worker already starts others. The
    limits of each worker differ from `worker_max_tasks` and `worker_max_age` by up to a tenth, so
    that not all are replaced at once."""

    worker_max_age: Annotated[float, Number()] = 0.0
    """Age at which a worker is replaced by a new one; 0: never. See `worker_max_tasks`."""

    kill_timeout: Annotated[float, Number(), PER_SCHEDULE] = 6000.0
    """Longest time that a task may run; 0: no limit. Then it is stopped, and tried again after
    `retry_wait`."""

    kill_interval: Annotated[float, Number(above=0), PER_SCHEDULE] = 60.0
    """Time between two TERM signals to a task that must stop."""

    graceful_kill_limit: Annotated[float, Number()] = 150.0
    """Time from the first TERM until the task is killed, with all processes that it has started."""

    graceful_timeout: Annotated[float, Number()] = 300.0
    """Time that running tasks get to finish at a shutdown before they are stopped.
    `TimeoutStopSec=` of the systemd unit must be longer than the sum of `graceful_timeout` and
    `graceful_kill_limit`."""

    start_timeout: Annotated[float, Number(above=0)] = 60.0
    """A worker that is not ready after this time is killed and replaced. Raise it if the handlers'
    modules are slow to import."""

    child_heartbeat_limit: Annotated[float, Number(least=3)] = 60.0
    """If a worker gives no sign of life for longer than this, psched logs its stack, kills it, and
    starts a new one. A worker that is stopped by a signal is killed after a quarter of this
    time."""

    cgroup: Annotated[str, Choice("auto", "on", "off")] = "auto"
    """Whether each task runs in a control group of its own (cgroup v2, Linux 5.14), so that
    everything that it has started can be killed at once.
    - `auto`: if it is possible: systemd delegates the control group to psched (`Delegate=yes` in
      the unit), or there is no systemd and psched may write there, as in a container
    - `on`: required: psched-master does not start if it is not possible
    - `off`: never

    A change takes effect when psched-master is started again; a reload is not enough. Without a
    control group, psched finds the processes that a task has started in the process table. It
    cannot kill those that run as another user, unless psched runs as root.
    """

    task_signals: Annotated[str, Choice("any", "own")] = "any"
    """Which processes a task can send signals to: see
    [Security](security.md#what-a-task-can-do-to-psched).
    - `any`: all that its user may send signals to, psched's own among them
    - `own`: only those that it has started itself. This needs Linux 6.12 with Landlock. No task can
      then do `kill -HUP $(cat daemon.pid)`, or use sudo
    """

    history: Annotated[str, Choice("all", "failures", "none"), PER_SCHEDULE] = "all"
    """Which runs [the run history](history.md) records: all; failures, which are failed and skipped
    ones; or none."""

    history_keep: Annotated[int, Number(whole=True)] = 2_592_000
    """Age at which records of the run history are deleted; 0: never."""

    history_keep_per_key: Annotated[int, Number(whole=True, unit="records")] = 1000
    """Number of records that the run history keeps of one schedule, the newest ones; 0: no
    limit."""

    output: Annotated[str, Choice("both", "history", "service", "raw", "none"), PER_SCHEDULE] = (
        "both"
    )
    """Where [what tasks print](history.md#what-did-it-print) goes. If it is raw for all types, no
    schedule can override that.
    - `both`: to the service and to the store
    - `history`: to the store, where `psched logs` shows it
    - `service`: to the service's output, each line with key and time
    - `raw`: to the service's output, unchanged
    - `none`: nowhere
    """

    output_limit: Annotated[int, Number(whole=True, unit="bytes", most=2**20), PER_SCHEDULE] = (
        65_536
    )
    """Number of bytes of an attempt's output that the store keeps, the last ones."""

    output_keep: Annotated[int, Number(whole=True)] = 604_800
    """Age at which the output of attempts is deleted; 0: never."""

    output_budget: Annotated[int, Number(whole=True, unit="bytes", most=2**50)] = 268_435_456
    """Most bytes that all output takes in the store, above which the oldest is deleted; 0: no
    limit."""

    result: Annotated[str, Choice("explicit", "return"), PER_SCHEDULE] = "explicit"
    """What [the result of a task](tasks.md#progress-and-results) is, which the run history keeps
    (at most 64 KiB as JSON).
    - `explicit`: only what its handler assigns to task.result
    - `return`: also what its handler returns, unless that is None or cannot be written as JSON
    """

    redact: Annotated[tuple[str, ...] | None, FIELD_NAMES] = None
    """Names of fields whose values the command psched [hides](security.md#secrets) wherever it
    shows payloads, results and errors. * stands for any characters, and upper and lower case are
    the same. Without this setting, only changes of schedules (audit, edit, the plan of apply) hide
    values, of fields whose names contain password, passwd, secret, token or api_key; with [],
    nothing is hidden. Example: `redact: [password, "*token*"]`"""

    load_path: Annotated[tuple[str, ...], FOLDERS] = ()
    """Folders that are searched for Python modules first. One, or a list."""

    triggers: Annotated[tuple[str, ...] | None, MODULE_NAMES] = None
    """Modules whose classes a trigger may name, '@call module:Class', submodules included; one, or
    a list. By default all that are found in `load_path`. No other module is imported, whatever a
    row says. If a row names another module, psched leaves the row to hosts that allow this module.
    Example: `triggers: [myapp.triggers]`"""

    require: Annotated[tuple[str, ...], MODULES] = ()
    """Modules and Python files (ending in .py) that define the [handlers](tasks.md). They
    are loaded at the start; one, or a list."""

    dispatch: Annotated[str | None, _IMPORT_PATH] = None
    """The Dispatch that routes tasks to [handlers](tasks.md), as module:attribute. Example:
    `dispatch: myapp.schedules:Dispatch`"""

    exec: Annotated[tuple[str, ...] | None, Command()] = None
    """Instead of a dispatch, [a program](queue.md#workers) that runs tasks of every type except
    psched's own types (exec and push): its path or its name, or a list of this and of its
    arguments. It gets the task's data on its standard input, as they were submitted, and the key as
    its last argument. Exit status 0 means that the task has finished. A key may begin with "-": if
    the program takes options, end the list with "--". Example: `exec: [/usr/local/bin/work,
    --quickly]`"""

    script: Annotated[tuple[str, ...] | None, Command(script=True)] = None
    """Or a Python file with a class that runs [tasks of every type](queue.md#workers): psched calls
    SCRIPT_CLASS(task), then run(), and kill(reason), if there is one, when the task must stop. A
    list is the file and its arguments. Example: `script: /usr/local/lib/work.py`"""

    script_class: Annotated[str | None, _CLASS_NAME] = None
    """The class in the script; by default Run, or the only one that the file defines. Example:
    `script_class: Run`"""

    exec_type: Annotated[bool | tuple[str, ...] | None, Programs()] = None
    """Which programs a row of type exec may run. Anybody who may write to the database can run them
    as the user of this service: see [Security](security.md).
    - `on`: any program, also through a shell
    - `off`: none; a row of type exec fails, and its reason names this setting
    - `a list`: only these programs: [/usr/bin/pg_dump, /usr/local/bin/report]. A row chooses the
      arguments and the standard input, but neither shell, env nor cwd. Do not list a program that
      can run other programs, such as env, find and python.

    By default it is on if nobody but this user and root may add rows, that is, if the database is a
    file that only they may write, or memory:. Else it is off: whoever may write to a server is
    trusted only if you say so. It is also off if exec or script is set. Example: `exec_type: on`
    """

    only: Annotated[tuple[str, ...], names("a type")] = ()
    """The types of task that these workers run; they leave all others to other workers. An empty
    list means every type; then a task whose type has no handler here fails. For example
    `only: [report, mail]`."""

    host_name: Annotated[str | None, HOST] = None
    """The name of this host, which [`hosts`](schedules.md#run-on-some-hosts) of a schedule can
    name. By default it is the system's. Set it where that one changes, as in a container. Example:
    `host_name: db1`"""

    host_labels: Annotated[tuple[str, ...], HOST_LABELS] = ()
    """More names of this host, at most 6, which other hosts can have, too: `hosts: [db]` means each
    host with the label db. For example `host_labels: [db, eu]`."""

    host_gone_after: Annotated[int, Number(whole=True)] = 604_800
    """After how long without a sign of life a host loses its rows of schedules that run on [every
    host](schedules.md#run-on-every-host), at least 90 seconds; 0: never. It is known of hosts for
    `history_keep` only."""

    monitor: Annotated[bool, Flag()] = True
    """Whether the master keeps a [monitor](alerts.md#the-monitor), a process that observes the
    workers and runs no task. If it dies or hangs, it is replaced, and no task is affected. A
    program that calls psched.start or psched.Worker.run has no monitor."""

    metrics: Annotated[str | None, _METRICS] = None
    """Where the monitor shows [metrics](alerts.md#metrics) for Prometheus, and /livez and /readyz.
    An address and port, or a Unix socket (unix:/run/psched/metrics.sock); or a file for
    node_exporter, without /livez and /readyz (textfile:/var/lib/node_exporter/psched.prom). Whoever
    can connect can read them; they contain types of tasks, but no keys and no data. Needs the
    extra: `pip install psched[metrics]`. Example: `metrics: 127.0.0.1:9464`"""

    metrics_keys: Annotated[tuple[str, ...], names("a schedule")] = ()
    """Keys of schedules, at most 100, for which [the metrics](alerts.md#metrics) also show
    when they have last succeeded: [nightly, backup]. Whoever can read the metrics then sees these
    keys."""

    expect: Annotated[Expectations, Expect(), PER_SCHEDULE] = NO_EXPECTATIONS
    """What is expected of schedules. If it fails, the monitors raise an [alert](alerts.md), which
    `psched alerts` shows until it is over. Without a part, or if it is off, nothing is expected:
    - `late`: an occurrence starts at most so long after it fell due
    - `longest`: a run takes at most so long
    - `silent`: a recurring schedule is at most so long without a success; needs history: all, and
      must be shorter than `history_keep`
    - `unusual`: a run takes at most so many times the median of the last 20 runs of its schedule

    Each part is overridden by itself. Not with `rdb_compat`. For example
    `expect: {late: 5m, longest: 1h, silent: 1d, unusual: 3}`.
    """

    hooks: Annotated[Hooks, HooksKind()] = NO_HOOKS
    """Who or what can be told about alerts, and how: see [Hooks](alerts.md#hooks). Each hook has a
    name, and is one of a webhook, a command, a mail or a task. Rows name hooks; they cannot define
    any. For example:

        hooks:
          ops: {mail: [ops@example.org]}
          chat: {webhook: "${SLACK_URL}", template: slack}
          pager: {webhook: "https://events.pagerduty.com/v2/enqueue", template: pagerduty,
                  secret_file: /etc/psched/pagerduty}
          own: {command: [/usr/local/bin/tell, --now]}
          clean: {task: cleanup, data: {deep: true}}
    """

    alert_on: Annotated[str, Choice("given_up", "each_failure"), PER_SCHEDULE] = "given_up"
    """When `on_failed` is told of a task with `max_attempts`: when it is given up (given_up), or of
    each attempt that fails before, too (each_failure): see [Which hooks are
    told](alerts.md#hooks)."""

    on_failed: Annotated[tuple[str, ...], HookNames(), PER_SCHEDULE] = ()
    """The hooks that are told that a task has failed, was given up, or is quarantined; a name, or a
    list of names: see [Which hooks are told](alerts.md#hooks)."""

    on_late: Annotated[tuple[str, ...], HookNames(), PER_SCHEDULE] = ()
    """The hooks that are told that a task does not start in time, runs for too long, or has not
    succeeded for too long; or that no slot is free for it."""

    on_lost: Annotated[tuple[str, ...], HookNames(), PER_SCHEDULE] = ()
    """The hooks that are told that a worker or a host has died while it ran a task, that workers of
    a host have died, or that a monitor cannot reach the database. In the last case, the hooks of
    `on_failed` and `on_late` are told, too, except hooks that are tasks."""

    on_recovered: Annotated[tuple[str, ...], HookNames(), PER_SCHEDULE] = ()
    """The hooks that are told that something is over that a hook was told about."""

    allow_private_addresses: Annotated[tuple[Network, ...], Networks()] = ()
    """Whether requests of [hooks](alerts.md#webhooks-and-chats) and [pings](alerts.md#pings) may be
    sent to addresses that are not public: on, off, or a list of networks: [10.1.0.0/16,
    127.0.0.1/32]."""

    pings: Annotated[Pings, PingUrls()] = NO_PINGS
    """[Pings](alerts.md#pings): checks of Healthchecks (https://healthchecks.io, or a server of
    your own), by names of your choice. psched tells a check when a run starts, and whether it has
    succeeded, so that you hear from that server if a run fails, or if none comes. In place of the
    last part of a URL, {key} stands for the schedule's key. Whoever knows a URL can ping, so keep
    this file secret, or write ${VARIABLE}. For example:

        pings:
          backup: https://hc-ping.com/5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278
          each: https://hc-ping.com/${PING_KEY}/{key}?create=1
    """

    ping: Annotated[str, PING_NAME, PER_SCHEDULE] = NO_PING
    """The name of the ping that is told of runs, or none."""

    ping_output: Annotated[int, Number(whole=True, unit="bytes", most=65_536), PER_SCHEDULE] = (
        10_240
    )
    """Bytes of what an attempt has printed that its ping contains, the last ones; 0: none. Only
    output that is kept (see `output`) is sent."""

    log: Annotated[Path | None, FILE] = None
    """File of [the log](daemon.md#the-log), created with mode 0640; or /dev/stdout or /dev/stderr.
    By default standard error, which systemd keeps in its journal. It must be a regular file or a
    device; anything else is removed, because a task may have put it there. A symbolic link is
    followed only if it belongs to root. Example: `log: /var/log/psched/psched.log`"""

    log_level: Annotated[str, Choice("debug", "info", "warning", "error")] = "info"
    """The least serious events that are logged: debug, info, warning or error."""

    log_format: Annotated[str, Choice("text", "json")] = "text"
    """The form of the log's messages: text, or json, which is one JSON object per line. The fields
    are time, level, pid, process and message, and if they apply traceback, key and occurrence. In
    systemd's journal, each line also has the priority of its level. What tasks print stays as the
    setting output says."""

    pid_file: Annotated[Path | None, FILE] = None
    """A file that holds the process id of psched-master while it runs. systemd does not need it.
    Example: `pid_file: /run/psched/psched.pid`"""

    @property
    def store_kind(self) -> StoreKind:
        """The properties of the kind of store that the setting ``type`` selects."""
        return STORE_KINDS.get(self.type, USERS_OWN)

    @property
    def observes_leases(self) -> bool:
        """Whether leases are taken over by observation, see `psched.stores.observations`."""
        return self.takeover == "observed" or self.type in urls.AWS_KINDS

    @property
    def this_host(self) -> str:
        """The name of this host, as records and messages show it."""
        return self.host_name or visible(socket.gethostname())

    @property
    def host_names(self) -> tuple[str, ...]:
        """The name of this host, and then its labels, which the field ``hosts`` can name."""
        return tuple(dict.fromkeys((self.this_host.lower(), *self.host_labels)))

    @property
    def configured_names(self) -> tuple[str, ...]:
        """Those of the names of this host that are configured."""
        return self.host_names if self.host_name else self.host_labels

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
    def tls(self) -> urls.Tls | None:
        """How connections are encrypted; None if no setting requires TLS."""
        return urls.tls_of({name: getattr(self, name) for name in SETTINGS})

    @property
    def of_replica(self) -> "Config | None":
        """These settings for the replica: its url is ``read_url``. None if that is not set."""
        if self.read_url is None:
            return None
        return replace(self, url=urls.with_login(self.read_url, self.url), read_url=None)

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
        found |= urls.secrets(self.read_url or "")
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
        from psched.config.reader import check  # noqa: PLC0415  # it imports this module

        context = Context({}, cwd and cwd.absolute(), literal=True)
        given = {name: RawValue(value) for name, value in changes.items()}
        current = {name: getattr(self, name) for name in SETTINGS}
        changed = check(given, context, start=current)
        default = self.url_is_default and "url" not in changes and changed.url == self.url
        return replace(changed, origin=self.origin, withheld=self.withheld, url_is_default=default)

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)} | {"url": self.safe_url}
        shown["read_url"] = self.read_url and urls.without_secrets(self.read_url)
        shown["password"] = self.password and "***"
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_NOT_SETTINGS = ("origin", "withheld", "url_is_default")
"""The fields of `Config` that are not settings."""


def _settings() -> Iterator[tuple[str, Setting]]:
    annotations = get_type_hints(Config, include_extras=True)
    for each in fields(Config):
        if each.name not in _NOT_SETTINGS:
            value_type, kind, *marks = get_args(annotations[each.name])
            default = None if each.default is MISSING else each.default
            optional = type(None) in get_args(value_type)
            yield each.name, Setting(kind, default, optional, PER_SCHEDULE in marks)


SETTINGS: Mapping[str, Setting] = dict(_settings())
"""Every setting by its name, in the order of `Config`."""

OVERRIDES = tuple(
    name for name, each in SETTINGS.items() if each.per_schedule and name != "alive_time"
)
"""The names of the settings that a single schedule can have in its ``options``. Of ``expect``, each
part is overridden by itself. A schedule stores its own ``alive_time`` in a column."""

OF_A_TYPE: Mapping[str, Kind] = {name: SETTINGS[name].kind for name in (*OVERRIDES, "alive_time")}
"""The kinds of the settings that a type of task can have in ``types``."""
