"""Tests of the audit trail: who has changed which schedule, from what to what."""

import gzip
import json
import logging
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

import psched
from psched.base.clock import SystemClock
from psched.base.errors import (
    NotFoundError,
    NotSupportedError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.client.auditor import Author
from psched.client.collection import ScheduleCollection
from psched.client.verbs.editing import try_to_modify
from psched.core.history.protocol import AuditSelection
from psched.core.history.records import AuditRecord
from psched.files.apply import apply_plan, make_plan
from support.stores import make_store

EXAMPLES = Path(__file__).parents[2] / "docs/examples"

LATER = 4_000_000_000


@pytest.fixture(autouse=True)
def _on_a_store_with_a_history(sql):
    """Leaves Redis out: these tests write and read the tables by SQL."""


class Impatient:
    """A clock that measures the time and does not sleep, but calls a function instead."""

    def __init__(self, meanwhile=lambda: None):
        self.meanwhile = meanwhile
        self.time = 0.0

    def boottime(self):
        return self.time

    def wall(self):
        return self.time

    def sleep(self, _seconds):
        self.meanwhile()


@pytest.fixture
def open_as(settings, schedules):  # noqa: ARG001  # the table is there
    """A function that opens the schedules for an author; the store is the second result."""

    def open_as(user="ann", clock=None):
        store = make_store(settings.url)
        collection = ScheduleCollection(
            store,
            settings,
            clock=clock or Impatient(),
            draw_nonce=lambda: "n",
            author=lambda: Author(user, "db1", "psched test"),
        )
        return collection, store

    return open_as


def changes(schedules, key=None):
    """What was recorded, the oldest first: the action, and the fields before and after."""
    return [
        (record.action, record.before and json.loads(record.before),
         record.after and json.loads(record.after))
        for record in reversed([*schedules.audit(key)])
    ]  # fmt: skip


class TestEveryCall:
    def test_adding_records_the_definition_without_its_defaults(self, schedules):
        schedules.add(
            "k", "t", cron="0 2 * * *", timezone="Asia/Tokyo", delay=5, data={"ä": [1]},
            next_time=LATER, label="web", retry_wait=7, alive_time=90,
        )  # fmt: skip
        row = schedules.read("k").row
        assert changes(schedules) == [
            (
                "add",
                None,
                {
                    "type": "t",
                    "cron": "0 2 * * *",
                    "timezone": "Asia/Tokyo",
                    "delay": 5,
                    "next_time": row.next_time,
                    "next_run_time": row.next_run_time,
                    "alive_time": 90,
                    "label": "web",
                    "data": {"ä": [1]},
                    "options": {"retry_wait": 7},
                },
            )
        ]

    def test_modifying_records_only_what_has_changed(self, schedules):
        schedules.add("k", "t", cron="@daily", next_time=LATER, data={"n": 1})
        schedules["k"].modify(data={"n": 2}, type="u")
        schedules["k"].modify(retry_wait=9)
        schedules["k"].modify(type="u", data={"n": 2})  # as it is already
        assert changes(schedules)[1:] == [
            ("modify", {"type": "t", "data": {"n": 1}}, {"type": "u", "data": {"n": 2}}),
            ("modify", {"options": None}, {"options": {"retry_wait": 9}}),
        ]

    def test_a_new_trigger_is_recorded_with_the_new_time(self, schedules):
        schedules.add("k", "t", cron="@daily", timezone="UTC", next_time=LATER)
        before = schedules.read("k").row
        schedules["k"].modify(cron="@hourly")
        after = schedules.read("k").row
        (change,) = changes(schedules)[1:]
        assert change == (
            "modify",
            {"cron": "@daily", "next_time": before.next_time,
             "next_run_time": before.next_run_time},
            {"cron": "@hourly", "next_time": after.next_time,
             "next_run_time": after.next_run_time},
        )  # fmt: skip

    def test_ending_and_requeueing_record_the_status(self, schedules):
        schedules.add("k", "t", next_time=LATER)
        schedules["k"].cancel()
        schedules["k"].requeue(LATER + 5)
        schedules["k"].force_finish()
        assert [(each[0], *(side.get("status") for side in each[1:])) for each in
                changes(schedules)[1:]] == [
            ("cancel", "waiting", "cancelled"),
            ("requeue", "cancelled", "waiting"),
            ("force_finish", "waiting", "finished"),
        ]  # fmt: skip

    def test_deleting_records_the_definition_and_the_key_keeps_its_records(self, schedules):
        schedules.add("k", "t", cron="@daily", next_time=LATER)
        definition = changes(schedules)[0][2]
        schedules["k"].delete()
        schedules.add("other", "t", next_time=LATER)
        assert changes(schedules, "k") == [("add", None, definition), ("delete", definition, None)]

    def test_the_definition_of_a_running_schedule_is_recorded_when_it_is_marked(self, schedules):
        schedules.add("k", "t", next_time=1, data={"n": 1})
        schedules.poll()
        assert not schedules["k"].delete()
        assert not schedules["k"].delete()  # it is marked already
        action, before, after = changes(schedules)[-1]
        assert (action, before["data"], after) == ("delete", {"n": 1}, {"status": "deleting"})
        assert len(changes(schedules)) == 2

    def test_a_running_schedule_is_cancelled_by_a_mark(self, schedules):
        schedules.add("k", "t", cron="@daily", next_time=1)
        row = schedules.read("k").row
        assert schedules._store.replace(row, changed(row, next_run_time=0))
        schedules.poll()
        assert not schedules["k"].cancel()
        assert not schedules["k"].cancel()
        assert changes(schedules)[1:] == [
            ("cancel", {"status": "waiting"}, {"status": "cancelling"})
        ]

    def test_what_is_cancelled_and_not_retained_is_recorded_as_deleted(self, schedules):
        schedules.add("k", "t", next_time=LATER, retention_time=0)
        schedules["k"].cancel()
        action, before, after = changes(schedules)[-1]
        assert (action, before["type"], after) == ("cancel", "t", None)

    def test_pushes_and_runs_are_not_recorded(self, schedules):
        schedules.push("a", "t", {"n": 1})
        schedules.push_many([{"key": "b"}, {"key": "c"}])
        task = schedules.poll()
        task.update_data({"n": 2})
        task.finish()
        schedules.poll().retry()
        assert changes(schedules) == []

    def test_what_was_refused_is_not_recorded(self, schedules):
        schedules.add("k", "t", next_time=LATER)
        for refused in (
            lambda: schedules.add("k", "t", next_time=LATER),
            lambda: schedules["k"].modify(cron="nonsense"),
            schedules["k"].requeue,
            schedules["nothing"].delete,
            schedules["nothing"].cancel,
        ):
            with pytest.raises(psched.PschedError):
                refused()
        assert len(changes(schedules)) == 1

    @pytest.mark.slow
    def test_an_apply_is_a_few_transactions(self, schedules, settings):
        store, batches = schedules._store, []
        audit = store.history.audit
        store.history.audit = lambda records: (batches.append(len(records)), audit(records))
        for hour in 1, 2:
            declared = [{"key": f"k{n}", "cron": f"0 {hour} * * *"} for n in range(1200)]
            apply_plan(
                make_plan(schedules, declared, "web", settings=settings),
                schedules,
                settings=settings,
            )
        assert batches == [1000, 200, *[100] * 12]
        batches.clear()
        gone = make_plan(schedules, declared[250:], "web", settings=settings)
        apply_plan(gone, schedules, settings=settings, prune=True)
        assert batches == [100, 100, 50]
        assert {action for action, *_ in changes(schedules)} == {"add", "modify", "delete"}
        assert len(changes(schedules)) == 2 * 1200 + 250


class TestWho:
    def test_the_author_is_recorded_with_the_stores_time(self, open_as, now):
        mine, _ = open_as("änn (as root)")
        before = now()
        mine.add("k", "t", next_time=LATER)
        (record,) = mine.audit()
        assert (record.user, record.host, record.program) == ("änn (as root)", "db1", "psched test")
        assert int(before * 1000) - 1000 <= record.time <= now() * 1000 + 1000
        assert record.id is not None

    def test_a_program_is_named_as_it_wishes(self, settings, schedules):
        with psched.open(settings, program="the wéb app") as mine:
            mine.add("k", "t", next_time=LATER)
        assert next(schedules.audit()).program == "the wéb app"

    def test_a_note_belongs_to_the_changes_of_its_block(self, schedules):
        schedules.add("before", next_time=LATER)
        with schedules.audited("because \x1b of ü"):
            schedules.add("within", next_time=LATER)
            with schedules.audited("x" * 2000):
                schedules.add("nested", next_time=LATER)
            with pytest.raises(NotFoundError), schedules.audited(None):
                schedules["nothing"].delete()
            schedules.add("within too", next_time=LATER)
        schedules.add("after", next_time=LATER)
        assert {record.key: record.note for record in schedules.audit()} == {
            "before": None,
            "within": r"because \x1b of ü",
            "nested": "x" * 1000,
            "within too": r"because \x1b of ü",
            "after": None,
        }


class TestWhat:
    @pytest.mark.parametrize("size", [985, 5000, 200_000])
    def test_a_long_payload_is_recorded_by_its_length_and_hash(self, schedules, size):
        text = json.dumps({"secret": "ü" * size}, ensure_ascii=False, separators=(",", ":"))
        schedules.add("k", next_time=LATER, data={"secret": "ü" * size})
        recorded = changes(schedules)[0][2]["data"]
        if len(text) <= 1000:
            assert recorded == json.loads(text)
        else:
            digest = sha256(text.encode()).hexdigest()
            assert recorded == f"{len(text)} characters, SHA-256 {digest}"

    @pytest.mark.parametrize(
        "data", [{"half": "\\ud800"}, {"nul": "\\u0000"}, {"line": "\\n\u2028"}, {"n": 10**400}]
    )
    def test_every_payload_that_json_can_hold_is_recorded(self, schedules, sql, data):
        text = json.dumps(data, ensure_ascii=False).replace("\\\\", "\\")
        schedules.add("k", next_time=LATER)
        sql("UPDATE {table} SET data = :data", data=text)
        schedules["k"].delete()
        assert changes(schedules)[-1][1]["data"] == json.loads(text)

    @pytest.mark.parametrize("text", ["[1", '{"n": NaN}', '{"n": 1e999}', '{"n":' * 150])
    def test_what_is_no_json_is_recorded_as_text(self, schedules, sql, text):
        schedules.add("k", next_time=LATER)
        sql("UPDATE {table} SET data = :data", data=text)
        schedules["k"].delete()
        assert changes(schedules)[-1][1]["data"] == text

    def test_a_compressed_payload_that_stays_is_no_change(self, settings, sql):
        packing = settings.with_settings(compress_above=100)
        with psched.open(packing) as mine:
            mine._store.init()
            mine.add("k", "t", next_time=LATER, data={"n": "x" * 500})
            assert len(gzip.compress(b"x" * 500)) < len(sql("SELECT data FROM {table}")[0][0]) < 500
            mine["k"].modify(type="u", data={"n": "x" * 500})
            assert changes(mine)[1] == ("modify", {"type": "t"}, {"type": "u"})

    @pytest.mark.parametrize("key", ["Zürich 東京 😀", "A", "x" * 255])
    def test_any_key_is_found_again(self, schedules, key):
        schedules.add(key, next_time=LATER)
        schedules.add("a", next_time=LATER)
        assert [record.key for record in schedules.audit(key)] == [key]


class TestManyAtOnce:
    SCHEDULES = (
        {"key": "a", "type": "t", "cron": "@daily", "next_time": LATER, "data": {"n": 1}},
        {"key": "b", "type": "t", "cron": "@daily", "next_time": LATER, "data": {"n": "ü\u2028"}},
        {"key": "c", "type": "t", "cron": "@daily", "next_time": LATER, "label": "ours"},
        {"key": "d", "next_time": LATER},
        {"key": "e", "next_time": LATER, "data": {"n": "x" * 2000}, "alive_time": 60},
    )

    def test_each_is_recorded_as_one_that_was_read_and_deleted(self, schedules):
        schedules.add_many(self.SCHEDULES)
        added = {record.key: record.after for record in schedules.audit()}
        for key in added:
            schedules[key].delete()
        deleted = {r.key: r.before for r in schedules.audit() if r.action == "delete"}
        assert added == deleted
        assert json.loads(added["b"])["data"] == {"n": "ü\u2028"}
        names = ["type", "cron", "timezone", "next_time", "next_run_time", "data"]
        assert [*json.loads(added["a"])] == names


class TestReading:
    def test_the_newest_is_first_and_the_number_is_limited(self, schedules):
        schedules.add_many([{"key": f"k{n}", "next_time": LATER} for n in range(450)])
        keys = [record.key for record in schedules.audit()]
        assert keys == [f"k{n}" for n in reversed(range(450))]
        assert [record.key for record in schedules.audit(limit=2)] == ["k449", "k448"]
        assert [*schedules.audit("k7", limit=0)] == []

    def test_only_the_changes_since_a_time(self, schedules, sql, now):
        schedules.add_many([{"key": key, "next_time": LATER} for key in ("old", "new")])
        past = int(now()) - 100
        sql("UPDATE psched_audit SET time = :time WHERE id = 1", time=past * 1000)
        assert [record.key for record in schedules.audit(since=past + 1)] == ["new"]
        assert [record.key for record in schedules.audit(since=past)] == ["new", "old"]

    def test_old_changes_are_trimmed(self, schedules, sql, now):
        schedules.add_many([{"key": key, "next_time": LATER} for key in "abc"])
        sql("UPDATE psched_audit SET time = 5 WHERE id < 3")
        assert schedules._store.history.trim(before=int(now() * 1000) - 10_000, limit=100) == 2
        assert [record.key for record in schedules.audit()] == ["c"]


class TestWhatCannotBeRecorded:
    def test_without_the_tables_nothing_is_said_at_each_change(self, schedules, sql, caplog):
        sql("DELETE FROM psched_info WHERE name = 'history_version'")
        schedules.close()
        schedules.add("k", "t", next_time=LATER)
        schedules["k"].delete()
        assert caplog.records == []
        with pytest.raises(SchemaError, match="psched init"):
            schedules.audit()
        schedules._store.init()
        schedules.close()
        assert changes(schedules) == []

    def test_a_change_stands_and_one_warning_is_logged(self, schedules, sql, caplog):
        schedules.now()
        sql("ALTER TABLE psched_audit RENAME TO elsewhere")
        schedules.add_many([{"key": key, "next_time": LATER} for key in "abc"])
        schedules["a"].modify(type="u")
        assert schedules.read("a").type == "u"
        # psycopg has a warning of its own about the statements that it had sent together.
        (warning,) = (each for each in caplog.records if each.name.startswith("psched"))
        assert warning.levelno == logging.WARNING
        assert warning.getMessage().startswith(
            "the change of 'a' and 2 more was made, but is not in the audit trail: "
        )
        sql("ALTER TABLE elsewhere RENAME TO psched_audit")
        schedules["b"].modify(type="u")
        assert [record.key for record in schedules.audit()] == ["b"]

    def test_while_the_store_is_away_the_change_is_not_made_twice(self, open_as, caplog):
        mine, store = open_as()
        sent = []

        def away(records):
            sent.append(records)
            raise StoreUnavailableError("the server restarts")

        store.history.audit = away
        mine.add("k", "t", next_time=LATER)
        assert mine.read("k").row.version == 1
        assert len(sent) == 5
        assert len(caplog.records) == 1

    def test_a_store_without_a_history_can_be_changed(
        self, tmp_path, settings, caplog, monkeypatch
    ):
        monkeypatch.syspath_prepend(EXAMPLES)
        from filestore import FileStore  # noqa: PLC0415

        own = SimpleNamespace(
            store={"path": str(tmp_path / "schedules.json")}, only=(), host_names=()
        )
        store = FileStore(own, clock=SystemClock(), rng=random.Random())  # noqa: S311
        store.init()
        schedules = ScheduleCollection(store, settings, clock=SystemClock(), draw_nonce=str)
        schedules.add("k", "t", next_time=LATER)
        schedules["k"].modify(type="u")
        schedules["k"].delete()
        assert caplog.records == []
        with pytest.raises(NotSupportedError, match="no audit trail"):
            schedules.audit()


class TestAnswersThatAreLost:
    @pytest.mark.parametrize("is_applied", [True, False])
    def test_a_record_whose_answer_was_lost_is_written_once(self, open_as, is_applied):
        mine, store = open_as()
        mine.add("k", "t", next_time=LATER)
        audit, said = store.history.audit, []

        def lost(records):
            if not said:
                said.append(is_applied and audit(records))
                raise UnknownOutcomeError("the answer was lost")
            audit(records)

        for type_ in "uv":
            said.clear()
            store.audit = lost
            mine["k"].modify(type=type_)
        assert changes(mine)[1:] == [
            ("modify", {"type": "t"}, {"type": "u"}),
            ("modify", {"type": "u"}, {"type": "v"}),
        ]

    def test_an_equal_change_of_former_times_is_not_taken_for_the_lost_one(self, open_as, sql):
        mine, store = open_as()
        mine.add("k", "t", next_time=LATER)
        mine["k"].modify(type="u")
        sql("UPDATE psched_audit SET time = time - 60000")
        sql("UPDATE {table} SET type = 't', version = version + 1")
        audit, said = store.history.audit, []

        def lost(records):
            if not said:
                said.append(records)
                raise UnknownOutcomeError("the request was lost")
            audit(records)

        store.audit = lost
        mine["k"].modify(type="u")
        assert [record.action for record in mine.audit()] == ["modify", "modify", "add"]

    @pytest.mark.parametrize(
        ("method", "act", "action"),
        [
            ("add", lambda s: s.add("new", "t", next_time=LATER), "add"),
            ("replace", lambda s: s["k"].modify(type="u"), "modify"),
            ("replace", lambda s: s["ended"].requeue(LATER), "requeue"),
            ("replace", lambda s: s["k"].cancel(), "cancel"),
            ("replace", lambda s: s["k"].force_finish(), "force_finish"),
            ("delete", lambda s: s["k"].delete(), "delete"),
            ("delete", lambda s: s["brief"].cancel(), "cancel"),
            ("replace_many", lambda s: try_to_modify(s.access, [(s.read("k").row, {"type": "u"})]),
             "modify"),
        ],
    )  # fmt: skip
    def test_a_change_whose_answer_was_lost_is_recorded_once(self, open_as, method, act, action):
        mine, store = open_as()
        mine.add("k", "t", next_time=LATER)
        mine.add("brief", "t", next_time=LATER, retention_time=0)
        mine.add("ended", "t", next_time=LATER)
        mine["ended"].cancel()
        usual = [record.action for record in mine.audit()]
        send, said = getattr(store, method), []

        def lost(*arguments, **named):
            answer = send(*arguments, **named)
            if not said:
                said.append(answer)
                raise UnknownOutcomeError("the answer was lost")
            return answer

        setattr(store, method, lost)
        act(mine)
        assert [record.action for record in mine.audit()] == [action, *usual]
        newest = next(mine.audit())
        assert newest.before != newest.after


def test_two_programs_that_change_one_key_are_both_recorded_truly(open_as):
    mine, _ = open_as("ann")
    mine.add("k", "t", next_time=LATER, data={"n": 0})

    def count(user):
        own, store = open_as(user)
        for _ in range(10):
            own.modify("k", lambda row: {"data": {"n": json.loads(row.data)["n"] + 1}})
        store.disconnect()

    with ThreadPoolExecutor(2) as pool:
        [*pool.map(count, ["bob", "eve"])]
    steps = [(before["data"]["n"], after["data"]["n"]) for _, before, after in changes(mine)[1:]]
    assert sorted(steps) == [(n, n + 1) for n in range(20)]
    assert sorted(record.user for record in mine.audit()) == ["ann", *["bob"] * 10, *["eve"] * 10]


class TestStore:
    """What `KeepsHistory` says of the audit trail."""

    def test_a_record_is_returned_as_it_was_written(self, schedules):
        store = schedules._store
        store.now()
        full = AuditRecord(
            key="ü😀", action="modify", user="ü", host="h", program="p", note="n\n", before="{}",
            after='{"data":"' + "😀" * 100_000 + '"}',
        )  # fmt: skip
        empty = AuditRecord(key="k", action="delete", user="", host="", program="")
        store.history.audit([full, empty])
        store.history.audit([])
        found = [*store.history.audits(AuditSelection())]
        assert [(each.id is not None, each.time is not None) for each in found] == [
            (True, True)
        ] * 2
        assert [changed(each, id=None, time=None) for each in found] == [empty, full]

    def test_records_are_written_together_or_not_at_all(self, schedules):
        store = schedules._store
        good = AuditRecord(key="k", action="a", user="u", host="h", program="p")
        bad = AuditRecord(key="k", action=None, user="u", host="h", program="p")
        with pytest.raises(StoreError):
            store.history.audit([*[good] * 300, bad])
        assert [*store.history.audits(AuditSelection())] == []
