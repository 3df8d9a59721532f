"""People who change schedules meanwhile, by the API and by commands; they know of no fault."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace as changed
from typing import Any

from psched.client.collection import ScheduleCollection
from psched.client.each_host import keep_own_rows, retire_gone
from psched.core.history.records import WorkerRecord
from psched.errors import PschedError
from psched.testing.simulation.plan import Step
from support.chaos.journal import Journal, now
from support.chaos.plan import HOSTS, SCHEDULES, TEMPLATES, hosts_of_key
from support.service import Service
from support.waiting import wait_until

_COMMANDS = frozenset({"pause", "resume", "skip", "trigger", "cancel", "requeue", "stop"})
"""The verbs that are commands of the same name, of which every fourth is one."""


def add_all(schedules: ScheduleCollection, seed: int, seconds: float) -> None:
    """Add the schedules that exist at the beginning; see `People`."""
    keys = (f"s{place}" for place in range(len(SCHEDULES)))
    schedules.add_many([{"key": key, **_schedule(schedules, key, seed, seconds)} for key in keys])
    if schedules.access.settings.store_kind.keeps_lanes:
        for place in range(len(TEMPLATES)):
            schedules.add(f"e{place}", **_template(place, seed))


def _hosts(schedules: ScheduleCollection, key: str) -> dict[str, Any]:
    return {"hosts": hosts_of_key(key)} if schedules.access.settings.store_kind.keeps_lanes else {}


def _schedule(schedules: ScheduleCollection, key: str, seed: int, seconds: float) -> dict[str, Any]:
    place = int(key[1:])
    settings, does = SCHEDULES[place % len(SCHEDULES)]
    longest = min(does["longest"], seconds / 3)  # a short chaos is to end soon
    return {
        "type": f"t{place % 3}",
        "data": {"seed": seed, **does, "longest": longest},
        **settings,
        **_hosts(schedules, key),
    }


def _template(place: int, seed: int) -> dict[str, Any]:
    settings, hosts = TEMPLATES[place]
    data = {"seed": seed, "longest": 1}
    return {"type": f"t{place % 3}", "data": data, **settings, "hosts": hosts, "each_host": True}


def retire(schedules: ScheduleCollection, gone: Collection[str]) -> None:
    """Remove the rows of hosts, as another host does when it has not seen them for long."""
    history = schedules.access.store.history
    assert history is not None

    def workers(since: int) -> Iterable[WorkerRecord]:
        return (each for each in history.workers(since) if each.host not in gone)

    for _ in retire_gone(schedules.access, workers):
        pass


class People:
    """Makes changes at their times.

    Args:
        service: what they use.
        steps: what they do.
        seed: the seed, for the tasks.
        seconds: for how long something is done.
        journal: what was done is noted there.

    Attributes:
        counts: how often each change was tried.
    """

    def __init__(
        self,
        service: Service,
        steps: Iterable[Step],
        journal: Journal,
        *,
        seed: int,
        seconds: float,
    ) -> None:
        self.counts = Counter[str]()
        self._service = service
        self._steps = steps
        self._seed = seed
        self._seconds = seconds
        self._journal = journal

    def run(self) -> None:
        """Make all changes."""
        begun = now()
        with self._service.schedules() as schedules:
            for step in self._steps:
                wait_until(lambda at=begun + step.at: now() >= at, what="the next change")
                self.counts[step.what] += 1
                self._journal.note(f"people: {step.what} {step.place}: {self._do(schedules, step)}")

    def _do(self, schedules: ScheduleCollection, step: Step) -> str:
        """Make a change; that it is refused is no fault."""
        what, number, key = step.what, step.number, f"s{step.place}"
        if what in _COMMANDS and number % 4 == 0:
            done = self._service.psched(what, key)
            assert done.returncode in {0, 1}, done.stderr
            return f"psched exits with {done.returncode}"
        if what.endswith(" each"):
            return _tried(lambda: self._change_each(schedules, step))
        if number % 5 == 0 and schedules.access.settings.store_kind.keeps_lanes:
            key = _a_row(step)
        type_, pushed = f"t{step.place % 3}", f"p{number % 20}"
        added, task = f"a{number}", f"p{number}"
        own = _schedule(schedules, added, self._seed, self._seconds)
        seconds = int(step.seconds)

        def now_() -> int:
            return int(schedules.now())

        changes: dict[str, Callable[[], object]] = {
            "push": lambda: schedules.push(
                # The limit is for those of its tasks that never end.
                task,
                type_,
                own["data"],
                run_at=now_() + seconds,
                kill_timeout=6,
                **_hosts(schedules, task),
            ),
            "add": lambda: schedules.add(added, **own),
            "edit": lambda: schedules.edit(key, every=own["every"]),
            "pause": lambda: schedules.pause(key, now_() + 1 + seconds if number % 2 else None),
            "resume": lambda: schedules.resume(key, backfill=number % 3 == 0),
            "skip": lambda: schedules.skip(key, 1 + number % 3),
            "trigger": lambda: schedules.trigger(key, overlap=["queue", "skip"][number % 2]),
            "backfill": lambda: schedules.backfill(key, now_() - 15, now_(), again=number % 2 == 0),
            "cancel": lambda: schedules.cancel(key),
            "requeue": lambda: schedules.requeue(key),
            "stop": lambda: schedules.stop(key),
            "delete": lambda: schedules.delete(pushed),
            "pause_type": lambda: schedules.pause_type(type_, now_() + 1 + seconds // 2),
            "resume_type": lambda: schedules.resume_type(type_, backfill=number % 2 == 0),
        }
        return _tried(changes[what])

    def _change_each(self, schedules: ScheduleCollection, step: Step) -> None:
        """Change a template, or what its hosts have of it."""
        key, number = f"e{step.place}", step.number
        settings, hosts = TEMPLATES[step.place]
        host = _a_row(step).partition("@")[2]

        def look() -> None:
            access, settings = schedules.access, schedules.access.settings
            as_host = changed(access, settings=settings.with_settings(host_name=host))
            for _ in keep_own_rows(as_host, known_for=0, retires=True):
                pass

        edits: Sequence[dict[str, Any]] = (
            {"every": "3s"},
            {"every": settings["every"]},
            {"hosts": [f"h{number % 2}", "h2"]},
            {"hosts": hosts},
        )
        changes: dict[str, Callable[[], object]] = {
            "add": lambda: schedules.add(key, **_template(step.place, self._seed)),
            "edit": lambda: schedules.edit(key, **edits[number % len(edits)]),
            "delete": lambda: schedules.delete(key),
            "look": look,
            "retire": lambda: retire(schedules, [host]),
            "delete row": lambda: schedules.delete(_a_row(step)),
        }
        changes[step.what.removesuffix(" each")]()


def _a_row(step: Step) -> str:
    """The key of the row of some host for a template."""
    host = f"{'hhx'[step.number // 7 % 3]}{step.number // 21 % HOSTS}"
    return f"e{step.place % len(TEMPLATES)}@{host}"


def _tried(change: Callable[[], object]) -> str:
    """Make a change, and say what came of it."""
    try:
        change()
    except PschedError as error:
        return f"{type(error).__name__}: {error}"
    return "done"
