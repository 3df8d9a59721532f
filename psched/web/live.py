"""Tells open pages that something has changed, so that they read themselves again.

All open pages of a process share one look at the store: a digest of what usually changes. A page
that is told to read itself again shares what is read for it with others that show the same.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from math import inf

from psched.base.clock import Clock
from psched.base.errors import NotSupportedError, PschedError, SchemaError
from psched.client.collection import ScheduleCollection
from psched.core.model import Row
from psched.web.asked import LOOK, Page
from psched.web.request import Kept

_LONGEST_LOOK = 30.0  # seconds between two looks at most, while the store does not answer
_BEAT = 10.0  # seconds after which a page that is told nothing is still told that it is connected
_MOST = 50  # the most pages that are told; others poll
_MOST_OF_ONE = 3  # the most of one browser, which has 6 connections, also for its other requests
_ROWS = 100  # the rows of each kind that a look reads
_ALERTS = 100

_AWAY = "away"  # the digest while the store does not answer
_ALIVE = b":\n\n"  # a comment

_log = logging.getLogger("psched.web")


class _Follower:
    """A page that is told of changes; ``seen`` is the digest of what it shows."""

    def __init__(
        self, kept: Kept, browser: str, may_read: Callable[[], bool], seen: str, now: float
    ) -> None:
        self.kept = kept
        self.browser = browser
        self.may_read = may_read
        self.seen = seen
        self.beat_at = now + _BEAT


class Live:
    """Looks at the store in a thread of its own, as long as a page is open."""

    def __init__(self, look: Callable[[], str], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._followers: list[_Follower] = []
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._shared: dict[Hashable, tuple[float, Page]] = {}
        self.digest = ""

    def has_room(self, browser: str) -> bool:
        """Whether one more page of a browser can be told of changes."""
        there = [each.browser for each in self._followers if each.kept.is_open()]
        is_full = len(there) >= _MOST or there.count(browser) >= _MOST_OF_ONE
        return not is_full and not self._over.is_set()

    def follow(self, kept: Kept, browser: str, may_read: Callable[[], bool], seen: str) -> None:
        """Tell a page of all changes after a digest, as long as its reader may read."""
        with self._lock:
            if not self.has_room(browser):
                kept.close()
                return
            now = self._clock.monotonic()
            self._followers.append(_Follower(kept, browser, may_read, seen, now))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live pages", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End all connections at once."""
        self._over.set()
        self.end()

    def end(self, browser: str | None = None) -> None:
        """End the connections of a browser, or all, at once."""
        with self._lock:
            for each in self._followers:
                if browser in {None, each.browser}:
                    each.kept.close()

    def shared(self, what: Hashable) -> Page | None:
        """A page that was just made for another reader, if nothing has changed since."""
        made_at, page = self._shared.get(what, (-inf, None))
        return page if self._clock.monotonic() - made_at < LOOK else None

    def share(self, what: Hashable, page: Page, since: float) -> None:
        """Keep a page for others, as long as it counts; it shows what was so at this time."""
        old = self._clock.monotonic() - LOOK
        kept = {each: made for each, made in self._shared.items() if made[0] > old}
        # Another thread may read the old ones: those of a replica have a turn of their own.
        self._shared = {**kept, what: (since, page)}

    def _run(self) -> None:
        pause = 0.0
        while True:
            try:
                self.digest = self._look()
                pause = LOOK
            except Exception as error:  # noqa: BLE001  # whatever it is, pages wait for this thread
                # The pages find out why, and show it.
                if not isinstance(error, PschedError | OSError):
                    _log.exception("cannot look for changes")
                self.digest = _AWAY
                pause = min(_LONGEST_LOOK, 2 * pause or LOOK)
            with self._lock:
                followers = [*self._followers]
            gone = [each for each in followers if not self._tell(each)]
            with self._lock:
                self._followers = [each for each in self._followers if each not in gone]
                if not self._followers:
                    self._thread = None
                    return
            if self._over.wait(pause):
                return

    def _tell(self, page: _Follower) -> bool:
        """Tell a page of a change; return whether it stays."""
        now = self._clock.monotonic()
        has_changed = page.seen != self.digest
        if not page.kept.is_open():
            return False
        if not has_changed and now < page.beat_at:
            return True
        page.seen, page.beat_at = self.digest, now + _BEAT
        with suppress(Exception):  # the function that decides who may read is a user's
            if page.may_read():
                changed = f"event: changed\nid: {self.digest}\ndata:\n\n".encode()
                page.kept.send(changed if has_changed else _ALIVE)
                return True
        page.kept.close()
        return False


def digest_of(schedules: ScheduleCollection) -> str:
    """A short text that differs if something has changed that pages usually show."""
    seen = schedules.overview(_ROWS)
    found: list[object] = [sorted(seen.counts.items())]
    for rows in seen.running, seen.late, seen.following, seen.paused:
        found += map(_of_row, rows)
    with suppress(NotSupportedError, SchemaError):
        found += (run.record for run in schedules.runs(limit=1))
    with suppress(NotSupportedError, SchemaError):
        found += schedules.audit(limit=1)
    with suppress(NotSupportedError, SchemaError):
        found += islice(schedules.alerts(), _ALERTS)
    return sha256(repr(found).encode(errors="replace")).hexdigest()[:16]


def _of_row(row: Row) -> object:
    # A running row is extended all the time.
    ends = None if row.owner is not None else row.next_run_time
    return row.key, row.version, row.state, row.fence, row.next_time, ends
