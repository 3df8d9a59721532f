"""Does to the processes, the network and the store what the plan says, and heals it.

A fault is a generator, which yields the seconds until it goes on. So all faults run in one thread,
the main one, to which the life of the private servers is tied.

On one host, one fault of processes is over before the next begins, because psched makes no promise
if a master and its workers are hit at the same moment; see "What no supervisor can promise" in
docs/faults.md. What hits a whole host hits the tasks, too.
"""

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from psched.testing.simulation.plan import Step
from psched.testing.witnesses import Fault
from support.chaos.journal import Journal, now
from support.processes import children, descendants, kill, runners, title
from support.proxy import Fault as Lost
from support.proxy import Proxy
from support.run_log import Run
from support.servers.base import Server
from support.service import Master, Service
from support.waiting import PATIENCE, has_ended, wait_until

Course = Generator[float]

_OFTEN = 0.05
"""Seconds between two looks at something that is awaited."""

_MOST_PATIENCE = 5.0
"""Seconds for which a fault waits for a process that it can hit, such as a busy worker."""

_LONGEST_FREEZE = 1.2
"""Seconds. While a whole host stands still, the kernel may kill a worker when its lease ends soon,
and nobody can kill what its tasks have started before the lease ends, some two seconds later."""

_STARTS = 3.0
"""Seconds until a master has begun."""

_LOST = {
    "lose a request": Lost.LOSE_REQUEST,
    "lose an answer": Lost.LOSE_REPLY,
    "late": Lost.HOLD_REQUEST,
}


@dataclass(slots=True)
class Host:
    """A master with all that belongs to it.

    Attributes:
        name: its name.
        service: its folder.
        second: the folder of other masters of this name, which also have the label ``second``.
        proxy: its way to the store; None if the store is a file.
        masters: all its masters, the last one of which is to run.
        seconds: all masters of the second folder.
        is_down: whether the last one was ended on purpose.
    """

    name: str
    service: Service
    second: Service
    proxy: Proxy | None
    masters: list[Master]
    seconds: list[Master] = field(default_factory=list)
    is_down: bool = False

    @property
    def master(self) -> Master:
        """The last master."""
        return self.masters[-1]

    def start(self) -> None:
        """Start a master."""
        self.masters.append(self.service.start(generation=0))
        self.is_down = False

    def runs(self) -> list[Run]:
        """All runs here."""
        return [*self.service.runs.runs(), *self.second.runs.runs()]

    def processes(self, kind: str) -> list[int]:
        """The living processes of a kind; of workers and tasks, those that are busy."""
        workers = self.master.workers()
        if kind == "master":
            return [] if self.master.status is not None else [self.master.pid]
        if kind == "worker":
            return [pid for pid in workers if any(map(_runs_a_task, runners(pid)))]
        if kind == "task":
            found = [pid for worker in workers for pid in runners(worker)]
            return [pid for pid in found if _runs_a_task(pid)]
        found = [pid for worker in workers for pid in children(worker)]
        return [pid for pid in found if title(pid) == f"psched {kind}"]


class Nemesis:
    """Carries out the faults of a plan.

    Args:
        hosts: the hosts.
        store: the store: a server, or the file of SQLite's database.
        journal: what was done is noted there.

    Attributes:
        faults: what was done.
        counts: how often each kind of fault has happened.
    """

    def __init__(self, hosts: Sequence[Host], store: Server | str, journal: Journal) -> None:
        self.faults: list[Fault] = []
        self.counts = Counter[str]()
        self._hosts = hosts
        self._store = store
        self._journal = journal
        self._busy = set[str]()
        self._closing = False

    def run(self, steps: Iterable[Step], seconds: float) -> None:
        """Carry out all steps at their times, and wait until all is healed."""
        begun, numbers = now(), count()
        heap: list[tuple[float, int, Course]] = []
        for step in steps:
            heappush(heap, (begun + step.at, next(numbers), self._carry_out(step)))
        heappush(heap, (begun, next(numbers), self._keep_masters()))
        while heap:
            due, _, course = heappop(heap)
            wait_until(lambda due=due: now() >= due, what="the next step")
            # A fault that still waits for its turn then has none.
            self._closing = now() >= begun + seconds
            over = now() >= begun + seconds + PATIENCE
            assert not over, f"faults that are never over: {sorted(self._busy)}"
            with suppress(StopIteration):
                heappush(heap, (now() + next(course), next(numbers), course))

    def _carry_out(self, step: Step) -> Course:
        host = self._hosts[step.place]
        course, place = self._course(step, host)
        while place in self._busy:
            yield _OFTEN
        if self._closing:
            return
        self._busy.add(place)
        at = now()
        self._journal.note(f"{place}: {step.what} ({step.seconds:.1f} s)")
        self.counts[step.what] += 1
        yield from course
        self._journal.note(f"{place}: {step.what}: over")
        self._busy.discard(place)
        at_host = None if place == "store" else host.name
        self.faults.append(Fault(at=at, until=now(), host=at_host, what=step.what))

    def _course(self, step: Step, host: Host) -> tuple[Course, str]:
        """What happens, and where: at one place, one fault is over before the next begins."""
        if host.proxy is not None and step.what in {"cut", "black hole", "slow answers", *_LOST}:
            return self._disturb(host.proxy, step), f"{host.name} network"
        if step.what.endswith("the store"):
            return self._hit_store(step), "store"
        if step.what == "hup":  # other faults may happen meanwhile
            return self._restart(host), f"{host.name} hup"
        if step.what == "two masters":
            return self._add_second_master(host, step), f"{host.name} second"
        courses: dict[str, Callable[[], Course]] = {
            "another name": lambda: self._return_as_another(host, step),
            "freeze a host": lambda: self._freeze(host, min(step.seconds, _LONGEST_FREEZE)),
            "power failure": lambda: self._lose_power(host, step.seconds),
            "term": lambda: self._end_master(host, signal.SIGTERM, step.seconds),
            "kill a master": lambda: self._end_master(host, signal.SIGKILL, step.seconds / 4),
        }
        return courses.get(step.what, lambda: self._hit_process(host, step))(), host.name

    # --- masters ---------------------------------------------------------------------------

    def _keep_masters(self) -> Course:
        """Start a master again that has ended by itself, as a service manager does."""
        while not self._closing:
            self._start_what_has_ended()
            yield _OFTEN

    def _start_what_has_ended(self) -> None:
        for host in self._hosts:
            if not host.is_down and host.master.status is not None:
                self._journal.note(f"{host.name}: the master has ended with {host.master.status}")
                at = now()
                host.start()
                self.faults.append(Fault(at=at, until=now(), host=host.name, what="restart"))

    def heal(self) -> None:
        """Start the masters that do not run."""
        self._start_what_has_ended()

    def _end_master(self, host: Host, number: signal.Signals, seconds: float) -> Course:
        master = host.master
        if master.status is None:
            host.is_down = True
            kill(master.pid, number)
            yield from _until(lambda: master.status is not None)
            yield from _until(lambda: not master.descendants)
            yield seconds
            host.start()

    def _restart(self, host: Host) -> Course:
        master, old = host.master, host.master.workers()
        if not host.is_down and master.status is None:
            kill(master.pid, signal.SIGHUP)
            # A worker that was killed is replaced by one of its generation: those that were there.
            yield from _until(lambda: master.status is not None or _all_ended(old))

    def _lose_power(self, host: Host, seconds: float) -> Course:
        master, host.is_down = host.master, True
        stopped: set[int] = set()
        while new := {*master.descendants} - stopped:  # so that none has a moment to act
            _send_all(new, signal.SIGSTOP)
            stopped |= new
        _send_all(stopped, signal.SIGKILL)
        yield from _until(lambda: not master.descendants)
        yield seconds
        host.start()

    def _return_as_another(self, host: Host, step: Step) -> Course:
        """End the master, and start it under another name; after some time it is itself again."""
        for name, lasts in ((other_name(host.name), step.seconds), (host.name, 0.0)):
            master, host.is_down = host.master, True
            kill(master.pid, (signal.SIGTERM, signal.SIGKILL)[step.number % 2])
            yield from _until(lambda m=master: m.status is not None and not m.descendants)
            host.service.configure(host_name=name)
            host.start()
            yield lasts

    def _add_second_master(self, host: Host, step: Step) -> Course:
        """Let another master of the same name, which has another label, run for some time."""
        master = host.second.start(generation=0)
        host.seconds.append(master)
        yield _STARTS + step.seconds
        kill(master.pid, (signal.SIGTERM, signal.SIGKILL)[step.number % 2])
        yield from _until(lambda: master.status is not None and not master.descendants)

    def _freeze(self, host: Host, seconds: float) -> Course:
        """Stop all that runs on a host; other faults must not make it longer, so they wait."""
        with _stopped(host.master.descendants):
            since = now()
            wait_until(lambda: now() >= since + seconds, what="the end of a freeze")
        yield 0.0

    # --- processes -------------------------------------------------------------------------

    def _hit_process(self, host: Host, step: Step) -> Course:
        how, _, kind = step.what.split(" ", 2)
        since = now()
        while not (found := host.processes(kind)):
            if now() > since + _MOST_PATIENCE:
                return
            yield _OFTEN
        pid = found[step.number % len(found)]
        below = descendants(pid)
        self._journal.note(f"{host.name}: {how} {pid}, {title(pid)}")
        if how == "kill":
            kill(pid)
            yield from _until(lambda: has_ended(pid))
        else:
            with _stopped([pid]):
                yield step.seconds
        # A process that is stopped may be killed. What it had started is killed by another one,
        # which must not be hit before that.
        if has_ended(pid):
            yield from _until(lambda: _all_ended(below))

    # --- network and store -----------------------------------------------------------------

    def _disturb(self, proxy: Proxy, step: Step) -> Course:
        if step.what == "cut":
            proxy.cut()
        elif step.what == "black hole":
            with proxy.black_hole():
                yield step.seconds
        elif step.what == "slow answers":
            with proxy.slow(min(step.seconds / 4, 1.0)):
                yield step.seconds
        else:
            with suppress(AssertionError), proxy.fault(_LOST[step.what], b""):
                yield step.seconds  # the next request is met, if there is one
            proxy.release_late()

    def _hit_store(self, step: Step) -> Course:
        store = self._store
        if isinstance(store, str):
            with ExitStack() as closing:
                database = sqlite3.connect(store, timeout=60, isolation_level=None)
                closing.callback(database.close)
                database.execute("BEGIN IMMEDIATE")
                yield step.seconds
        elif step.what == "stop the store":
            with _stopped([store.pid, *descendants(store.pid)]):
                yield step.seconds
        else:
            end = store.kill if step.what == "kill the store" else store.stop
            end()
            yield step.seconds / 2
            store.start()


def other_name(host: str) -> str:
    """The name under which a host returns for some time."""
    return host.replace("h", "x")


def _runs_a_task(runner: int) -> bool:
    # It has the title of its fork server until it has begun.
    return title(runner).startswith("psched runner: ") and "idle" not in title(runner)


def _until(condition: Callable[[], bool]) -> Course:
    while not condition():
        yield _OFTEN


def _all_ended(pids: Iterable[int]) -> bool:
    return all(has_ended(pid) for pid in pids)


@contextmanager
def _stopped(pids: Iterable[int]) -> Generator[None]:
    """Within the block, processes are stopped, and no others that get their pids."""
    with ExitStack() as opened:
        for pid in pids:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                opened.callback(os.close, descriptor)
                opened.callback(_send, descriptor, signal.SIGCONT)
                _send(descriptor, signal.SIGSTOP)
        yield


def _send(descriptor: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def _send_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        kill(pid, number)
