"""The demonstration's handlers: a class, a function, one that fails, one that hangs."""

import os
import re
import time

from psched.application import Base
from psched.application import Dispatch as BaseDispatch


class Greeter(Base):
    """A class is made for each task and run."""

    def run(self):
        """Say hello, and finish explicitly."""
        print(f"hello {self.task.data['name']}, this is pid {os.getpid()}")
        self.task.finish()


def report(task):
    """A function is a handler too; returning finishes its task."""
    moment = time.strftime("%H:%M:%S", time.gmtime(task.scheduled_time))
    print(f"report for {moment}, {time.time() - task.scheduled_time:.3f} s later")


def fails_twice(task):
    """Raising has the task tried again after retry_wait."""
    if task.attempt < 3:
        raise RuntimeError(f"attempt {task.attempt} goes wrong")
    print(f"attempt {task.attempt} of {task.idempotency_key} goes well")


def hangs(task):
    """Stopped at kill_timeout: its finally clause runs, then it is tried again."""
    try:
        time.sleep(3600)
    finally:
        print("stopped, cleaning up")


class Dispatch(BaseDispatch):
    """From types to handlers."""

    routes = {
        "greet": Greeter,
        "report": report,
        "flaky": fails_twice,
        re.compile(r"^slow\."): hangs,
    }
