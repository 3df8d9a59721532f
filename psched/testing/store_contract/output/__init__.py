"""Tests of what attempts have printed: the capability `psched.core.output.protocol.KeepsOutput`.

Reading order: `bench`, `keeping`, `trimming`.
"""

from psched.testing.store_contract.output.keeping import Keeping
from psched.testing.store_contract.output.trimming import Trimming


class OutputContract(Keeping, Trimming):
    """Tests of a store that keeps output. Needs the fixture ``backend_factory``."""
