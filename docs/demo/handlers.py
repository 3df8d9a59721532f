"""The demonstration's handlers: a class, a function, one that fails, one that hangs."""

import os
import re
import time

from psched.application import Base
from psched.application import Dispatch as BaseDispatch


class Greeter(Base):
    """A class: an object is made for each task, and its run() is called."""

    def run(self):
        """Say hello, and finish the task explicitly."""
        print(f"hello {self.task.data['name']}, this is pid {os.getpid()}")
        self.task.finish()


def report(task):
    """A function is a handler, too; the task is finished when it returns."""
    moment = time.strftime("%H:%M:%S", time.gmtime(task.scheduled_time))
    print(f"report for {moment}, {time.time() - task.scheduled_time:.3f} s later")


def fails_twice(task):
    """An exception fails the attempt; the task is tried again after retry_wait."""
    if task.attempt < 3:
        raise RuntimeError(f"attempt {task.attempt} failed")
    print(f"attempt {task.attempt} of {task.idempotency_key} succeeded")


def hangs(task):
    """Stopped after kill_timeout: its finally clause runs, then the task is tried again."""
    try:
        time.sleep(3600)
    finally:
        print("stopped, cleaning up")


class Dispatch(BaseDispatch):
    """Which handler runs which type."""

    routes = {
        "greet": Greeter,
        "report": report,
        "flaky": fails_twice,
        re.compile(r"^slow\."): hangs,
    }
