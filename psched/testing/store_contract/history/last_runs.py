"""Tests of the last runs: the capability `psched.core.history.protocol.FindsLastRuns`."""

from dataclasses import replace as changed
from itertools import product

from psched.core.history.protocol import FindsLastRuns
from psched.core.history.records import FOREVER, Fate, Outcome, RunRecord
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LONG_AGO, BackendFactory
from psched.testing.store_contract.history.bench import ENDED, MANY, history_of, made, plain


class LastRunsContract:
    """Tests of a store that finds the last runs of keys. Needs the fixture ``backend_factory``."""

    def test_the_last_run_is_the_newest_record_of_the_end_of_an_attempt_or_occurrence(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        earlier, expected = list[RunRecord](), dict[str, RunRecord]()
        later = list[RunRecord]()
        kinds = product((None, *Outcome), (None, *Fate), (None, LONG_AGO + 60, FOREVER))
        for number, (outcome, fate, until) in enumerate(kinds):
            key = f"k{number}"
            first = made(key, attempt=1)
            second = made(
                key, owner="worker.2", ended=ENDED + 1, outcome=outcome, fate=fate, until=until
            )
            earlier.append(first)
            later.append(second)
            expected[key] = second if second.is_end else first
        history_of(store).record(earlier)
        history_of(store).record(later)
        assert _last_runs(backend_factory(), *expected) == expected

    def test_it_is_found_behind_many_that_were_skipped(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        gave_up = made("k", outcome=None, fate=Fate.GAVE_UP, attempt=0, reason='"outcome":"lost"')
        skipped = [
            made(
                "k",
                scheduled_time=LONG_AGO + number,
                outcome=None,
                fate=Fate.SKIPPED_CATCHUP,
                reason='"fate":"gave_up"',
            )
            for number in range(1, MANY)
        ]
        history_of(store).record([gave_up, *skipped])
        assert _last_runs(store, "k") == {"k": gave_up}

    def test_keys_without_a_run_are_left_out(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        ran = made("k")
        history_of(store).record([ran, made("s", outcome=None, fate=Fate.SKIPPED_PAUSED)])
        assert _last_runs(store) == {}
        assert _last_runs(store, "k", "K", "s", "none") == {"k": ran}

    def test_large_fields_are_left_out(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        large = made("k", error="Traceback", result="{}", outcome=Outcome.FAILED)
        history_of(store).record([large])
        assert _last_runs(store, "k") == {"k": changed(large, error=None, result=None)}


def _last_runs(store: Store, *keys: str) -> dict[str, RunRecord]:
    assert isinstance(store, FindsLastRuns)
    return {key: plain(record) for key, record in store.last_runs(keys).items()}
