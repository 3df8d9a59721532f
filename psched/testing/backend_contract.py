"""The tests of the store protocol, as one class."""

from psched.testing.store_contract.claims import Claims
from psched.testing.store_contract.contention import Contention
from psched.testing.store_contract.definitions import Definitions, Replacements
from psched.testing.store_contract.deletion import Deletion, Marks
from psched.testing.store_contract.fencing import Fencing
from psched.testing.store_contract.leases import Leases
from psched.testing.store_contract.overrides import ExactKeys, Overrides
from psched.testing.store_contract.records import Records
from psched.testing.store_contract.recovery import Recovery
from psched.testing.store_contract.retention import Retention
from psched.testing.store_contract.selections import Selections, SelectionsByRecord
from psched.testing.store_contract.settlements import Settlements


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
    CoreContract, Records, SelectionsByRecord, Overrides, ExactKeys, Marks, Retention, Recovery
):
    """Tests of the whole store protocol. A subclass needs a fixture ``backend_factory``."""
