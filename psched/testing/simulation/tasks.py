"""The tasks of a simulation, and what was seen of them."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from psched.process.child import Exit
from psched.runner.runner_pool import RunnerChild
from psched.testing.simulation.world import HostClock
from psched.testing.witnesses import Witness

if TYPE_CHECKING:
    from psched.testing.simulation.machine import Machine
from psched.testing.worker_driver import ManualRunner, ManualRunnerPool

_IDENTITY = ("key", "scheduled_time", "attempt", "owner", "fence")
"""What a task is told about itself, and a witness keeps."""


class SimulatedRunner(ManualRunner):
    """A runner whose tasks take some time, and end in one of many ways."""

    def __init__(self, pid: int, pool: "SimulatedPool") -> None:
        super().__init__(pid, pool.clock)
        self._pool, self._machine = pool, pool.machine
        self._witness: Witness | None = None
        self._dies = False
        self._asked = 0
        self._then: Callable[[], None] | None = None

    @override
    def receive(self) -> None:
        super().receive()
        if self._then is not None and len(self.answers) >= self._asked:
            then, self._then = self._then, None
            then()
        if self.assignment is not None and self._witness is None and not self._dies:
            self._begin()

    def _begin(self) -> None:
        given, rng = self.assignment, self._machine.rng
        assert given is not None  # for mypy: the caller has checked it
        self._witness = witness = Witness(
            **{name: given[name] for name in _IDENTITY},
            host=self._machine.host.name,
            started=self._machine.host.world.now,
            store_time=self._machine.store_time(),
        )
        self._machine.saw(witness)
        seconds = rng.choice([rng.uniform(0.01, 1), rng.uniform(0.01, 20), rng.expovariate(0.04)])
        how = rng.choices(["done", "failed", "crashed", "released"], [85, 9, 3, 3])[0]
        self._machine.after(seconds, lambda: self._leave(witness, how))
        if rng.random() < 0.3:  # noqa: PLR2004
            self._machine.after(seconds / 2, lambda: self._extend(witness))

    def _extend(self, witness: Witness) -> None:
        if self._witness is witness and not self._dies and self._then is None:
            requests = {"extend": True}, {"update_data": True, "data": b"{}"}
            self._ask(lambda: None, **self._machine.rng.choice(requests))

    def _ask(self, then: Callable[[], None], **question: Any) -> None:  # noqa: ANN401  # a message
        """Send the worker a request; the task waits for the answer."""
        self._asked, self._then = len(self.answers) + 1, then
        self.ask(**question)
        self._pool.wake()

    def _leave(self, witness: Witness, how: str) -> None:
        """Have the task end by itself, unless something else has ended it."""
        if self._witness is not witness or self._dies:
            return
        if how == "crashed":
            self.leave(Exit(self.pid, None, signal.SIGSEGV))
            return
        if self._then is not None:
            self._then = lambda: self._leave(witness, how)
        elif how == "released":
            self._ask(lambda: self._done(witness, how), decide="release")
        else:
            self._done(witness, how)

    def _done(self, witness: Witness, how: str) -> None:
        if self._witness is witness and not self._dies:
            witness.ended, self._witness = self._machine.host.world.now, None
            witness.completed = how == "done"
            self.finish("ValueError: simulated" if how == "failed" else None)
            self._pool.wake()

    @override
    def send(self, number: signal.Signals) -> None:
        if self.exit is not None or self.pending_exit is not None:
            return
        if number is signal.SIGKILL:
            self.killed = True
            self.dies()
        elif self._witness is not None and self._machine.rng.random() < 0.5:  # noqa: PLR2004
            witness = self._witness
            self._machine.after(self._machine.rng.random(), lambda: self._leave(witness, "failed"))

    def dies(self) -> None:
        """End the runner by KILL, as soon as the kernel has come to it."""
        if self._dies:
            return
        self._dies, how = True, Exit(self.pid, None, signal.SIGKILL)
        if self._machine.died_at is not None:
            self.leave(how)
        else:
            self._machine.after(self._machine.rng.uniform(0, 0.2), lambda: self.leave(how))

    def leave(self, how: Exit) -> None:
        """End the runner now."""
        self._dies = True
        if self._witness is not None:
            died_at = self._machine.died_at
            self._witness.ended = self._machine.host.world.now if died_at is None else died_at
            self._witness = None
        if self.pending_exit is None and self.exit is None:
            self.exit_with(how.status, how.signal)
        self._pool.ended(self)


class SimulatedPool(ManualRunnerPool):
    """The runners of a simulated worker."""

    def __init__(self, machine: "Machine", clock: HostClock, wake: Callable[[], object]) -> None:
        super().__init__(clock)
        self.machine = machine
        self.clock = clock
        self.wake = wake  # has the worker see what its runners have sent

    @override
    def _create(self) -> None:
        runner = SimulatedRunner(self.machine.draw_pid(), self)
        self.runners.append(runner)
        self._idle.append(runner)

    def ended(self, runner: SimulatedRunner) -> None:
        """Note that a runner has ended."""
        self.machine.runner_ended(runner.pid)
        self.wake()

    def die(self) -> list[int]:
        """Kill all runners, as the kernel does when their parent has died; return their pids."""
        living = [r for r in self.runners if r.exit is None and r.pending_exit is None]
        for runner in living:
            if isinstance(runner, SimulatedRunner):
                runner.dies()
        for runner in self.runners:
            runner.stop_flags.close()
        self.close()
        return [runner.pid for runner in living]

    def vanish(self) -> None:
        """End all runners at once, as a power failure does."""
        for runner in self.runners:
            if isinstance(runner, SimulatedRunner):
                runner.leave(Exit(runner.pid, None, signal.SIGKILL))

    def kill_one(self) -> None:
        """Kill a runner that runs a task, if there is one."""
        busy = [runner for runner in self.runners if runner.assignment is not None]
        if busy:
            self.machine.rng.choice(busy).send(signal.SIGKILL)

    @override
    def kill(self, runner: RunnerChild) -> None:
        runner.send(signal.SIGKILL)
