"""The settings that psched's own stores need, as one value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from psched.config import Config
from psched.config.urls import Tls
from psched.core.definition import history_setting
from psched.core.model import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParameters:
    """The settings that psched's own stores depend on; a store ignores settings it does not need.

    Attributes:
        url: the address of the store: a database URL in SQLAlchemy's form, or a URL that
            `psched.config.urls.redis_address` parses.
        table: the name of the table, which is a plain identifier; in Redis, all keys begin with
            this name in braces.
        timeout: the longest wait for an answer of the server, in seconds.
        tls: how connections are encrypted. None means that the url's options decide, or the
            driver's defaults if the url has no such options.
        compress_above: the size in bytes above which payloads are compressed; 0 means that no
            payload is compressed.
        only: the types of tasks that the store claims; empty means all types.
        claim_strategy: how a relational database claims due rows; ``auto`` means the best way that
            the server supports.
        history_keep: the age in seconds at which records of the run history are deleted; 0 means
            that they are not.
        history_keep_per_key: how many records of one schedule are kept; 0 means no limit.
        history: returns the setting ``history`` that applies to a row.
        output_keep: the age in seconds at which the output of attempts is deleted; 0 means that it
            is not.
        output_budget: the number of bytes that the output of all attempts takes at most; 0 means no
            limit.
        wait_replicas: the number of Redis replicas that must have received a write before the write
            counts as done; 0 means that psched does not wait for replicas.
    """

    url: str
    table: str
    timeout: float
    tls: Tls | None = None
    compress_above: int = 0
    only: Sequence[str] = ()
    claim_strategy: str = "auto"
    wait_replicas: int = 0
    history_keep: int = 0
    history_keep_per_key: int = 0
    history: Callable[[Row], str] = lambda _row: "all"
    output_keep: int = 0
    output_budget: int = 0

    @classmethod
    def of(cls, settings: Config) -> Self:
        """Copy the parameters of the store from the settings of an installation."""
        return cls(
            url=settings.url,
            table=settings.table,
            timeout=settings.driver_timeout,
            tls=settings.tls,
            compress_above=settings.compress_above,
            only=settings.only,
            claim_strategy=settings.claim_strategy,
            wait_replicas=settings.wait_replicas,
            history_keep=settings.history_keep,
            history_keep_per_key=settings.history_keep_per_key,
            history=partial(history_setting, settings=settings),
            output_keep=settings.output_keep,
            output_budget=settings.output_budget,
        )
