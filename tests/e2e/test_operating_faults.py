"""Each verb amid faults, with real processes: the end is one of the documented states.

`psched verify` finds nothing (`verified`).
"""

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial

import pytest

from psched.core.model import ENDED
from psched.core.operations.extra_runs import schedule_of
from support.operating import EXTRA, REFUSALS, REGULAR, VERBS, Operated, Times
from support.processes import kill
from support.waiting import wait_until

pytestmark = [pytest.mark.verified, pytest.mark.extended]

SERVERS = ("mariadb", "postgresql", "redis")
EACH = ["sqlite", *(pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in SERVERS)]
on = partial(pytest.mark.parametrize, "service", indirect=True)


@pytest.fixture
def service(request, open_database, make_service):
    """A service on each kind of database, its table made; it can run everything at once."""
    with open_database(request.param) as database:
        service = make_service(database.url, concurrency=3 * len(VERBS), output="none")
        service.init()
        yield service
        service.close()


def times_of(schedules):
    return Times(int(schedules.now()))


@on(EACH)
def test_a_verb_just_before_its_worker_dies(service):
    amid_a_death(service, "after")


@on(EACH[:2])
@pytest.mark.parametrize("dies", ["before", "host"])
def test_a_verb_that_finds_the_worker_or_its_host_dead(service, dies):
    amid_a_death(service, dies)


def amid_a_death(service, dies):
    """Apply each verb to schedules that run, or are held for extra runs, whose worker dies.

    Args:
        service: the service.
        dies: "after": the worker dies just after the verbs; "before": just before them; "host":
            before them, with its master, so that its leases have to end.
    """
    if dies == "host":
        service.configure(alive_time=6)
    master = service.start()
    with service.schedules() as schedules:
        times = times_of(schedules)
        cases = [Operated(verb, held, times) for verb in VERBS for held in (REGULAR, EXTRA)]
        held = [case.add(schedules, "recorder", data={"until": "gate"}) for case in cases]
        for key in held:
            service.runs.wait(key)
        for case in cases:
            case.prepare(schedules)
        [worker] = master.workers()
        if dies != "after":
            kill(master.pid, signal.SIGSTOP)  # so that nobody releases the leases meanwhile
            kill(worker)
        for case in cases:
            case.apply(schedules)
        if dies == "after":
            kill(worker)
        elif dies == "before":
            kill(master.pid, signal.SIGCONT)
        else:
            kill(master.pid)
            master = service.start()
        service.open_gate("gate")
        for case in cases:
            wait_until(lambda case=case: case.is_over(schedules), what=f"the end of {case.key}")
            case.check(schedules, died=True)
        assert master.stop() == 0


@on(EACH)
def test_two_operators_at_once(service):
    """Any two verbs at the same time, on schedules that run, and are held for extra runs."""
    service.start()
    pairs = [*itertools.combinations_with_replacement(VERBS, 2)]
    keys = [f"{one}-{two}" for one, two in pairs]
    with service.schedules() as schedules, service.schedules() as others:
        times = times_of(schedules)
        for number, key in enumerate(keys):
            # Every second one is due.
            first = times.last if number % 2 else times.later
            schedules.add(key, "recorder", cron=times.cron, next_time=first)
            schedules[key].trigger()

        def operate(mine, place):
            for key, pair in zip(keys, pairs, strict=True):
                with suppress(*REFUSALS):
                    VERBS[pair[place]](mine[key], times)

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(operate, mine, n) for n, mine in enumerate((schedules, others))]
        assert [each.result() for each in done] == [None, None]

        def settled():
            rows = [each.row for each in schedules.list()]
            now = schedules.now()
            return all(
                row.status in ENDED
                if schedule_of(row.key)
                else row.owner is None and (row.next_run_time is None or row.next_run_time > now)
                for row in rows
            )

        wait_until(settled, what="the end of all runs")
        rows = {each.row.key: each.row for each in schedules.list()}
    for key in keys:
        row, verbs = rows.get(key), {*key.split("-")}
        if row is None:
            assert "delete" in verbs, key
            continue
        # A cancelled schedule keeps the number of the attempt that was going on.
        assert row.attempt in ({0, 1} if row.status == "cancelled" else {0}), key
        assert row.status in {"waiting", "paused", "cancelled", "finished"}, key
        if row.status != "waiting":
            wanted = {"paused": "pause", "cancelled": "cancel", "finished": "force_finish"}
            assert wanted[row.status] in verbs, key


@pytest.mark.parametrize("dies", [False, True])
@on(EACH[:1])
def test_a_verb_on_an_extra_run_while_it_runs(service, dies):
    """The extra run ends as any task that runs once does. The schedule gets its times back."""
    ends = {
        "cancel": "cancelled",
        "force_finish": "finished",
        "delete": None,
        # It has succeeded, unless its worker has died.
        "pause": "paused" if dies else "finished",
        "requeue": "finished",
        "skip": "finished",
        "trigger": "finished",
        "backfill": "finished",
    }
    refused = {"requeue", "skip", "trigger", "backfill"}
    master = service.start()
    with service.schedules() as schedules:
        times = times_of(schedules)
        cases = {verb: Operated(verb, EXTRA, times) for verb in ends}
        extra = {
            verb: case.add(schedules, "recorder", data={"until": "gate"})
            for verb, case in cases.items()
        }
        for key in extra.values():
            service.runs.wait(key)
        for verb, key in extra.items():
            with pytest.raises(REFUSALS) if verb in refused else nullcontext():
                VERBS[verb](schedules[key], times)
        if dies:
            kill(master.workers()[0])

        def is_over(verb, status):
            if schedules.read(cases[verb].key).row.owner is not None:
                return False
            if status is None:
                return not schedules[extra[verb]].exists()
            row = schedules.read(extra[verb]).row
            return (row.status, row.owner) == (status, None)

        for verb in ("cancel", "force_finish", "delete", *ends):
            if verb == "pause":
                service.open_gate("gate")
            wait_until(lambda verb=verb: is_over(verb, ends[verb]), what=f"the end of {verb}")
        for case in cases.values():
            row = schedules.read(case.key).row
            found = (row.next_time, row.next_run_time, row.attempt, row.status, row.version)
            assert found == (times.later, times.later, 0, "waiting", 1), case.key
        assert master.stop() == 0
