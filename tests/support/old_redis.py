"""A worker of the version without a run history, on Redis.

The scripts in the folder ``redis_without_history`` are unchanged copies of those that this version
sends to claim rows, to settle them, and to release what a dead worker held. Its other scripts are
the same as today's.
"""

from pathlib import Path

import redis

from psched.core.store_protocol import Settled
from psched.stores.redis import encoding

_FOLDER = Path(__file__).with_name("redis_without_history")


def _script(name):
    flags, _, body = (_FOLDER / f"{name}.lua").read_text().partition("\n")
    return f"{flags}\n{(_FOLDER / 'prelude.lua').read_text()}\n{body}"


_CLAIM, _SETTLE, _RECOVER = map(_script, ("claim", "settle", "recover"))


class OldWorker:
    """Sends the requests of a worker of the version without a run history. A context manager.

    Args:
        url: the database's.
    """

    def __init__(self, url):
        self._client = redis.Redis.from_url(url, protocol=2)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._client.close()

    def init(self):
        """Prepare the data."""
        self._client.hset("{psched}:info", "version", "1")

    def claim(self, owner, *, limit=100, alive_time=60, shortest=6, horizon=0):
        """Lease due rows; return them, and the keys of those whose last lease has expired."""
        _, _, found, expired, _, _ = self._run(
            _CLAIM, encoding.text(owner), limit, alive_time, shortest, horizon
        )
        # This version does not know the columns `claimed_at`, `held_by` and `held_until`, and so
        # does not return them.
        rows = [encoding.row_of([*each, None, None, None]) for each in found]
        return rows, {row.key for row, was in zip(rows, expired, strict=True) if was}

    def settle(self, end):
        """End a lease; return the result."""
        (result,) = self._run(_SETTLE, *encoding.settle_arguments(end))
        return Settled(result.decode())

    def recover(self, nonce):
        """Release what a dead worker held; return the keys."""
        keys, after = self._run(_RECOVER, encoding.text(nonce), 60, 0, "", 200)
        assert after == b""
        return [key.decode() for key in keys]

    def _run(self, script, *arguments):
        return self._client.execute_command("EVAL", script, 1, "{psched}:", *arguments)
