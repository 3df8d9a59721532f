"""The names and families of errors, which ported handlers catch."""

import subprocess
import sys

import pytest

import psched
from psched.base import errors

FAMILIES = {
    "AlreadyFinishedError": "ScheduleError",
    "NotFoundError": "ScheduleError",
    "PreemptedError": "ScheduleError",
    "AlreadyExistsError": "ScheduleError",
    "NotSupportedError": "ScheduleError",
    "ScheduleError": "Exception",
    "ConfigError": "RuntimeError",
    "ProcessStopError": "RuntimeError",
    "InvalidError": "ValueError",
    "StoreUnavailableError": "StoreError",
}


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_an_error_has_the_seeds_name_and_family(name, family):
    error = getattr(errors, name)
    assert [base.__name__ for base in error.__bases__] == [family]


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
