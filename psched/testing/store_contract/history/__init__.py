"""Tests of the run history: the capabilities of `psched.core.history.protocol`.

Reading order: `bench`, `recording`, `reading`, `last_runs`, `others`.
"""

from psched.testing.store_contract.history.others import WorkersAndChanges
from psched.testing.store_contract.history.reading import Reading
from psched.testing.store_contract.history.recording import Recording


class HistoryContract(Recording, Reading, WorkersAndChanges):
    """Tests of a store that keeps the run history. Needs the fixture ``backend_factory``."""
