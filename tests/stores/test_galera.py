"""Galera: every node accepts writes, row locks end at the node, and every node may lag."""

import contextlib
import itertools
import signal
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.exc import DBAPIError

from psched.base.errors import (
    AlreadyExistsError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.core.history.records import Fate, Outcome
from psched.core.model import Row, Settlement
from psched.core.store_protocol import ClaimUnknownError, Settled
from psched.stores.sql import raw_execute
from psched.testing.store_contract.history import recorded
from support.processes import kill
from support.proxy import LOOPBACK, Fault, Proxy
from support.run_log import exactly_once, in_order, never_two_at_once
from support.service import services
from support.stores import Sql, store_factory
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.galera

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}
LATER = 4_000_000_000
MINUTE = 60


def url(name, *ports):
    """The url of a database on the servers at these ports, tried in this order."""
    hosts = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return f"mysql+pymysql://root@{hosts}/{name}"


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


def ending(row, **changes):
    values = {"next_time": row.next_time, "not_before": 0, **changes}
    records = (recorded(row),)
    return Settlement(key=row.key, token=row.token, version=row.version, records=records, **values)


def leases_of(store):
    """The leases of all records, as ``settled_by`` shows them."""
    return [each.lease for each in store.history.runs()]


@pytest.fixture
def name(galera):
    """A database that all nodes have, with a table."""
    name = galera.create_database()
    with store_factory(galera.nodes[0].url(name)) as open_store:
        open_store().init()
    yield name
    galera.start()  # an earlier test may have killed nodes
    galera.drop_database(name)


def answered(request):
    """The answer to a request that is repeated while the database is unavailable."""

    def answer():
        with contextlib.suppress(TransientStoreError):
            return [request()]

    return wait_until(answer, what="an answer")[0]


@pytest.fixture
def stores(galera, name):
    """A list of stores, one connected to each node."""
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(store_factory(node.url(name)))() for node in galera.nodes]


class TestRaces:
    """Tests with workers at all nodes that claim the same rows all the time."""

    GRANTS = 700

    @pytest.fixture(params=[1, 0], ids="retries={}".format)
    def retries(self, request, galera):
        """How often a node itself repeats a write that conflicts with another node's write."""
        for node in galera.nodes:
            node.query(f"SET GLOBAL wsrep_retry_autocommit = {request.param}")
        yield
        for node in galera.nodes:
            node.query("SET GLOBAL wsrep_retry_autocommit = DEFAULT")

    @pytest.fixture
    def lost(self, galera):
        """How many writes were refused since the test began."""
        names = "'wsrep_local_cert_failures', 'wsrep_local_bf_aborts'"

        def count():
            shown = [
                node.query(f"SHOW STATUS WHERE Variable_name IN ({names})") for node in galera.nodes
            ]
            return sum(int(value) for _, value in itertools.chain(*shown))

        before = count()
        return lambda: count() - before

    @pytest.mark.usefixtures("retries")
    def test_every_lease_is_one_workers_and_known_to_it(self, stores, lost, caplog):
        """Each row's fences are 1, 2, 3 …: no lease was granted twice, and none was lost."""
        keys = ["a", "b", "c", "d"]
        add(stores[0], *keys)
        fences = defaultdict(list)
        together = threading.Barrier(len(stores))

        def work(number):
            store, granted = stores[number], 0
            store.now()  # connected
            together.wait(timeout=HANG_TIMEOUT)
            for count in itertools.count():
                rows = store.claim(f"w{number}.{count}", **{**CLAIM, "limit": 3}).rows
                granted += len(rows)
                for row in rows:
                    fences[row.key].append(row.fence)
                over = sum(map(len, [*fences.values()])) >= self.GRANTS
                # All rows are due again at once.
                assert {*store.settle([ending(row) for row in rows]).values()} <= {Settled.DONE}
                if over:
                    break
            store.disconnect()
            return granted

        with ThreadPoolExecutor(len(stores)) as workers:
            assert all(workers.map(work, range(len(stores))))

        rows = stores[0].look(keys)
        granted = {key: [*range(1, rows[key].fence + 1)] for key in keys}
        assert {key: sorted(fences[key]) for key in keys} == granted
        recorded = Counter((each.key, each.fence) for each in stores[0].history.runs())
        assert recorded == Counter((key, fence) for key in keys for fence in granted[key])
        assert not any(store.history.unwritten for store in stores)
        assert lost() > 10
        assert not caplog.records


def test_rows_are_claimed_by_compare_and_swap_because_locks_end_at_the_node(stores):
    assert ("claims by", "cas") in stores[1].examine()


class TestConflictAtCommit:
    """Two transactions at two nodes have changed the same row; one of them fails at COMMIT."""

    @pytest.fixture
    def before_commit(self, monkeypatch):
        """A function that has its argument called just before the next COMMIT is sent."""

        def before_commit(something):
            waiting = [something]
            send = raw_execute.send

            def call_and_send(connection, statement):
                if statement == "COMMIT" and waiting:
                    waiting.pop()()
                send(connection, statement)

            monkeypatch.setattr(raw_execute, "send", call_and_send)

        return before_commit

    @pytest.fixture
    def refused(self, stores, monkeypatch):
        """A list that receives the numbers of the errors of the work that one store begins."""
        numbers = []
        run = stores[0]._connector.run

        def note(work, *arguments):
            def noted(connection):
                try:
                    return work(connection, *arguments)
                except DBAPIError as error:
                    numbers.append(error.orig.args[0])
                    raise

            return run(noted)

        monkeypatch.setattr(stores[0]._connector, "run", note)
        return numbers

    def test_of_two_that_add_a_key_one_has_added_it_and_the_other_nothing(
        self, stores, before_commit, refused
    ):
        one, other, _ = stores
        one.now()

        def insert(connection):
            for keys in "abc", "de":
                rows = [Row(key=key, next_time=1, next_run_time=1) for key in keys]
                connection.execute(*one._sql.insert(rows, "one"))

        before_commit(lambda: add(other, "d", "x"))
        with pytest.raises(AlreadyExistsError):
            one._connector.transact(insert)

        assert refused == [1213, 1062]
        assert [row.key for row in one.rows()] == ["d", "x"]
        assert one.get("d").settled_by == "n"


class TestLateNode:
    """A worker whose connection breaks goes on at a node that has not applied its last write.

    That node is one of which a backup is being made: it has what the others write, and waits.
    """

    @pytest.fixture
    def proxy(self, galera):
        with contextlib.ExitStack() as opened:
            proxy = opened.enter_context(Proxy(galera.nodes[0].port))
            proxy.close = opened.close
            yield proxy

    @pytest.fixture
    def far(self, galera, proxy, name):
        """A store that connects to the second node when the connection to the first is cut."""
        with store_factory(url(name, proxy.port, galera.nodes[1].port), timeout=3.0) as open_store:
            store = open_store()
            add(store, "k")
            with store_factory(galera.nodes[1].url(name)) as open_other:
                assert open_other().get("k")  # it has been replicated
            yield store

    @pytest.fixture
    def late(self, galera):
        """Makes the second node late; a function that lets it catch up."""
        with Sql(galera.nodes[1].url()).session() as query:
            for stage in "START", "FLUSH", "BLOCK_DDL", "BLOCK_COMMIT":
                query(f"BACKUP STAGE {stage}")
            yield lambda: query("BACKUP STAGE END")

    @pytest.fixture
    def go_on(self, proxy, late):
        """Repeats a request, while the node is late and then until it is answered."""

        def go_on(request):
            proxy.close()

            def is_late():
                with pytest.raises(TransientStoreError) as error:
                    request()
                return "has not caught up" in str(error.value)

            wait_until(is_late, what="the late node")
            late()
            return answered(request)

        return go_on

    def test_a_claim_of_unknown_outcome_is_found(self, far, proxy, go_on):
        with proxy.fault(Fault.LOSE_REPLY, b"UPDATE"), pytest.raises(ClaimUnknownError):
            far.claim("far.1", **CLAIM)
        assert [row.owner for row in go_on(lambda: far.held("far.1", ["k"]))] == ["far.1"]

    def test_a_lease_is_still_ones_own(self, far, go_on):
        (row,) = far.claim("far.1", **CLAIM).rows
        assert go_on(lambda: far.extend({"k": row.token}, **LEASE)) == {"k"}

    def test_a_task_that_has_ended_is_settled(self, far, go_on):
        (row,) = far.claim("far.1", **CLAIM).rows
        assert go_on(lambda: far.settle([ending(row, rest=True)])) == {"k": Settled.DONE}
        assert leases_of(far) == ["far.1#1"]

    def test_an_end_without_an_answer_is_recorded_once(self, far, proxy, go_on):
        (row,) = far.claim("far.1", **CLAIM).rows
        end = ending(row, rest=True)
        with proxy.fault(Fault.LOSE_REPLY, b"COMMIT"), pytest.raises(UnknownOutcomeError):
            far.settle([end])
        assert go_on(lambda: far.settle([end])) == {"k": Settled.DONE}
        assert leases_of(far) == ["far.1#1"]
        assert not far.history.unwritten

    def test_what_a_dead_worker_held_is_released(self, far, go_on, galera, name):
        """By another worker, which was connected to the late node long before."""
        with store_factory(galera.nodes[1].url(name), timeout=3.0) as open_store:
            other = open_store()
            other.now()
            far.claim("dead.1", **CLAIM)
            assert go_on(lambda: other.recover("dead", alive_time=60, retry_wait=1)) == ["k"]
            assert leases_of(other) == ["dead.1#1"]


class TestDesyncedNode:
    """A donor, or a node that is being backed up, answers queries but lets nobody write."""

    @pytest.mark.parametrize(
        "lock",
        [
            ["FLUSH TABLES WITH READ LOCK"],
            ["BACKUP STAGE START", "BACKUP STAGE BLOCK_DDL", "BACKUP STAGE BLOCK_COMMIT"],
        ],
        ids=["read-lock", "backup"],
    )
    def test_it_is_left_for_another(self, galera, name, lock):
        here, there = galera.nodes[:2]
        with (
            store_factory(url(name, here.port, there.port), timeout=5.0) as open_store,
            Sql(here.url(name)).session() as backup,
        ):
            store = open_store()
            add(store, "a")
            for statement in lock:
                backup(statement)
            owners, refusals = map("w.{}".format, itertools.count()), []

            def claimed():
                owner = next(owners)
                try:
                    return store.claim(owner, **CLAIM).rows
                except ClaimUnknownError as error:
                    refusals.append(str(error))
                    return store.held(owner, ())
                except TransientStoreError as error:
                    refusals.append(str(error))
                    return None

            (row,) = wait_until(claimed, what="a node that may be written")
            assert store.settle([ending(row)]) == {"a": Settled.DONE}
            # A wait for a read lock ends with a time-out; a wait for a backup gets no answer.
            (refusal,) = refusals
            if lock[0].startswith("FLUSH"):
                assert "this node of a Galera cluster is Donor/Desynced" in refusal

    def test_it_is_left_on_a_slow_link_too(self, galera, name):
        """The wait for a lock takes most of the time that an answer may take."""
        here, there = galera.nodes[:2]
        with (
            Proxy(here.port) as proxy,
            store_factory(url(name, proxy.port, there.port), timeout=5.0) as open_store,
            Sql(here.url(name)).session() as backup,
        ):
            store = open_store()
            add(store, "a")
            backup("FLUSH TABLES WITH READ LOCK")
            with proxy.slow(1.5), pytest.raises(StoreUnavailableError, match="Donor/Desynced"):
                store.delete("a")
            assert store.delete("a")

    def test_the_only_one_is_kept(self, galera, name):
        here = galera.nodes[0]
        with (
            store_factory(here.url(name), timeout=5.0) as open_store,
            Sql(here.url(name)).session() as backup,
        ):
            store = open_store()
            add(store, "a")
            backup("FLUSH TABLES WITH READ LOCK")
            with pytest.raises(StoreUnavailableError, match="the database is busy"):
                store.claim("w.1", **CLAIM)
            backup("UNLOCK TABLES")
            assert [row.key for row in store.claim("w.2", **CLAIM).rows] == ["a"]


class TestLostMajority:
    """A node that is cut off from the others refuses to work, and does not know their writes."""

    @contextlib.contextmanager
    def alone(self, cut_off, *others):
        """A context manager that cuts a node off from the other nodes."""
        for node in others:
            kill(node.pid, signal.SIGSTOP)
        try:
            yield
            wait_until(lambda: not cut_off.primary, what="the end of its majority")
        finally:
            for node in others:
                kill(node.pid, signal.SIGCONT)
        nodes = [cut_off, *others]
        wait_until(lambda: all(node.primary for node in nodes), what="the whole cluster")

    def test_the_outcome_of_a_write_that_was_under_way_is_unknown(self, galera, name, stores):
        with store_factory(galera.nodes[0].url(name), timeout=30) as open_store:
            store = open_store()
            add(store, "k")
            (row,) = store.claim("one.1", **CLAIM).rows
            with self.alone(*galera.nodes), pytest.raises(UnknownOutcomeError, match="1180"):
                store.settle([ending(row, rest=True)])
            assert answered(lambda: store.settle([ending(row, rest=True)])) == {"k": Settled.DONE}
        assert leases_of(stores[2]) == [str(row.token)] == [stores[2].get("k").settled_by]


@pytest.mark.verified
class TestMasters:
    """Tests with real masters and workers at every node, while nodes die."""

    SCHEDULES = 40
    OCCURRENCES = 10

    @pytest.fixture
    def service(self, galera, name, tmp_path):
        with services(tmp_path) as make:
            # The task "long" leaves a place for others.
            everywhere = url(name, *(node.port for node in galera.nodes))
            yield make(everywhere, alive_time=60, concurrency=2)

    @pytest.fixture
    def start(self, galera, name, service):
        """Starts a master that knows some nodes, the first of which it connects to."""

        def start(*numbers):
            service.configure(url=url(name, *(galera.nodes[number].port for number in numbers)))
            config = service.write(f"{numbers}.yml", service.config.read_text())
            return service.start(*service.master_command, "-c", config.name)

        return start

    def test_a_node_that_dies_and_comes_back_costs_no_run_and_no_repetition(
        self, galera, service, start, stores
    ):
        with service.schedules() as schedules:
            now = schedules.add("clock").metadata().next_time
            schedules["clock"].delete()
            last = now - now % MINUTE
            times = [last - number * MINUTE for number in range(self.OCCURRENCES)]
            keys = [f"s{number}" for number in range(self.SCHEDULES)]
        alone, other, moving = start(0), start(1, 2, 0), start(0, 1, 2)
        with service.schedules() as schedules:
            for key in keys:
                schedules.add(key, "recorder", cron="* * * * *", next_time=times[-1])
            schedules.add("long", "recorder", next_time=times[-1], data={"until": "gate"})

        def done():
            """Minutes that begin during the test do not belong to the backlog."""
            return [run for run in service.runs.runs(*keys) if run.scheduled_time <= last]

        def wait_for(number):
            wait_until(lambda: len(done()) >= number, what=f"{number} runs")

        wait_for(60)
        galera.nodes[0].kill()
        alone.wait_for_log("running tasks go on while their leases last")
        before = len(done())
        wait_for(before + 60)
        # If its first statement since is one for the history, no claim fails: the log of the
        # worker that moves tells nothing.
        (worker,) = moving.workers()

        def moved():
            return sum(run.worker == worker for run in service.runs.runs(*keys))

        already = moved()
        wait_until(lambda: moved() > already, what="a run of the worker that moves")
        galera.nodes[0].start()
        alone.wait_for_log("the store answers again")
        service.open_gate("gate")
        wait_for(self.SCHEDULES * self.OCCURRENCES)
        service.wait_for_finish("long")
        assert [master.stop() for master in (alone, other, moving)] == [0, 0, 0]

        runs = done()
        exactly_once(runs, [(key, time) for key in keys for time in times])
        in_order(runs)
        never_two_at_once(service.runs.runs())
        exactly_once(service.runs.runs("long"), [("long", times[-1])])
        each_run_is_recorded(stores[0], service.runs.runs())
        # The quickest node may claim most, but not all.
        assert len({run.worker for run in runs}) > 1
        for master in alone, other, moving:
            one_line_each(master)

    def test_a_cluster_that_has_lost_its_majority_is_waited_for(
        self, galera, service, start, stores
    ):
        service.add("long", data={"until": "gate"})
        master = start(2, 1, 0)
        service.runs.wait("long")

        for node in galera.nodes[:2]:
            node.kill()
        master.wait_for_log("running tasks go on while their leases last")
        wait_until(lambda: not galera.nodes[2].primary, what="the end of the majority")
        with pytest.raises(StoreUnavailableError, match="1047"):
            stores[2].now()
        galera.start()
        master.wait_for_log("the store answers again")
        service.open_gate("gate")
        service.wait_for_finish("long")
        assert master.stop() == 0

        (run,) = service.runs.runs()
        assert run.completed
        each_run_is_recorded(stores[0], [run])
        one_line_each(master)


def each_run_is_recorded(store, runs):
    """Each run has exactly one record, which says that it has finished; there are no others."""
    records = Counter(
        (each.key, each.scheduled_time, each.fence, each.pid, each.outcome, each.fate)
        for each in store.history.runs()
    )
    finished = (Outcome.FINISHED, Fate.FINISHED)
    assert records == Counter(
        (run.key, run.scheduled_time, run.fence, run.pid, *finished) for run in runs
    )


def one_line_each(master):
    """Of each outage, the log tells the begin and the end, and nothing else."""
    begun = master.text.count("running tasks go on while their leases last")
    assert master.text.count("the store answers again") == begun
    assert master.text.count(" ERROR ") == begun <= 2
