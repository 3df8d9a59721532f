"""The settings of an installation, as type checkers know them.

`psched.config.settings` says what they mean, and checks their values when a program runs. None
means the default.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from psched.base.quantities import Duration
from psched.core.arguments.fields import SharedSettings, Size

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
    host: str | None
    port: int | None
    db: int | None
    path: PathLike | None
    password: str | None
    wait_replicas: int | None
    password_file: PathLike | None
    ssl_ca: PathLike | None
    ssl_cert: PathLike | None
    ssl_key: PathLike | None
    ssl_verify: Literal["full", "ca", "none"] | None
    table: str | None
    create_table: bool | None
    database_timeout: Duration | None
    claim_strategy: Literal["auto", "skip_locked", "cas"] | None
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
    log: PathLike | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["text", "json"] | None
    pid_file: PathLike | None
