"""The fields of schedules and tasks, and the settings, as type checkers know them.

`psched.core.declare` checks names and values of fields again when a program runs, and
`psched.config` those of settings. Each can also be None: then the default applies, or in a change,
the schedule's own value is removed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Required, TypedDict

from psched.base.quantities import Duration
from psched.core.columns import When

Size = int | str
"""A number of bytes, or a text such as ``"64K"``."""


class Expected(TypedDict, total=False):
    """The parts of the field ``expect``; ``"off"`` switches a part off."""

    late: Duration | Literal[False] | None
    longest: Duration | Literal[False] | None
    silent: Duration | Literal[False] | None
    unusual: float | Literal["off", False] | None


class SharedSettings(TypedDict, total=False):
    """The settings that an installation has, and that a schedule or a task can have for itself."""

    alive_time: Duration | None
    catchup: Literal["all", "latest", "skip"] | None
    catchup_limit: int | None
    catchup_grace: Duration | None
    catchup_window: Duration | None
    jitter: Duration | None
    dst_policy: Literal["debian", "wallclock"] | None
    retry_wait: Duration | None
    retry_backoff: Literal["fixed", "exponential"] | None
    retry_wait_limit: Duration | None
    max_attempts: int | None
    pause_after_failures: int | None
    on_return: Literal["finish", "retry"] | None
    expire: Duration | None
    retention_time: Duration | None
    kill_timeout: Duration | None
    kill_interval: Duration | None
    history: Literal["all", "failures", "none"] | None
    output: Literal["both", "history", "service", "raw", "none"] | None
    output_limit: Size | None
    result: Literal["explicit", "return"] | None
    expect: Expected | Literal["off", False] | None
    alert_on: Literal["given_up", "each_failure"] | None
    on_failed: str | Sequence[str] | None
    on_late: str | Sequence[str] | None
    on_lost: str | Sequence[str] | None
    on_recovered: str | Sequence[str] | None
    ping: str | None
    ping_output: Size | None


class OwnSettings(SharedSettings, total=False):
    """The settings that a schedule or a task can have for itself, and its annotations."""

    label: str | None
    hosts: str | Sequence[str] | None
    run_as: str | None
    note: str | None
    payload: str | None


class PushOptions(OwnSettings, total=False):
    """What `psched.ScheduleCollection.push` takes besides its own parameters."""

    at: When | None
    delay: Duration | None
    next_time: When | None
    next_run_time: When | None
    timezone: str | None


class FunctionOptions(OwnSettings, total=False):
    """The options of all pushes of a function of a `psched.App`."""

    delay: Duration | None
    timezone: str | None
    timeout: Duration | None


class FunctionPushOptions(PushOptions, total=False):
    """The options of one push of a function of a `psched.App`."""

    key: str | None
    run_at: When | None
    timeout: Duration | None
    connection: Any


class AddOptions(OwnSettings, total=False):
    """What `psched.ScheduleCollection.add` takes besides its own parameters."""

    every: Duration | None
    align: bool | None
    at: When | None
    trigger: object
    each_host: bool | None


class JobFields(AddOptions, total=False):
    """The fields of a job of a program; its type is derived from its key."""

    cron: str | None
    delay: Duration | None
    timezone: str | None
    next_time: When | None
    next_run_time: When | None
    data: Mapping[str, Any] | None


class Changes(JobFields, total=False):
    """What `psched.ScheduleCollection.modify` can change."""

    type: str


class NewSchedule(JobFields, total=False):
    """One schedule of `psched.ScheduleCollection.add_many`."""

    key: Required[str]
    type: str | None


class NewTask(PushOptions, total=False):
    """One task of `psched.ScheduleCollection.push_many`."""

    key: str | None
    type: str | None
    data: Mapping[str, Any] | None
    run_at: When | None
    timeout: Duration | None


Names = str | Sequence[str]
"""A name, or a list of names."""

PathLike = str | Path
"""A path."""


class Settings(SharedSettings, total=False):
    """The settings that `psched.start` takes by name."""

    monitor: bool | None
    metrics: str | None
    metrics_keys: Names | None
    hooks: Mapping[str, Any] | None
    allow_private_addresses: bool | Names | None
    pings: Mapping[str, Any] | None
    type: str | None
    store: Mapping[str, Any] | None
    url: str | None
    read_url: str | None
    host: str | None
    port: int | None
    db: int | None
    path: PathLike | None
    password: str | None
    wait_replicas: int | None
    max_clock_offset: Duration | None
    password_file: PathLike | None
    ssl_ca: PathLike | None
    ssl_cert: PathLike | None
    ssl_key: PathLike | None
    ssl_verify: Literal["full", "ca", "none"] | None
    table: str | None
    create_table: bool | None
    database_timeout: Duration | None
    claim_strategy: Literal["auto", "skip_locked", "cas"] | None
    takeover: Literal["clock", "observed"] | None
    poll_interval: Duration | None
    wake: Literal["local", "notify", "off"] | None
    timezone: str | None
    data_limit: Size | None
    compress_above: Size | None
    history_keep: Duration | None
    history_keep_per_key: int | None
    output_keep: Duration | None
    output_budget: Size | None
    redact: Names | None
    types: Mapping[str, Any] | None
    processors: int | Literal["auto"] | None
    concurrency: int | None
    max_tasks_per_child: int | None
    worker_max_tasks: int | None
    worker_max_age: Duration | None
    graceful_kill_limit: Duration | None
    graceful_timeout: Duration | None
    start_timeout: Duration | None
    child_heartbeat_limit: Duration | None
    task_signals: Literal["any", "own"] | None
    cgroup: Literal["auto", "on", "off"] | None
    load_path: PathLike | Sequence[PathLike] | None
    triggers: Names | None
    require: PathLike | Sequence[PathLike] | None
    dispatch: str | None
    exec: PathLike | Sequence[PathLike] | None
    script: PathLike | Sequence[PathLike] | None
    script_class: str | None
    exec_type: bool | PathLike | Sequence[PathLike] | None
    only: Names | None
    host_name: str | None
    host_labels: Names | None
    host_gone_after: Duration | None
    log: PathLike | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None
    pid_file: PathLike | None
