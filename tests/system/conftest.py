"""Fixtures for tests under a real systemd."""

import contextlib
import os

import pytest

from support.servers import MissingServerError
from support.systemd import ForbiddenError, Machine, Unit


@contextlib.contextmanager
def booted(home):
    """A machine; where it cannot be booted, a skip that says why."""
    try:
        made = Machine(home)
    except MissingServerError as missing:
        if os.environ.get("PSCHED_TEST_NO_SKIP") == "1":
            raise
        pytest.skip(str(missing))
    except ForbiddenError as forbidden:
        pytest.skip(str(forbidden))
    with contextlib.closing(made):
        yield made


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    """One machine for all tests of this process."""
    with booted(tmp_path_factory.mktemp("machine")) as made:
        yield made


@pytest.fixture(scope="module")
def bare_machine(tmp_path_factory):
    """A machine on which psched has never been installed."""
    with booted(tmp_path_factory.mktemp("bare-machine")) as made:
        made.uninstall()
        yield made


@pytest.fixture
def unit(machine):
    """The unit, installed and not yet started; its table is made."""
    with contextlib.closing(Unit(machine)) as made:
        made.service.init()
        yield made
