"""The run history of a test's services, checked as ``psched verify`` does.

A test, or a module of tests, has the mark ``verified`` if the history is to be checked when the
test has passed: the faults that it causes must not cost an occurrence, whatever it asserts itself.
"""

from functools import partial

import pytest

from psched.app import make_store, read_config
from psched.base.clock import SystemClock
from psched.client.access import retry_while_unavailable
from psched.client.verifier import Verifier
from psched.reports.findings import Findings
from support.service import Service, open_services

DAY = 86_400


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Check the history of every service that is open, if the test has the mark ``verified``.

    A machine of `support.systemd` stays open for several tests, and has a service that is not
    installed yet, or not any more.
    """
    result = yield
    if item.get_closest_marker("verified"):
        for service in open_services:
            if service.config.exists():
                keeps_its_promises(service)
    return result


def keeps_its_promises(service: Service, *, since: float = DAY) -> Findings | None:
    """Check that the history of a service's store tells of no violation.

    Args:
        service: its database is asked, as it is configured now.
        since: the age of what is checked, in seconds.

    Returns:
        What was checked; None if the store keeps no history.
    """
    settings = read_config(service.config)
    store = make_store(settings)
    # After a failover, the first of several hosts may be gone.
    send = partial(retry_while_unavailable, clock=SystemClock(), tries=5)
    try:
        if store.history is None or send(store.history.problem) is not None:
            return None
        found = Verifier(store, settings, send).verify(since)
    finally:
        store.disconnect()
    assert found.violations == []
    return found
