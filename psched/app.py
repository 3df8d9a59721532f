"""The composition root: a configuration becomes a store, a collection, a worker."""

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

Configuration = Config | Mapping[str, object] | str | Path | None
"""Settings; a mapping of some; a file's path; None: the file that is found, or defaults."""


def read_config(given: Configuration = None, environment: str | None = None) -> Config:
    """The settings that are meant.

    Args:
        given: see `Configuration`.
        environment: which section of a file.

    Raises:
        ConfigError: they cannot be used; the text names file, line, key and mend.
    """
    if isinstance(given, Config):
        return given
    if isinstance(given, Mapping):
        return config.from_mapping(given)
    return config.load(given, environment)


def changed_config(
    given: Configuration, environment: str | None, changes: Mapping[str, object]
) -> Config:
    """The settings that are meant, with those of the command line on top.

    Args:
        given: see `Configuration`.
        environment: which section of a file.
        changes: values by the names of settings; see `Config.with_settings`. None: no change.

    Raises:
        ConfigError: they cannot be used.
    """
    chosen: dict[str, Any] = {n: value for n, value in changes.items() if value is not None}
    settings = read_config(given, environment)
    return settings.with_settings(**chosen) if chosen else settings


def open_schedules(
    given: Configuration = None, *, environment: str | None = None
) -> ScheduleCollection:
    """Open the schedules of a store; a context manager.

    Args:
        given: settings, a mapping of some, the path of a file; None: the file that is found
            by ``$PSCHED_CONFIG``, in ``config/psched.yml`` or ``/etc/psched/psched.yml``; with
            none, an embedded SQLite database in the user's state folder.
        environment: which section of a file; default ``$PSCHED_ENV``, else ``development``.

    Raises:
        ConfigError: the settings cannot be used.
    """
    settings = read_config(given, environment)
    return ScheduleCollection(make_store(settings), settings, clock=CLOCK, draw_nonce=draw_nonce)


def make_store(settings: Config) -> Store:
    """The store that the settings name; not yet connected.

    Raises:
        ConfigError: its url cannot be used.
        StoreError: schedules in memory cannot be had.
    """
    # Not seeded by anybody: it is made in the process that uses it, after the fork.
    make = partial(stores.create, clock=CLOCK, rng=random.Random())  # noqa: S311  # jitter
    if settings.url != MEMORY_URL:
        return make(settings)
    store = make(settings.with_settings(url=MEMORY.url))
    # Nobody else would: there is no moment before the first who uses it.
    store.init()
    store.disconnect()
    return store


def draw_nonce() -> str:
    """A text that nobody has drawn before; the host's name in it is for people."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:24]
    return f"{host}-{secrets.token_hex(8)}"
