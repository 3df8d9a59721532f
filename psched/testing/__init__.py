"""What tests of psched need: the protocol of a store as tests, and a worker that a test drives.

A `WorkerDriver` neither sleeps nor forks: the test moves a `ManualClock`, and says what the tasks
in the runners of a `ManualRunnerPool` do.

The protocol can be run on a store of your own. Give a subclass a fixture that makes workers' views
of one store, fresh for each test::

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

Each call returns another instance on the same, initialised store: what another worker would
have. Some tests call it in threads of their own. Say ``pytest.register_assert_rewrite(
"psched.testing")`` before the import, and a failure shows what was compared.

A store that cannot keep all that a row of psched's has may claim less: the `CoreContract`, and
those capabilities that it has: `Records`, `Overrides`, `ExactKeys`, `Marks`, `Recovery`. Stores
with capabilities beyond the protocol add the suites of those: `TableContract`; and `StatusContract`
where any client may write a row.

Reading order: `bench`, `definitions`, `claims`, `leases`, `settlements`, `deletion`, `fencing`,
`contention`, then the capabilities: `records`, `overrides`, `recovery`, `statuses`, `table`.
"""

from psched.testing.manual_clock import ManualClock
from psched.testing.manual_runner_pool import ManualRunner, ManualRunnerPool
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
from psched.testing.worker_driver import ManualDeadMan, ManualInbox, WorkerDriver

__all__ = [
    "BackendContract",
    "BackendFactory",
    "CoreContract",
    "ExactKeys",
    "ManualClock",
    "ManualDeadMan",
    "ManualInbox",
    "ManualRunner",
    "ManualRunnerPool",
    "Marks",
    "Overrides",
    "Records",
    "Recovery",
    "Retention",
    "StatusContract",
    "TableContract",
    "WorkerDriver",
]


class CoreContract(
    Definitions, Replacements, Claims, Leases, Settlements, Deletion, Fencing, Contention
):
    """What no store may lack. Needs the fixture ``backend_factory``."""


class BackendContract(CoreContract, Records, Overrides, ExactKeys, Marks, Retention, Recovery):
    """All that the protocol asks for. Needs the fixture ``backend_factory``."""
