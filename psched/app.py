"""The composition root: a configuration becomes a store and a collection of schedules."""

import random
import re
import secrets
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from psched import config, stores
from psched.base.clock import SystemClock
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.urls import MEMORY as MEMORY_URL
from psched.core.store_protocol import Store
from psched.memory import MEMORY

CLOCK = SystemClock()

ConfigLike = Config | Mapping[str, object] | str | Path | None
"""Where settings come from: settings that were read already, a mapping of some settings, the path
of a file; None: the file in one of the default places, or the defaults."""


def read_config(
    given: ConfigLike = None,
    environment: str | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """Read the settings.

    Args:
        given: where the settings come from.
        environment: the section of the file to read.
        overrides: settings that replace those, such as those of the command line; a value of None
            takes a setting back to its default.

    Raises:
        ConfigError: the settings cannot be used; the text names file, line, key and fix.
    """
    if isinstance(given, Config):
        settings = given
    elif isinstance(given, Mapping):
        settings = config.from_mapping(given)
    else:
        settings = config.load(given, environment)
    changes: dict[str, Any] = {**(overrides or {})}
    return settings.with_settings(**changes) if changes else settings


def open_schedules(
    given: ConfigLike = None, *, environment: str | None = None
) -> ScheduleCollection:
    """Open the schedules of a store; a context manager.

    Args:
        given: settings, a mapping of some, or the path of a file; None: the file that
            ``$PSCHED_CONFIG`` names, else ``config/psched.yml``, else ``/etc/psched/psched.yml``;
            without any of them, an embedded SQLite database in the user's state folder.
        environment: the section of the file to read; default ``$PSCHED_ENV``, else
            ``development``.

    Raises:
        ConfigError: the settings cannot be used.
    """
    settings = read_config(given, environment)
    return ScheduleCollection(make_store(settings), settings, clock=CLOCK, draw_nonce=new_nonce)


def make_store(settings: Config) -> Store:
    """Make the store that the settings name; it is not connected yet.

    Raises:
        ConfigError: its url cannot be used.
        StoreError: a store in memory cannot be created.
    """
    # Seeded in the process that uses it, because two forks must not draw the same jitter.
    make = partial(stores.create, clock=CLOCK, rng=random.Random())  # noqa: S311  # jitter
    if settings.url != MEMORY_URL:
        return make(settings)
    store = make(settings.with_settings(url=MEMORY.url))
    # The table is created here, because the database does not exist before its first use, so that
    # nobody could run `psched init`.
    store.init()
    store.disconnect()
    return store


def new_nonce() -> str:
    """A random text that is never repeated. It begins with the host's name, to be recognizable."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:24]
    return f"{host}-{secrets.token_hex(8)}"
