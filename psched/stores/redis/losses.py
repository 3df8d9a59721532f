"""Counts what a store could not write, and logs when losses begin and end."""

import logging

from psched.stores.redis import errors

_log = logging.getLogger("psched.store")


class Losses:
    """Records of one kind that are lost because the server refuses them.

    Args:
        what: the records, in the plural, for the log.

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
                why = errors.shortened((reason or b"").decode(errors="replace"))
                _log.error(
                    "%s are lost (%d so far): %s; tasks are not affected",
                    self._what,
                    self.count,
                    why,
                )
        elif self._ongoing:
            _log.info("%s are written again; %d lost", self._what, self.count)
        self._ongoing = bool(lost)
