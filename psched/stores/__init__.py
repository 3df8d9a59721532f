"""Stores by the configuration's ``type``, imported when they are asked for."""

import random

from psched.base import loader
from psched.base.clock import Clock
from psched.base.errors import ConfigError, LoadError, described
from psched.config import Config
from psched.core.store_protocol import Store


@loader.undisturbed()
def create(settings: Config, *, clock: Clock, rng: random.Random) -> Store:
    """The store that a configuration names; not yet connected.

    Args:
        settings: the installation's.
        clock: this host's clocks.
        rng: draws the pauses between tries.

    Raises:
        ConfigError: its url cannot be used.
    """
    if settings.type == "redis":
        return _redis(settings, clock)
    if ":" in settings.type:
        loader.extend_path(settings.load_path)
        return _by_path(settings.type, settings, clock, rng)
    if path := settings.store_kind.class_path:
        return _by_path(path, settings, clock, rng)
    # SQLAlchemy takes its time.
    from psched.stores.sql.store import SqlStore  # noqa: PLC0415

    return SqlStore(
        settings.url,
        tls=settings.tls,
        table=settings.table,
        timeout=settings.driver_timeout,
        compress_above=settings.compress_above,
        only=settings.only,
        strategy=None if settings.claim_strategy == "auto" else settings.claim_strategy,
        clock=clock,
        rng=rng,
    )


def _redis(settings: Config, clock: Clock) -> Store:
    try:
        from psched.stores.redis.store import RedisStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise ConfigError("url: needs the driver redis: pip install 'psched[redis]'") from None
    return RedisStore(
        settings.url,
        table=settings.table,
        timeout=settings.driver_timeout,
        clock=clock,
        tls=settings.tls,
        compress_above=settings.compress_above,
        only=settings.only,
        replicas=settings.wait_replicas,
    )


def _by_path(path: str, settings: Config, clock: Clock, rng: random.Random) -> Store:
    """A store by its class's import path; most are a user's own."""
    try:
        make = loader.load_object(path)
    except LoadError as error:
        raise ConfigError(f"type: {error}") from error
    try:
        store: Store = make(settings, clock=clock, rng=rng)
    except ConfigError:
        raise
    except Exception as error:
        # Most likely something is missing in the setting that is all its own.
        raise ConfigError(f"store: {settings.type} cannot be made: {described(error)}") from error
    return store
