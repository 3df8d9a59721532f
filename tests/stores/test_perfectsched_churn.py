"""Tests that no occurrence is lost while PerfectSched's ``modify`` changes triggers."""

import random
from collections import defaultdict

import pytest

from psched.config import from_mapping
from psched.core.model import Finish, Release, Retry
from psched.core.policy import Run, after_claim
from psched.core.settling import Ending
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import claim
from support.compat import compat_factory
from support.perfectsched import Peer
from support.settling import settle
from support.store_clock import store_clock
from support.stores import Sql

pytestmark = pytest.mark.empty

START = 1_800_014_400
MINUTE = 60
BACKLOG = 180
"""Minutes of each schedule that are due when the test begins."""

# Every one of the triggers fires every five minutes; only these occurrences are counted.
EVERY = 5 * MINUTE
CRONS = (
    "* * * * *",
    "*/5 * * * *",
    "0-59 * * * *",
    "*/1 * * * *",
    "0,5,10,15,20,25,30,35,40,45,50,55 * * * *",
)
CHANGES = {
    "cron": CRONS,
    "timezone": ("UTC", "Asia/Tokyo", "Asia/Kolkata", "America/New_York"),
    "delay": (0, 30, 400),
    "data": (b'{"type":"t","n":1}', b'{"type":"t","n":2}'),
}


class Churn:
    """Workers of psched and of PerfectSched, and a client that changes their schedules."""

    def __init__(self, url, table_clock, open_store, *, rng, folder):
        self.rng = rng
        self.clock = table_clock
        self.settings = from_mapping({"type": "rdb_compat", "url": url, "table": "psched"})
        self.stores = [open_store(), open_store()]
        self.ruby = Peer(url, "psched", folder / "runs", 3600, 0, now=lambda: self.clock.now)
        self.running = []
        self.acquired = []
        self.runs = defaultdict(list)
        self.keys = [f"s{number}" for number in range(3)]
        self.first = START - BACKLOG * MINUTE
        sql = Sql(url)
        for key in self.keys:
            sql(
                "INSERT INTO {table} (id, timeout, next_time, cron, delay, data, timezone)"
                " VALUES (:id, :time, :time, :cron, 0, :data, NULL)",
                id=key,
                time=self.first,
                cron=CRONS[0],
                data=CHANGES["data"][0],
            )

    def step(self):
        """Choose a worker or the client at random; it sends one request."""
        ruby = [self.modify, self.modify, self.acquire, self.finish]
        self.rng.choice([*ruby, self.claim, self.claim, self.end, self.end, self.wait])()

    def modify(self):
        """Have PerfectSched's client change a schedule; if psched runs any, one of these."""
        key = self.rng.choice([row.key for _, row in self.running] or self.keys)
        name = self.rng.choice([*CHANGES])
        self.ruby.modify(key, **{name: self.rng.choice(CHANGES[name])})

    def claim(self):
        store = self.rng.choice(self.stores)
        for row in claim(store, f"w.{self.rng.random()}", limit=1).rows:
            verdict = after_claim(row, self.settings, self.clock.now)
            assert isinstance(verdict, Run)
            self.running.append((store, row))

    def end(self):
        """End one task that psched runs, in most cases with success."""
        if not self.running:
            return
        store, row = self.running.pop(self.rng.randrange(len(self.running)))
        decision = self.rng.choice([Finish(), Finish(), Finish(), Release(), Retry(5)])
        result = settle(store, [Ending(row, decision)], self.settings)[row.key]
        assert result is Settled.DONE
        if isinstance(decision, Finish):
            self.runs[row.key].append(row.next_time)

    def acquire(self):
        row = self.ruby.acquire()
        if row:
            self.acquired.append(row)

    def finish(self):
        if self.acquired:
            row = self.acquired.pop(self.rng.randrange(len(self.acquired)))
            assert self.ruby.finish(row)
            self.runs[row[0]].append(row[2])

    def wait(self):
        self.clock.advance(self.rng.choice([0.3, 1, 7]))
        for store, row in self.running:
            assert store.extend({row.key: row.token}, alive_time=60, shortest=1)

    def work_off(self):
        """End all tasks; then psched runs all occurrences that are due, without further changes."""
        while self.acquired:
            self.finish()
        while self.running:
            self.end()
        while any(runs[-1] < START for runs in self.runs.values()):
            self.claim()
            if not self.running:
                self.clock.advance(5)
            while self.running:
                self.end()


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_modified_each_occurrence_is_run_once(database, tmp_path, seed):
    with store_clock(database.url, start=START) as clock, compat_factory(database.url) as factory:
        factory().init()
        rng = random.Random(seed)  # noqa: S311  # steps
        churn = Churn(database.url, clock, factory, rng=rng, folder=tmp_path)
        for _ in range(1000):
            churn.step()
        churn.work_off()
        churn.ruby.close()
    for key in churn.keys:
        runs = churn.runs[key]
        assert runs == sorted(set(runs))
        counted = [time for time in runs if time % EVERY == 0]
        assert counted == [*range(churn.first, counted[-1] + 1, EVERY)]
