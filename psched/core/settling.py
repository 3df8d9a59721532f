"""Ending of leases, also if a schedule was redefined during its lease, or an answer was lost."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, TransientStoreError, UnknownOutcomeError
from psched.config import Config
from psched.core.history.recording import Recorder
from psched.core.history.records import Attempt, RunRecord
from psched.core.model import WAITING, Decision, Finish, ReasonCode, Row, Settlement, Token
from psched.core.policy import after_run
from psched.core.store_protocol import Send, Settled, Store

_log = logging.getLogger("psched.worker")

Write = Callable[[Sequence[Settlement]], Mapping[str, Settled]]
"""A function that writes settlements, such as `Store.settle`."""

Conclude = Callable[[Row, Row, Decision, Config, float], Settlement | None]
"""A function that computes a lease's settlement, such as `psched.core.policy.after_run`.

The result is None if the settlement is not known yet.
"""

T = TypeVar("T")


def send_once(request: Callable[[], T]) -> T:
    """Send a request once, without repeating it."""
    return request()


@dataclass(frozen=True, slots=True)
class Ending:
    """How one lease ends.

    Attributes:
        leased: the row as it was claimed.
        decision: the result of the task.
        deadline: the deadline D of the lease, see `psched.base.lease_times`; 0 if the lease is lost
            or D is not known.
        attempt: what is known about the attempt that has ended; None if nothing ran.
        history: the setting of this name.
        earlier: records of earlier attempts that nobody has written yet; they are written in front
            of those of the settlement.
    """

    leased: Row
    decision: Decision
    deadline: float = 0.0
    attempt: Attempt | None = None
    history: str = "none"
    earlier: tuple[RunRecord, ...] = ()

    @property
    def lease(self) -> tuple[str, Token]:
        """The key of the row, and the token of the lease that ends."""
        return self.leased.key, self.leased.token


class Settler:
    """Ends leases, and recognises a settlement that was applied although its answer was lost.

    A store recognises a repeated settlement only until the next lease of the row is settled; after
    that the store answers PREEMPTED. But before the lease's deadline D, another worker can lease
    the row only if this settlement has ended the lease. So the settlement was applied, and the
    result is DONE, if all this is true: the settlement was sent before D, its answer was lost, and
    the answer to its repetition is PREEMPTED and arrives before D.

    There are two exceptions: the lease can also end before D if a person changes or removes the row
    by hand, or if the store's clock jumps by more than a lease allows. If either happens to a row
    whose settlement never reached the store, psched reports the task as finished although the task
    will run again (or the schedule no longer exists). The opposite mistake would be worse: if an
    applied settlement were reported as PREEMPTED, the task might undo its work, and no worker would
    do the work again.
    """

    def __init__(
        self,
        settings: Config,
        clock: Clock,
        conclude: Conclude = after_run,
        send: Send = send_once,
        recorder: Recorder | None = None,
    ) -> None:
        self._settings = settings
        self._conclude = conclude
        self._send = send
        self._clock = clock
        self._recorder = recorder
        # The leases whose settlement may have been applied without an answer. The value is the
        # lease's deadline D when the settlement was sent.
        self._unanswered: dict[tuple[str, Token], float] = {}

    def settle(
        self, store: Store, endings: Sequence[Ending], write: Write | None = None
    ) -> Mapping[str, Settled]:
        """End leases; return DONE or PREEMPTED for each key whose settlement is known.

        With ``write``, the store writes only what that has refused. If the store does not answer,
        the call can be repeated.
        """
        sent = self._clock.boottime()
        results: dict[str, Settled] = {}
        try:
            self._settle(store, endings, results, write or store.settle)
        except StoreBusyError as busy:
            answered = self._judged(endings, {**results, **busy.answered})
            raise StoreBusyError(str(busy), answered) from None
        except TransientStoreError as error:
            unknown = isinstance(error, UnknownOutcomeError)
            for ending in endings:
                result = results.get(ending.leased.key)
                perhaps = unknown and result is not Settled.PREEMPTED
                if (perhaps or result is Settled.DONE) and sent < ending.deadline:
                    self._unanswered[ending.lease] = ending.deadline
            raise
        return self._judged(endings, results)

    def forget(self, ending: Ending) -> bool:
        """Forget a lease that has ended. Return whether an answer to its settlement was lost."""
        return self._unanswered.pop(ending.lease, None) is not None

    def _settle(
        self, store: Store, endings: Sequence[Ending], results: dict[str, Settled], write: Write
    ) -> None:
        """Send the settlements, and note the answers in ``results`` as they arrive.

        If a schedule was redefined while its task ran, its row is read again, and the next time is
        computed from the new definition.
        """
        left = {ending.leased.key: ending for ending in endings}
        current: Mapping[str, Row] = {key: each.leased for key, each in left.items()}
        now = 0.0
        # The loop ends, because each repetition requires that a client has changed a row meanwhile.
        while left:
            known = [
                end
                for key, ending in left.items()
                if (end := self._settlement(ending, current[key], now)) is not None
            ]
            if not known:
                break
            answers = self._send(partial(write, known))
            write = store.settle
            results |= answers
            for each in known:
                if answers[each.key] is Settled.DONE:
                    _note(left[each.key], each, self._recorder)
            left = {key: left[key] for key, each in answers.items() if each is Settled.REDEFINED}
            if left:
                current, now = self._send(partial(store.look, [*left])), self._send(store.now)
                gone = {
                    key
                    for key, ending in left.items()
                    if key not in current or current[key].token != ending.leased.token
                }
                results |= dict.fromkeys(gone, Settled.PREEMPTED)
                left = {key: ending for key, ending in left.items() if key not in gone}

    def _settlement(self, ending: Ending, current: Row, now: float) -> Settlement | None:
        """The settlement of a lease with its records; None if it is not known yet."""
        end = self._conclude(ending.leased, current, ending.decision, self._settings, now)
        if end is not None and self._recorder is not None:
            made = self._recorder.records_of(
                end, ending.leased, ending.attempt, history=ending.history
            )
            end.records = ending.earlier + made
        return end

    def _judged(
        self, endings: Sequence[Ending], results: Mapping[str, Settled]
    ) -> Mapping[str, Settled]:
        """The results, with DONE for PREEMPTED if the settlement was applied (see `Settler`)."""
        boot = self._clock.boottime()
        ours = {
            ending.leased.key
            for ending in endings
            if boot < max(self._unanswered.get(ending.lease, 0.0), ending.deadline)
            and ending.lease in self._unanswered
        }
        return {
            key: Settled.DONE if result is Settled.PREEMPTED and key in ours else result
            for key, result in results.items()
            # We omit a row that is still REDEFINED, because the next call settles it.
            if result is not Settled.REDEFINED
        }


def _note(ending: Ending, settlement: Settlement, recorder: Recorder | None) -> None:
    """Count and log a settlement that was applied."""
    if recorder is not None:
        if ending.attempt is not None:
            recorder.counts.ended(ending.leased.type, ending.attempt)
        recorder.counts.decided(ending.leased.type, settlement)
    if settlement.status == WAITING and settlement.reason:
        _log_decision(ending, settlement.reason)
    elif settlement.reason_code == ReasonCode.PAUSED_AFTER_FAILURES:
        _log.warning("%s: %s", settlement.key, settlement.reason)


def _log_decision(ending: Ending, reason: str) -> None:
    """Log what was decided about the next occurrences after an occurrence has succeeded.

    After a failed attempt nothing is logged here, because the reason is logged when the task ends.
    """
    if isinstance(ending.decision, Finish):
        _log.warning("%s: %s", ending.leased.key, reason)
