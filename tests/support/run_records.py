"""Records of the run history for tests that need no real run."""

import itertools

from psched.core.history.records import RunRecord, WorkerRecord

_numbers = itertools.count(1)


def run_record(key: str = "k", **fields: object) -> RunRecord:
    """A record of an attempt that took 1.5 seconds and finished, unless the fields say more."""
    number = next(_numbers)
    given = {
        "type": "t",
        "scheduled_time": 1_800_000_000 + number,
        "owner": f"w.{number}",
        "fence": number,
        "attempt": 1,
        "outcome": "finished",
        "fate": "finished",
        "host": "web1",
        "pid": 4711,
        "exit_status": 0,
        "ended": (1_800_000_010 + number) * 1000,
    }
    given |= fields
    if given["outcome"] is not None:
        given.setdefault("started", given["ended"] - 1500)
    return RunRecord(key=key, **given)


def not_run(key: str = "k", fate: str = "skipped_catchup", **fields: object) -> RunRecord:
    """A record of occurrences that did not run."""
    nothing = {"outcome": None, "attempt": 0, "pid": None, "exit_status": None, "started": None}
    return run_record(key, **{**nothing, "fate": fate, **fields})


def worker_record(**fields: object) -> WorkerRecord:
    """A record of a worker with one slot, for `KeepsHistory.beat`, unless the fields say more."""
    given = {"nonce": "n", "host": "h", "pid": 1, "number": 0, "generation": 1, "slots": 1}
    given |= {"busy": 0, "types": None, "started": 0, "seen": 0}
    return WorkerRecord(**{**given, **fields})
