"""The simulator runs psched's own code, does the same for the same seed, and finds faults in it."""

import pytest

from psched.reports.findings import Kind
from psched.testing.memory_store import MemoryStore
from psched.testing.simulation.plan import MIXES, Step, What, shrink
from psched.testing.simulation.simulation import Simulation
from psched.worker.execution import Execution


def found(result):
    """The kinds of what a simulation has found."""
    return {violation.kind for violation in result.violations}


def test_without_faults_everything_runs():
    result = Simulation(1, 0.2, steps=()).run()
    assert result.violations == []
    assert result.runs > 100
    assert result.faults == {}


def test_a_seed_does_the_same_each_time():
    results = [Simulation(7, 0.1).run() for _ in range(2)]
    assert results[0].digest == results[1].digest
    assert results[0].log == results[1].log


@pytest.mark.parametrize(
    ("mix", "seed"),
    [("store", 96668206), ("store", 14), ("processes", 761454617), ("processes", 673183085)],
)
def test_seeds_that_have_failed(mix, seed):
    assert Simulation(seed, 0.5, mix=MIXES[mix]).run().violations == []


def test_it_runs_on_sqlite():
    result = Simulation(3, 0.02, store="sqlite").run()
    assert result.violations == []
    assert result.runs > 20


def test_records_are_right_if_no_claim_is_answered():
    """Hosts' clocks are up to 100 s wrong, and the answer to a claim has the store's time."""
    simulation = Simulation(1, 0.02, steps=())
    simulation.network.loses_claims = True
    result = simulation.run()
    assert result.violations == []
    assert result.runs > 20


class TestPlantedFaults:
    def test_a_settlement_that_does_not_wait_for_the_processes_of_a_task(self, monkeypatch):
        monkeypatch.setattr(Execution, "has_ended", lambda _self, _task: True)
        assert Kind.OVERLAP in found(Simulation(1, 0.2).run())

    def test_a_store_that_compares_no_token(self, monkeypatch):
        monkeypatch.setattr("psched.stores.plain._holds", lambda row, _token: row is not None)
        assert Kind.STALE in found(Simulation(1, 0.3, mix=MIXES["store"]).run())

    def test_leases_that_nobody_takes_over(self, monkeypatch):
        real = MemoryStore._claimable
        monkeypatch.setattr(MemoryStore, "recover", lambda _self, _nonce, **_options: [])
        monkeypatch.setattr(
            MemoryStore,
            "_claimable",
            lambda store, rows, now: [each for each in real(store, rows, now) if not each.owner],
        )
        steps = [Step(at, What.KILL_WORKER, 0, 1.0, 0) for at in (100.0, 150.0, 200.0)]
        assert Kind.STUCK in found(Simulation(5, 0.1, steps=steps).run())


def test_a_failing_plan_is_made_short():
    runs = []

    def fails(left):
        runs.append(left)
        return {3, 71} <= {*left}

    assert shrink([*range(100)], fails) == [3, 71]
    assert len(runs) < 60
