"""Waiting: to ask again until a deadline, which is later where the machine is slow or busy.

The only module in the tests that sleeps. Timeouts are seconds of a fast machine that has nothing
else to do:

- A slow machine gets more of them: the time that a known piece of work takes is measured at the
  start of a run.
- While more processes want to run than there are processors, a second counts for less: the time
  between two questions is divided by the load at that moment. So it does not matter when the
  load begins, nor when it ends.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds. Far more than anything should take.

A virtual machine can be held up by others of its host, and its disk by theirs: no load shows that.
"""

HANG_TIMEOUT = 300.0
"""Seconds, for a call that blocks: nobody can ask for the load meanwhile.

Nothing takes so long on a busy machine either; it is for what would hang for ever.
"""

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05

LONGEST_STEP = 1.0
"""Seconds that count between two questions: after longer ones this process was held up."""

START_TIME = 0.01
"""Seconds that a Python interpreter takes to start and end on a usual machine."""

PROCESSORS = len(os.sched_getaffinity(0))


SLOWNESS = "PSCHED_TEST_SLOWNESS"
"""The variable by which the processes of a run know what was measured at its start."""


def measure_slowness() -> None:
    """Measure how long this machine takes for a known piece of work, for all processes to come."""
    command = [sys.executable, "-I", "-S", "-c", ""]

    def measured() -> float:
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        return time.perf_counter() - begin

    # The shortest of several: what else runs at this moment is no property of the machine.
    shortest = min(measured() for _ in range(5))
    os.environ[SLOWNESS] = str(max(1.0, shortest / START_TIME))


def slowness() -> float:
    """How many times as long as a usual machine this one takes for the same work; 1 at least."""
    return float(os.environ.get(SLOWNESS, "1"))


def load() -> float:
    """How many times as long as alone a process takes at this moment; 1 at least.

    That is the number of processes that want to run, divided by the number of processors. Each
    step of niceness makes a process 1.25 times slower where there are others.
    """
    _, _, _, running, *_ = Path("/proc/loadavg").read_text().split()
    wanted = int(running.partition("/")[0]) / PROCESSORS
    return wanted * 1.25 ** max(0, os.nice(0)) if wanted > 1 else 1.0


def scaled(seconds: float) -> float:
    """So many seconds of a fast, idle machine, on this one as busy as it has been of late.

    It is for limits that psched is given, after which it kills or gives up what is too slow, and
    for assertions on how long something took.
    """
    of_late = os.getloadavg()[0] / PROCESSORS
    return seconds * slowness() * max(load(), of_late)


class Deadline:
    """Has passed after so many seconds of a fast machine that has nothing else to do.

    Ask it at least once a second, so that it knows the load.
    """

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._left = seconds * slowness()
        self._asked = time.monotonic()

    @property
    def has_passed(self) -> bool:
        """Whether it has passed by now."""
        now = time.monotonic()
        self._left -= min(now - self._asked, LONGEST_STEP) / load()
        self._asked = now
        return self._left <= 0


def wait_until(condition: Callable[[], T], *, timeout: float = PATIENCE, what: str) -> T:
    """Check a condition until it is true, and return its value.

    Args:
        condition: asked at once, then ever less often, and once more after the deadline, so
            that a test which was itself held up does not blame the condition.
        timeout: seconds of a fast machine that has nothing else to do.
        what: what is awaited, for the failure's text.

    Raises:
        AssertionError: it was not true in time.
    """
    begin = time.monotonic()
    deadline = Deadline(timeout)
    pause = FIRST_PAUSE
    while True:
        last_chance = deadline.has_passed
        if value := condition():
            return value
        if last_chance:
            took = time.monotonic() - begin
            raise AssertionError(f"waited {timeout:g} s ({took:.1f} s here) in vain for {what}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def stays(condition: Callable[[], object], *, seconds: float = 1.0, what: str) -> None:
    """Check that a condition stays true for a while.

    Raises:
        AssertionError: it was not.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), f"not any more: {what}"
        time.sleep(LONGEST_PAUSE)


def wait_for_text(path: Path, text: str, *, timeout: float = PATIENCE) -> str:
    """Wait until the file contains the text; return all that the file contains then."""

    def content() -> str:
        return path.read_text() if path.exists() else ""

    def content_with_text() -> str:
        found = content()
        return found if text in found else ""

    try:
        return wait_until(content_with_text, timeout=timeout, what=f"{text!r} in {path}")
    except AssertionError as error:
        # The file often tells the reason.
        error.add_note(f"{path} contains:\n{content()}")
        raise


def wait_for_end(pid: int, *, timeout: float = PATIENCE) -> None:
    """Wait until a process, which need not be our child, has ended."""
    wait_until(lambda: has_ended(pid), timeout=timeout, what=f"the end of process {pid}")


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # "pid (name) state …"; the name may itself contain brackets.
    state = stat.rpartition(")")[2].split()[0]
    return state in "ZX"
