"""Support for tests: the contract of a store, as tests, and drivers for psched's loops.

`MasterDriver` and `WorkerDriver` run psched's loops without processes and without waiting. The test
moves a `ManualClock`. It also decides what the workers of a `ManualSpawner` do, and what the tasks
in the runners of a `ManualRunnerPool` do.

To test a store of your own, subclass the contract. The subclass needs a fixture that creates an
empty store for each test, and returns a function that opens this store::

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

Each call of the function returns a new instance on the same, initialised store, because each worker
has an instance. Some tests call the function in several threads. If you call
``pytest.register_assert_rewrite("psched.testing")`` before the import, a failed test shows the
compared values.

For a store that cannot keep every column of a row, subclass `CoreContract` and the suites of the
store's capabilities: `Records`, `Overrides`, `ExactKeys`, `Marks`, `Retention`, `Recovery`. Three
more suites test capabilities that the protocol does not require. Add `TransactionContract` if the
store can insert rows in a caller's transaction, `TableContract` if clients may write rows by SQL,
and `StatusContract` if any client may set the status of a row.

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
    """Tests of what every store must do. They need the fixture ``backend_factory``."""


class BackendContract(CoreContract, Records, Overrides, ExactKeys, Marks, Retention, Recovery):
    """Tests of the whole protocol. They need the fixture ``backend_factory``."""
