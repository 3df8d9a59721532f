"""Each verb amid faults, with real processes: the end is one of the documented states.

`psched verify` finds nothing (`verified`).
"""

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from support.operating import EXTRA, REFUSALS, REGULAR, VERBS, Operated, Times
from support.processes import kill
from support.waiting import wait_until

pytestmark = pytest.mark.verified

SERVERS = ("mariadb", "postgresql", "redis")


@pytest.fixture(
    params=["sqlite", *(pytest.param(k, marks=getattr(pytest.mark, k)) for k in SERVERS)]
)
def service(request, open_database, make_service):
    """A service on each kind of database, its table made; it can run everything at once."""
    with open_database(request.param) as database:
        service = make_service(database.url, concurrency=3 * len(VERBS), output="none")
        service.init()
        yield service
        service.close()


def times_of(schedules):
    return Times(int(schedules.now()))


@pytest.mark.parametrize("dies", ["after", "before", "host"])
def test_a_verb_and_the_death_of_the_worker(service, dies):
    """The worker dies just after the verbs, or they find it dead, or its host."""
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
                row.owner is None and (row.next_run_time is None or row.next_run_time > now)
                for row in rows
            )

        wait_until(settled, what="the end of all runs")
        rows = {each.row.key: each.row for each in schedules.list()}
    for key in keys:
        row, verbs = rows.get(key), {*key.split("-")}
        if row is None:
            assert "delete" in verbs, key
            continue
        assert row.attempt == 0, key
        assert row.status in {"waiting", "paused", "cancelled", "finished"}, key
        if row.status != "waiting":
            wanted = {"paused": "pause", "cancelled": "cancel", "finished": "force_finish"}
            assert wanted[row.status] in verbs, key
