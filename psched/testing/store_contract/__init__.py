"""The tests of the store protocol: as one class, and by capabilities that a store may lack.

Reading order: `bench`, `definitions`, `selections`, `leases`, `contention`; then the tests of
single capabilities: `records`, `recovery`, `capabilities`, `history`, `output`, `alerts`, `holds`,
`pauses`, `lanes`, `overview`, `announcing`.
"""

from psched.testing.store_contract.contention import Contention
from psched.testing.store_contract.definitions import Definitions, Deletion, Marks, Replacements
from psched.testing.store_contract.leases import Claims, EndsAndClaims, Fencing, Leases, Settlements
from psched.testing.store_contract.records import ExactKeys, Overrides, Records
from psched.testing.store_contract.recovery import Recovery, Retention
from psched.testing.store_contract.selections import Selections, SelectionsByRecord


class CoreContract(
    Definitions,
    Replacements,
    Selections,
    Claims,
    Leases,
    Settlements,
    Deletion,
    Fencing,
    Contention,
):
    """Tests of what every store must do. A subclass needs a fixture ``backend_factory``."""


class BackendContract(
    CoreContract,
    EndsAndClaims,
    Records,
    SelectionsByRecord,
    Overrides,
    ExactKeys,
    Marks,
    Retention,
    Recovery,
):
    """Tests of the whole store protocol. A subclass needs a fixture ``backend_factory``."""
