"""Waiting: to ask again until something is so. The only module in the tests that sleeps.

A deadline is constant, and far later than anything should take: it costs nothing when the condition
comes true. So no test depends on how fast the machine is, nor on what else it does.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds. Far more than anything should take.

A virtual machine can be held up by others of its host, and its disk by theirs.
"""

HANG_TIMEOUT = 300.0
"""Seconds, for a call that blocks: it is for what would hang for ever."""

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05


def wait_until(condition: Callable[[], T], *, timeout: float = PATIENCE, what: str) -> T:
    """Check a condition until it is true, and return its value.

    Args:
        condition: asked at once, then ever less often, and once more after the deadline, so
            that a test which was itself held up does not blame the condition.
        timeout: seconds.
        what: what is awaited, for the failure's text.

    Raises:
        AssertionError: it was not true in time.
    """
    begin = time.monotonic()
    pause = FIRST_PAUSE
    while True:
        last_chance = time.monotonic() - begin >= timeout
        if value := condition():
            return value
        if last_chance:
            took = time.monotonic() - begin
            raise AssertionError(f"waited {took:.1f} s in vain for {what}")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


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
