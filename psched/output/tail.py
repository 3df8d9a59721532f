"""Keeps the last bytes of what an attempt has printed."""


class Tail:
    """The last bytes of a stream.

    Args:
        limit: how many bytes are kept at most.

    Attributes:
        dropped: how many bytes before the kept ones were dropped.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0

    @property
    def limit(self) -> int:
        """How many bytes are kept at most."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._cut(limit)

    def add(self, chunk: bytes) -> None:
        """Append bytes."""
        self._kept += chunk
        # Twice as many bytes are held as are kept, so that each byte is moved only once.
        if len(self._kept) > 2 * self._limit:
            self._cut(self._limit)

    def take(self) -> bytes:
        """Return the kept bytes."""
        self._cut(self._limit)
        return bytes(self._kept)

    def _cut(self, most: int) -> None:
        if (excess := len(self._kept) - most) > 0:
            del self._kept[:excess]
            self.dropped += excess
