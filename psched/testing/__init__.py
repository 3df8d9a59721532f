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
transaction, `HoldsContract` if it can hold rows, `PausesContract` if it obeys
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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psched.testing.backend_contract import BackendContract, CoreContract
    from psched.testing.handler_runs import HandlerRun, run
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
    from psched.testing.store_contract.deletion import Marks
    from psched.testing.store_contract.history import HistoryContract
    from psched.testing.store_contract.history.last_runs import LastRunsContract
    from psched.testing.store_contract.operations.announcing import AnnouncesContract
    from psched.testing.store_contract.operations.holds import HoldsContract
    from psched.testing.store_contract.operations.overview import (
        OverviewContract,
        RunSummaryContract,
    )
    from psched.testing.store_contract.operations.pauses import PausesContract
    from psched.testing.store_contract.operations.replacing import ReplaceAndRecordContract
    from psched.testing.store_contract.operations.watching import WatchingContract
    from psched.testing.store_contract.output import OutputContract
    from psched.testing.store_contract.overrides import ExactKeys, Overrides
    from psched.testing.store_contract.records import Records
    from psched.testing.store_contract.recovery import Recovery
    from psched.testing.store_contract.retention import Retention
    from psched.testing.store_contract.selections import SelectionsByRecord
    from psched.testing.store_contract.table import StatusContract, TableContract
    from psched.testing.virtual_schedules import Schedules
    from psched.testing.worker_driver import ManualDeadMan, ManualInbox, WorkerDriver

_MODULES = {
    "AlertsContract": "psched.testing.store_contract.alerts",
    "AnnouncesContract": "psched.testing.store_contract.operations.announcing",
    "BackendContract": "psched.testing.backend_contract",
    "BackendFactory": "psched.testing.store_contract.bench",
    "BacklogContract": "psched.testing.store_contract.capabilities",
    "CoreContract": "psched.testing.backend_contract",
    "ExactKeys": "psched.testing.store_contract.overrides",
    "HandlerRun": "psched.testing.handler_runs",
    "HistoryContract": "psched.testing.store_contract.history",
    "HoldsContract": "psched.testing.store_contract.operations.holds",
    "LastRunsContract": "psched.testing.store_contract.history.last_runs",
    "ManualChild": "psched.testing.manual_spawner",
    "ManualClock": "psched.testing.manual_clock",
    "ManualDeadMan": "psched.testing.worker_driver",
    "ManualInbox": "psched.testing.worker_driver",
    "ManualRunner": "psched.testing.manual_runner_pool",
    "ManualRunnerPool": "psched.testing.manual_runner_pool",
    "ManualSpawner": "psched.testing.manual_spawner",
    "Marks": "psched.testing.store_contract.deletion",
    "MasterDriver": "psched.testing.master_driver",
    "OutputContract": "psched.testing.store_contract.output",
    "Overrides": "psched.testing.store_contract.overrides",
    "OverviewContract": "psched.testing.store_contract.operations.overview",
    "PausesContract": "psched.testing.store_contract.operations.pauses",
    "Records": "psched.testing.store_contract.records",
    "Recovery": "psched.testing.store_contract.recovery",
    "ReplaceAndRecordContract": "psched.testing.store_contract.operations.replacing",
    "ReplaceManyContract": "psched.testing.store_contract.capabilities",
    "Retention": "psched.testing.store_contract.retention",
    "RunSummaryContract": "psched.testing.store_contract.operations.overview",
    "Schedules": "psched.testing.virtual_schedules",
    "SelectionsByRecord": "psched.testing.store_contract.selections",
    "StatusContract": "psched.testing.store_contract.table",
    "TableContract": "psched.testing.store_contract.table",
    "TransactionContract": "psched.testing.store_contract.capabilities",
    "WatchingContract": "psched.testing.store_contract.operations.watching",
    "WorkerDriver": "psched.testing.worker_driver",
    "run": "psched.testing.handler_runs",
}
"""For each public name: the module that defines it."""

__all__ = [
    "AlertsContract",
    "AnnouncesContract",
    "BackendContract",
    "BackendFactory",
    "BacklogContract",
    "CoreContract",
    "ExactKeys",
    "HandlerRun",
    "HistoryContract",
    "HoldsContract",
    "LastRunsContract",
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
    "Schedules",
    "SelectionsByRecord",
    "StatusContract",
    "TableContract",
    "TransactionContract",
    "WatchingContract",
    "WorkerDriver",
    "run",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # PEP 562
    # A name is imported when it is first used, so that a test of a handler does not load the tests
    # of stores, nor a worker.
    if name not in _MODULES:
        raise AttributeError(f"module 'psched.testing' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
