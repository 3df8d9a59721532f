"""The handlers of the benchmarks: each task notes when it was started."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from psched.application import Dispatch as BaseDispatch

FOLDER = Path(__file__).parent
STARTS = str(FOLDER / "starts")
GATE = FOLDER / "gate"
PRINTED = FOLDER / "printed"


def noop(task: Any) -> None:  # noqa: ANN401  # a task, as users write it
    """Note the start, and nothing else."""
    line = f"{task.key} {task.scheduled_time} {time.time():.6f}\n"
    file = os.open(STARTS, os.O_WRONLY | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


def say(task: Any) -> None:  # noqa: ANN401
    """Note the start, and print two lines."""
    noop(task)
    sys.stdout.write("begin\n")
    sys.stdout.write("end\n")


def hold(task: Any) -> None:  # noqa: ANN401
    """Note the start, and stay until the gate is open."""
    noop(task)
    while not GATE.exists():
        time.sleep(0.05)


def flood(_task: Any) -> None:  # noqa: ANN401
    """Print 10,000 lines per second until the gate is open; note how many per second they were."""
    begun, printed = time.monotonic(), 0
    while not GATE.exists():
        due = int((time.monotonic() - begun) * 10_000)
        os.write(1, b"one of very many lines that this task prints\n" * min(due - printed, 90))
        printed += min(due - printed, 90)
        time.sleep(0.005)
    PRINTED.write_text(str(printed / (time.monotonic() - begun)))


class Dispatch(BaseDispatch):
    """What runs what."""

    routes = {  # noqa: RUF012  # as users write it
        "noop": noop,
        "say": say,
        "hold": hold,
        "flood": flood,
    }
