"""Stores by the configuration's ``type``, imported when they are asked for."""

import random

from psched.base import loader
from psched.base.clock import Clock
from psched.base.errors import ConfigError, LoadError, described
from psched.config import Config
from psched.core.store_protocol import Store


@loader.gc_paused()
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
        return _own(settings, clock, rng)
    # SQLAlchemy takes its time.
    if settings.type == "rdb_compat":
        from psched.contrib.perfectsched.store.store import PerfectSchedStore  # noqa: PLC0415

        return PerfectSchedStore(
            settings.url,
            tls=settings.tls,
            table=settings.table,
            timeout=settings.driver_timeout,
            alive_time=settings.alive_time,
            clock=clock,
            rng=rng,
        )
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


def _own(settings: Config, clock: Clock, rng: random.Random) -> Store:
    """A store of the user's own, by its class's import path."""
    loader.extend_path(settings.load_path)
    try:
        make = loader.load_object(settings.type)
    except LoadError as error:
        raise ConfigError(f"type: {error}") from error
    try:
        store: Store = make(settings, clock=clock, rng=rng)
    except Exception as error:
        # Most likely something is missing in the setting that is all its own.
        raise ConfigError(f"store: {settings.type} cannot be made: {described(error)}") from error
    return store
