"""The protocol of a store (`psched.backend`), as tests. Run them on a store of your own.

Give a subclass a fixture that makes workers' views of one store, fresh for each test::

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

from psched.testing.bench import BackendFactory
from psched.testing.claims import Claims
from psched.testing.contention import Contention
from psched.testing.definitions import Definitions, Replacements
from psched.testing.deletion import Deletion, Marks
from psched.testing.fencing import Fencing
from psched.testing.leases import Leases
from psched.testing.overrides import ExactKeys, Overrides
from psched.testing.records import Records
from psched.testing.recovery import Recovery
from psched.testing.retention import Retention
from psched.testing.settlements import Settlements
from psched.testing.statuses import StatusContract
from psched.testing.table import TableContract

__all__ = [
    "BackendContract",
    "BackendFactory",
    "CoreContract",
    "ExactKeys",
    "Marks",
    "Overrides",
    "Records",
    "Recovery",
    "Retention",
    "StatusContract",
    "TableContract",
]


class CoreContract(
    Definitions, Replacements, Claims, Leases, Settlements, Deletion, Fencing, Contention
):
    """What no store may lack. Needs the fixture ``backend_factory``."""


class BackendContract(CoreContract, Records, Overrides, ExactKeys, Marks, Retention, Recovery):
    """All that the protocol asks for. Needs the fixture ``backend_factory``."""
