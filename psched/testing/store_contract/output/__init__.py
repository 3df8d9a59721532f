"""Tests of what attempts have printed: the capability `psched.core.output.protocol.KeepsOutput`.

Reading order: `bench`, `keeping`, `reading_live`, `trimming`.
"""

from psched.testing.store_contract.output.keeping import Keeping
from psched.testing.store_contract.output.reading_live import ReadingLive
from psched.testing.store_contract.output.trimming import Trimming


class OutputContract(Keeping, ReadingLive, Trimming):
    """Tests of a store that keeps output. Needs the fixture ``backend_factory``."""
