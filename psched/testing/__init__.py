"""What tests need: the store protocol as tests, and drivers for psched's loops.

`MasterDriver` and `WorkerDriver` run psched's loops without processes and without waiting: the test
moves a `ManualClock`, and says what the workers of a `ManualSpawner` do, or the tasks in the
runners of a `ManualRunnerPool`.

The protocol can be run on a store of your own. Subclass the contract, and give the subclass a
fixture that opens one store, fresh for each test, as several workers would::

    import pytest
    from psched.testing import BackendContract

    class TestMyStore(BackendContract):
        @pytest.fixture
        def backend_factory(self, tmp_path):
            opened = []

            def open_backend():
                opened.append(MyBackend(tmp_path / "store"))
                return opened[-1]

            open_backend().init()
            yield open_backend
            for backend in opened:
                backend.disconnect()

Each call returns another instance on the same, initialised store, as another worker would have it.
Some tests call it in several threads. With ``pytest.register_assert_rewrite("psched.testing")``
before the import, a failure shows what was compared.

A store that cannot keep every column of a row can be tested by `CoreContract` and by the suites of
what it can do: `Records`, `Overrides`, `ExactKeys`, `Marks`, `Retention`, `Recovery`. Stores that
do more than the protocol asks add `TransactionContract` if they join a caller's transaction,
`TableContract` if rows can be written by SQL, and `StatusContract` if any client may write them.

Reading order of `store_contract`: `bench`, `definitions`, `claims`, `leases`, `settlements`,
`deletion`, `fencing`, `contention`; then the suites of single capabilities: `records`, `overrides`,
`retention`, `recovery`, `transactions`, `statuses`, `table`.
"""

from psched.testing.manual_clock import ManualClock
from psched.testing.manual_runner_pool import ManualRunner, ManualRunnerPool
from psched.testing.manual_spawner import ManualChild, ManualSpawner
from psched.testing.master_driver import MasterDriver
from psched.testing.store_contract.bench import BackendFactory
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
from psched.testing.store_contract.settlements import Settlements
from psched.testing.store_contract.statuses import StatusContract
from psched.testing.store_contract.table import TableContract
from psched.testing.store_contract.transactions import TransactionContract
from psched.testing.worker_driver import ManualDeadMan, ManualInbox, WorkerDriver

__all__ = [
    "BackendContract",
    "BackendFactory",
    "CoreContract",
    "ExactKeys",
    "ManualChild",
    "ManualClock",
    "ManualDeadMan",
    "ManualInbox",
    "ManualRunner",
    "ManualRunnerPool",
    "ManualSpawner",
    "Marks",
    "MasterDriver",
    "Overrides",
    "Records",
    "Recovery",
    "Retention",
    "StatusContract",
    "TableContract",
    "TransactionContract",
    "WorkerDriver",
]


class CoreContract(
    Definitions, Replacements, Claims, Leases, Settlements, Deletion, Fencing, Contention
):
    """What every store must do. Needs the fixture ``backend_factory``."""


class BackendContract(CoreContract, Records, Overrides, ExactKeys, Marks, Retention, Recovery):
    """All of the protocol. Needs the fixture ``backend_factory``."""
