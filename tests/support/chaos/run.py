"""One chaos, from its start to the judgement."""

import random
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from psched.app import make_store, read_config
from psched.client.verifier import Verifier
from psched.core.history.protocol import AuditSelection
from psched.core.hosts import has_name, lane_of, own_lane, serves
from psched.core.model import QUARANTINED, SET_ASIDE, Row
from psched.core.operations.extra_runs import schedule_key
from psched.reports.findings import Kind, Violation
from psched.testing.witnesses import (
    Seen,
    Witness,
    check_leases_ended,
    check_rows,
    check_witnesses,
)
from support.chaos.journal import Journal, now, unix
from support.chaos.nemesis import Host, Nemesis, other_name
from support.chaos.people import People, add_all, retire
from support.chaos.plan import HOSTS, SCHEDULES, draw, hosts_of_key, is_by_people
from support.processes import kill
from support.proxy import Proxy
from support.run_log import Run
from support.servers.base import Server
from support.servers.dynalite import CREDENTIALS, Dynalite
from support.service import Service
from support.tables import create_database, fill_sqlite
from support.waiting import PATIENCE, wait_until

TASKS = Path(__file__).with_name("tasks.py")

_LONGEST_LEASE = 16
"""Seconds; that of a schedule, see `support.chaos.plan`."""

_AROUND = 20.0
"""The notes from so many seconds before a violation until so many after it are shown."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of a chaos.

    Attributes:
        line: a summary in one line.
        report: the plan and, for each violation, what happened around it.
        violations: the promises that were not kept.
    """

    line: str
    report: str
    violations: Sequence[Violation]


class Chaos:
    """Three masters on one store, faults, and people.

    Args:
        folder: an empty folder.
        seed: decides what is done.
        seconds: for how long something is done.
        server: the store's server; None for SQLite.
    """

    def __init__(self, folder: Path, seed: int, seconds: float, server: Server | None) -> None:
        self.plan = draw(seed, seconds, "sqlite" if server is None else server.kind)
        self._folder = folder
        self._seed = seed
        self._seconds = seconds
        self._server = server
        self._journal = Journal()
        self._witnesses: list[Witness] = []
        self._runs: list[tuple[str, Run]] = []
        self._hosts: list[Host] = []

    def run(self) -> Result:
        """Run it, and judge."""
        with ExitStack() as opened:
            return self._run(opened)

    def _run(self, opened: ExitStack) -> Result:
        rng = random.Random(f"{self._seed} settings")  # noqa: S311  # no secret
        alive_time = rng.randint(8, 12)
        if isinstance(self._server, Dynalite):
            alive_time *= 3  # a claim is many requests, and one process answers them all
        if self._server is None:
            url = fill_sqlite(self._folder / "psched.db")
        elif isinstance(self._server, Dynalite):
            url, self._table = self._server.url(), self._server.new_table()
        else:
            url = self._server.url(create_database(self._server))
        for number in range(HOSTS):
            self._hosts.append(self._make_host(opened, f"h{number}", url, alive_time))
        people = self._make_service(opened, "people", url)
        if isinstance(self._server, Dynalite):
            people.init()
        self._settings = read_config(people.config)
        self._store = make_store(self._settings)
        opened.callback(self._store.disconnect)
        with people.schedules() as schedules:
            add_all(schedules, self._seed, self._seconds)
        for host in self._hosts:
            host.masters[0].wait_for_generation(1)
        self._journal.begun = now()

        place = self._server or str(self._folder / "psched.db")
        nemesis = Nemesis(self._hosts, place, self._journal)
        verbs = [each for each in self.plan if is_by_people(each)]
        users = People(people, verbs, self._journal, seed=self._seed, seconds=self._seconds)
        with ThreadPoolExecutor(1) as thread:
            changing = thread.submit(users.run)
            nemesis.run([each for each in self.plan if not is_by_people(each)], self._seconds)
            changing.result()
        nemesis.heal()
        self._journal.note("all is healed")
        violations = [*self._settle(people), *self._stop()]

        stopped = now()
        rows = [*self._store.rows()]
        violations += [*check_leases_ended(rows)]
        verified: Sequence[Violation] = ()
        if (history := self._store.history) is not None:
            verified = Verifier(self._store, self._settings).verify(10**6).violations
        self._read_witnesses()
        seen = Seen(
            witnesses=self._witnesses,
            records=None if history is None else [*history.runs()],
            audits=() if history is None else [*history.audits(AuditSelection())],
            faults=nemesis.faults,
            lease=max(_LONGEST_LEASE, alive_time) + 1.0,
            now=now(),
            stopped=stopped,
            # Each time errs to the safe side: a task notes its start a little after it has begun,
            # and its last sign of life is a little before its end. All have one clock.
            tolerance=0.0,
        )
        # The times of records are as wrong as answers are slow. So it is the witnesses who tell by
        # one clock whether runs have overlapped.
        violations += [
            each
            for each in verified
            if each.kind is not Kind.OVERLAP and not lacks_only_records(each, seen)
        ]
        violations += [*check_witnesses(seen)]
        if self._settings.store_kind.keeps_lanes:
            violations += [*check_hosts(run for _, run in self._runs)]
        if history is None:
            violations += [*check_all_ran(rows, self._witnesses)]
        return Result(
            line=self._sum_up(nemesis, users, violations),
            report=self._report(violations),
            violations=violations,
        )

    # --- the parts -------------------------------------------------------------------------

    def _make_service(self, opened: ExitStack, name: str, url: str, **settings: object) -> Service:
        folder = self._folder / name
        folder.mkdir()
        if isinstance(self._server, Dynalite):
            settings |= {"table": self._table}
        service = Service(folder, url, monitor=False, dispatch="tasks:Dispatch", **settings)
        service.env |= CREDENTIALS if isinstance(self._server, Dynalite) else {}
        opened.callback(_close, service)
        service.write("tasks.py", TASKS.read_text())
        return service

    def _make_host(self, opened: ExitStack, name: str, url: str, alive_time: int) -> Host:
        proxy = None
        if self._server is not None:
            proxy = opened.enter_context(Proxy(self._server.port))
            url = url.replace(f":{self._server.port}", f":{proxy.port}")
        settings = {
            "processors": 2,
            "concurrency": 4,
            "alive_time": alive_time,
            "kill_interval": 1,
            "graceful_timeout": 3,
            "graceful_kill_limit": 2,
            "pid_file": "master.pid",
            "host_name": name,
        }
        service = self._make_service(opened, name, url, **settings)
        second = self._make_service(
            opened, f"{name}-second", url, **settings | {"processors": 1, "host_labels": ["second"]}
        )
        return Host(name, service, second, proxy, [service.start(generation=0)])

    # --- the end ---------------------------------------------------------------------------

    def _settle(self, people: Service) -> Iterator[Violation]:
        """Wait until all that was due when all was healed has its fate."""
        for host in self._hosts:
            host.master.wait_for_log(r"generation \d+ serves")
            host.master.send(signal.SIGHUP)  # so that it looks at once for its rows of templates
        others = {other_name(host.name) for host in self._hosts}
        with people.schedules() as schedules:
            for rule in schedules.pauses():
                schedules.resume_type(rule.type)
            for seen in schedules.list():
                if seen.status == "paused":
                    schedules.resume(seen.key)
            healed = schedules.now()

        left: list[Row] = []
        wrong: list[Violation] = []
        moved = now()

        def is_over() -> bool:
            """Whether nothing is left, or nothing has been claimed for too long."""
            nonlocal left, moved, wrong
            before = {(row.key, row.fence) for row in left}
            rows = [*self._store.rows()]
            left = [row for row in rows if not _is_settled(row, healed)]
            wrong = [*check_rows_of_hosts(rows, [host.name for host in self._hosts])]
            if {(row.key, row.fence) for row in left} != before:
                moved = now()
            if others.intersection(host for row in rows for host in row.hosts or ()):
                with people.schedules() as schedules:
                    retire(schedules, others)
            return not (left or wrong) or now() > moved + PATIENCE

        # Extra runs of a slow schedule wait for each other.
        wait_until(is_over, timeout=10 * PATIENCE, what="the end of all runs")
        for row in left:
            text = f"nothing runs it, {PATIENCE:.0f} s after the last run: {row}"
            yield Violation(kind=Kind.STUCK, key=row.key, instant=row.next_time or 0, text=text)
        yield from wrong
        rows = [*self._store.rows()]
        yield from check_rows(rows, self._store.now(), PATIENCE)
        yield from check_quarantined(rows)

    def _stop(self) -> Iterator[Violation]:
        self._journal.note("all is settled")
        for host in self._hosts:
            kill(host.master.pid, signal.SIGTERM)
        for host in self._hosts:
            try:
                assert (status := host.master.wait()) == 0, f"has stopped with {status}"
                for master in (*host.masters, *host.seconds):
                    master.wait_until_nothing_is_left()
            except AssertionError as error:
                text = f"the master of {host.name}: {error}"
                yield Violation(kind=Kind.STOPPED, key="", instant=0, text=text)
        self._journal.note("all masters are stopped")

    def _read_witnesses(self) -> None:
        for host in self._hosts:
            for run in host.runs():
                start = next(note for note in run.notes if note["event"] == "start")
                self._runs.append((host.name, run))
                self._witnesses.append(
                    Witness(
                        key=run.key,
                        scheduled_time=run.scheduled_time,
                        attempt=run.attempt,
                        owner=start["owner"],
                        fence=run.fence,
                        host=host.name,
                        started=unix(run.started),
                        store_time=start["store_time"],
                        ended=unix(run.last_sign),
                        completed=any(note["event"] == "completed" for note in run.notes),
                    )
                )

    # --- what is printed -------------------------------------------------------------------

    def _sum_up(self, nemesis: Nemesis, people: People, violations: Sequence[Violation]) -> str:
        done = Counter(
            (each.key, each.scheduled_time) for each in self._witnesses if each.completed
        )
        again = done.total() - len(done)
        counts = nemesis.counts + people.counts
        return (
            f"seed {self._seed}, {self._seconds:g} s;"
            f" {', '.join(f'{kind} {number}' for kind, number in sorted(counts.items()))};"
            f" {len(self._witnesses)} runs, {done.total()} completed,"
            f" {again - sum(each.kind is Kind.REPEATED for each in violations)} duplicates"
            f" explained, {len(violations)} violations"
        )

    def _report(self, violations: Sequence[Violation]) -> str:
        lines = ["the plan:", *map(str, self.plan)] if violations else []
        for violation in violations:
            lines.append(f"--- {violation.kind}: {violation.key}: {violation.text}")
            own = [run for _, run in self._runs if run.key.startswith(violation.key)]
            at = [unix(run.started) for run in own if _lease(run) == violation.lease]
            around = (at or [violation.instant])[0]
            since, until = around - _AROUND, around + _AROUND
            lines += self._journal.between(since, until)
            lines += [
                f"{self._journal.shown(unix(run.started))} to"
                f" {self._journal.shown(unix(run.last_sign))} {host}: {_told(run)}"
                for host, run in self._runs
                if run in own and since <= unix(run.started) <= until
            ]
            lines += [
                f"{master.log.parent.name}: {line}"
                for host in self._hosts
                for master in (*host.masters, *host.seconds)
                for line in master.text.splitlines()
                if violation.key and violation.key in line
            ]
        return "\n".join(lines)


def lacks_only_records(violation: Violation, seen: Seen) -> bool:
    """Whether occurrences without a record have run, and a fault explains why it was not written.

    If answers are so slow that an end can only be settled without its record, the record is lost
    with a worker that is killed before its next request.
    """
    last = violation.until or violation.instant
    done = {
        witness.scheduled_time
        for witness in seen.witnesses
        if witness.key == violation.key
        and violation.instant <= witness.scheduled_time <= last
        and witness.completed
        and seen.explain(witness.started, witness.started + seen.lease, witness.host)
    }
    return violation.kind is Kind.MISSING and len(done) >= violation.count


def check_hosts(runs: Iterable[Run]) -> Iterator[Violation]:
    """Yield each run on a host that its schedule does not name."""
    for run in runs:
        hosts = hosts_of_key(run.key)
        names = next(note["names"] for note in run.notes if note["event"] == "start")
        if not serves(names, lane_of(hosts)):
            text = f"ran on {names}, which is not one of its hosts {hosts}"
            yield Violation(kind=Kind.HOST, key=run.key, instant=run.scheduled_time, text=text)


def check_rows_of_hosts(rows: Sequence[Row], hosts: Sequence[str]) -> Iterator[Violation]:
    """Yield each row that a living host should have of a template, and each that nobody should."""
    found = {row.key: row for row in rows}
    for template in rows:
        for host in hosts if template.each_host else ():
            key = f"{template.key}{own_lane(host)}"
            row = found.get(key)
            if has_name([host], template.lane or "") and (
                row is None or (row.cron, row.data) != (template.cron, template.data)
            ):
                text = f"is not as its template says: {row}"
                yield Violation(kind=Kind.STUCK, key=key, instant=0, text=text)
    for row in rows:
        if row.template is not None and row.template not in found:
            text = f"its template is gone: {row}"
            yield Violation(kind=Kind.STUCK, key=row.key, instant=0, text=text)


def check_quarantined(rows: Iterable[Row]) -> Iterator[Violation]:
    """Yield each row that is quarantined."""
    for row in rows:
        if row.status == QUARANTINED:
            text = f"is quarantined: {row.reason}"
            yield Violation(kind=Kind.STUCK, key=row.key, instant=row.next_time or 0, text=text)


def check_all_ran(rows: Sequence[Row], witnesses: Sequence[Witness]) -> Iterator[Violation]:
    """Yield each occurrence that has not run; for a store that says nothing about that.

    It is for people who only do what lets every occurrence run. Some schedules skip occurrences by
    themselves: they are left out.
    """
    began = defaultdict[str, set[int]](set)
    for witness in witnesses:
        began[witness.key].add(witness.scheduled_time)
    for row in rows:
        if schedule_key(row.key) != row.key:
            continue  # it is skipped if another run of its schedule goes on
        at, mine = row.next_time or 0, began[row.key]
        missing = {at} if not mine else set[int]()
        if row.cron is not None:
            place = int(row.key[1:]) % len(SCHEDULES)
            settings, _ = SCHEDULES[place]
            if "catchup" in settings or "pause_after_failures" in settings:
                continue
            period = int(str(settings["every"]).removesuffix("s"))
            missing = {*range(min(mine, default=at - period), at, period)} - mine
        for instant in sorted(missing):
            yield Violation(kind=Kind.MISSING, key=row.key, instant=instant, text="has not run")


def _close(service: Service) -> None:
    """Close a service without printing its whole logs: the report has what matters of them."""
    with redirect_stdout(StringIO()):
        service.close()


def _is_settled(row: Row, healed: float) -> bool:
    """Whether nothing of a row is left that was due when all was healed."""
    if row.status in SET_ASIDE or (row.owner is None and row.next_run_time is None):
        return True
    return row.each_host or (row.cron is not None and (row.next_time or 0) > healed)


def _lease(run: Run) -> str:
    return f"{run.notes[0]['owner']}#{run.fence}"


def _told(run: Run) -> str:
    events = [note["event"] for note in run.notes if note["event"] not in {"alive", "start"}]
    how = run.notes[-1].get("how", "")
    return (
        f"{run.key}.{run.scheduled_time} attempt {run.attempt}, {_lease(run)}, pid {run.pid}:"
        f" {' '.join(events)} {how}"
    )
