"""Tests of settling leases of schedules that were changed after the claim."""

from dataclasses import replace as changed

from psched.core.declare import redeclare
from psched.core.model import DELETING, FINISHED, QUARANTINED, Finish, Release, Retry, Row
from psched.core.policy import Run, after_claim
from psched.core.settling import Ending
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import payload
from support.settling import settle

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}


def leased(store, *keys, **columns):
    """Add hourly schedules and lease them; return the rows by key."""
    store.add(
        [Row(**{"key": key, "cron": "0 * * * *", "next_time": 3600, **columns}) for key in keys],
        nonce="n",
    )
    for key in keys:
        seen = store.get(key)
        store.replace(seen, changed(seen, next_run_time=0))
    return {row.key: row for row in store.claim("w.1", **CLAIM).rows}


def test_each_lease_ends_as_its_task_did(store, settings):
    rows = leased(store, "finish", "retry", "release")
    decisions = {"finish": Finish(), "retry": Retry(reason="why"), "release": Release()}
    endings = [Ending(rows[key], decision) for key, decision in decisions.items()]
    now = int(store.now())
    assert settle(store, endings, settings) == dict.fromkeys(rows, Settled.DONE)
    after = store.look([*rows])
    assert {key: row.next_time for key, row in after.items()} == {
        "finish": 7200,
        "retry": 3600,
        "release": 3600,
    }
    assert {key: row.attempt for key, row in after.items()} == {
        "finish": 0,
        "retry": 1,
        "release": 0,
    }
    assert after["retry"].next_run_time >= now + settings.retry_wait
    assert after["release"].next_run_time < now + settings.retry_wait
    assert after["retry"].reason == "why"


def test_what_was_redefined_is_settled_by_its_new_definition(store, open_store, settings):
    rows = leased(store, "same", "cron", "once", "bad", "moved")
    person = open_store()

    def change(key, **columns):
        seen = person.get(key)
        assert person.replace(seen, changed(seen, **columns))

    change("cron", cron="30 * * * *")
    change("once", cron=None)
    change("bad", cron="nonsense")
    change("moved", next_time=4_000_003_600)
    endings, now = [Ending(row, Finish()) for row in rows.values()], store.now()
    assert settle(store, endings, settings) == dict.fromkeys(rows, Settled.DONE)
    after = store.look([*rows])
    assert after["same"].next_time == 7200
    # From now on: the new line is not asked for occurrences in the past.
    assert now <= after["cron"].next_time <= now + 3600
    assert after["cron"].next_time % 3600 == 1800
    assert after["once"].status == FINISHED
    assert after["bad"].status == QUARANTINED
    assert after["moved"].next_time == after["moved"].next_run_time == 4_000_003_600
    assert {row.owner for row in after.values()} == {None}


def test_what_was_deleted_is_removed(store, open_store, settings):
    rows = leased(store, "k", "other")
    assert not open_store().delete("k")
    assert store.get("k").status == DELETING
    endings = [Ending(row, Retry()) for row in rows.values()]
    assert settle(store, endings, settings) == dict.fromkeys(rows, Settled.DONE)
    assert [row.key for row in store.rows()] == ["other"]


def test_what_is_another_workers_by_now_is_left_alone(store, open_store, sql, settings):
    rows = leased(store, "taken", "gone", "held")
    sql("UPDATE {table} SET next_run_time = 1 WHERE id = 'taken'")
    other = open_store()
    (taken,) = other.claim("w.2", **CLAIM).rows
    seen = other.get("taken")
    assert other.replace(seen, changed(seen, cron="30 * * * *"))
    before = other.get("taken")
    sql("DELETE FROM {table} WHERE id = 'gone'")
    endings = [Ending(row, Finish()) for row in rows.values()]
    assert settle(store, endings, settings) == {
        "taken": Settled.PREEMPTED,
        "gone": Settled.PREEMPTED,
        "held": Settled.DONE,
    }
    assert store.get("taken") == before
    assert before.token == taken.token


def test_a_payload_that_the_task_has_replaced_is_kept(store, settings):
    rows = leased(store, "k")
    assert store.update_data("k", rows["k"].token, '{"page":2}')
    assert settle(store, [Ending(rows["k"], Finish())], settings) == {"k": Settled.DONE}
    after = store.get("k")
    assert (payload(after.data), after.next_time, after.owner) == ('{"page":2}', 7200, None)


def test_a_definition_that_changes_again_and_again_is_followed(store, open_store, settings):
    """A person may change a row once more between its read and its settle."""
    rows = leased(store, "k")
    person, changes = open_store(), iter(["5 * * * *", "10 * * * *", "15 * * * *"])

    class Interrupted:
        """A store in which somebody changes the row before each settle."""

        def settle(self, settlements):
            for cron in changes:
                seen = person.get("k")
                assert person.replace(seen, changed(seen, cron=cron))
                break
            return store.settle(settlements)

        def look(self, keys):
            return store.look(keys)

        def now(self):
            return store.now()

    assert settle(Interrupted(), [Ending(rows["k"], Finish())], settings) == {"k": Settled.DONE}
    assert store.get("k").next_time % 3600 == 900


def test_what_is_taken_over_between_the_refusal_and_the_look_is_left_alone(
    store, open_store, sql, settings
):
    rows = leased(store, "k")
    other = open_store()
    seen = other.get("k")
    assert other.replace(seen, changed(seen, cron="30 * * * *"))

    class Interrupted:
        """A store in which the lease is lost between a settle and the read that follows."""

        def settle(self, settlements):
            return store.settle(settlements)

        def look(self, keys):
            sql("UPDATE {table} SET next_run_time = 1")
            other.claim("w.2", **CLAIM)
            return store.look(keys)

        def now(self):
            return store.now()

    endings = [Ending(rows["k"], Finish())]
    assert settle(Interrupted(), endings, settings) == {"k": Settled.PREEMPTED}
    after = store.get("k")
    assert (after.owner, after.next_time, after.settled_by) == ("w.2", 3600, "n")


def test_settling_may_be_repeated(store, settings):
    rows = leased(store, "a", "b")
    endings = [Ending(rows["a"], Finish()), Ending(rows["b"], Retry())]
    settle(store, endings, settings)
    before = store.look(["a", "b"])
    assert settle(store, endings, settings) == dict.fromkeys(rows, Settled.DONE)
    assert store.look(["a", "b"]) == before


def test_a_time_set_under_the_lease_of_a_worker_that_died_is_waited_for(store, settings):
    leased(store, "moved", "same")
    seen = store.get("moved")
    new = redeclare(seen, {"next_time": 4_000_000_000}, settings, lambda: 0)
    assert store.replace(seen, new)
    assert set(store.recover("w", alive_time=60, retry_wait=300)) == {"moved", "same"}
    claimed = store.claim("w.2", **CLAIM)
    verdicts = {row.key: after_claim(row, settings, claimed.now) for row in claimed.rows}
    assert isinstance(verdicts["same"], Run)
    store.settle([verdicts["moved"]])
    after = store.get("moved")
    assert after.next_time == after.next_run_time == 4_000_003_200


def test_nothing_to_end_is_nothing(store, settings):
    assert settle(store, [], settings) == {}
