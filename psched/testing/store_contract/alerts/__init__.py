"""Tests of alerts: the capability `psched.core.alerts.protocol.KeepsAlerts`.

Reading order: `bench`, `raising`, `closing`, `listing`, `delivering`, `trimming`.
"""

from psched.testing.store_contract.alerts.closing import Closing
from psched.testing.store_contract.alerts.delivering import Delivering
from psched.testing.store_contract.alerts.listing import Listing
from psched.testing.store_contract.alerts.raising import Raising
from psched.testing.store_contract.alerts.trimming import Trimming


class AlertsContract(Raising, Closing, Listing, Delivering, Trimming):
    """Tests of a store that keeps alerts. Needs the fixture ``backend_factory``."""
