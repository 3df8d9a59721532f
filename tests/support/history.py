"""The run history in tests."""

from psched.base.clock import Clock
from psched.core.history.recording import Recorder, StoreClock


def recorder(clock: Clock) -> Recorder:
    """A recorder of a worker of the first generation, on the host ``host``."""
    return Recorder(host="host", generation=1, clock=StoreClock(clock))
