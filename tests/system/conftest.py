"""Fixtures for tests under a real systemd."""

import contextlib
import os

import pytest

from support.servers import MissingServerError
from support.systemd import ForbiddenError, Machine, Unit


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    """One machine for all tests of this process."""
    try:
        made = Machine(tmp_path_factory.mktemp("machine"))
    except MissingServerError as missing:
        if os.environ.get("PSCHED_TEST_NO_SKIP") == "1":
            raise
        pytest.skip(str(missing))
    except ForbiddenError as forbidden:
        pytest.skip(str(forbidden))
    with contextlib.closing(made):
        yield made


@pytest.fixture
def unit(machine):
    """The unit, installed and not yet started; its table is made."""
    with contextlib.closing(Unit(machine)) as made:
        made.service.init()
        yield made
