"""Creates the store that the setting ``type`` selects; modules of other stores are not imported."""

import random
from types import MethodType

from psched.base import loader
from psched.base.clock import Clock
from psched.base.errors import ConfigError, LoadError, described
from psched.config import Config
from psched.config.urls import AWS_KINDS
from psched.core.store_protocol import Store

CAN_LACK = (
    *("history", "output", "alerts", "pauses", "holds", "announcements", "light_reads"),
    *(
        "recorded_changes",
        "count",
        "backlog",
        "lanes",
        "replace_many",
        "join_transaction",
        "plan_init",
    ),
)
"""What a store can leave out, see `psched.core.store_protocol`."""


@loader.gc_paused()
def create(settings: Config, *, clock: Clock, rng: random.Random) -> Store:
    """Create the store that the settings select; the store is not connected yet."""
    if ":" in settings.type:
        return _by_path(settings.type, settings, clock, rng)
    if path := settings.store_kind.class_path:
        return _by_path(path, settings, clock, rng)
    if settings.type == "redis":
        return _redis(settings, clock, rng)
    if settings.type in AWS_KINDS:
        return _aws(settings, clock, rng)
    # SQLAlchemy takes long to import, so only the stores on relational databases import it.
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
