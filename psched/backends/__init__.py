"""Stores by the configuration's ``type``, imported when they are asked for."""

import random

from psched.backend import Backend
from psched.clock import Clock
from psched.config import Config


def create(settings: Config, *, clock: Clock, rng: random.Random) -> Backend:
    """The store that a configuration names; not yet connected.

    Args:
        settings: the installation's.
        clock: this host's clocks.
        rng: draws the pauses between tries.

    Raises:
        ConfigError: its url cannot be used.
    """
    # The only type there is; `Config` refuses others.
    from psched.backends.sql import SqlBackend  # noqa: PLC0415  # SQLAlchemy takes its time

    return SqlBackend(
        settings.url,
        table=settings.table,
        timeout=settings.driver_timeout,
        clock=clock,
        rng=rng,
    )
