"""Functions for the tests of output."""

import random
from dataclasses import replace as changed
from typing import Any

from psched.core.output.protocol import KeepsOutput, OutputSelection
from psched.core.output.records import OutputRecord
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import LONG_AGO

ENDED = 1_700_000_000_000
"""When the first record of a test ended, in milliseconds."""

MANY = 70
"""More records than a store reads or writes in one request."""

LARGE = 2**20
"""The largest output of an attempt, in bytes; see the setting ``output_limit``."""

SIZE = 4096
"""The bytes of each output in a test of the budget."""


def output_of(store: Store) -> KeepsOutput:
    """The store, which must have the capability."""
    assert isinstance(store, KeepsOutput)
    return store


def printed(key: str = "k", **fields: Any) -> OutputRecord:  # noqa: ANN401  # a record's
    """A record of the first attempt, with these changes."""
    given = {
        "scheduled_time": LONG_AGO,
        "owner": "worker.1",
        "attempt": 1,
        "ended": ENDED,
        "output": b"hello\n",
        **fields,
    }
    return OutputRecord(key=key, **given)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that no compression makes shorter."""
    return random.Random(seed).randbytes(size)  # noqa: S311  # a test


def kept(store: Store, key: str = "k", **conditions: Any) -> list[OutputRecord]:  # noqa: ANN401
    """The records that fulfil these conditions, the newest first, without their numbers."""
    selection = OutputSelection(key=key, **conditions)
    return [changed(record, id=None) for record in output_of(store).outputs(selection)]
