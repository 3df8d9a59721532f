"""Failures that a transaction writes which commits after later ones."""

import pytest

from psched.core.history.records import Outcome
from psched.stores.sql.history import run_values
from psched.testing.store_contract.history import made

LATER = 900
"""The records that are written while the transaction is open."""


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)
def test_a_failure_that_is_committed_late_is_found(store, sql):
    store.history.record([made("first", outcome=Outcome.FAILED)])
    place = store.history.new_failures(None, 1000).place
    with sql.session() as slow:
        slow("BEGIN")
        slow(store.history._sql.insert_run.text, **run_values(made("slow", outcome=Outcome.FAILED)))
        later = [made(f"k{number}", outcome=Outcome.FINISHED) for number in range(LATER)]
        store.history.record([*later, made("fast", outcome=Outcome.FAILED)])
        news = store.history.new_failures(place, 1000)
        assert "fast" in {record.key for record in news.records}
        assert "slow" not in {record.key for record in news.records}
        slow("COMMIT")
    assert "slow" in {record.key for record in store.history.new_failures(news.place, 1000).records}
