"""Hosts: what only some hosts run, as the commands declare and show it."""

import json

import pytest

from psched.app import make_store
from psched.config import from_mapping
from support.run_records import worker_record
from support.waiting import wait_until


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


def test_check_warns_of_masters_of_one_host_that_have_different_labels(service):
    service.psched("add", "a", "report", "@daily", "--host", "web1")
    beat(service, "web1", labels="web1 eu")
    assert "different" not in service.psched("check").stdout
    beat(service, "x", "web1", labels="web1")
    assert (
        "  warning: the masters of web1 have different host_labels: web1 or web1 eu;"
        " give them the same\n" in service.psched("check").stdout
    )


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


def state_of(service, key, *words):
    """How the command list shows the line of a key."""
    listed = service.psched("list", "--columns", "key,status,reason", *words).stdout.splitlines()
    return next((line.removeprefix(key).strip() for line in listed if line.startswith(key)), None)


def test_each_host_runs_its_own_row_and_the_list_has_one_line_for_all(service):
    first = second = None
    for name in ("web1", "web2"):
        service.configure(host_name=name)
        second, first = service.start(), second
        second.wait_for_workers(1)
        wait_until(
            lambda name=name: f'"name": "{name}"' in service.psched("hosts", "--json").stdout,
            what=f"a sign of life of {name}",
        )
    service.psched("add", "trim", "recorder", "--every", "1s", "--each-host", "{}")
    for name in ("web1", "web2"):
        key = f"trim@{name}"
        wait_until(
            lambda key=key: any(run.occurrence[0] == key for run in service.runs.runs()), what=key
        )
    assert {run["host"] for run in history(service, "trim@web1")} == {"web1"}
    assert {run["host"] for run in history(service, "trim@web2")} == {"web2"}
    assert service.psched("pause", "trim").returncode == 1
    assert service.psched("pause", "trim@web2").returncode == 0
    assert state_of(service, "trim") == "1 of 2 hosts  web2: paused"
    second.kill()
    service.configure(host_name="web3")
    service.start()
    wait_until(lambda: "trim@web3" in service.psched("list", "trim@*").stdout, what="a third row")
    assert first.stop() == 0
    assert service.psched("delete", "trim").returncode == 0
    wait_until(lambda: not service.psched("list", "--json").stdout, what="no row")
    assert service.psched("verify").returncode == 0


def history(service, key):
    """The runs of a key, as JSON objects."""
    lines = service.psched("history", key, "--json").stdout.splitlines()
    return [*map(json.loads, lines)]


def test_what_each_host_runs_is_shown_exported_and_applied(service):
    beat(service, "web1", labels="web1 eu")
    added = service.psched("add", "trim", "report", "@daily", "--each-host", "--host", "eu")
    assert (added.returncode, added.stderr) == (0, "")
    assert state_of(service, "trim") == "1 of 1 host"
    assert state_of(service, "trim", "trim") == "template"
    assert state_of(service, "trim", "--status", "template") == "template"
    assert state_of(service, "trim", "--status", "waiting") == "@web1  waiting"
    assert "psched list 'trim@*' shows their rows" in service.psched("show", "trim").stdout
    shown = service.psched("show", "trim@web1").stdout
    assert "template:      trim\n" in shown
    why = service.psched("why", "trim")
    assert (why.returncode, "trim@web1" in why.stdout) == (0, True)
    exported = service.psched("export", "-").stdout
    assert "each_host: true" in exported
    assert "trim@web1" not in exported
    service.write("schedules.yml", f"label: ops\n{exported.split('label: null', 1)[1]}")
    assert "trim: changed" in service.psched("apply", "--adopt", "schedules.yml").stdout
    assert service.row("trim@web1").label == "ops"
    again = service.psched("apply", "--prune", "schedules.yml")
    assert again.stdout == "label ops: 1 unchanged\n"
    service.write("other.yml", "label: ops\nschedules:\n  trim: {type: report, cron: '@daily'}\n")
    for words in (("--dry-run",), ()):
        refused = service.psched("apply", *words, "other.yml")
        assert refused.returncode == 1
        assert "each_host cannot be changed; delete it, and apply again" in refused.stderr


def test_a_command_warns_if_no_host_has_the_name_that_each_host_needs(service):
    beat(service, "web1")  # a name that is not configured
    words = ("add", "a", "t", "@daily", "--each-host")
    assert service.psched(*words).stderr == (
        "Warning: no host seen in the last day has a name in its host_name\n"
    )
    checked = service.psched("check").stdout
    assert "  warning: no host that runs has a name in its host_name, for each_host\n" in checked


def test_a_crontab_of_every_host_is_imported_as_what_each_host_runs(service):
    crontab = service.write("crontab", "0 3 * * * /usr/local/bin/trim\n")
    words = ("import-crontab", "--user", "ann", "--source", "web1", "--any-user", "--apply")
    assert "1 to add" in service.psched(*words, "--each-host", crontab).stdout
    (row,) = map(json.loads, service.psched("list", "--json").stdout.splitlines())
    assert (row["each_host"], row["hosts"]) == (True, None)
    assert "1 unchanged" in service.psched(*words, crontab).stdout
    (row,) = map(json.loads, service.psched("list", "--json").stdout.splitlines())
    assert row["each_host"]
