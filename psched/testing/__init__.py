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
worker has its own instance. The fixtures ``store`` and ``other`` of the classes are two of them.
Some tests call the function in several threads. If you call
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
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psched.testing.handler_runs import HandlerRun, run
    from psched.testing.manual_clock import ManualClock
    from psched.testing.master_driver import ManualChild, ManualSpawner, MasterDriver
    from psched.testing.store_contract import BackendContract, CoreContract
    from psched.testing.store_contract.alerts import AlertsContract
    from psched.testing.store_contract.announcing import AnnouncesContract
    from psched.testing.store_contract.bench import BackendFactory
    from psched.testing.store_contract.capabilities import (
        BacklogContract,
        ReplaceManyContract,
        StatusContract,
        TableContract,
        TransactionContract,
    )
    from psched.testing.store_contract.definitions import Marks
    from psched.testing.store_contract.history import (
        HistoryContract,
        LastRunsContract,
        ReplaceAndRecordContract,
    )
    from psched.testing.store_contract.holds import HoldsContract
    from psched.testing.store_contract.lanes import LanesContract
    from psched.testing.store_contract.output import OutputContract
    from psched.testing.store_contract.overview import (
        OverviewContract,
        RunSummaryContract,
        WatchingContract,
    )
    from psched.testing.store_contract.pauses import PausesContract
    from psched.testing.store_contract.records import ExactKeys, Overrides, Records
    from psched.testing.store_contract.recovery import Recovery, Retention
    from psched.testing.store_contract.selections import SelectionsByRecord
    from psched.testing.virtual_schedules import Schedules
    from psched.testing.worker_driver import (
        ManualDeadMan,
        ManualInbox,
        ManualRunner,
        ManualRunnerPool,
        WorkerDriver,
    )

_NAMES = {
    "handler_runs": "HandlerRun run",
    "manual_clock": "ManualClock",
    "master_driver": "ManualChild ManualSpawner MasterDriver",
    "store_contract": "BackendContract CoreContract",
    "store_contract.alerts": "AlertsContract",
    "store_contract.announcing": "AnnouncesContract",
    "store_contract.bench": "BackendFactory",
    "store_contract.capabilities": "BacklogContract ReplaceManyContract StatusContract"
    " TableContract TransactionContract",
    "store_contract.definitions": "Marks",
    "store_contract.history": "HistoryContract LastRunsContract ReplaceAndRecordContract",
    "store_contract.holds": "HoldsContract",
    "store_contract.lanes": "LanesContract",
    "store_contract.output": "OutputContract",
    "store_contract.overview": "OverviewContract RunSummaryContract WatchingContract",
    "store_contract.pauses": "PausesContract",
    "store_contract.records": "ExactKeys Overrides Records",
    "store_contract.recovery": "Recovery Retention",
    "store_contract.selections": "SelectionsByRecord",
    "virtual_schedules": "Schedules",
    "worker_driver": "ManualDeadMan ManualInbox ManualRunner ManualRunnerPool WorkerDriver",
}
"""The public names that each module defines."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
    "LanesContract",
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
    value = getattr(import_module(f"psched.testing.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
