"""The fake work of the demonstration."""

import random
import time
from typing import Any

from psched.application import Dispatch as BaseDispatch
from psched.web.demo.past import NAMED


def work(task: Any) -> None:  # noqa: ANN401  # as users write it
    """Take as long as the schedule says, tell how far it is, and fail as often as it says."""
    seconds = int(task.data["seconds"])
    for step in range(seconds):
        task.progress(100 * step / seconds, f"step {step} of {seconds}")
        if step % 5 == 0:
            print(f"step {step} of {seconds}", flush=True)  # noqa: T201  # its output
        time.sleep(1)
    if random.random() < task.data["fails"]:  # noqa: S311  # no secret
        raise RuntimeError("503 Service Unavailable")
    print("done", flush=True)  # noqa: T201


def fails_twice(task: Any) -> None:  # noqa: ANN401
    """Succeed at the third attempt."""
    if task.attempt < 3:  # noqa: PLR2004
        raise RuntimeError(f"attempt {task.attempt} failed")


def hangs(_task: Any) -> None:  # noqa: ANN401
    """Go on until kill_timeout."""
    time.sleep(3600)


class Dispatch(BaseDispatch):
    """Which handler runs which type; psched's own runs the programs of the type exec."""

    routes = {  # noqa: RUF012
        **dict.fromkeys(("work", *{plan.type for plan in NAMED}), work),
        "flaky": fails_twice,
        "hangs": hangs,
    }
