"""Ending leases, whatever has happened to the schedules meanwhile."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, StoreUnavailableError, UnknownOutcomeError
from psched.config import Config
from psched.core.model import WAITING, Decision, Finish, Row, Settlement, Token
from psched.core.policy import after_run
from psched.core.store_protocol import Settled, Store

T = TypeVar("T")

_log = logging.getLogger("psched.worker")

Conclude = Callable[[Row, Row, Decision, Config, float], Settlement | None]
"""How to settle a lease, see `psched.core.policy.after_run`; None: that is not known yet."""


class Ask(Protocol):
    """Sends a request to the store."""

    def __call__(self, request: Callable[[], T], /) -> T:
        """Send it."""
        ...


def _at_once(request: Callable[[], T]) -> T:
    return request()


@dataclass(frozen=True, slots=True)
class Ending:
    """What came out of one lease.

    Attributes:
        leased: the row as it was claimed.
        decision: how its task ended.
        deadline: D of the lease, see `lease_times`; 0: it is known to be lost, or not known.
    """

    leased: Row
    decision: Decision
    deadline: float = 0.0

    @property
    def lease(self) -> tuple[str, Token]:
        """Which lease it is that ends."""
        return self.leased.key, self.leased.token


class Settler:
    """Ends leases, and knows an end for written whose answer was lost.

    A store recognises a settle that is repeated only until the next lease of the row is settled.
    After that it says that we were preempted; but before D nobody can have had the row, unless we
    had ended our lease. So if an end was sent while the lease was ours, if its answer was lost, and
    if "preempted" comes before D, then it was that end that let others go on: it counts.

    Two others can have ended the lease before D: a person who changes or removes the row by hand,
    and a store whose clock steps by more than a lease allows. If that happens, and to an end that
    was lost on its way at that, a task is said to have finished which will be run again (or has no
    schedule any more). The other mistake is worse: who is told that what it did counts for nothing
    takes it back, and nobody does it again.

    Args:
        settings: the installation's.
        clock: this host's clocks.
        conclude: says how a lease ends.
        ask: sends each request.
    """

    def __init__(
        self,
        settings: Config,
        clock: Clock,
        conclude: Conclude = after_run,
        ask: Ask = _at_once,
    ) -> None:
        self._settings = settings
        self._conclude = conclude
        self._ask = ask
        self._clock = clock
        # Leases whose end may have been written, and their D when it was sent.
        self._unanswered: dict[tuple[str, Token], float] = {}

    def settle(self, store: Store, endings: Sequence[Ending]) -> Mapping[str, Settled]:
        """End leases; may be repeated when the store did not answer.

        Returns:
            For each key DONE or PREEMPTED; nothing, if it is not known yet how its lease ends.

        Raises:
            StoreUnavailableError: ask again.
        """
        sent = self._clock.boottime()
        results: dict[str, Settled] = {}
        try:
            settle(store, endings, self._settings, results, conclude=self._conclude, ask=self._ask)
        except StoreBusyError as busy:
            answered = self._judged(endings, {**results, **busy.answered})
            raise StoreBusyError(str(busy), answered) from None
        except StoreUnavailableError as error:
            unknown = isinstance(error, UnknownOutcomeError)
            for ending in endings:
                result = results.get(ending.leased.key)
                perhaps = unknown and result is not Settled.PREEMPTED
                if (perhaps or result is Settled.DONE) and sent < ending.deadline:
                    self._unanswered[ending.lease] = ending.deadline
            raise
        return self._judged(endings, results)

    def forget(self, ending: Ending) -> bool:
        """It is over; whether nobody knows if its end was written."""
        return self._unanswered.pop(ending.lease, None) is not None

    def _judged(
        self, endings: Sequence[Ending], results: Mapping[str, Settled]
    ) -> Mapping[str, Settled]:
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
            # Where it was not possible to go on, it is asked again.
            if result is not Settled.REDEFINED
        }


def settle(
    store: Store,
    endings: Sequence[Ending],
    settings: Config,
    results: dict[str, Settled] | None = None,
    *,
    conclude: Conclude = after_run,
    ask: Ask = _at_once,
) -> Mapping[str, Settled]:
    """End leases; may be repeated when the store did not answer.

    A schedule that was redefined while its task ran is read again: its next time comes from the
    definition it has now.

    Args:
        store: the store.
        endings: how each lease ends.
        settings: the installation's.
        results: filled with what is known so far, if it raises.
        conclude: says how a lease ends.
        ask: sends each request.

    Returns:
        For each key DONE or PREEMPTED; nothing, if it is not known yet how its lease ends.

    Raises:
        StoreUnavailableError: ask again.
    """
    results = {} if results is None else results
    open_endings = {ending.leased.key: ending for ending in endings}
    current: Mapping[str, Row] = {key: e.leased for key, e in open_endings.items()}
    now = 0.0
    # Ends because every further round needs a person to change a definition in between.
    while open_endings:
        settlements = [
            conclude(ending.leased, current[key], ending.decision, settings, now)
            for key, ending in open_endings.items()
        ]
        known = [each for each in settlements if each is not None]
        if not known:
            break
        answers = ask(partial(store.settle, known))
        results |= answers
        for each in known:
            if answers[each.key] is Settled.DONE and each.status == WAITING and each.reason:
                _tell(open_endings[each.key], each.reason)
        open_endings = {
            key: open_endings[key] for key, answer in answers.items() if answer is Settled.REDEFINED
        }
        if open_endings:
            current, now = ask(partial(store.look, [*open_endings])), ask(store.now)
            gone = {
                key
                for key, ending in open_endings.items()
                if key not in current or current[key].token != ending.leased.token
            }
            results |= dict.fromkeys(gone, Settled.PREEMPTED)
            open_endings = {k: e for k, e in open_endings.items() if k not in gone}
    return results


def _tell(ending: Ending, reason: str) -> None:
    """Log what was decided about the occurrences after one that is over.

    Why an attempt has failed is told with its task.
    """
    if isinstance(ending.decision, Finish):
        _log.warning("%s: %s", ending.leased.key, reason)
