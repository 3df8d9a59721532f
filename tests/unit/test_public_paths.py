"""Tests that each import path in the documentation works, and that no object has two paths."""

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from psched.client.collection import ScheduleCollection
from psched.core.schedule import Schedules
from psched.service.start import Program

ERRORS = {
    *("AlreadyExistsError", "AlreadyFinishedError", "ConfigError", "InvalidError"),
    *("NotFoundError", "NotSupportedError", "PreemptedError", "ProcessStopError", "PschedError"),
    *("ScheduleError", "StoreError", "StoreUnavailableError", "TransientStoreError"),
    "UnknownOutcomeError",
}

PATHS = {
    "psched": ERRORS
    | {"Run", "Schedule", "ScheduleCollection", "ScheduleMetadata", "Schedules", "Task", "Worker"}
    | {"App", "open", "start"},
    "psched.application": {"Base", "Dispatch"},
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
        *("TableContract", "TransactionContract", "HandlerRun", "run"),
    },
}
"""The names that the documentation imports, by module."""

DOCUMENTED = [(module, name) for module, names in sorted(PATHS.items()) for name in sorted(names)]


@pytest.mark.parametrize(("module", "name"), DOCUMENTED, ids=".".join)
def test_a_documented_name_can_be_imported(module, name):
    found = import_module(module)
    assert getattr(found, name) is not None
    assert name in getattr(found, "__all__", PATHS[module]) or (module, name) == ("psched", "open")


@pytest.mark.slow
def test_a_star_import_leaves_pythons_own_open_alone():
    check = "from psched import *; assert open is __builtins__.open; import psched; psched.open"
    subprocess.run([sys.executable, "-I", "-c", check], check=True)


@pytest.mark.parametrize("name", sorted(set().union(*PATHS.values())))
def test_a_name_means_the_same_on_every_path(name):
    modules = [module for module, names in PATHS.items() if name in names]
    assert len({id(getattr(import_module(module), name)) for module in modules}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(PATHS))
def test_a_path_works_first_and_alone(module):
    """The path works without an earlier import of another module."""
    names = ", ".join(sorted(PATHS[module]))
    subprocess.run([sys.executable, "-I", "-c", f"from {module} import {names}"], check=True)


def test_what_a_handler_gets_has_all_that_a_collection_can_do():
    """Left out: polling, an older name, alerts, changes to many."""

    def public(cls):
        functions = inspect.getmembers(cls, inspect.isfunction)
        return {name for name, _ in functions if not name.startswith("_")}

    assert public(ScheduleCollection) - public(Schedules) == {
        "alerts",
        "close_alerts",
        "durations",
        "failures",
        "live_workers",
        "overview",
        "pause_all",
        "pause_type",
        "pauses",
        "poll",
        "resume_all",
        "resume_type",
        "select",
        "shown_as_paused",
        "submit",
        "workers_seen",
    }
    assert public(Schedules) <= public(ScheduleCollection)


@pytest.mark.parametrize("module", sorted(PATHS))
def test_no_class_falls_back_to_the_old_sequence_protocol(module):
    """Python calls ``__getitem__`` with 0, 1, 2 … if a class has neither of the two other methods.

    Where every key has an item, ``in`` and ``for`` would then never end.
    """
    found = import_module(module)
    names = {*PATHS[module], *getattr(found, "__all__", ())}
    classes = [each for name in names if inspect.isclass(each := getattr(found, name))]
    if module == "psched":
        classes.append(Program)
    for each in classes:
        if hasattr(each, "__getitem__"):
            assert hasattr(each, "__iter__"), each
            assert hasattr(each, "__contains__"), each
