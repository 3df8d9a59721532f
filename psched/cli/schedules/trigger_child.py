"""Triggers of the users' own, asked by a child of the command: what hangs or crashes is the child.

A command may be run by somebody who may do more than the service, and who waits for its answer. The
child is forked when the first trigger is to be asked. It is killed, with all that it has started,
when it does not answer in time, and when the command ends.
"""

import atexit
import os
import select
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
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
"""Characters of what is wrong with a trigger."""


class _Elsewhere:
    """Has triggers asked by a child of this process."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._child: tuple[int, Link] | None = None
        self._lost: dict[Call, str] = {}
        atexit.register(self._kill)

    def find(self, call: Call) -> NextAfter:
        """See `psched.triggers.custom.loading_by`."""
        self._ask(call, None)
        return partial(self._ask, call)

    def _ask(self, call: Call, instant: int | None) -> int | None:
        """The first time after an instant; None: only find the class.

        Raises:
            NotLoadedError: there is no such class, or it is not allowed.
            InvalidError: it makes no sense, or the child does not answer.
        """
        if call in self._lost:
            raise InvalidError("cron", self._lost[call])
        if self._child is None:
            self._child = spawn(partial(_live, self._owner))
        _, link = self._child
        link.send({"call": asdict(call), "instant": instant})
        match _heard(link):
            case {"time": int(time)} if type(time) is int:
                return time
            case {"time": None}:
                return None
            case {"absent": str(problem)}:
                raise NotLoadedError("cron", problem)
            case {"wrong": str(problem)}:
                raise InvalidError("cron", problem)
        how = "has ended" if link.closed else f"has not answered within {DEADLINE:g} s"
        self._kill()
        # It would be the same the next time, in a long list of schedules say.
        self._lost[call] = f"the process that asked {call.name} {how}"
        raise InvalidError("cron", self._lost[call])

    def _kill(self) -> None:
        """KILL the child, and all that it has started."""
        if self._child is None or os.getpid() != self._owner:
            return
        (pid, link), self._child = self._child, None
        link.close()
        tree.kill_all_below(pid)
        tree.send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def find(call: Call) -> NextAfter:
    """Find a trigger by a child of this process; see `psched.triggers.custom.loading_by`."""
    return _elsewhere().find(call)


@cache
def _elsewhere() -> _Elsewhere:
    return _Elsewhere()


def _heard(link: Link) -> Any:  # noqa: ANN401  # what a peer says
    """What the child answers; None: nothing."""
    waiter = select.poll()
    waiter.register(link, select.POLLIN)
    until = CLOCK.monotonic() + DEADLINE
    while not link.closed and (left := until - CLOCK.monotonic()) > 0:
        waiter.poll(1000 * left)
        if messages := link.receive():
            return messages[0]
    return None


def _live(command: int, link: Link) -> int:
    """The child's life."""
    unblock()
    kernel.die_with_parent(command)
    limit_memory()
    # What a trigger prints is no part of what the command prints.
    os.dup2(2, 1)
    # The command's own module is not the program that has declared anything.
    sys.modules["__main__"] = ModuleType("__main__")
    process = os.getpid()
    answers: dict[str, NextAfter] = {}
    while (question := link.wait()) is not None:
        answer = _answered(question, answers)
        if os.getpid() != process:
            return 0  # the trigger has forked, and this is the child
        flush_output()
        link.deliver(answer)
    return 0


def _answered(question: Mapping[str, Any], answers: dict[str, NextAfter]) -> dict[str, Any]:
    call, instant = question["call"], question["instant"]
    try:
        if call["text"] not in answers:
            answers[call["text"]] = load_here(Call(**call))
        return {"time": None if instant is None else answers[call["text"]](instant)}
    except NotLoadedError as error:
        return {"absent": error.problem[:_LONGEST_PROBLEM]}
    except InvalidError as error:
        return {"wrong": error.problem[:_LONGEST_PROBLEM]}
    except BaseException as error:  # noqa: BLE001  # whatever a user's code raises
        problem = f"asking {call['name']} raised {described(error)}"
        return {"wrong": problem[:_LONGEST_PROBLEM]}
