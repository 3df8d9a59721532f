"""Reads what an attempt on another host prints, which its worker writes to the store meanwhile."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from enum import Enum

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import NotFoundError, SchemaError, StoreError, TransientStoreError
from psched.base.retry import Send
from psched.cli.history.live_output import WORKER_ENDED, Live
from psched.client.arguments import keeping_output
from psched.core.output.output import Output
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.core.store_protocol import Store

_ASK_AGAIN = 5.0
"""Seconds between two requests for the output."""

_HOLDS = 15_000
"""Milliseconds for which a request holds."""

_POLL = 1.0
"""Seconds between two looks for what the worker has written."""

FIRST_ANSWER = 12.0
"""Seconds to wait for the first answer. The worker of a task that has just begun takes up to 6 s,
see `psched.worker.chores.live_output`."""

SOON = 3.0
"""Seconds after its end within which the output and the record of an attempt are stored."""

PAUSE = 0.2
"""Seconds between two looks for what will be stored soon."""

_FEW = 64
"""The least bytes by which the end of one output is found in the next one."""

NO_ANSWER = "no answer from its worker"
"""The reason why nothing is shown if the worker has written nothing."""


class State(Enum):
    """What the store says about an attempt."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = WORKER_ENDED
    """Its worker was killed, or its lease has expired."""


class LiveElsewhere(Live):
    """The output of an attempt that runs on another host.

    Args:
        store: where the output is asked for and read; it is disconnected at the end.
        attempt: the attempt.
        send: sends the requests to the store.
        state: returns what the store says about the attempt now.
        where: about the attempt, and where it runs, such as ``k: attempt 1 is running elsewhere``.
        clock: measures when a request is due.
    """

    def __init__(
        self,
        store: Store,
        attempt: RunningAttempt,
        *,
        send: Send,
        state: Callable[[], State],
        where: str,
        clock: Clock,
    ) -> None:
        super().__init__(attempt)
        self._store = store
        self._keeper = keeping_output(store)
        self._send = send
        self._state = state
        self._where = where
        self._clock = clock

    @override
    def pieces(self) -> Iterator[tuple[int | None, bytes]]:
        reading = Continuation()
        with closing(self._records()) as records:
            for record in records:
                left_out, new = reading.new(record)
                if new:
                    yield left_out, new

    @override
    def so_far(self) -> Output | None:
        with closing(self._records()) as records:
            return next(map(Output, records), None)

    @override
    def why_over(self) -> str:
        if self.over != NO_ANSWER:
            return super().why_over()
        return (
            f"{self._where}, and has not answered for {FIRST_ANSWER:.0f} s: its worker hangs, is of"
            " an older version, or does not reach the store"
        )

    def _records(self) -> Generator[OutputRecord, None, None]:
        """Yield what the worker has written, whenever it is new, until the attempt has ended."""
        try:
            yield from self._wait_for_records()
        finally:
            self._store.disconnect()

    def _wait_for_records(self) -> Iterator[OutputRecord]:
        before = self._read()
        # If nobody else reads the output, what is stored is that of an earlier request.
        seen = None if self._ask() or before is None else before.ended
        begun = asked = self._clock.monotonic()
        answered, over_at = False, 0.0
        while True:
            # The state is read first: what is read afterwards contains all that is written before.
            state = self._state()
            record = self._read()
            if record is not None and (record.ended != seen or not record.is_live):
                answered, seen = True, record.ended
                yield record
            now = self._clock.monotonic()
            if record is not None and not record.is_live:
                self.over = State.ENDED.value
            elif state is not State.RUNNING:
                over_at = over_at or now + SOON
                self.over = state.value if now >= over_at else ""
            elif not answered and now >= begun + FIRST_ANSWER:
                self.over = NO_ANSWER
            if self.over:
                return
            if state is State.RUNNING and now >= asked + _ASK_AGAIN:
                self._ask()
                asked = now
            self._clock.sleep(_POLL if state is State.RUNNING else PAUSE)

    def _read(self) -> OutputRecord | None:
        return self._send(lambda: self._keeper.output_of(self.attempt))

    def _ask(self) -> bool:
        """Ask for the output; return whether it was asked for already."""
        now = round(self._send(self._store.now) * 1000)
        try:
            return self._send(
                lambda: self._keeper.ask_for_output(self.attempt, now=now, until=now + _HOLDS)
            )
        except (TransientStoreError, SchemaError):
            raise
        except StoreError as error:
            text = "psched logs cannot ask for its output, because the store refuses to write"
            raise NotFoundError(f"{self._where}; {text}: {error}") from None


class Continuation:
    """Finds in each record of an attempt what was not in the records before."""

    def __init__(self) -> None:
        # How many bytes were printed up to the end of the last record; None if this is not known.
        self._end: int | None = 0
        self._last = b""

    def new(self, record: OutputRecord) -> tuple[int | None, bytes]:
        """Return how many bytes were left out, and the bytes after them; None if some are lost."""
        output, dropped = record.output, record.dropped
        known, self._end = self._end, None if dropped is None else dropped + len(output)
        last, self._last = self._last, output
        if dropped is None:
            seen = _overlap(last, output) if known is None else 0
            return (0 if seen else None), output[seen:]
        if known is None:
            return None, output
        return max(dropped - known, 0), output[max(known - dropped, 0) :]


def _overlap(last: bytes, output: bytes) -> int:
    """How many bytes at the beginning of an output are the end of the last one; 0 for a few."""
    if output.startswith(last):
        return len(last)
    # The beginning of the last output has fallen out of the tail.
    begin = output[:_FEW]
    at = last.find(begin)
    while at >= 0:
        if output.startswith(last[at:]):
            return len(last) - at
        at = last.find(begin, at + 1)
    return 0
