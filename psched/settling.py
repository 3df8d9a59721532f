"""Ending leases, whatever has happened to the schedules meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psched.backend import Backend, Settled
from psched.config import Config
from psched.model import Decision, Row
from psched.policy import conclusion


@dataclass(frozen=True, slots=True)
class Ending:
    """What came out of one lease.

    Attributes:
        leased: the row as it was claimed.
        decision: how its task ended.
    """

    leased: Row
    decision: Decision


def settle(backend: Backend, endings: Sequence[Ending], settings: Config) -> Mapping[str, Settled]:
    """End leases; may be repeated when the store did not answer.

    A schedule that was redefined while its task ran is read again: its next time comes from the
    definition it has now.

    Returns:
        For each key DONE or PREEMPTED.

    Raises:
        StoreUnavailableError: ask again.
    """
    results: dict[str, Settled] = {}
    open_endings = {ending.leased.key: ending for ending in endings}
    current: Mapping[str, Row] = {key: e.leased for key, e in open_endings.items()}
    now = 0.0
    # Ends because every further round needs a person to change a definition in between.
    while open_endings:
        results |= backend.settle(
            [
                conclusion(ending.leased, current[key], ending.decision, settings, now)
                for key, ending in open_endings.items()
            ]
        )
        open_endings = {
            key: ending for key, ending in open_endings.items() if results[key] is Settled.REDEFINED
        }
        if open_endings:
            current, now = backend.look(list(open_endings)), backend.now()
            gone = {
                key
                for key, ending in open_endings.items()
                if key not in current or current[key].token != ending.leased.token
            }
            results |= dict.fromkeys(gone, Settled.PREEMPTED)
            open_endings = {k: e for k, e in open_endings.items() if k not in gone}
    return results
