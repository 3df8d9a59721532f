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


class Dispatch(BaseDispatch):
    """What runs what."""

    routes = {"noop": noop, "say": say, "hold": hold}  # noqa: RUF012  # as users write it
