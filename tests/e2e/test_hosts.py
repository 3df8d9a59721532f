"""Hosts: what only some hosts run, as the commands declare and show it."""

import json

import pytest

from psched.app import make_store
from psched.config import from_mapping
from support.run_records import worker_record


def beat(service, *hosts, **fields):
    """Write the records of workers, as those of other hosts do."""
    store = make_store(from_mapping({"url": service.url}))
    for number, host in enumerate(hosts):
        store.history.beat(worker_record(nonce=f"{host}{number}", host=host, **fields))
    store.disconnect()


def test_hosts_are_set_by_an_option_and_shown(service):
    add = ("add", "backup", "report", "@daily", "--host", "db1", "--host", "web*")
    assert service.psched(*add).returncode == 0
    assert json.loads(service.psched("list", "--json").stdout)["hosts"] == ["db1", "web*"]
    assert "db1 web*" in service.psched("show", "backup").stdout
    assert "db1 web*" in service.psched("list", "--columns", "key,hosts").stdout
    exported = service.psched("export", "-").stdout
    assert "hosts:\n    - db1\n    - web*\n" in exported.replace("'", "")
    edited = service.psched("edit", "backup", "--host", "DB2")
    assert "hosts" in edited.stdout
    assert json.loads(service.psched("list", "--json").stdout)["hosts"] == ["db2"]
    assert service.psched("edit", "backup", "--unset", "hosts").returncode == 0
    assert json.loads(service.psched("list", "--json").stdout)["hosts"] is None
    refused = service.psched("push", "k", "t", "{}", "--host", "a b")
    assert refused.returncode == 1
    assert "hosts: must be names or labels of hosts" in refused.stderr


def test_check_warns_of_schedules_that_no_host_runs(service):
    service.psched("add", "a", "report", "@daily", "--host", "db1")
    service.psched("add", "b", "report", "@daily", "--host", "web*")
    service.psched("add", "c", "report", "@daily", "--host", "eu")
    beat(service, "web7", labels="eu")
    warnings = [line for line in service.psched("check").stdout.splitlines() if "no host" in line]
    assert warnings == ["  warning: no host that runs is db1, which some schedules name in hosts"]


FILE = """
label: null
schedules:
  a: {type: t, cron: "@daily", hosts: [nosuch, "x*"]}
  b: {type: t, cron: "@daily", hosts: ["x*", nosuch]}
  c: {type: t, cron: "@daily", hosts: web7}
"""


@pytest.mark.parametrize(
    "words",
    [
        ("add", "a", "t", "@daily", "--host", "nosuch", "--host", "x*"),
        ("push", "a", "t", "{}", "--host", "x*", "--host", "nosuch"),
        ("edit", "there", "--host", "x*", "--host", "nosuch"),
        ("apply", "schedules.yml", "--quiet"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_warns_of_hosts_that_were_not_seen(service, words):
    service.write("schedules.yml", FILE)
    service.psched("add", "there", "t", "@daily")
    beat(service, "web7")
    found = [line for line in service.psched(*words).stderr.splitlines() if "Warning" in line]
    assert found == ["Warning: no host seen in the last day is nosuch or x*"]


def test_hosts_are_listed_with_what_their_workers_tell(service):
    assert service.psched("hosts").stdout == "No host: no worker has run in the last 7 days\n"
    given = {"version": "9.9.9", "python": "3.13.0", "zone_data": "2026b", "clock_offset": -1500}
    beat(service, "db1", "db1", labels="db eu", **given)
    beat(service, "old", ended=0)
    first, second = json.loads(service.psched("hosts", "--json").stdout)
    assert first.pop("seen") <= second["seen"]
    assert first == {
        "name": "db1",
        "workers": 2,
        "slots": 2,
        "busy": 0,
        "labels": ["db", "eu"],
        "version": "9.9.9",
        "python": "3.13.0",
        "zone_data": "2026b",
        "clock": -1.5,
    }
    assert (second["name"], second["workers"]) == ("old", 0)
    table = service.psched("hosts").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["HOST", "db1", "old"]
    assert "gone" in table[2]


def test_a_host_runs_what_names_it_and_leaves_the_rest(service):
    service.configure(host_name="db1", host_labels=["eu"])
    for key, host in {"own": "db1", "label": "eu", "like": "d*", "other": "db2"}.items():
        service.add(key, hosts=host)
    service.start()
    for key in ("own", "label", "like"):
        service.wait_for_finish(key)
    assert service.row("other").status == "waiting"
    assert "only db2 may run it" in service.psched("why", "other").stdout
    service.add("later", hosts=["d?1", "x"])
    service.wait_for_finish("later")
