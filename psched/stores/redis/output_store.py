"""Keeps what attempts have printed in Redis, beside the rows."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from psched.core.output.protocol import OutputSelection
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.stores.parameters import StoreParameters
from psched.stores.redis import output_encoding, scripts
from psched.stores.redis.encoding import Argument, optional_number, text
from psched.stores.redis.errors import MemoryFullError, refusal
from psched.stores.redis.history_store import HistoryStore, Page, Pages, batches
from psched.stores.redis.losses import Losses

_PAGE = 20
"""The most records that one run of a script returns: few, because they can be large."""

_TRIMMED = 500
"""The most records that one run of a script deletes."""


class OutputStore(HistoryStore):
    """A store in Redis that keeps the run history and output, as `KeepsOutput` describes.

    Args:
        parameters: the settings of the store.
    """

    def __init__(self, parameters: StoreParameters) -> None:
        super().__init__(parameters)
        self._output_limits = (
            parameters.output_keep,
            parameters.history_keep_per_key,
            parameters.output_budget,
        )
        self._lost_output = Losses("outputs of attempts")

    def output_problem(self) -> str | None:
        """Why no output is kept: a command is unknown or forbidden; None if it is kept."""
        return refusal(self._connector.run(scripts.TRY_OUTPUT, writing=False))

    def write_output(self, records: Sequence[OutputRecord]) -> None:
        """Insert or replace records, as `KeepsOutput.write_output` describes.

        The newest records of each key are kept, as many as the run history keeps. If the server's
        memory is full, the records are lost. This is only logged, because an exception would make
        a worker try again before it deletes old output.
        """
        self._write_output(records, running=False)

    def write_live_output(self, records: Sequence[OutputRecord]) -> None:
        """Write the output of running attempts, as `KeepsOutput.write_live_output` describes."""
        self._write_output(records, running=True)

    def _write_output(self, records: Sequence[OutputRecord], *, running: bool) -> None:
        for batch in batches(records, lambda record: len(record.output)):
            lost, reason = 0, b""
            try:
                self._connector.run(
                    scripts.WRITE_OUTPUT,
                    *self._output_limits,
                    int(running),
                    *(each for record in batch for each in output_encoding.arguments(record)),
                )
            except MemoryFullError as error:
                lost, reason = len(batch), str(error).encode()
            self._lost_output.note(lost, reason)

    def outputs(self, selection: OutputSelection) -> Iterator[OutputRecord]:
        """The records of a selection, as `KeepsOutput.outputs` describes."""
        key = text(selection.key)
        wanted = tuple(map(optional_number, (selection.scheduled_time, selection.attempt)))

        def read(place: Argument, most: int) -> Page[OutputRecord]:
            after, found = self._connector.run(
                scripts.OUTPUT_PAGE, key, place, most, *wanted, writing=False
            )
            records = (output_encoding.decode(selection.key, *each) for each in found)
            return Page([each for each in records if each and _is_shown(each)], after)

        return Pages(read, selection.limit, _PAGE)

    def output_of(self, attempt: RunningAttempt) -> OutputRecord | None:
        """The record of one attempt, as `KeepsOutput.output_of` describes."""
        named = text(attempt.key), output_encoding.attempt_argument(attempt)
        found = self._connector.run(scripts.OUTPUT_OF, *named, writing=False)
        return output_encoding.decode(attempt.key, *found) if found else None

    def ask_for_output(self, attempt: RunningAttempt, *, now: int, until: int) -> bool:
        """Ask for the output of an attempt, as `KeepsOutput.ask_for_output` describes."""
        named = text(attempt.key), output_encoding.attempt_argument(attempt)
        return bool(self._connector.run(scripts.ASK_OUTPUT, *named, now, until))

    def asked_output(
        self, attempts: Sequence[RunningAttempt], now: int
    ) -> AbstractSet[RunningAttempt]:
        """The attempts whose output is read, as `KeepsOutput.asked_output` describes."""
        if not attempts:
            return frozenset()
        named = (
            argument
            for attempt in attempts
            for argument in (text(attempt.key), output_encoding.attempt_argument(attempt))
        )
        found = self._connector.run(scripts.ASKED_OUTPUT, now, *named, writing=False)
        return {attempts[place] for place in found}

    def trim_output(self, *, before: int, budget: int, limit: int) -> int:
        """Delete the oldest records, as `KeepsOutput.trim_output` describes.

        The budget is at most a quarter of the server's ``maxmemory``. If `limit` is large, a call
        deletes fewer records.
        """
        most = min(limit, _TRIMMED)
        return int(self._connector.run(scripts.TRIM_OUTPUT, before, budget, most))


def _is_shown(record: OutputRecord) -> bool:
    return bool(record.output) or not record.is_live
