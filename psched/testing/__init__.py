"""Support for tests: tests for stores of your own, and drivers for psched's master and worker.

`MasterDriver` and `WorkerDriver` run the code of a master and of a worker, without processes and
without waiting. The test moves a `ManualClock`. The test also decides what the workers of a
`ManualSpawner` do, and what the tasks in the runners of a `ManualRunnerPool` do.

To test a store of your own, subclass `BackendContract`. The subclass needs a fixture that creates
an empty store for each test, and returns a function that opens this store::

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

Each call of the function must return a new instance for the same, initialised store, because each
worker has its own instance. Some tests call the function in several threads. If you call
``pytest.register_assert_rewrite("psched.testing")`` before the import, a failed test shows the
compared values.

For a store that cannot store every column of a row, subclass `CoreContract` and the test classes of
the store's capabilities: `Records`, `SelectionsByRecord`, `Overrides`, `ExactKeys`, `Marks`,
`Retention`, `Recovery`. Fifteen more classes test capabilities that the protocol does not require.
Add `BacklogContract` if the store can count the due rows, `TransactionContract` if it can insert
rows in a caller's transaction, `ReplaceManyContract` if it can replace many rows in one
transaction, `LeasesByKeyContract` if it can lease rows by their keys, `PausesContract` if it obeys
pauses of types, `OverviewContract` if it says what runs and what is next, `WatchingContract` if it
cheaply reads the rows whose expectations are judged, `HistoryContract` if it keeps the run history,
`ReplaceAndRecordContract` if it can replace a row and write records in one transaction,
`LastRunsContract` if it finds the last runs of many keys, `RunSummaryContract` if it sums up runs,
`OutputContract` if it keeps what attempts have printed, `AlertsContract` if it keeps alerts,
`TableContract` if clients are allowed to write rows by SQL, and `StatusContract` if any client is
allowed to set the status of a row.

Reading order of `store_contract`: `bench`, `definitions`, `selections`, `claims`, `leases`,
`settlements`, `deletion`, `fencing`, `contention`; then the tests of single capabilities:
`records`, `overrides`, `retention`, `recovery`, `capabilities`, `history`, `output`, `alerts`,
`operations`, `table`.
"""

from psched.testing.manual_clock import ManualClock
from psched.testing.manual_runner_pool import ManualRunner, ManualRunnerPool
from psched.testing.manual_spawner import ManualChild, ManualSpawner
from psched.testing.master_driver import MasterDriver
from psched.testing.store_contract.alerts import AlertsContract
from psched.testing.store_contract.bench import BackendFactory
from psched.testing.store_contract.capabilities import (
    BacklogContract,
    ReplaceManyContract,
    TransactionContract,
)
from psched.testing.store_contract.claims import Claims
from psched.testing.store_contract.contention import Contention
from psched.testing.store_contract.definitions import Definitions, Replacements
from psched.testing.store_contract.deletion import Deletion, Marks
from psched.testing.store_contract.fencing import Fencing
from psched.testing.store_contract.history import HistoryContract
from psched.testing.store_contract.history.last_runs import LastRunsContract
from psched.testing.store_contract.leases import Leases
from psched.testing.store_contract.operations.announcing import AnnouncesContract
from psched.testing.store_contract.operations.leases_by_key import LeasesByKeyContract
from psched.testing.store_contract.operations.overview import OverviewContract, RunSummaryContract
from psched.testing.store_contract.operations.pauses import PausesContract
from psched.testing.store_contract.operations.replacing import ReplaceAndRecordContract
from psched.testing.store_contract.operations.watching import WatchingContract
from psched.testing.store_contract.output import OutputContract
from psched.testing.store_contract.overrides import ExactKeys, Overrides
from psched.testing.store_contract.records import Records
from psched.testing.store_contract.recovery import Recovery
from psched.testing.store_contract.retention import Retention
from psched.testing.store_contract.selections import Selections, SelectionsByRecord
from psched.testing.store_contract.settlements import Settlements
from psched.testing.store_contract.table import StatusContract, TableContract
from psched.testing.worker_driver import ManualDeadMan, ManualInbox, WorkerDriver

__all__ = [
    "AlertsContract",
    "AnnouncesContract",
    "BackendContract",
    "BackendFactory",
    "BacklogContract",
    "CoreContract",
    "ExactKeys",
    "HistoryContract",
    "LastRunsContract",
    "LeasesByKeyContract",
    "ManualChild",
    "ManualClock",
    "ManualDeadMan",
    "ManualInbox",
    "ManualRunner",
    "ManualRunnerPool",
    "ManualSpawner",
    "Marks",
    "MasterDriver",
    "OutputContract",
    "Overrides",
    "OverviewContract",
    "PausesContract",
    "Records",
    "Recovery",
    "ReplaceAndRecordContract",
    "ReplaceManyContract",
    "Retention",
    "RunSummaryContract",
    "SelectionsByRecord",
    "StatusContract",
    "TableContract",
    "TransactionContract",
    "WatchingContract",
    "WorkerDriver",
]


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
