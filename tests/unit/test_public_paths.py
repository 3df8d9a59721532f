"""The import paths that documentation names: each of them works, and leads to one thing."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from psched.client.collection import ScheduleCollection
from psched.core.schedule import Schedules

ERRORS = {
    *("AlreadyExistsError", "AlreadyFinishedError", "ConfigError", "InvalidError"),
    *("NotFoundError", "NotSupportedError", "PreemptedError", "ProcessStopError", "PschedError"),
    *("ScheduleError", "StoreError", "StoreUnavailableError", "TransientStoreError"),
    "UnknownOutcomeError",
}

PATHS = {
    "psched": ERRORS
    | {"Schedule", "ScheduleCollection", "ScheduleMetadata", "Schedules", "Task", "Worker"}
    | {"open", "start"},
    "psched.application": {"Base", "Dispatch"},
    "psched.backends.plain": {"PlainStore"},
    "psched.clock": {"Clock", "SystemClock"},
    "psched.errors": ERRORS
    | {"CommandError", "LoadError", "MissingTableError", "NotAllowedError", "NotLoadedError"}
    | {"SchemaError", "StoreBusyError", "StoreSlowError", "UnfinishedError"},
    "psched.model": {
        *("CANCELLED", "CANCELLING", "DEFAULT_TYPE", "DELETING", "ENDED", "EXPIRED", "FAILED"),
        *("FINISHED", "FINISHING", "MARKS", "MIGRATING", "PAUSED", "QUARANTINED", "SET_ASIDE"),
        *("STATUSES", "WAITING", "Decision", "Finish", "Occurrence", "Quarantine", "Release"),
        *("Retry", "Row", "Settlement", "Token"),
    },
    "psched.stores.plain": {"PlainStore"},
    "psched.testing": {
        *("BackendContract", "BackendFactory", "CoreContract", "ExactKeys", "ManualClock"),
        *("Marks", "Overrides", "Records", "Recovery", "Retention", "StatusContract"),
        *("TableContract", "TransactionContract"),
    },
}
"""What documentation names, by module."""

DOCUMENTED = [(module, name) for module, names in sorted(PATHS.items()) for name in sorted(names)]


@pytest.mark.parametrize(("module", "name"), DOCUMENTED, ids=".".join)
def test_a_documented_name_can_be_imported(module, name):
    found = import_module(module)
    assert getattr(found, name) is not None
    assert name in getattr(found, "__all__", PATHS[module])


@pytest.mark.parametrize("name", sorted(set().union(*PATHS.values())))
def test_a_name_means_the_same_on_every_path(name):
    modules = [module for module, names in PATHS.items() if name in names]
    assert len({id(getattr(import_module(module), name)) for module in modules}) == 1


@pytest.mark.parametrize("module", sorted(PATHS))
def test_a_path_works_first_and_alone(module):
    """Not only after another module has imported what it needs."""
    names = ", ".join(sorted(PATHS[module]))
    subprocess.run([sys.executable, "-I", "-c", f"from {module} import {names}"], check=True)


def test_what_a_handler_gets_has_all_that_a_collection_can_do():
    """But for leasing without a worker, and for the older name of `add`."""

    def public(cls):
        functions = inspect.getmembers(cls, inspect.isfunction)
        return {name for name, _ in functions if not name.startswith("_")}

    assert public(ScheduleCollection) - public(Schedules) == {"poll", "submit"}
    assert public(Schedules) <= public(ScheduleCollection)
