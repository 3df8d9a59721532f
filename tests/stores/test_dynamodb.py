"""What is special about the store on DynamoDB: its leases, its clock, and AWS' refusals."""

import contextlib
import json
import logging
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from threading import Barrier

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    MissingTableError,
    NotSupportedError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.core.model import DELETING, Row
from psched.core.store_protocol import ClaimUnknownError, Settled
from psched.stores import observations
from psched.stores.conditional.items import SHARDS
from psched.testing.store_contract.bench import add, claim, due, ending, found, leased
from support.dynamodb_faults import (
    ignoring_the_condition,
    leaving_out,
    losing_the_answer,
    passing_on,
    refusing,
    troubled,
    write_credentials,
)
from support.servers.base import LOOPBACK
from support.servers.dynalite import CREDENTIALS
from support.stores import make_store
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.dynamodb

ALIVE = 300


class OwnClock(SystemClock):
    """The clock of another host: its time of day is wrong, and a test can let time pass."""

    def __init__(self, wrong_by=0.0):
        self.wrong_by = wrong_by
        self.passed = 0.0

    def wall(self):
        return SystemClock.wall() + self.wrong_by + self.passed

    def boottime(self):
        return super().boottime() + self.passed


@pytest.fixture
def table(dynalite):
    return dynalite.new_table()


@pytest.fixture
def faulty(dynalite):
    """A server with faults in front of dynalite."""
    with troubled(dynalite.port) as server:
        yield server


@pytest.fixture
def open_store(faulty, table):
    """A function that opens a store through the server with faults."""
    with contextlib.ExitStack() as opened:

        def open_store(**more):
            store = make_store(faulty.url, table=table, **more)
            opened.callback(store.disconnect)
            return store

        open_store().init()
        yield open_store


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def open_later(open_store, faulty):
    """A function that opens a store for which, as for the service, so many seconds have passed."""

    def open_later(seconds):
        faulty.ahead = seconds
        return open_store(clock=OwnClock(seconds))

    return open_later


# --- leases are taken over by observation -------------------------------------------------


@pytest.mark.parametrize("wrong_by", [0, ALIVE + 60, 86_400])
def test_a_lease_is_taken_over_only_when_it_was_seen_for_its_whole_length(open_store, wrong_by):
    leased(open_store(), "k", "w.1")
    clock = OwnClock(wrong_by)
    other = open_store(clock=clock, max_clock_offset=1e6)
    clock.passed = ALIVE + 2 if not wrong_by else 0  # it is due by this clock
    assert not claim(other, "w.2", alive_time=ALIVE).rows
    clock.passed += 59
    assert not claim(other, "w.3").rows
    clock.passed += 1
    (row,) = claim(other, "w.4").rows
    assert (row.key, row.fence) == ("k", 2)


def test_an_extended_lease_is_observed_anew(open_store):
    holder, clock = open_store(), OwnClock(86_400)
    row = leased(holder, "k", "w.1")
    other = open_store(clock=clock, max_clock_offset=1e6)
    for number in range(3):
        assert not claim(other, f"w2.{number}").rows
        clock.passed += 59
        assert holder.extend({"k": row.token}, alive_time=60, shortest=1) == {"k"}
    clock.passed += 59
    claimed = claim(other, "w.3", horizon=100)
    assert not claimed.rows
    assert claimed.next_due is not None
    clock.passed += 60
    assert [row.key for row in claim(other, "w.4").rows] == ["k"]
    assert holder.settle([ending(row)]) == {"k": Settled.PREEMPTED}


def test_a_mark_does_not_delay_the_takeover(open_store):
    store, clock = open_store(), OwnClock(86_400)
    leased(store, "k")
    other = open_store(clock=clock, max_clock_offset=1e6)
    assert not claim(other, "w.2").rows
    clock.passed += 60
    assert not store.delete("k")
    (row,) = claim(other, "w.3").rows
    assert row.status == DELETING


def test_a_host_whose_clock_is_ahead_does_not_delete_what_runs(open_store):
    row = leased(open_store(), "k")
    other = open_store(clock=OwnClock(86_400))
    before = found(other, "k")
    assert not other.delete("k")
    assert found(other, "k") == changed(before, status=DELETING, version=before.version + 1)
    assert open_store().extend({"k": row.token}, alive_time=60, shortest=1) == {"k"}


def test_a_hold_is_observed_too(open_store):
    store, clock = open_store(), OwnClock(86_400)
    add(store, "k")
    assert store.hold({"k": "w.1"}, alive_time=60, shortest=1) == {"k"}
    other = open_store(clock=clock, max_clock_offset=1e6)
    assert not claim(other, "w.2").rows
    assert other.hold({"k": "w.3"}, alive_time=60, shortest=1) == frozenset()
    clock.passed += 60
    assert [row.key for row in claim(other, "w.4").rows] == ["k"]


def test_the_leases_of_a_dead_worker_are_released_whatever_the_clock_says(open_store):
    leased(open_store(), "k", "dead.1")
    clock = OwnClock(30)
    other = open_store(clock=clock)
    assert other.recover("dead", alive_time=60, retry_wait=0.0) == ["k"]


# --- the host's clock ---------------------------------------------------------------------


def test_a_host_whose_clock_is_off_claims_nothing_and_says_so(open_store, faulty, caplog):
    store = open_store(max_clock_offset=5.0)
    add(store, "k")
    for ahead, words in ((8, "behind"), (-8, "ahead of")):
        faulty.ahead = ahead
        with caplog.at_level(logging.INFO, "psched.store"):
            assert not claim(store, "w.1").rows
            assert not claim(store, "w.2").rows
        [line] = caplog.messages
        assert f" s {words} that of the store, and max_clock_offset is 5 s" in line
        assert "MORE than max_clock_offset" in dict(store.examine())["clock"]
        caplog.clear()
        faulty.ahead = 0
        store.now()
        store.look(["k"])
        with caplog.at_level(logging.INFO, "psched.store"):
            assert not claim(store, "w.3", limit=0).rows
        assert caplog.messages == ["this host's clock is right again"]
        caplog.clear()
    assert [row.key for row in claim(store, "w.4").rows] == ["k"]
    assert dict(store.examine())["clock"].endswith(" s from this host's")


# --- the table ----------------------------------------------------------------------------


def test_init_makes_the_table_once_and_the_plan_is_a_command_of_aws(dynalite):
    table = dynalite.new_table()
    store = make_store(dynalite.url(), table=table)
    for use in (store.examine, lambda: claim(store, "w.1"), lambda: store.get("k")):
        with pytest.raises(MissingTableError, match=rf"no table '{table}' .* run `psched init`"):
            use()
    [(command, _)] = store.plan_init()
    assert command.startswith("aws dynamodb create-table --cli-input-json '{")
    dynalite.ask("CreateTable", **json.loads(command.partition("'")[2].rstrip("'")))
    assert store.init() == []
    assert store.plan_init() == []
    dynalite.ask("DeleteTable", TableName=table)
    wait_until(lambda: table not in dynalite.ask("ListTables")["TableNames"], what="its end")
    [line] = store.init()
    assert line.startswith(f"created {table} in DynamoDB")
    facts = dict(store.examine())
    assert facts["billing"] == "for each request (on demand)"
    store.try_rights()
    assert [*store.rows()] == []
    store.disconnect()


def test_the_capacity_of_a_table_that_has_one_is_shown(store, dynalite, table):
    capacity = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 7}
    index = {"IndexName": "psched_1", "ProvisionedThroughput": capacity}
    dynalite.ask(
        "UpdateTable",
        TableName=table,
        BillingMode="PROVISIONED",
        ProvisionedThroughput=capacity,
        GlobalSecondaryIndexUpdates=[{"Update": index}],
    )
    told = "for a capacity: 5 reads and 7 writes a second; more are throttled"
    wait_until(lambda: dict(store.examine())["billing"] == told, what="the change")


def test_a_table_that_is_not_pscheds_is_refused(dynalite):
    table = dynalite.new_table()
    dynalite.ask(
        "CreateTable",
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    store = make_store(dynalite.url(), table=table)
    for use in (store.init, store.examine, store.plan_init):
        with pytest.raises(SchemaError, match="has no index psched_1"):
            use()
    store.disconnect()


def test_who_may_not_create_a_table_is_told_what_to_create(faulty, dynalite):
    faulty.faults["CreateTable"] = [refusing("AccessDeniedException", "not authorized")]
    store = make_store(faulty.url, table=dynalite.new_table())
    with pytest.raises(StoreError, match=r"not authorized; .* run: aws dynamodb create-table"):
        store.init()
    store.disconnect()


def test_a_missing_right_is_named(store, faulty):
    said = "User: arn:aws:iam::1:user/x is not authorized to perform: dynamodb:DeleteItem"
    faulty.faults["DeleteItem"] = [refusing("AccessDeniedException", said)]
    with pytest.raises(StoreError, match="dynamodb:DeleteItem"):
        store.try_rights()


# --- large rows ---------------------------------------------------------------------------


def _noise(size):
    return json.dumps({"k": random.Random(1).randbytes(size // 2).hex()})  # noqa: S311


def test_data_that_do_not_fit_are_refused_and_nothing_is_changed(store):
    with pytest.raises(InvalidError, match=r"data: makes the schedule .* at most 399600"):
        store.add([due("large", data=_noise(1_000_000))], nonce="n")
    row = leased(store, "k")
    before = found(store, "k")
    with pytest.raises(InvalidError, match="data: makes the schedule"):
        store.update_data("k", row.token, _noise(1_000_000))
    assert found(store, "k") == before
    large = _noise(600_000)  # compressed, it fits
    assert store.update_data("k", row.token, large)
    assert found(store, "k").data == large


def test_the_largest_row_can_be_run_and_settled(store):
    size = next(size for size in range(800_000, 0, -500) if _fits(store, size))
    assert size > 650_000
    (row,) = claim(store, "w" * 40 + ".1").rows
    end = ending(row, reason="x" * 500, local_time="y" * 40, pause_note="z" * 4000)
    assert store.settle([end]) == {"k": Settled.DONE}


def _fits(store, size):
    try:
        store.add([due("k", data=_noise(size))], nonce="n")
    except InvalidError:
        return False
    return True


# --- refusals, and answers that never come ------------------------------------------------

THROTTLED = refusing("ProvisionedThroughputExceededException", "too fast")


def test_a_throttled_request_is_sent_again(store, faulty):
    faulty.faults |= {"PutItem": [THROTTLED] * 2, "Query": [THROTTLED], "UpdateItem": [THROTTLED]}
    add(store, "k")
    assert [row.key for row in claim(store, "w.1").rows] == ["k"]
    assert faulty.actions.count("PutItem") == 3


def test_if_it_is_throttled_for_too_long_nothing_was_applied(open_store, faulty):
    store = open_store(timeout=0.5)
    faulty.faults["PutItem"] = [THROTTLED] * 100
    with pytest.raises(StoreBusyError, match="too slowly"):
        add(store, "k")
    assert store.get("k") is None


def test_what_the_service_leaves_out_is_read_again(store, faulty):
    keys = [f"k{number}" for number in range(5)]
    add(store, *keys)
    faulty.faults["BatchGetItem"] = [leaving_out] * 3
    assert sorted(store.look(keys)) == keys


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("ExpiredTokenException", "the AWS credentials have expired; renew them"),
        ("InvalidSignatureException", "correct the secret key, or this host's clock"),
        ("UnrecognizedClientException", "AWS does not know these credentials"),
    ],
)
def test_credentials_that_are_refused_are_named_and_then_looked_for_again(
    store, faulty, code, told, *, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the session's token")
    store.disconnect()
    faulty.faults["BatchGetItem"] = [refusing(code, "x-amz-security-token: the session's token")]
    with pytest.raises(StoreUnavailableError, match=told) as refused:
        store.get("k")
    assert store.get("k") is None
    for secret in ("the session's token", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in str(refused.value)
        assert secret not in caplog.text


def test_credentials_that_were_renewed_in_their_file_are_used(store, faulty, monkeypatch, tmp_path):
    file = tmp_path / "credentials"
    for name in "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY":
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    store.disconnect()
    store._connector._session = None  # as in a new process
    write_credentials(file, "OLD")
    add(store, "k")
    faulty.accepted = "NEW"
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="the AWS credentials have expired"):
            claim(store, "w.1")
    write_credentials(file, "NEW")
    assert [row.key for row in claim(store, "w.2").rows] == ["k"]


def test_without_credentials_or_a_region_the_fix_is_named(dynalite, monkeypatch):
    url = dynalite.url().replace("eu-west-1", "")
    store = make_store(url)
    with pytest.raises(StoreError, match="url: names no region, and AWS_REGION is not set"):
        store.get("k")
    store.disconnect()
    store = make_store(url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StoreError, match="there are no AWS credentials: set AWS_ACCESS_KEY_ID"):
        store.get("k")
    store.disconnect()


def test_a_write_without_an_answer_has_an_unknown_outcome(store, faulty):
    faulty.faults["PutItem"] = [losing_the_answer]
    with pytest.raises(UnknownOutcomeError):
        add(store, "k")
    assert found(store, "k").settled_by == "added"
    faulty.faults["UpdateItem"] = [losing_the_answer]
    with pytest.raises(ClaimUnknownError) as unknown:
        claim(store, "w.1")
    assert unknown.value.keys == ["k"]
    (row,) = store.held("w.1", ["k"])
    faulty.faults["UpdateItem"] = [refusing("InternalServerError", status=500)]
    with pytest.raises(UnknownOutcomeError):
        store.settle([ending(row)])
    assert store.settle([ending(row)]) == {"k": Settled.DONE}
    assert store.settle([ending(row)]) == {"k": Settled.DONE}


@pytest.mark.parametrize("code", ["UnrecognizedClientException", "AccessDeniedException"])
def test_what_was_claimed_before_a_refusal_is_returned(store, faulty, code):
    add(store, "a", "b", "c")
    first = lambda request: request.answer(*request.passed_on())  # noqa: E731
    faulty.faults["UpdateItem"] = [first, refusing(code)]
    claimed = claim(store, "w.1")
    assert len(claimed.rows) == 1
    assert claimed.more
    assert len(claim(store, "w.2").rows) == 2


def test_connections_are_encrypted_and_the_certificate_is_verified(
    dynalite, table, certificates, monkeypatch
):
    with troubled(dynalite.port, certificates) as server:
        store = make_store(server.url, table=table)
        told = r"certificate verify failed.*; correct the system's certificates"
        with pytest.raises(StoreUnavailableError, match=told):
            store.init()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
        store.init()
        assert dict(store.examine())["encrypted"] == "TLSv1.3"
        add(store, "k")
        assert [row.key for row in claim(store, "w.1").rows] == ["k"]
        store.disconnect()


def test_the_address_of_a_region_is_known():
    for region, host in (("eu-west-1", "amazonaws.com"), ("cn-north-1", "amazonaws.com.cn")):
        connector = make_store(f"dynamodb://{region}")._connector
        assert connector._url() == f"https://dynamodb.{region}.{host}"


def test_a_connection_that_has_ended_is_opened_again(store, faulty):
    faulty.faults["BatchGetItem"] = [losing_the_answer]
    with pytest.raises(StoreUnavailableError, match="broke"):
        store.get("k")
    assert store.get("k") is None


# --- what has ended ---


def _described(status, attribute):
    said = {"TimeToLiveDescription": {"TimeToLiveStatus": status, "AttributeName": attribute}}
    return lambda request: request.answer(200, json.dumps(said).encode())


def _end(store, key):
    store.add([due(key)], nonce=key)
    [row] = claim(store, f"w.{key}").rows
    assert store.settle([ending(row, rest=True, retain=60)]) == {key: Settled.DONE}


def test_only_what_has_ended_expires(store, dynalite, table):
    def expires(key):
        item = dynalite.ask("GetItem", TableName=table, Key={"id": {"S": key}})["Item"]
        return item.get("expires")

    _end(store, "k")
    [row] = store.rows()
    assert expires("k") == {"N": str(row.retain_until)}
    assert store.replace(row, changed(row, next_run_time=1, retain_until=None, version=2))
    assert expires("k") is None
    store.add([due("a")], nonce="n")
    assert expires("a") is None


@pytest.mark.parametrize(
    ("described", "purged"),
    [(("ENABLED", "expires"), 0), (("ENABLED", "at"), 1), (("DISABLED", None), 1)],
)
def test_workers_purge_nothing_that_the_service_removes(
    store, open_later, faulty, described, purged
):
    _end(store, "k")
    faulty.faults["DescribeTimeToLive"] = [_described(*described)]
    later = open_later(100)
    assert later.purge(10) == purged
    assert faulty.actions.count("DescribeTimeToLive") == 1
    assert later.purge(10) == 0
    assert faulty.actions.count("DescribeTimeToLive") == 1
    assert ("ended tasks", f"are removed by {'workers' if purged else 'DynamoDB'}") in (
        later.examine()
    )


def test_a_worker_that_may_not_ask_who_removes_purges(store, open_later, faulty):
    _end(store, "k")
    faulty.faults["DescribeTimeToLive"] = [refusing("AccessDeniedException")]
    assert open_later(100).purge(10) == 1


def test_the_key_of_what_has_expired_is_free(store, open_later):
    _end(store, "k")
    with pytest.raises(AlreadyExistsError):
        store.add([due("k")], nonce="m")
    open_later(100).add([due("k")], nonce="m")
    [row] = store.rows()
    assert (row.status, row.fence) == ("waiting", 0)


# --- races ---


def _winners(open_store, faulty, fault):
    """How many of some workers lease one row, if all have read it before any of them writes."""
    workers, all_have_read = 12, Barrier(12)

    def together(request):
        all_have_read.wait(HANG_TIMEOUT)
        fault(request)

    stores = [open_store() for _ in range(workers)]
    [add_to, *_] = stores
    add_to.add([due("k")], nonce="n")
    faulty.faults["UpdateItem"] = [together] * workers
    with ThreadPoolExecutor(workers) as threads:
        claims = threads.map(lambda each: claim(each[1], f"w{each[0]}.1"), enumerate(stores))
        return sum(len(claimed.rows) for claimed in claims)


def test_of_all_who_claim_a_row_at_once_one_gets_it(open_store, faulty):
    assert _winners(open_store, faulty, passing_on) == 1


def test_a_service_that_ignores_conditions_would_be_found_out(open_store, faulty):
    assert _winners(open_store, faulty, ignoring_the_condition) > 1


def test_an_old_answer_of_the_index_does_no_harm(open_store, faulty):
    old = []

    def noted(request):
        old.append(request.passed_on())
        request.answer(*old[-1])

    def late(request):
        request.answer(*old.pop(0))

    first, other = open_store(), open_store()
    add(first, "k")
    faulty.faults["Query"] = [noted] * SHARDS
    (row,) = claim(first, "w.1").rows
    faulty.faults["Query"] = [late] * SHARDS
    assert not claim(other, "w.2").rows
    assert not old
    assert first.settle([ending(row)]) == {"k": Settled.DONE}


# --- several rows at once -----------------------------------------------------------------


def test_nobody_sees_a_row_before_all_are_there(store, open_store, faulty):
    rows = [due("a"), due("b"), due("c")]
    faulty.faults["UpdateItem"] = [losing_the_answer]
    with pytest.raises(UnknownOutcomeError):
        store.add(rows, nonce="mine")
    other = open_store()
    assert [row.key for row in other.rows()] == ["a"]  # the write without an answer
    assert [*other.look(["a", "b"])] == ["a"]
    with pytest.raises(AlreadyExistsError):
        other.add([due("b")], nonce="theirs")
    store.add(rows, nonce="mine")
    assert {row.key for row in claim(other, "w.1").rows} == {"a", "b", "c"}


def test_what_was_never_finished_is_removed_after_a_while(store, open_later, faulty):
    faulty.faults["UpdateItem"] = [refusing("AccessDeniedException")]
    with pytest.raises(StoreError):
        store.add([due("a"), due("b")], nonce="n")
    assert [*store.rows()] == []
    assert store.purge(10) == 0
    later = open_later(601)
    assert later.purge(10) == 0
    later.add([due("a"), due("b")], nonce="m")
    assert len([*store.rows()]) == 2


def test_rows_that_are_removed_before_all_are_shown_are_an_error(store, open_later, faulty):
    def purge_first(request):
        assert open_later(601).purge(10) == 0
        request.answer(*request.passed_on())

    faulty.faults["UpdateItem"] = [purge_first]
    with pytest.raises(StoreError, match="was removed before all schedules were added"):
        store.add([due("a"), due("b")], nonce="n")
    with pytest.raises(NotSupportedError, match="10001 schedules cannot be added all or none"):
        store.add([due(f"k{number}") for number in range(10_001)], nonce="n")


def test_a_row_written_by_hand_is_read_as_far_as_it_can_be(store, dynalite, table):
    item = {"id": {"S": "k"}, "version": {"N": "1"}, "delay": {"S": "x"}, "data": {"B": "AAE="}}
    item |= {"queue": {"S": "due.0"}, "at": {"N": "5"}, "next_run_time": {"N": "5.5"}}
    dynalite.ask("PutItem", TableName=table, Item=item)
    assert found(store, "k") == Row(key="k", data=b"\x00\x01", next_run_time=5)
    assert store.get("x" * 3000) is None


# --- credentials that are not right -------------------------------------------------------


def test_a_token_with_a_line_break_is_refused_and_not_shown(store, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the session's token\n")
    with pytest.raises(StoreError, match="contain a line break") as refused:
        store.get("k")
    assert refused.value.__cause__ is None
    assert "session's" not in str(refused.value)


def test_the_region_of_aws_variables_is_used(monkeypatch):
    for name in "AWS_DEFAULT_REGION", "AWS_REGION":  # the second takes precedence
        monkeypatch.setenv(name, f"eu-{name[4:7].lower()}-1")
        url = make_store("dynamodb://")._connector._url()
        assert url == f"https://dynamodb.eu-{name[4:7].lower()}-1.amazonaws.com"


def test_a_service_that_never_gives_credentials_does_not_block(dynalite, monkeypatch, tmp_path):
    with socket.create_server((LOOPBACK, 0)) as hung:
        (tmp_path / "token").write_text("token")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/x")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{LOOPBACK}:{hung.getsockname()[1]}")
        store = make_store(dynalite.url(), timeout=0.5)
        begun = SystemClock.monotonic()
        with pytest.raises(StoreUnavailableError, match="cannot get AWS credentials"):
            store.get("k")
        assert SystemClock.monotonic() - begun < 5
        store.disconnect()


# --- what a review has found --------------------------------------------------------------


def test_rows_that_were_shown_and_run_are_not_added_again(store, open_store, faulty):
    rows = [due("a"), due("b"), due("c")]
    faulty.faults["UpdateItem"] = [
        lambda request: request.answer(*request.passed_on()),
        losing_the_answer,
    ]
    with pytest.raises(UnknownOutcomeError):
        store.add(rows, nonce="mine")
    other = open_store()
    shown = {row.key: row for row in claim(other, "w.1").rows}
    assert set(shown) == {"a", "b"}
    other.settle([ending(shown["a"], remove=True)])
    store.add(rows, nonce="mine")
    assert {row.key for row in other.rows()} == {"b", "c"}


def run_five(store, clock, *, meanwhile=bool):
    """Run five tasks, one after the other, 30 seconds in all."""
    for number in range(5):
        clock.passed += 6
        add(store, f"task{number}")
        (row,) = claim(store, f"w{number}.2").rows
        meanwhile(f"w{number}.3")
        store.settle([ending(row, remove=True)])


def test_removed_rows_do_not_displace_a_lease_that_is_observed(open_store, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 3)
    leased(open_store(), "k", "dead.1")
    clock = OwnClock(86_400)
    store = open_store(clock=clock, max_clock_offset=1e6)
    assert not claim(store, "w.1").rows
    run_five(store, clock)
    clock.passed += 30
    assert [row.key for row in claim(store, "w.3").rows] == ["k"]


def test_what_a_worker_runs_displaces_no_lease_that_is_observed(open_store, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 2)
    holder = open_store()
    for key in "a", "b":
        leased(holder, key, f"dead.{key}")
    clock = OwnClock(86_400)
    store = open_store(clock=clock, max_clock_offset=1e6)
    assert not claim(store, "w.1").rows

    def look(owner):
        assert not claim(store, owner).rows

    run_five(store, clock, meanwhile=look)
    clock.passed += 30
    assert sorted(row.key for row in claim(store, "w.3").rows) == ["a", "b"]


def test_leases_that_this_host_does_not_claim_hide_no_other(open_store, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 2)
    holder = open_store()
    holder.add([due(f"a{number}", type="web") for number in range(3)], nonce="n")
    assert len(claim(holder, "dead.1").rows) == 3
    clock = OwnClock(86_400)
    choosy = open_store(clock=clock, max_clock_offset=1e6, only=("default",))
    assert not claim(choosy, "w.1").rows
    leased(holder, "k", "dead.2")
    for number in range(3):
        assert not claim(choosy, f"w{number}.1").rows
        clock.passed += 20
    assert [row.key for row in claim(choosy, "w.2").rows] == ["k"]


def test_a_clock_that_becomes_wrong_during_a_task_delays_nothing(open_store):
    clock = OwnClock()
    store = open_store(clock=clock)
    row = leased(store, "k")
    clock.wrong_by = 86_400
    assert store.extend({"k": row.token}, alive_time=60, shortest=1) == {"k"}
    assert found(store, "k").next_run_time < OwnClock().wall() + 70
    store.settle([ending(row)])
    assert found(store, "k").next_run_time < OwnClock().wall() + 5


# --- rows that were changed by hand -------------------------------------------------------


def test_broken_data_fail_only_their_row(store, dynalite, table):
    add(store, "k")
    change = {"UpdateExpression": "SET data_gz = :gz", "Key": {"id": {"S": "k"}}}
    values = {":gz": {"B": "H4sIAAA="}}
    dynalite.ask("UpdateItem", TableName=table, ExpressionAttributeValues=values, **change)
    assert [row.key for row in claim(store, "w.1").rows] == ["k"]
    assert isinstance(found(store, "k").data, bytes)


def _set(dynalite, table, key, time, at):
    dynalite.ask(
        "UpdateItem",
        TableName=table,
        Key={"id": {"S": key}},
        UpdateExpression="SET next_run_time = :time, #at = :at",
        ExpressionAttributeNames={"#at": "at"},
        ExpressionAttributeValues={":time": {"N": time}, ":at": {"N": at}},
    )


def test_a_later_time_hides_no_other_row(store, dynalite, table):
    keys = [f"k{number}" for number in range(20)]
    add(store, *keys)
    for key in keys[:8]:
        _set(dynalite, table, key, "9000000000", "1")
    assert {row.key for row in claim(store, "w.1", limit=20).rows} == {*keys[8:]}


def test_a_time_that_is_no_whole_number_is_corrected(store, dynalite, table):
    add(store, "k", "m")
    _set(dynalite, table, "k", "5.5", "5")
    (row,) = claim(store, "w.1", limit=1).rows
    assert row.key == "k"
    assert store.settle([ending(row)]) == {"k": Settled.DONE}


def test_a_key_that_is_no_text_is_no_row(store):
    assert store.look(["\udcff", "a\0b"]) == {}


def test_a_write_with_an_unreadable_answer_has_an_unknown_outcome(store, faulty):
    def garbled(request):
        request.passed_on()
        request.answer(200, b"<html>")

    add(store, "k")
    faulty.faults["UpdateItem"] = [garbled]
    with pytest.raises(ClaimUnknownError):
        claim(store, "w.1")
    assert [row.key for row in store.held("w.1", ["k"])] == ["k"]
