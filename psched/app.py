"""The composition root: creates a store and a collection of schedules from the settings."""

import os
import random
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from math import inf
from types import MethodType
from typing import Any

from psched.base import loader
from psched.base.clock import Clock, SystemClock
from psched.base.errors import ConfigError, LoadError, described
from psched.client.auditor import this_process
from psched.client.collection import ScheduleCollection
from psched.config import Config, Files, from_mapping, load
from psched.config.urls import AWS_KINDS, wake_code
from psched.config.urls import MEMORY as MEMORY_URL
from psched.core.store_protocol import CAN_LACK, Store
from psched.master.hints import HintSender, hint_folders

CLOCK = SystemClock()

WORKER = "psched worker"
"""The name in the audit trail of the program that runs tasks."""

Given = Config | Mapping[str, object] | Files | None
"""The source of the settings: settings that were read already, a mapping of some settings, or the
path of a file, or of several. None means the file in one of the default places, or the default
settings if no such file exists."""

ConfigLike = Given | Callable[[], Given]
"""The source of the settings, or a function that returns it."""


def called(given: ConfigLike) -> Given:
    """The source of the settings; if it is a function, what the function returns."""
    return given() if callable(given) else given


def read_config(
    given: ConfigLike = None,
    environment: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """Read the settings."""
    given = called(given)
    if isinstance(given, Config):
        settings = given
    elif isinstance(given, Mapping):
        settings = from_mapping(given)
    else:
        settings = load(given, environment)
    changes: dict[str, Any] = {**(overrides or {})}
    return settings.with_settings(**changes) if changes else settings


def open_schedules(
    given: ConfigLike = None,
    *,
    environment: str | None = None,
    program: str | None = None,
    patience: float = inf,
) -> ScheduleCollection:
    """Open the collection of schedules in a store; the collection is a context manager.

    A request that the store does not answer is not repeated after ``patience`` seconds.
    """
    settings = read_config(given, environment)
    if settings.driver_timeout > patience:
        settings = settings.with_settings(database_timeout=patience)
    warns = not settings.names_handlers
    return _open(settings, warns_without_type=warns, program=program, patience=patience)


def open_in_worker(settings: Config) -> ScheduleCollection:
    """Open the collection for a task; it never warns that the settings name no handler.

    A worker can have handlers that the settings do not name: those of `psched.Worker.run`.
    """
    return _open(settings, warns_without_type=False, program=WORKER)


def _open(
    settings: Config, *, warns_without_type: bool, program: str | None, patience: float = inf
) -> ScheduleCollection:
    return ScheduleCollection(
        make_store(settings),
        settings,
        clock=CLOCK,
        draw_nonce=new_nonce,
        patience=patience,
        warns_without_type=warns_without_type,
        author=partial(this_process, program),
        hint=hint_of(settings),
    )


def hint_of(settings: Config) -> Callable[[], object] | None:
    """What tells the masters of this host that rows may be due; None if the settings forbid it."""
    if settings.wake == "off":
        return None

    @cache  # made for the first hint, because most programs and commands send none
    def sender() -> HintSender:
        code = wake_code(settings.url, settings.table)
        return HintSender(hint_folders(os.environ), code, CLOCK)

    def hint() -> None:
        sender()()

    return hint


def make_store(settings: Config) -> Store:
    """Create the store that the settings describe; the store is not connected yet."""
    # The generator is created in the process that uses it, because two forked processes must not
    # get the same random jitter.
    make = partial(create_store, clock=CLOCK, rng=random.Random())  # noqa: S311  # jitter
    if settings.url != MEMORY_URL:
        return make(settings)
    from psched.memory import MEMORY  # noqa: PLC0415  # few installations have such a store

    store = make(settings.with_settings(url=MEMORY.url))
    # The table is created here: nobody can run `psched init` earlier, because the database does not
    # exist before its first use.
    store.init()
    store.disconnect()
    return store


@loader.gc_paused()
def create_store(settings: Config, *, clock: Clock, rng: random.Random) -> Store:
    """Create the store that the setting ``type`` selects; the store is not connected yet."""
    if ":" in settings.type:
        return _by_path(settings.type, settings, clock, rng)
    if path := settings.store_kind.class_path:
        return _by_path(path, settings, clock, rng)
    if settings.type == "redis":
        return _redis(settings, clock, rng)
    if settings.type in AWS_KINDS:
        return _aws(settings, clock, rng)
    # Modules of other stores are not imported; SQLAlchemy, for example, takes long.
    from psched.stores.sql.store import SqlStore  # noqa: PLC0415

    return SqlStore(settings, clock=clock, rng=rng)


def _redis(settings: Config, clock: Clock, rng: random.Random) -> Store:
    try:
        from psched.stores.redis.store import RedisStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise ConfigError("url: needs the driver redis: pip install 'psched[redis]'") from None
    return RedisStore(settings, clock=clock, rng=rng)


def _aws(settings: Config, clock: Clock, rng: random.Random) -> Store:
    try:
        if settings.type == "simpledb":
            from psched.stores.simpledb.store import SimpleDBStore  # noqa: PLC0415

            return SimpleDBStore(settings, clock=clock, rng=rng)
        from psched.stores.dynamodb.store import DynamoDBStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "botocore":
            raise
        raise ConfigError(f"type: {settings.type} needs boto3: pip install 'psched[aws]'") from None
    return DynamoDBStore(settings, clock=clock, rng=rng)


def _by_path(path: str, settings: Config, clock: Clock, rng: random.Random) -> Store:
    """Create a store of the class that an import path names."""
    try:
        if settings.type == path:  # a class of the user's own
            loader.extend_path(settings.load_path)
        make = loader.load_object(path)
    except LoadError as error:
        raise ConfigError(f"type: {error}") from error
    try:
        store: Store = make(settings, clock=clock, rng=rng)
    except ConfigError:
        raise
    except Exception as error:
        # A missing setting is the most likely cause, so the error is reported as a ConfigError.
        raise ConfigError(f"store: {settings.type} cannot be made: {described(error)}") from error
    _complete(store)
    return store


def _complete(store: Store) -> None:
    """Give a store whose class does not derive from `Store` what it would inherit."""
    for name in CAN_LACK:
        if not hasattr(store, name):
            default = getattr(Store, name)
            setattr(store, name, MethodType(default, store) if callable(default) else default)


def load_store(settings: Config) -> None:
    """Load the modules of the store and its driver, for processes that are forked afterwards.

    They then share the memory of these modules. A class of the user's own is not loaded here.
    """
    # What is wrong is reported by the process that uses the store.
    with suppress(Exception):
        if ":" not in settings.type:
            create_store(settings, clock=CLOCK, rng=random.Random())  # noqa: S311  # jitter


def new_nonce() -> str:
    """Return a random text that no other call returns; it begins with the name of this host."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:24]
    return f"{host}-{os.urandom(8).hex()}"
