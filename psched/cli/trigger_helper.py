"""Runs users' trigger classes in a child process of a command.

If a trigger hangs or crashes, the command continues, because only the child hangs or crashes. The
child is forked when the command needs a trigger class for the first time. The command kills the
child, with all processes that the child has started, if the child does not answer in time, and when
the command ends.
"""

import atexit
import os
import select
import signal
import sys
from collections.abc import Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any

from psched.app import CLOCK
from psched.base.errors import InvalidError, NotLoadedError, described
from psched.core.remote_policy import limit_memory
from psched.process import kernel, tree
from psched.process.link import Link
from psched.process.signals import unblock
from psched.process.spawn import flush_output, spawn
from psched.triggers.custom import DEADLINE, Call, NextAfter, load_here

_LONGEST_PROBLEM = 2000
"""The maximum length, in characters, of an error text about a trigger. A longer text is cut."""


class _Helper:
    """Loads and calls trigger classes in a child of this process."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._child: tuple[int, Link] | None = None
        self._failures: dict[Call, str] = {}
        atexit.register(self._kill)

    def find(self, call: Call) -> NextAfter:
        """Find a trigger class, and return a function that computes its next times.

        The function returns the trigger's first time after a given instant.
        """
        self._ask(call, None)
        return partial(self._ask, call)

    def start(self) -> tuple[int, Link]:
        """Start the child, unless it lives; return its pid and the link to it."""
        if self._child is None:
            self._child = spawn(partial(_run_child, self._owner))
        return self._child

    def _ask(self, call: Call, instant: int | None) -> int | None:
        """Let the child compute a trigger's first time after an instant, and return the time.

        If ``instant`` is None, the child only finds the class, and the result is None.
        """
        if call in self._failures:
            raise InvalidError("cron", self._failures[call])
        try:
            _, link = self.start()
        except RuntimeError:  # this process has threads, and must not fork
            self._failures[call] = f"the process that could ask {call.name} has ended; start again"
            raise InvalidError("cron", self._failures[call]) from None
        link.send({"call": call._asdict(), "instant": instant})
        match _receive(link):
            case {"time": int(time)} if type(time) is int:
                return time
            case {"time": None}:
                return None
            case {"absent": str(problem)}:
                raise NotLoadedError("cron", problem)
            case {"wrong": str(problem)}:
                raise InvalidError("cron", problem)
        how = "has exited" if link.closed else f"has not answered within {DEADLINE:g} s"
        self._kill()
        # The failure is stored, so that this trigger is not called again: many schedules of a list
        # can use the trigger, and the command would have to wait for each call.
        self._failures[call] = f"the process that asked {call.name} {how}"
        raise InvalidError("cron", self._failures[call])

    def _kill(self) -> None:
        """Send KILL to the child and to all processes that the child has started."""
        if self._child is None or os.getpid() != self._owner:
            return
        (pid, link), self._child = self._child, None
        link.close()
        tree.kill_all_below(pid)
        tree.send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start() -> None:
    """Start the child now, for a command that will have threads: it must not fork then."""
    _helper().start()


def find(call: Call) -> NextAfter:
    """Find a trigger class in a child of this process; see `psched.base.loader.loading_by`."""
    return _helper().find(call)


@cache
def _helper() -> _Helper:
    return _Helper()


def _receive(link: Link) -> Any:  # noqa: ANN401  # any message
    """Return the child's answer; None if the child has exited, or has not answered in time."""
    waiter = select.poll()
    waiter.register(link, select.POLLIN)
    until = CLOCK.monotonic() + DEADLINE
    while not link.closed and (left := until - CLOCK.monotonic()) > 0:
        waiter.poll(1000 * left)
        if messages := link.receive():
            return messages[0]
    return None


def _run_child(command: int, link: Link) -> int:
    """Answer the command's questions, in the child, until the command closes the link."""
    unblock()
    kernel.die_with_parent(command)
    limit_memory()
    # Standard output is redirected to standard error, because the output of a trigger must not be
    # mixed with the output of the command.
    os.dup2(2, 1)
    # __main__ is replaced by an empty module, because a trigger class in __main__ is a class of the
    # program that declared the schedule, and must not be looked up in this command.
    sys.modules["__main__"] = ModuleType("__main__")
    process = os.getpid()
    answers: dict[str, NextAfter] = {}
    while (question := link.wait()) is not None:
        answer = _answer(question, answers)
        if os.getpid() != process:
            return 0  # the trigger has forked, and this is the copy: only the original answers
        flush_output()
        link.deliver(answer)
    return 0


def _answer(question: Mapping[str, Any], answers: dict[str, NextAfter]) -> dict[str, Any]:
    call, instant = question["call"], question["instant"]
    try:
        if call["text"] not in answers:
            answers[call["text"]] = load_here(Call(**call))
        return {"time": None if instant is None else answers[call["text"]](instant)}
    except NotLoadedError as error:
        return {"absent": error.problem[:_LONGEST_PROBLEM]}
    except InvalidError as error:
        return {"wrong": error.problem[:_LONGEST_PROBLEM]}
    except BaseException as error:  # noqa: BLE001  # a user's code can raise anything
        problem = f"asking {call['name']} raised {described(error)}"
        return {"wrong": problem[:_LONGEST_PROBLEM]}
