"""What each host runs by itself: templates, and the rows that hosts get, follow and lose."""

from contextlib import contextmanager

import pytest

import psched
from psched.base.errors import InvalidError
from psched.client.each_host import keep_own_rows
from psched.core.history.records import Fate
from psched.core.hosts import own_lane
from support.run_records import worker_record

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


def look(settings, name, *labels, retires=False):
    """Let a host look for the rows that it should have."""
    with as_host(settings, name, *labels) as opened:
        for _ in keep_own_rows(opened.access, retires=retires):
            pass


def keys(schedules):
    return sorted(each.key for each in schedules.list())


def taken(settings, name):
    """The keys of what a host claims now."""
    with as_host(settings, name) as opened:
        claimed = opened.access.store.claim(
            f"{name}.1", limit=100, alive_time=60, shortest=1, horizon=0
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
    look(settings, "web9")
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
        patched.setattr("psched.client.access.Access.spread", lambda _self, _rows: None)
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


def test_all_rows_go_with_their_template(schedules, beat):
    beat("web1")
    schedules.add("trim", "t", every="1h", each_host=True)
    schedules.add("trim@other", "t", every="1h")  # a key that looks so, but is nobody's row
    schedules["trim"].delete()
    assert keys(schedules) == ["trim@other"]


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
            for _ in keep_own_rows(opened.access, retires=False):
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
