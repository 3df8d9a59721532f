"""What the parts of the store that keep records beside the rows share."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from psched.stores.pages import split
from psched.stores.redis import errors
from psched.stores.redis.connector import Connector
from psched.stores.redis.encoding import decoded

_log = logging.getLogger("psched.store")

BATCH = 200
"""The most records that one run of a script writes or returns.

The number is small because the server serves no other client while a script runs.
"""

TRIMMED = 500
"""The most records that one run of a script deletes."""

_LARGEST_BATCH = 2_000_000
"""The most bytes of records that one request writes, unless a single record has more."""


R = TypeVar("R")


class SideStore:
    """A part of the store that keeps records beside the rows."""

    part: str
    """The name of the part in the script ``try``."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def problem(self) -> str | None:
        """Why nothing is kept: a command is unknown or forbidden; None if it is kept."""
        return errors.refusal(self._connector.run("try", self.part, writing=False))


def batches(items: Sequence[R], size_of: Callable[[R], int]) -> Iterator[Sequence[R]]:
    """Split items, in order, into parts that are small enough for one request each."""
    return split(items, size_of, most=BATCH, largest=_LARGEST_BATCH)


class Losses:
    """Records of one kind that are lost because the server refuses them.

    Attributes:
        count: the number of lost records so far.
    """

    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what
        self._ongoing = False

    def note(self, lost: int, reason: bytes | None) -> None:
        """Note the result of a request; log the first loss, and the first success after it."""
        if lost:
            self.count += lost
            if not self._ongoing:
                why = errors.shortened(decoded(reason or b""))
                _log.error(
                    "%s are lost (%d so far): %s; tasks are not affected",
                    self._what,
                    self.count,
                    why,
                )
        elif self._ongoing:
            _log.info("%s are written again; %d lost", self._what, self.count)
        self._ongoing = bool(lost)
