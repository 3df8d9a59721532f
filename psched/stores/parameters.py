"""The settings that a store needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from psched.config import Config
from psched.config.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParameters:
    """The settings that psched's own stores depend on; each store ignores those it does not need.

    Attributes:
        url: the address of the store: a database URL in SQLAlchemy's form, or a URL that
            `psched.config.redis_urls` parses.
        table: the name of the table, a plain identifier; in Redis the prefix of all keys.
        timeout: seconds that an answer of the server may take.
        tls: how connections are encrypted; None: the url's own options, or the driver's defaults,
            decide.
        compress_above: payloads of more bytes are compressed; 0: none is.
        only: the types of task that claims return; empty: all types.
        claim_strategy: how due rows are claimed in SQL; ``auto``: the best way that the server
            supports.
        wait_replicas: the number of Redis replicas that must have a write before the write counts
            as done; 0: none.
    """

    url: str
    table: str
    timeout: float
    tls: Tls | None = None
    compress_above: int = 0
    only: Sequence[str] = ()
    claim_strategy: str = "auto"
    wait_replicas: int = 0

    @classmethod
    def of(cls, settings: Config) -> Self:
        """The parameters that an installation's settings give to its store."""
        return cls(
            url=settings.url,
            table=settings.table,
            timeout=settings.driver_timeout,
            tls=settings.tls,
            compress_above=settings.compress_above,
            only=settings.only,
            claim_strategy=settings.claim_strategy,
            wait_replicas=settings.wait_replicas,
        )
