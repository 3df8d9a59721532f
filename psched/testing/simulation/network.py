"""The way from a simulated process to the store: it delays, loses and doubles what is said."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from psched.base.errors import PschedError, StoreUnavailableError, UnknownOutcomeError
from psched.core.store_protocol import ClaimUnknownError
from psched.testing.simulation.world import Process, World

if TYPE_CHECKING:
    from collections import deque

_READS = frozenset(
    {
        *("now", "get", "rows", "look", "marked", "held", "backlog", "count", "examine"),
        *("problem", "runs", "last_runs", "workers", "audits", "pause_rules", "try_rights"),
    }
)
"""The methods of a store, and of its parts, that change nothing."""

WRITES = frozenset(
    {
        *("add", "replace", "replace_and_record", "delete", "update_data", "change_pause_rules"),
        *("claim", "hold", "release", "extend", "settle", "recover", "purge"),
        "settle_and_claim",
        *("record", "trim", "trim_key", "beat", "audit"),
    }
)
"""The methods of a store, and of its parts, that change something."""

_PARTS = {
    **dict.fromkeys(("problem", "runs", "last_runs", "workers", "audits"), "history"),
    **dict.fromkeys(("record", "trim", "trim_key", "beat", "audit"), "history"),
    **dict.fromkeys(("pause_rules", "change_pause_rules"), "pauses"),
    **dict.fromkeys(("hold", "release"), "holds"),
    "replace_and_record": "recorded_changes",
}
"""The attributes of a store that have these methods; the store itself has the others."""

_GRANTS = frozenset({"claim", "hold", "settle_and_claim"})
"""The requests whose loss leaves a row that nobody else can have for a while."""

_SLOW = 0.01  # how many of the ways take up to a second


class CallFault(StrEnum):
    """What goes wrong with one request to the store."""

    NOT_SENT = "not_sent"
    """Nothing is applied, and the caller is told so."""
    UNANSWERED = "unanswered"
    """It is applied, but the answer is lost."""
    LATE_ANSWER = "late_answer"
    """The answer comes just before the driver would give up."""
    APPLIED_LATE = "applied_late"
    """The driver gives up before the store applies it."""
    KILLED = "killed"
    """The process is killed when the store has applied it."""
    FROZEN = "frozen"
    """The process is stopped for longer than a lease when the store has applied it."""


@dataclass(slots=True)
class Network:
    """Decides what happens to each request."""

    world: World  # the time
    rng: random.Random  # decides
    timeout: float  # the driver's timeout, in seconds
    freeze: float  # for how many seconds a process is stopped by `CallFault.FROZEN`
    # What happens to single requests, by their numbers, from 1.
    planned: Mapping[int, CallFault] = field(default_factory=dict)
    calls: int = 0  # how many requests were sent
    # The hosts that do not reach the store, each with the number of reasons; "" means all.
    cut: dict[str, int] = field(default_factory=dict)
    bad: float = 0.0  # how probable a random fault of a request is
    loses_claims: bool = False  # whether no claim is answered
    # Called with each request that changes something, just before and after it is applied; see
    # `psched.testing.simulation.observer.Observer`.
    observe: Callable[[Process, str, tuple[Any, ...], Callable[[], Any]], Any] | None = None
    # Each fault of a request: its time, the host and the fault.
    happened: list[tuple[float, str, CallFault]] = field(default_factory=list)

    def cut_off(self, host: str, seconds: float) -> None:
        """Cut a host off the store for some time; "" means all hosts."""
        self.cut[host] = self.cut.get(host, 0) + 1

        def restore() -> None:
            if self.cut.get(host):
                self.cut[host] -= 1

        self.world.after(seconds, restore)

    def fault_of(self, process: Process, name: str) -> CallFault | None:
        """Count a request, and say what goes wrong with it; None if nothing does."""
        self.calls += 1
        fault = self.planned.get(self.calls)
        if self.cut.get("") or self.cut.get(process.host.name):
            fault = CallFault.NOT_SENT
        elif self.loses_claims and name in _GRANTS:
            fault = self.rng.choice([CallFault.UNANSWERED, CallFault.APPLIED_LATE])
        elif fault is None and self.bad and self.rng.random() < self.bad:
            fault = self.rng.choice([*CallFault])
        if fault is not None:
            self.happened.append((self.world.now, process.host.name, fault))
        return fault

    def latency(self) -> float:
        """The seconds of one way."""
        is_slow = self.rng.random() < _SLOW
        return self.rng.random() if is_slow else self.rng.uniform(0.0005, 0.003)

    def request(
        self, process: Process, name: str, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:  # noqa: ANN401  # what the store returns
        """Send a request for a process."""
        fault = self.fault_of(process, name)
        process.pause(self.latency())
        if fault is CallFault.NOT_SENT:
            process.pause(self.rng.choice([0.0, self.timeout]))
            raise StoreUnavailableError("the store cannot be reached")
        if fault is CallFault.APPLIED_LATE:

            def apply_late() -> None:
                with suppress(PschedError):  # nobody waits for it
                    self._apply(process, name, arguments, call)

            self.world.after(self.timeout * self.rng.uniform(1.0, 1.9), apply_late)
            process.pause(self.timeout)
            raise self._unknown(name, arguments)
        answer = self._apply(process, name, arguments, call)
        if fault is CallFault.KILLED:
            process.kill()
        if fault is CallFault.FROZEN:
            process.freeze()
            self.world.after(self.freeze, process.thaw)
        # An answer in pieces can take two timeouts. Requests for rows do not, because the times of
        # records are as wrong as these are slow.
        late = self.timeout * (1.95 if name == "extend" else 0.95)
        process.pause(late if fault is CallFault.LATE_ANSWER else self.latency())
        if fault is CallFault.UNANSWERED or self.cut.get(process.host.name):
            raise self._unknown(name, arguments)
        return answer

    def _apply(
        self, process: Process, name: str, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:  # noqa: ANN401  # what the store returns
        if self.observe is not None and name in WRITES:
            return self.observe(process, name, arguments, call)
        return call()

    def _unknown(self, name: str, arguments: tuple[Any, ...]) -> Exception:
        if name in {"claim", "settle_and_claim"}:
            return ClaimUnknownError(arguments[name != "claim"], ())
        kind = UnknownOutcomeError if name in WRITES else StoreUnavailableError
        return kind("the store did not answer")


class Connection:
    """A store as a simulated process sees it: each call of a method is a request."""

    def __init__(self, store: Any, network: Network, process: Process) -> None:  # noqa: ANN401
        self._store = store
        self._network = network
        self._process = process
        self.lost_records = 0
        self.unwritten: deque[Any] | None = store.history.unwritten
        # All parts of the store are one object.
        self.history = self.pauses = self.holds = self.recorded_changes = self
        self.output = self.alerts = self.announcements = self.light_reads = None

    def disconnect(self) -> None:
        """Close the store; this asks nobody."""
        self._store.disconnect()


def _method(name: str) -> Callable[..., Any]:
    part = _PARTS.get(name)

    def method(self: Connection, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        def call() -> Any:  # noqa: ANN401
            target = self._store if part is None else getattr(self._store, part)
            answer = getattr(target, name)(*arguments, **options)
            # What a store reads in chunks is one request here.
            return iter([*answer]) if isinstance(answer, Iterator) else answer

        return self._network.request(self._process, name, arguments, call)

    method.__name__ = name
    return method


for _name in _READS | WRITES:
    setattr(Connection, _name, _method(_name))
