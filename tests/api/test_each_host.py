"""What each host runs by itself: templates, and the rows that hosts get, follow and lose."""

from contextlib import contextmanager
from dataclasses import replace as changed

import pytest

import psched
from psched.base.errors import InvalidError
from psched.base.loader import loading_by
from psched.client.each_host import keep_own_rows, retire_gone
from psched.core.columns import LATEST_TIME
from psched.core.history.records import Fate
from psched.core.hosts import own_lane
from psched.triggers.custom import refuse_to_ask
from support.run_records import worker_record
from support.waiting import wait_until

GONE_AFTER = 1000


@pytest.fixture
def settings(settings):
    return settings.with_settings(host_gone_after=GONE_AFTER)


@pytest.fixture
def beat(schedules):
    """Write the record of a worker of a host with a configured name."""

    def write(host, *labels, named=True):
        names = " ".join([host, *labels] if named else labels) or None
        record = worker_record(nonce=host, host=host, labels=names, started=1)
        schedules.access.store.history.beat(record)

    return write


@contextmanager
def as_host(settings, name, *labels):
    """The API as a worker of a host has it."""
    with psched.open(settings.with_settings(host_name=name, host_labels=[*labels])) as opened:
        yield opened


def look(settings, name, *labels, since=1, retires=False):
    """Let a host, known since some time, look for the rows that it should have."""
    with as_host(settings, name, *labels) as opened:
        known_for = opened.now() - since
        for _ in keep_own_rows(opened.access, known_for=known_for, retires=retires):
            pass


def alter(schedules, key, **columns):
    """Set columns of a row as they are after some time, or as plain SQL sets them."""
    store = schedules.access.store
    row = store.get(key)
    assert store.replace(row, changed(row, **columns))


def keys(schedules):
    return sorted(each.key for each in schedules.list())


def taken(settings, name, alive_time=60):
    """The keys of what a host claims now."""
    with as_host(settings, name) as opened:
        claimed = opened.access.store.claim(
            f"{name}.1", limit=100, alive_time=alive_time, shortest=1, horizon=0
        )
        return sorted(row.key for row in claimed.rows)


def test_each_known_host_gets_a_row_when_a_schedule_is_added(schedules, beat):
    beat("web1")
    beat("web2", "eu")
    beat("pod-x7f", named=False)
    schedules.add("trim", "t", every="1h", each_host=True)
    schedules.add("euro", "t", every="1h", each_host=True, hosts=["eu", "db*"])
    assert keys(schedules) == ["euro", "euro@web2", "trim", "trim@web1", "trim@web2"]
    row = schedules["trim@web1"].metadata()
    assert (row.template, row.hosts, row.each_host) == ("trim", ["web1"], False)
    template = schedules["trim"].metadata()
    assert (template.template, template.hosts, template.each_host) == (None, None, True)
    assert row.next_time == template.next_time
    assert schedules["euro"].metadata().hosts == ["db*", "eu"]


def test_a_host_runs_its_own_row_alone_and_nobody_a_template(schedules, settings, beat, now):
    for host in ("web1", "web2"):
        beat(host)
    schedules.add("trim", "t", cron="* * * * *", next_time=int(now()) - 120, each_host=True)
    assert taken(settings, "web1") == ["trim@web1"]
    assert taken(settings, "other") == []
    with as_host(settings, "x", "web2") as labelled:  # a label is no name
        store = labelled.access.store
        assert not store.claim("x.1", limit=9, alive_time=60, shortest=1, horizon=0).rows
    assert taken(settings, "web2") == ["trim@web2"]


def test_a_host_that_comes_later_gets_its_row_by_itself_from_then_on(schedules, settings, now):
    schedules.add("trim", "t", cron="* * * * *", next_time=int(now()) - 600, each_host=True)
    assert keys(schedules) == ["trim"]
    look(settings, "web9", since=now() + 60)
    assert keys(schedules) == ["trim", "trim@web9"]
    assert schedules["trim@web9"].metadata().next_time >= int(now())
    look(settings, "web9")
    assert keys(schedules) == ["trim", "trim@web9"]


def test_a_host_that_was_known_already_has_missed_what_fell_due_meanwhile(
    schedules, settings, beat, now
):
    start = int(now()) - 600
    schedules.add("trim", "t", cron="* * * * *", next_time=start, each_host=True)
    beat("web9")  # since long ago; the row was not made, for example because the client died
    look(settings, "web9")
    assert schedules["trim@web9"].metadata().next_time < start + 60


def test_a_row_that_was_deleted_comes_back_and_runs_nothing_again(schedules, settings, beat, now):
    beat("web1")
    start = int(now()) - 6000
    schedules.add("trim", "t", cron="* * * * *", next_time=start, each_host=True)
    alter(schedules, "trim", created_at=start)
    schedules["trim@web1"].delete()
    look(settings, "web1")
    assert schedules["trim@web1"].metadata().next_time >= int(now())


@pytest.mark.parametrize("by", ["client", "host"])
def test_a_row_that_was_deleted_soon_comes_back_and_runs_nothing_again(
    schedules, settings, beat, now, by
):
    beat("web1")
    start = int(now()) - 6000
    schedules.add("trim", "t", cron="* * * * *", next_time=start, each_host=True)
    schedules["trim@web1"].delete()
    if by == "client":
        schedules["trim"].modify(label="ops")
    else:
        look(settings, "web1")
    assert schedules["trim@web1"].metadata().next_time >= int(now())


@pytest.mark.parametrize("by", ["client", "host"])
def test_a_host_that_is_wanted_later_makes_up_for_nothing(schedules, settings, beat, now, by):
    beat("web1")
    start = int(now()) - 6000
    schedules.add("trim", "t", cron="* * * * *", next_time=start, each_host=True, hosts=["eu"])
    alter(schedules, "trim", created_at=start)
    if by == "client":
        schedules["trim"].modify(hosts=["eu", "web*"])
    else:
        look(settings, "web1", "eu")
    assert schedules["trim@web1"].metadata().next_time >= int(now())


def test_a_template_that_begins_later_begins_so_on_a_host_that_comes_meanwhile(
    schedules, settings, now
):
    start = (int(now()) // 60 + 600) * 60
    schedules.add("trim", "t", cron="* * * * *", next_time=start, each_host=True)
    look(settings, "web9", since=now() + 60)
    assert schedules["trim@web9"].metadata().next_time == start


class Ebb:
    """A user's trigger: it fires at whole hours, up to an hour."""

    calls = 0

    def __init__(self, last):
        self.last = last

    def next_at(self, after):
        type(self).calls += 1
        following = (after // 3600 + 1) * 3600
        return following if following <= self.last else None


def test_a_host_calls_no_trigger_of_a_user_which_could_hang_its_worker(
    schedules, settings, now, monkeypatch
):
    hour = int(now()) // 3600 * 3600
    trigger = (Ebb, {"last": hour + 10 * 3600})
    schedules.add("trim", "t", trigger=trigger, each_host=True)
    schedules.add("late", "t", trigger=trigger, each_host=True, next_time=hour - 3600)
    schedules.add("soon", "t", trigger=trigger, each_host=True, next_time=hour + 2 * 3600)
    alter(schedules, "trim", created_at=hour - 6000, next_time=hour - 3600)
    with loading_by(refuse_to_ask):
        look(settings, "web1")
        assert schedules["late@web1"].metadata().next_time == hour - 3600
        assert schedules["soon@web1"].metadata().next_run_time == hour + 2 * 3600
        row = schedules["trim@web1"].metadata().row
        assert (row.next_time, row.next_run_time <= now()) == (None, True)  # a helper computes it
    with monkeypatch.context() as patched:
        patched.setattr("psched.client.access.Access.spread", lambda _self, _rows, **_: None)
        for key in ("trim", "soon"):
            schedules[key].modify(trigger=(Ebb, {"last": hour + 5 * 3600}))
    schedules["trim@web1"].pause()
    before = Ebb.calls
    with loading_by(refuse_to_ask):
        look(settings, "web1")
        row = schedules["soon@web1"].metadata().row
        assert (row.next_time, row.next_run_time <= now()) == (None, True)
        assert schedules["trim@web1"].metadata().status == "paused"
        with as_host(settings, "web2") as opened:
            for _ in retire_gone(opened.access, lambda _: ()):
                pass
    assert Ebb.calls == before


def test_what_has_no_more_occurrences_gives_a_later_host_no_row(schedules, settings, now, caplog):
    last = (int(now()) // 3600 + 1) * 3600
    schedules.add("trim", "t", trigger=(Ebb, {"last": last}), each_host=True)
    row = schedules.access.store.get("trim")
    alter(schedules, "trim", cron=row.cron.replace(f"{last}", f"{last - 3600}"))
    look(settings, "web1", since=now() + 100)
    assert keys(schedules) == ["trim"]
    assert not caplog.records


def test_what_plain_sql_lets_each_host_run_without_a_trigger_is_refused(
    schedules, settings, caplog
):
    schedules.add("trim", "t", every="1h", each_host=True)
    alter(schedules, "trim", cron=None)
    look(settings, "web1")
    assert keys(schedules) == ["trim"]
    assert "trim cannot run on its hosts: each_host: is for what runs again" in caplog.text


def test_an_extra_run_of_a_row_stays_when_its_host_looks(schedules, settings, beat):
    beat("web1")
    schedules.add("trim", "t", every="1h", each_host=True)
    extra = schedules["trim@web1"].trigger()
    look(settings, "web1")
    assert extra.key in keys(schedules)


def test_a_row_that_was_cancelled_stays_so_whatever_its_template_says(schedules, beat):
    beat("web1")
    schedules.add("trim", "t", cron="0 3 * * *", each_host=True)
    schedules["trim@web1"].cancel()
    schedules["trim"].modify(cron="0 4 * * *")
    row = schedules["trim@web1"].metadata().row
    assert (row.status, row.next_run_time, row.cron) == ("cancelled", None, "0 4 * * *")
    schedules["trim@web1"].requeue()
    assert schedules["trim@web1"].metadata().status == "waiting"


@pytest.mark.parametrize("status", ["deleting", "to_delete", "migrating"])
def test_a_row_that_somebody_removes_or_moves_is_left_alone(schedules, settings, beat, status):
    beat("web1")
    schedules.add("trim", "t", cron="0 3 * * *", each_host=True)
    alter(schedules, "trim@web1", status=status)
    schedules["trim"].modify(cron="0 4 * * *")
    look(settings, "web1")
    assert schedules["trim@web1"].metadata().status == status


def test_a_host_does_not_undo_a_change_that_came_while_it_looked(schedules, settings, beat):
    beat("web1")
    schedules.add("trim", "t", cron="0 3 * * *", each_host=True)
    with as_host(settings, "web1") as opened:
        steps = keep_own_rows(opened.access, known_for=10**6, retires=False)
        next(steps)  # it has read which templates there are
        schedules["trim"].modify(cron="0 4 * * *")
        for _ in steps:
            pass
    assert schedules["trim@web1"].metadata().cron == "0 4 * * *"


def test_a_host_keeps_the_row_of_a_template_that_was_added_while_it_looked(
    schedules, settings, beat
):
    beat("web1")
    with as_host(settings, "web1") as opened:
        steps = keep_own_rows(opened.access, known_for=10**6, retires=False)
        next(steps)  # it has read which templates there are
        schedules.add("trim", "t", cron="0 3 * * *", each_host=True)
        made = schedules["trim@web1"].metadata().row
        for _ in steps:
            pass
    assert schedules["trim@web1"].metadata().row == made


def test_a_look_at_many_templates_takes_few_requests(schedules, settings, beat):
    beat("web1")
    schedules.add_many(
        {"key": f"trim{i}", "type": "t", "every": "1h", "each_host": True} for i in range(250)
    )
    with as_host(settings, "web1") as opened:
        assert len([*keep_own_rows(opened.access, known_for=10**6, retires=False)]) < 10
    assert len(keys(schedules)) == 500


def test_a_template_of_plain_sql_rests_when_a_host_has_looked(schedules, settings, now):
    schedules.add("trim", "t", cron="0 3 * * *", each_host=True)
    alter(schedules, "trim", next_run_time=int(now()) - 100)
    look(settings, "web1")
    assert schedules["trim"].metadata().next_run_time == LATEST_TIME
    assert "trim@web1" in keys(schedules)


def test_the_rows_follow_their_template_and_keep_their_own_pauses_and_times(schedules, beat):
    for host in ("web1", "web2"):
        beat(host)
    schedules.add("trim", "t", cron="0 3 * * *", each_host=True, data={"n": 1})
    schedules["trim@web1"].pause()
    schedules["trim"].modify(cron="0 4 * * *", data={"n": 2}, retry_wait=7, label="ops")
    for host in ("web1", "web2"):
        row = schedules[f"trim@{host}"].metadata()
        assert (row.cron, row.data, row.label) == ("0 4 * * *", {"n": 2}, "ops")
        assert row.row.options == schedules["trim"].metadata().row.options
        assert (row.status == "paused") == (host == "web1")
    assert schedules["trim@web2"].metadata().next_time % 86_400 == 4 * 3600
    schedules["trim@web1"].resume()
    assert schedules["trim@web1"].metadata().next_time % 86_400 == 4 * 3600


def test_a_change_that_reached_no_row_reaches_it_when_its_host_looks(
    schedules, settings, beat, monkeypatch
):
    beat("web1")
    schedules.add("trim", "t", cron="0 3 * * *", each_host=True)
    with monkeypatch.context() as patched:
        patched.setattr("psched.client.access.Access.spread", lambda _self, _rows, **_: None)
        schedules["trim"].modify(cron="0 5 * * *")
    assert schedules["trim@web1"].metadata().cron == "0 3 * * *"
    look(settings, "web1")
    assert schedules["trim@web1"].metadata().cron == "0 5 * * *"


def test_a_host_that_is_not_wanted_any_more_loses_its_row(schedules, settings, beat):
    for host in ("web1", "web2"):
        beat(host)
    schedules.add("trim", "t", every="1h", each_host=True)
    schedules["trim"].modify(hosts=["web2", "eu"])
    assert keys(schedules) == ["trim", "trim@web2"]
    look(settings, "web1", "eu")
    assert keys(schedules) == ["trim", "trim@web1", "trim@web2"]
    look(settings, "web1")
    assert keys(schedules) == ["trim", "trim@web2"]


def test_masters_of_one_name_with_different_labels_leave_each_other_the_row(
    schedules, settings, beat
):
    beat("web1", "eu")
    schedules.add("trim", "t", every="1h", each_host=True, hosts=["eu"])
    made = schedules["trim@web1"].metadata().row
    look(settings, "web1")
    assert schedules["trim@web1"].metadata().row == made


def test_all_rows_go_with_their_template(schedules, beat):
    beat("web1")
    schedules.add("trim", "t", every="1h", each_host=True)
    schedules.add("trim@other", "t", every="1h")  # a key that looks so, but is nobody's row
    schedules["trim"].delete()
    assert keys(schedules) == ["trim@other"]


def test_a_task_deletes_what_each_host_runs_as_anybody_else_does(schedules, beat, monkeypatch):
    beat("web1")
    schedules.add("trim", "t", every="1h", each_host=True)
    monkeypatch.setenv("PSCHED_KEY", "cleaner")
    schedules["trim"].delete()
    assert keys(schedules) == []


def test_a_row_that_was_left_without_a_template_goes_when_its_host_looks(schedules, settings, beat):
    beat("web1")
    schedules.add("trim", "t", every="1h", each_host=True)
    schedules.access.store.delete("trim")
    look(settings, "web1")
    assert keys(schedules) == []


def test_a_key_that_is_taken_is_left_alone(schedules, beat, caplog):
    beat("web1")
    schedules.add("trim@web1", "mine", every="2h")
    schedules.add("trim", "t", every="1h", each_host=True)
    assert schedules["trim@web1"].metadata().type == "mine"
    assert "trim@web1 has no row of trim: the key is taken" in caplog.text


VERBS = {
    "pause": lambda schedule: schedule.pause(),
    "resume": lambda schedule: schedule.resume(),
    "skip": lambda schedule: schedule.skip(),
    "trigger": lambda schedule: schedule.trigger(),
    "backfill": lambda schedule: schedule.backfill(0, 1),
    "stop": lambda schedule: schedule.stop(),
    "cancel": lambda schedule: schedule.cancel(),
    "force_finish": lambda schedule: schedule.force_finish(),
    "requeue": lambda schedule: schedule.requeue(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_done_with_a_schedule_is_done_with_the_rows_of_its_hosts(schedules, verb):
    schedules.add("trim", "t", every="1h", each_host=True)
    with pytest.raises(InvalidError, match="all by a pattern: 'trim@\\*'"):
        VERBS[verb](schedules["trim"])


def test_a_selection_takes_the_rows_and_an_edit_the_templates(schedules, beat):
    for host in ("web1", "web2"):
        beat(host)
    schedules.add("trim", "t", every="1h", each_host=True, label="ops")
    assert schedules.select(label="ops").pause().changed == ["trim@web1", "trim@web2"]
    assert schedules.select("trim*").edit(every="2h").changed == ["trim"]
    assert schedules["trim@web2"].metadata().cron.startswith("@every 7200")
    with pytest.raises(InvalidError, match="edit 'trim', for each host"):
        schedules["trim@web1"].modify(every="3h")


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"each_host": True}, "each_host", "give it cron or every"),
        ({"each_host": "yes", "every": "1h"}, "each_host", "must be true or false"),
        ({"each_host": True, "every": "1h", "key": "k" * 200}, "key", "may have 191 characters"),
    ],
)
def test_what_each_host_cannot_run_is_refused(schedules, fields, field, text):
    with pytest.raises(InvalidError, match=text) as caught:
        schedules.add(**{"key": "trim", "type": "t", **fields})
    assert caught.value.field == field


@pytest.mark.parametrize("each_host", [True, False])
def test_it_cannot_be_changed_later(schedules, each_host):
    schedules.add("trim", "t", every="1h", each_host=each_host)
    with pytest.raises(InvalidError, match="delete the schedule, and add it anew"):
        schedules["trim"].modify(each_host=not each_host)
    schedules["trim"].modify(each_host=each_host, delay=5)
    assert schedules["trim"].metadata().each_host == each_host


@pytest.mark.parametrize("field", ["next_time", "next_run_time"])
def test_the_time_of_a_template_is_not_changed_because_no_row_would_follow(schedules, now, field):
    schedules.add("trim", "t", cron="* * * * *", each_host=True)
    seen = schedules["trim"].metadata().row
    with pytest.raises(InvalidError, match="delete 'trim', and add it anew"):
        schedules["trim"].modify(**{field: int(now()) + 600})
    assert schedules["trim"].metadata().row == seen


def test_the_next_runs_of_a_template_are_those_of_its_hosts_from_now_on(schedules, now):
    schedules.add("trim", "t", cron="* * * * *", next_time=int(now()) - 6000, each_host=True)
    begun = now()
    times = [each.time for each in schedules["trim"].next(2)]
    assert times[0] >= begun
    assert times[1] - times[0] == 60
    assert schedules["trim"].why().code == "each_host"


class Gone:
    """A host that had a row, and of which nothing was heard for long."""

    def __init__(self, schedules, settings, now):
        self.schedules = schedules
        start = int(now()) - 600
        schedules.add("trim", "t", cron="* * * * *", next_time=start, each_host=True)
        schedules.access.store.history.beat(
            worker_record(nonce="here", host="web1", labels="web1", started=1)
        )
        with as_host(settings, "web9") as opened:
            store = opened.access.store
            record = worker_record(nonce="web9", host="web9", labels="web9", started=1)
            store.history.beat(record)
            for _ in keep_own_rows(opened.access, known_for=10**6, retires=False):
                pass
            store.history.trim(before=2**53, limit=100)  # the record of web9 is gone; as with time
        schedules.access.store.history.beat(
            worker_record(nonce="here", host="web1", labels="web1", started=1)
        )


def test_the_row_of_a_host_that_is_gone_goes_and_its_times_have_a_fate(schedules, settings, now):
    Gone(schedules, settings, now)
    assert "trim@web9" in keys(schedules)
    missed = schedules["trim@web9"].metadata().next_time
    look(settings, "web1", retires=True)
    assert schedules["trim@web9"].metadata().status == "deleting"
    assert schedules["trim@web9"].metadata().row.lane is None
    (span,) = schedules.runs("trim@web9", fate=Fate.SKIPPED)
    assert span.scheduled_time == missed
    assert span.until >= now() - 60
    assert span.reason == "its host was not seen for 16.7 min"
    assert own_lane("web1") == schedules["trim@web1"].metadata().row.lane


def test_the_first_host_that_is_alive_removes_the_rows_for_all(schedules, settings, beat, now):
    Gone(schedules, settings, now)
    beat("web2")
    look(settings, "web2", retires=True)
    assert schedules["trim@web9"].metadata().status == "waiting"
    look(settings, "web1", retires=True)
    assert schedules["trim@web9"].metadata().status == "deleting"


def test_what_rests_and_the_extra_runs_of_a_host_that_is_gone_go_too(schedules, settings, now):
    Gone(schedules, settings, now)
    schedules.add("tidy", "t", every="1h", each_host=True)
    look(settings, "web9")
    extra = schedules["trim@web9"].trigger()
    schedules["trim@web9"].pause()
    schedules["tidy@web9"].cancel()
    look(settings, "web1", retires=True)
    for key in ("trim@web9", "tidy@web9", extra.key):
        assert schedules[key].metadata().status == "deleting", key
    assert not [*schedules.runs("tidy@web9", fate=Fate.SKIPPED)]


@pytest.mark.parametrize("status", ["deleting", "to_delete"])
def test_what_was_to_be_deleted_after_its_run_goes_with_its_host(schedules, settings, now, status):
    Gone(schedules, settings, now)
    assert taken(settings, "web9", alive_time=1) == ["trim@web9"]
    alter(schedules, "trim@web9", status=status)
    over = schedules["trim@web9"].metadata().next_run_time
    wait_until(lambda: now() > over, what="the end of its lease")
    look(settings, "web1", retires=True)
    assert taken(settings, "web1") == ["trim@web1", "trim@web9"]
    assert not [*schedules.runs("trim@web9", fate=Fate.SKIPPED)]


def test_a_host_that_is_alive_is_not_gone_whatever_the_setting(schedules, settings, now):
    Gone(schedules, settings, now)
    access = schedules.access

    def workers(since):
        found = access.store.history.workers()
        seen = int(now()) - 60
        return [changed(each, host="web9", labels="web9") for each in found if seen >= since]

    short = settings.with_settings(host_gone_after=30, host_name="web1")
    with psched.open(short) as opened:
        for _ in retire_gone(opened.access, workers):
            pass
    assert schedules["trim@web9"].metadata().status == "waiting"


def test_a_host_that_comes_back_while_others_are_removed_keeps_its_rows(
    schedules, settings, now, beat
):
    Gone(schedules, settings, now)
    schedules.add("tidy", "t", every="1h", each_host=True)
    look(settings, "web9")
    schedules["trim@web9"].pause()
    schedules["tidy@web9"].pause()

    def statuses():
        return [schedules[key].metadata().status for key in ("trim@web9", "tidy@web9")]

    with as_host(settings, "web1") as opened:
        for _ in retire_gone(opened.access, opened.access.store.history.workers):
            if "deleting" in statuses():
                beat("web9")
    assert sorted(statuses()) == ["deleting", "paused"]


def test_the_reason_tells_no_longer_than_the_history_knows(schedules, settings, now):
    Gone(schedules, settings, now)
    with psched.open(settings.with_settings(history_keep=600)) as opened:
        for _ in retire_gone(opened.access, opened.access.store.history.workers):
            pass
    (span,) = schedules.runs("trim@web9", fate=Fate.SKIPPED)
    assert span.reason == "its host was not seen for 10.0 min"


def test_a_host_whose_name_is_configured_no_more_is_gone_in_time(schedules, settings, now, beat):
    Gone(schedules, settings, now)
    beat("web9", named=False)
    look(settings, "web1", retires=True)
    assert schedules["trim@web9"].metadata().status == "deleting"


def test_a_paused_row_that_was_left_without_a_template_goes_when_its_host_looks(
    schedules, settings, beat
):
    beat("web1")
    schedules.add("trim", "t", every="1h", each_host=True)
    schedules["trim@web1"].pause()
    schedules.access.store.delete("trim")
    look(settings, "web1")
    assert keys(schedules) == []
