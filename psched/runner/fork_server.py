"""The fork server: a process that only forks a worker's runners.

::

    worker ─┬─ fork server ─┬─ runner
            │               └─ runner
            └─ orphans of ended runners: the worker adopts them, not the fork server

The cost of a fork grows with the memory of the parent, and with each page that parent or child
writes afterwards. A worker would be an expensive parent, because it has loaded its database driver,
and writes to its memory while its runners run. So a fork server forks the runners. It is executed
anew with as little memory as possible, or forked from the worker if only that has the handlers, and
sleeps between two forks.

The kernel kills runners when their fork server dies, and the fork server when the worker dies. A
runner that has ended stays a zombie until the worker has recorded its end. Until then the pid is
not reused, so a signal to the runner cannot reach another process.
"""

import logging
import os
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.output.captured import Pipe
from psched.output.collection import OutputCollection
from psched.process import tree
from psched.process.child import Exit
from psched.process.link import MOST_DESCRIPTORS, Channel, Link
from psched.process.spawn import launch
from psched.runner.forker import Origin
from psched.runner.messages import FROM_FORK_SERVER, TO_FORK_SERVER

_log = logging.getLogger("psched.worker")

MOST_AT_ONCE = MOST_DESCRIPTORS // 2
"""The maximum number of forks per order. It is small, because running tasks can be guarded only
between two orders, and larger orders would save nothing."""

_STEP = 1.0
"""Seconds between two checks whether an answer or a report of the fork server is overdue."""

_ORDER = 0
"""The key of an order in `_owed`, which says since when an answer or a report is owed. The other
keys are pids of runners whose end has not been reported."""

_MOST_MESSAGES = 100
"""The maximum number of messages from a fork server that one call of `exits` handles."""


class Ordered(NamedTuple):
    """A runner that the fork server was told to fork.

    Attributes:
        place: its slot number.
        link: the worker's end of its link.
        pipe: carries its output; None if its output is not collected.
    """

    place: int
    link: Link
    pipe: Pipe | None

    def close(self) -> None:
        """Close everything, because the runner was not forked."""
        self.link.close()
        if self.pipe is not None:
            self.pipe.close()


class Born(NamedTuple):
    """A runner that was forked: its pid, and the fields of `Ordered`."""

    place: int
    pid: int
    link: Link
    pipe: Pipe | None


class ForkServer:
    """The worker's side of a fork server: starts it, sends orders, and receives its reports.

    Args:
        origin: how it comes into being.
        places: the number of slots, which is the maximum number of runners at one time.
        clock: measures when an answer is overdue.
        hold_up: the maximum time in seconds for which `fork` can block the worker: for all its
            calls that wait for the same order together.
        patience: if the fork server has not answered an order or has not reported the end of a
            runner for this many seconds, it counts as hanging and is killed.
        output: creates the pipes of the runners; None if their output is not collected.

    Attributes:
        pid: the pid of the fork server.
        channel: the connection to the fork server; readable when a runner has ended.
        is_own: whether it is known to run the code of this psched.
        has_loaded: whether it has loaded the handlers, or has tried to.
        failure: why it cannot load them; None if it can.
        types: the types that have a handler; None if any may have one.
        leaves_programs: whether it has told that its handlers leave tasks of type ``exec`` to
            psched, so that program runners may run them.
        for_programs: the pids of those runners that run programs, and nothing else; see
            `psched.process.program_runner`.

    Raises:
        OSError: the system has no process or memory left.
        RuntimeError: this process has a second thread.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        places: int,
        clock: Clock,
        hold_up: float,
        patience: float,
        output: OutputCollection | None = None,
    ) -> None:
        self._origin = origin
        self._output = output
        self.is_own = origin.code is None
        self.has_loaded = not origin.loads
        self._has_store = False
        self.failure: str | None = None
        self.types: Sequence[str] | None = None
        self.leaves_programs = False
        self.channel, theirs = Channel.pair(FROM_FORK_SERVER, TO_FORK_SERVER)
        try:
            keep = [theirs.fileno(), *origin.keep]
            self.pid = launch(partial(origin.become, theirs), keep=keep)
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self._clock = clock
        self._hold_up = hold_up
        self._patience = patience
        self._watched = clock.monotonic()
        self._owed: dict[int, float] = {}
        self._free = [*range(places)]
        self._places: dict[int, int] = {}
        self._ordered: list[Ordered] = []
        self._are_for_programs = False
        self.for_programs: set[int] = set()
        self._answer: dict[str, Any] | None = None
        self._exits: list[Exit] = []

    @property
    def owes(self) -> bool:
        """Whether the fork server has not answered an order yet."""
        return bool(self._ordered) and self._answer is None

    @property
    def untaken(self) -> bool:
        """Whether `late` or `exits` would return something that was received already."""
        return bool(self._exits) or self._answer is not None

    @property
    def wakes(self) -> float:
        """When to call `late`, `exits` and `watch` again, seconds of the monotonic clock.

        inf if only a readable `channel` is a reason to call them.
        """
        if self.untaken:
            return 0.0
        return self._watched + _STEP if self._owed or self.owes else inf

    def receive(self, wait: float) -> None:
        """Wait for a message, at most so many seconds; `exits` and `late` return what it tells."""
        if (received := self.channel.receive(wait=wait)) is not None:
            self._handle(received[0])

    def watch(self, runners: Iterable[int]) -> None:
        """KILL the fork server if an answer, or the report of a runner's end, is overdue."""
        now = self._clock.monotonic()
        if now < self._watched + _STEP:
            return
        owed = {pid: now for pid in runners if pid in self._places and not tree.alive(pid)}
        if self.owes:
            owed[_ORDER] = now
        # If all processes were stopped for a while, half of the patience counts, so that the fork
        # server has the other half to answer. A request and a fork do not block the worker longer.
        most = self._patience / 2
        for each, since in self._owed.items():
            if each in owed:
                owed[each] = since + max(0.0, now - max(since, self._watched) - most)
        self._owed = owed
        if any(now - since > self._patience for since in owed.values()):
            _log.error("the fork server hangs: killing it")
            tree.send(self.pid, signal.SIGKILL)
            self._owed = {}
        self._watched = now

    def fork(self, count: int) -> list[Born]:
        """Order runners, unless an earlier order was not answered yet, and wait for the answer."""
        until = self._clock.monotonic() + self._hold_up
        while not (self.has_loaded or self.channel.closed) and self._clock.monotonic() < until:
            self.receive(until - self._clock.monotonic())
        if self.channel.closed or self.failure is not None:
            raise BrokenPipeError("the fork server has died")
        if not self.has_loaded:
            raise TimeoutError("the fork server is loading the handlers")
        if not self._ordered:
            self._order(min(count, MOST_AT_ONCE, len(self._free)))
        until = self._owed.get(_ORDER, self._clock.monotonic()) + self._hold_up
        while self.owes:
            left = until - self._clock.monotonic()
            if self.channel.closed:
                self._born(())
                raise BrokenPipeError("the fork server has died")
            if left <= 0:
                raise TimeoutError("the fork server does not answer")
            self.receive(left)
        answer, born = self._answer or {}, self.late()
        if answer["refused"] is not None:
            raise RuntimeError(answer["refused"])
        if not born:
            raise OSError(answer["error"], os.strerror(answer["error"]))
        return born

    def order(self, count: int, *, programs: bool = False) -> None:
        """Order runners without waiting for the answer; `late` returns them when it has arrived.

        If an earlier order was not answered yet, or no slot is free, nothing is ordered.
        """
        count = min(count, MOST_AT_ONCE, len(self._free))
        if count > 0 and self.has_loaded and not self._ordered:
            self._order(count, programs=programs)

    def late(self) -> list[Born]:
        """Return the runners of an order for whose answer `fork` does not wait any more."""
        if self._answer is None:
            return []
        answer, self._answer = self._answer, None
        return self._born(answer["born"])

    def exits(self) -> list[Exit]:
        """Return the ends of runners that were reported since the last call.

        The ended runners stay zombies until `bury` is called.
        """
        # The number of messages is limited, because a flood of them must not block the worker.
        for _ in range(_MOST_MESSAGES):
            if (received := self.channel.receive()) is None:
                break
            self._handle(received[0])
        exits, self._exits = self._exits, []
        return exits

    def load_store(self) -> None:
        """Have it load the modules of the store, so that later runners need not."""
        if not self._has_store:
            self._has_store = True
            with suppress(OSError):  # it has died
                self.channel.send({"load": True})

    @property
    def unburied(self) -> Collection[int]:
        """The pids of all runners that the fork server has forked and that were not buried."""
        return self._places.keys()

    def bury(self, pids: Sequence[int]) -> None:
        """Have these zombies reaped, and free their slots.

        Send no signal to these pids after this call, because the kernel can reuse the pids.
        """
        self._free += [self._places.pop(pid) for pid in pids]
        self.for_programs.difference_update(pids)
        with suppress(OSError):
            self.channel.send({"bury": pids})

    def close(self) -> None:
        """Close the connection: the fork server exits, and then the kernel kills its runners."""
        self.channel.close()
        self._born(())

    def _order(self, count: int, *, programs: bool = False) -> None:
        if count < 1:
            raise BlockingIOError("no place for another runner: killed runners have not exited yet")
        pairs = Link.pairs(count)
        pipes = self._open_pipes(len(pairs))
        ordered = [
            Ordered(place, end, pipe)
            for place, (end, _), pipe in zip(self._free, pairs, pipes, strict=False)
        ]
        try:
            theirs = [end.fileno() for _, end in pairs]
            theirs += [each.pipe.writer for each in ordered if each.pipe is not None]
            places = [each.place for each in ordered]
            self.channel.send({"fork": places, "programs": programs}, theirs)
        except BaseException:
            for each in ordered:
                each.close()
            raise
        finally:
            for _, end in pairs:
                end.close()
        del self._free[: len(ordered)]
        self._ordered, self._owed[_ORDER] = ordered, self._clock.monotonic()
        self._are_for_programs = programs

    def _open_pipes(self, count: int) -> Sequence[Pipe | None]:
        """The pipes for the output of new runners; None if their output is not collected."""
        pipes: list[Pipe] = []
        if self._output is not None:
            try:
                while len(pipes) < count:
                    pipes.append(self._output.open())
            except OSError:  # no descriptor is left; the runners keep the service's output
                for pipe in pipes:
                    pipe.close()
                pipes.clear()
        return pipes or [None] * count

    def _born(self, pids: Sequence[int]) -> list[Born]:
        """Record the runners that were forked for the last order, and free its unused slots."""
        ordered, self._ordered = self._ordered, []
        self._owed.pop(_ORDER, None)
        for each in ordered[len(pids) :]:
            each.close()
            self._free.append(each.place)
        born = [
            Born(each.place, pid, each.link, each.pipe)
            for pid, each in zip(pids, ordered, strict=False)
        ]
        self._places.update((each.pid, each.place) for each in born)
        if self._are_for_programs:
            self.for_programs.update(each.pid for each in born)
        return born

    def _greet(self, code: Mapping[str, Any]) -> None:
        """Give a fork server that was executed what it needs, if its code is of this psched."""
        expected = self._origin.code
        if expected is None or self.is_own:
            self.channel.cut("a second greeting")
        elif any(expected.get(file) != checksum for file, checksum in code.items()):
            self.channel.close()
        else:
            self.is_own = True
            made: list[int] = []
            try:
                for content in self._origin.contents:
                    made.append(os.memfd_create("psched", os.MFD_CLOEXEC))
                    os.write(made[-1], content)
                self.channel.send({"go": True}, [*made, *self._origin.files])
            except OSError:
                self.channel.close()  # it has died, or no descriptor is left
            finally:
                for each in made:
                    os.close(each)

    def _handle(self, message: dict[str, Any]) -> None:
        if "hello" in message:
            self._greet(message["hello"])
            return
        if "loaded" in message:
            if self.has_loaded:
                self.channel.cut("twice that it has loaded its handlers")
            self.has_loaded = True
            self.types, self.failure = message["loaded"], message["failed"]
            self.leaves_programs = message["programs"]
            return
        if "ended" in message:
            known = self._places.keys() | (self._answer or {"born": ()})["born"]
            known -= {each.pid for each in self._exits}
            for pid, *how in message["ended"]:
                if pid not in known:
                    self.channel.cut("the end of a process that it has not forked")
                    return
                known.remove(pid)
                self._exits.append(Exit(pid, *how))
            return
        born = message["born"]
        if not self.owes or len(born) > len(self._ordered):
            self.channel.cut("an answer that nobody has asked for")
        elif len({*born}) < len(born) or not self._places.keys().isdisjoint((*born, self.pid)):
            self.channel.cut("a process that was forked twice")
        else:
            self._answer = message
