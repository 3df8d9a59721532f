"""The names and families of errors, which ported handlers catch."""

import pickle
import subprocess
import sys
from copy import deepcopy

import pytest

import psched.app
import psched.errors
from psched.base import errors
from psched.testing import ManualClock

FAMILIES = {
    "AlreadyFinishedError": "ScheduleError",
    "NotFoundError": "ScheduleError",
    "PreemptedError": "ScheduleError",
    "AlreadyExistsError": "ScheduleError",
    "NotSupportedError": "ScheduleError",
    "ConfigError": "RuntimeError",
    "LoadError": "RuntimeError",
    "ProcessStopError": "RuntimeError",
    "InvalidError": "ValueError",
    "StoreUnavailableError": "TransientStoreError",
    "UnknownOutcomeError": "TransientStoreError",
    "TransientStoreError": "StoreError",
}

EVERY = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, BaseException)
]


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_an_error_has_the_seeds_name_and_family(name, family):
    error = getattr(errors, name)
    assert family in [base.__name__ for base in error.__bases__]


def test_all_errors_have_one_base_class():
    """Except the request to stop: it is raised only once, so no handler may catch it by mistake."""
    others = {error.__name__ for error in EVERY if not issubclass(error, psched.PschedError)}
    assert len(EVERY) > 20
    assert others == {"ProcessStopError"}


def test_every_error_can_be_imported_from_its_public_path():
    assert sorted(psched.errors.__all__) == sorted(error.__name__ for error in EVERY)


@pytest.mark.parametrize("error", EVERY)
def test_an_error_can_be_sent_to_another_process(error):
    """Otherwise who waits for a pool of processes in which it was raised waits for ever."""
    raised = error(*(("key", "is odd") if issubclass(error, ValueError) else ("is odd",)))
    for same in pickle.loads(pickle.dumps(raised)), deepcopy(raised):  # noqa: S301  # our own
        assert (type(same), str(same), vars(same)) == (error, str(raised), vars(raised))


def test_what_was_not_applied_and_what_nobody_knows_are_told_apart():
    assert not issubclass(psched.UnknownOutcomeError, psched.StoreUnavailableError)
    assert not issubclass(psched.StoreUnavailableError, psched.UnknownOutcomeError)


@pytest.mark.parametrize("name", psched.__all__)
def test_every_public_name_can_be_imported_from_the_top(name):
    assert getattr(psched, name) is not None


def test_an_unknown_name_is_said():
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = psched.colour


def test_import_psched_is_light():
    """Nothing that takes time is loaded before it is used."""
    heavy = "sqlalchemy", "pymysql", "yaml", "click", "croniter", "json", "logging"
    script = f"import sys, psched; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_a_file_that_is_missing_is_told_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/none.db"
    clock = ManualClock()
    settings = psched.app.read_config({"url": url})
    store = psched.app.make_store(settings)
    with (
        psched.ScheduleCollection(store, settings, clock=clock, draw_nonce=str) as schedules,
        pytest.raises(psched.errors.MissingDatabaseError),
    ):
        schedules.read("k")
    assert clock.slept == []
