"""Stores by the configuration's ``type``, imported when they are asked for."""

import random

from psched.backend import Backend
from psched.clock import Clock
from psched.config import Config
from psched.errors import ConfigError


def create(settings: Config, *, clock: Clock, rng: random.Random) -> Backend:
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
    # SQLAlchemy takes its time.
    if settings.type == "rdb_compat":
        from psched.backends.compat.backend import CompatBackend  # noqa: PLC0415

        return CompatBackend(
            settings.url,
            tls=settings.tls,
            table=settings.table,
            timeout=settings.driver_timeout,
            clock=clock,
            rng=rng,
        )
    from psched.backends.sql import SqlBackend  # noqa: PLC0415

    return SqlBackend(
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


def _redis(settings: Config, clock: Clock) -> Backend:
    try:
        from psched.backends.redis.store import RedisBackend  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "redis":
            raise
        raise ConfigError("url: needs the driver redis: pip install 'psched[redis]'") from None
    return RedisBackend(
        settings.url,
        table=settings.table,
        timeout=settings.driver_timeout,
        clock=clock,
        tls=settings.tls,
        compress_above=settings.compress_above,
    )
