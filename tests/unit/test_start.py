"""What a program's worker does in the store before it serves."""

import pytest

from psched import config
from psched.errors import StoreUnavailableError
from psched.start import Program

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})


class Away:
    """A store that does not answer."""

    def __init__(self):
        self.requests = 0

    def look(self, _keys):
        self.requests += 1
        raise StoreUnavailableError("away")


def test_a_store_that_is_away_is_asked_once_so_that_the_worker_goes_on_with_all_else():
    program = Program(SETTINGS, name="program", label="program", prune=False, join=True)
    program.add("job", every=60, run=lambda: None)
    store = Away()
    with pytest.raises(StoreUnavailableError):
        next(program._declaring(store))
    assert store.requests == 1
