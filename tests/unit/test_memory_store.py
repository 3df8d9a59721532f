"""The store contract, on the store of the simulator."""

from dataclasses import replace

import pytest

from psched.config import from_mapping
from psched.testing import (
    BackendContract,
    BacklogContract,
    HistoryContract,
    HoldsContract,
    LastRunsContract,
    PausesContract,
    ReplaceAndRecordContract,
    StatusContract,
)
from psched.testing.manual_clock import ManualClock
from psched.testing.memory_store import MemoryStore
from psched.testing.store_contract import bench


class TestMemoryStore(
    BackendContract,
    BacklogContract,
    HistoryContract,
    LastRunsContract,
    HoldsContract,
    PausesContract,
    ReplaceAndRecordContract,
    StatusContract,
):
    @pytest.fixture
    def store(self, monkeypatch):
        clock = ManualClock()
        monkeypatch.setattr(bench, "clock", clock)
        return MemoryStore(clock.wall, from_mapping({"url": "sqlite:///unused.db"}))

    @pytest.fixture
    def backend_factory(self, store):
        return lambda: store

    @pytest.fixture
    def set_status(self, store):
        def set_status(key, status):
            with store.all() as rows:
                rows[key] = replace(rows[key], status=status)

        return set_status
