"""Alerts from end to end: raised by monitors, delivered by hooks, over when all is well again."""

import json
import re
import signal
from contextlib import contextmanager

import pytest

from support.processes import children, kill
from support.receiver import receiving
from support.waiting import wait_for_end, wait_until

pytestmark = [pytest.mark.monitor, pytest.mark.extended]


@contextmanager
def told(service, **settings):
    """A webhook on loopback that is told about everything; yields what it has received."""
    with receiving() as receiver:
        names = ["on_failed", "on_late", "on_lost", "on_recovered"]
        service.configure(
            hooks={"ops": {"webhook": receiver.url("/ops")}},
            allow_private_addresses=True,
            **dict.fromkeys(names, "ops"),
            **settings,
        )
        yield Told(receiver)


class Told:
    """What a receiver was told."""

    def __init__(self, receiver):
        self._receiver = receiver

    @property
    def events(self):
        """Event, rule and key or host of each request, without those that were repeated."""
        bodies = {request.json["id"]: request.json for request in [*self._receiver.requests]}
        return [
            (body["event"], body["alert"]["rule"], body["alert"]["key"]) for body in bodies.values()
        ]

    def wait(self, *events):
        wait_until(
            lambda: [*events] == self.events, what=f"{events}, besides {self.events}, were told"
        )


def alerts(service, *options):
    lines = service.psched("alerts", "--json", *options).stdout.splitlines()
    return [json.loads(line) for line in lines]


def fail_until_told(service, hook, key):
    """Have a task fail until its failure was told, and then succeed; wait until all is told.

    One that succeeded before the monitor looks, for example while it starts, would not be told.
    """
    service.add(key, data={"fail": 1000})
    hook.wait(raised := ("raised", "failed", key))
    assert service.psched("edit", key, "--data", "{}").returncode == 0
    hook.wait(raised, ("closed", "failed", key))


def leased_alerts(service):
    """The rules of the alerts that a monitor delivers."""
    with service.sql() as connection:
        return connection.execute("SELECT rule FROM psched_alerts WHERE owner <> ''").fetchall()


@pytest.mark.landing
def test_a_failure_is_told_and_so_is_its_end(service):
    with told(service) as hook:
        master = service.start()
        fail_until_told(service, hook, "job")
        service.wait_for_finish("job")
        # Further attempts may have failed, too, before the monitor looks.
        master.wait_for_log(
            r"monitor alert, failed, job: attempt \d+ has failed: RecorderError: as"
        )
        master.wait_for_log(r"monitor alert closed, failed, job: it has succeeded, attempt \d+")
        assert master.stop() == 0
    # Nothing is left to deliver.
    with service.sql() as connection:
        [(next_try, owner)] = connection.execute("SELECT next_try, owner FROM psched_alerts")
    assert (next_try, owner) == (None, None)


def test_what_no_worker_takes_is_late(service):
    with told(service, only=["other"], expect={"late": 1}) as hook:
        service.start()
        service.add("job")
        hook.wait(("raised", "late", "job"))
        assert service.psched("delete", "job").returncode == 0
        hook.wait(("raised", "late", "job"), ("closed", "late", "job"))


def test_a_host_that_dies_with_its_tasks_is_told_by_another_one(service, make_service):
    """The other host takes no task of this type, so nobody runs what the dead one ran."""
    service.configure(alive_time=6, database_timeout=1)
    host = service.start()
    service.add("job", data={"until": "never"})
    service.runs.wait("job", bool)
    other = make_service(service.url, only=["other"], expect={"late": 1})
    with told(other) as hook:
        other.start()
        host.send_all(signal.SIGKILL)
        hook.wait(("raised", "late", "job"))


@pytest.mark.landing
def test_a_worker_that_dies_is_told_and_so_is_its_task(service):
    with told(service) as hook:
        master = service.start()
        fail_until_told(service, hook, "first")
        # Now the monitor knows how many workers have died before.
        before = hook.events
        service.add("job", data={"kills": "worker", "times": 1})
        service.wait_for_finish("job")
        wait_until(
            lambda: (
                {
                    *before,
                    ("raised", "worker_died", ""),
                    ("raised", "lost", "job"),
                    ("closed", "lost", "job"),
                }
                == {*hook.events}
            ),
            what="the deaths",
        )
        assert master.stop() == 0


def test_a_killed_guard_of_a_hook_leaves_nothing(service):
    script = "setsid sh -c 'echo $$ > new; mv new left; exec sleep 100000' & sleep 100000"
    service.configure(hooks={"ops": {"command": ["/bin/sh", "-c", script]}}, on_failed="ops")
    master = service.start()
    monitor = master.wait_for_monitor()
    service.add("job", data={"fail": 1000})
    left = service.folder / "left"
    wait_until(left.exists, what="the background process")
    [guard] = children(monitor)
    kill(guard)
    wait_for_end(int(left.read_text()))
    assert master.wait_for_monitor() == monitor
    assert master.stop() == 0


@pytest.mark.landing
def test_a_monitor_that_dies_while_it_delivers_is_followed_by_another_one(service):
    service.configure(
        hooks={"ops": {"command": ["/bin/sh", "-c", "echo >> told; test -e gate || sleep 1000"]}},
        on_failed="ops",
    )
    master = service.start()
    first = master.wait_for_monitor()
    service.add("job", data={"fail": 1000})
    tries = service.folder / "told"
    wait_until(tries.exists, what="the first delivery")

    kill(first)
    second = master.wait_for_monitor(other_than=first)
    (service.folder / "gate").touch()
    # The lease of the first monitor would end after some minutes.
    with service.sql() as connection:
        assert leased_alerts(service) == [("failed",)]
        connection.execute("UPDATE psched_alerts SET next_try = 1 WHERE rule = 'failed'")
        connection.commit()

    def delivered():
        with service.sql() as connection:
            query = "SELECT deliveries, next_try, owner FROM psched_alerts WHERE rule = 'failed'"
            [(deliveries, next_try, owner)] = connection.execute(query)
        return json.loads(deliveries or "{}").get("raised/ops", {}).get("done") and (
            next_try,
            owner,
        ) == (None, None)

    wait_until(delivered, what="the second delivery")
    assert len(tries.read_text()) == 2
    assert master.wait_for_monitor() == second


def test_a_slow_receiver_delays_no_task_and_no_stop(service):
    service.configure(
        hooks={"slow": {"command": ["/bin/sleep", "1000"]}}, on_failed="slow", concurrency=2
    )
    master = service.start()
    service.add("bad", data={"fail": 1000})
    master.wait_for_log("alert, failed, bad")
    for number in range(5):
        service.add(f"good{number}")
    for number in range(5):
        service.wait_for_finish(f"good{number}")
    assert master.stop() == 0
    master.wait_until_nothing_is_left()


def test_rows_that_wait_for_a_slot_are_told_and_a_new_master_goes_on(service):
    """The row seems to have waited for more than the minute for which rows may wait."""
    with told(service) as hook:
        service.add("first", data={"until": "gate"})
        service.add("second", next_run_time=int(service.schedules().now()) - 100)
        master = service.start()
        hook.wait(("raised", "no_slot", ""))
        # Until it is noted, the dead monitor's lease would keep the alert from the next monitor.
        wait_until(lambda: not leased_alerts(service), what="the note of the delivery")
        master.kill()
        service.open_gate("gate")
        service.start()
        hook.wait(("raised", "no_slot", ""), ("closed", "no_slot", ""))


def test_the_alarms_need_no_hook(service):
    service.start()
    service.add("job", data={"fail": 1000})

    def seen():
        return [(alert["rule"], alert["key"]) for alert in alerts(service)]

    wait_until(lambda: seen() == [("failed", "job")], what="the alert in the list")
    assert re.search(r"failed +job", service.psched("alerts").stdout)


def test_it_works_on_each_kind_of_database(each_service):
    service = each_service
    with told(service) as hook:
        master = service.start()
        fail_until_told(service, hook, "job")
        assert master.stop() == 0
