"""Parts of a worker in tests."""

import random
from typing import Any

from psched.base.clock import Clock
from psched.config import from_mapping
from psched.master.generation_spec import WorkerIdentity
from psched.worker.context import Context
from support.history import recorder


def context(clock: Clock, settings: Any = None, **given: Any) -> Context:
    """What the parts of a worker share; a part that is not given is not used by the test."""
    unused: dict[str, Any] = dict.fromkeys(("link", "store", "pool", "deadman"))
    parts = {
        "place": WorkerIdentity(0, 1, "nonce"),
        "settings": settings or from_mapping({"url": "sqlite:///unused.db"}),
        "rng": random.Random(1),  # noqa: S311  # jitter
        "recorder": recorder(clock),
    }
    return Context(**{**unused, **parts, **given, "clock": clock})
