"""psched hooks, and hooks in schedules, as a person uses them."""

import json

import pytest

from support.receiver import fixed, receiving, status

pytestmark = pytest.mark.monitor

CANARY = "c4n4ry"


@pytest.fixture
def configured(make_service, tmp_path):
    """Make a service with these hooks, its table made."""

    def make(hooks, **settings):
        service = make_service(f"sqlite:///{tmp_path}/psched.db", hooks=hooks, **settings)
        service.init()
        return service

    return make


def test_hooks_are_listed_with_what_names_them_and_without_secrets(configured):
    service = configured(
        {
            "chat": {
                "webhook": f"https://u:{CANARY}@example.org/{CANARY}",
                "template": "slack",
                "headers": {"Authorization": CANARY},
            },
            "pager": {
                "webhook": "https://events.pagerduty.com/v2/enqueue",
                "template": "pagerduty",
                "secret": CANARY,
            },
            "ops": {"mail": ["ops@example.org", "ann"]},
            "own": {"command": ["/bin/tell", CANARY]},
            "clean": {"task": "cleanup"},
        },
        on_failed=["chat", "ops"],
        on_recovered="chat",
        types={"report": {"on_late": "ops"}},
    )
    done = service.invoke("hooks")
    assert done.exit_code == 0
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [
        *("NAME", "chat", "clean", "ops", "own", "pager")
    ]
    lines = [[cell.strip() for cell in line.split("  ") if cell] for line in
             done.stdout.splitlines()[1:]]  # fmt: skip
    assert lines == [
        ["chat", "failed, recovered", "webhook (slack) to example.org:443"],
        ["clean", "-", "task of type cleanup"],
        ["ops", "failed, late (report)", "mail to ops@example.org, ann"],
        ["own", "-", "command /bin/tell"],
        ["pager", "-", "webhook (pagerduty) to events.pagerduty.com:443"],
    ]
    assert CANARY not in done.output
    assert service.invoke("hooks", "list").stdout == done.stdout


def test_an_installation_without_hooks_says_so(configured):
    service = configured({})
    assert service.invoke("hooks").stdout == "No hooks: see the setting hooks\n"
    done = service.invoke("hooks", "test", "ops")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: hooks: does not define ops; it is empty\n",
    )
    for words in ("test",), ("list", "ops"):
        assert service.invoke("hooks", *words).exit_code == 2


def test_a_test_is_sent_and_says_what_it_is(configured):
    with receiving() as server:
        service = configured(
            {"own": {"webhook": server.url("/path"), "secret": CANARY}},
            allow_private_addresses=True,
            table="jobs",
        )
        done = service.invoke("hooks", "test", "own")
    assert (done.exit_code, done.stdout) == (
        0,
        f"own: delivered: webhook (json) to 127.0.0.1:{server.port}\n",
    )
    [request] = server.requests
    assert request.json["test"] is True
    assert request.json["installation"] == "jobs"
    assert request.json["title"] == "psched: TEST: failed: psched-hooks-test"
    assert request.json["text"] == "This is a test of the hook own. Nothing is wrong."
    assert request.headers["psched-signature"].startswith("sha256=")


def test_a_test_that_fails_says_why(configured):
    with receiving(fixed(status(404, f"no {CANARY}".encode()))) as server:
        hooks = {
            "own": {"webhook": server.url(f"/{CANARY}"), "secret": CANARY},
            "program": {"command": ["/bin/sh", "-c", "echo why; exit 1"]},
        }
        service = configured(hooks, allow_private_addresses=["127.0.0.1/32"])
        done = service.invoke("hooks", "test", "own")
        assert done.exit_code == 1
        assert done.stderr == (
            f"Error: own: 127.0.0.1:{server.port}: answered 404: no ***"
            " (psched would not try again)\n"
        )
        service.configure(allow_private_addresses=False)
        done = service.invoke("hooks", "test", "own")
        assert "leads to the loopback address 127.0.0.1" in done.stderr
    done = service.invoke("hooks", "test", "program")
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: program: /bin/sh exited with status 1: why (psched would try again)\n",
    )


def test_a_test_of_pagerduty_leaves_no_incident_open(configured):
    with receiving(fixed(status(202, b'{"status": "success"}'))) as server:
        service = configured(
            {"pager": {"webhook": server.url(), "template": "pagerduty", "secret": CANARY}},
            allow_private_addresses=True,
        )
        assert service.invoke("hooks", "test", "pager").exit_code == 0
    trigger, resolve = (request.json for request in server.requests)
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"]


def test_a_task_runs_and_tells_nobody_of_its_own_failure(configured):
    service = configured(
        {"clean": {"task": "exec", "data": {"command": ["/bin/cat"]}}}, on_failed="clean"
    )
    assert service.invoke("hooks", "test", "clean").exit_code == 0
    with service.schedules() as schedules:
        [row] = schedules.list()
    assert row.key.startswith("psched-hook.clean.")
    shown = json.loads(service.invoke("show", row.key, "--json").stdout)
    assert shown["data"]["command"] == ["/bin/cat"]
    assert shown["data"]["data"]["test"] is True
    assert shown["options"]["on_failed"] == []
    service.start()
    service.wait_for_finish(row.key)


def test_check_names_what_hooks_lack_on_this_host(configured):
    service = configured({
        "own": {"command": "/no/such/program"},
        "ops": {"mail": "ann", "sendmail": "/no/such/sendmail"},
        "shell": {"command": "sh"},
    })  # fmt: skip
    done = service.psched("check")
    assert done.returncode == 0
    assert (
        "hooks: ops, own, shell\n"
        "  ops: /no/such/sendmail is not on this host, or not executable\n"
        "  own: /no/such/program is not on this host, or not executable\n"
    ) in done.stdout


def test_a_crontab_with_mailto_becomes_schedules_with_a_hook(configured):
    service = configured({})
    tab = service.write("tab", "MAILTO=ops@example.org\n0 1 * * * false\n")
    words = ("import-crontab", str(tab), "--user", "ann", "--any-user", "-t", "UTC", "--apply")

    done = service.invoke(*words)

    assert done.exit_code == 1, "something is left to do"
    wanted = "hooks: {mail-ops-example-org: {mail: [ops@example.org]}}"
    assert f"{tab}:2: MAILTO=ops@example.org: so that psched mails failures" in done.stderr
    assert wanted in done.stderr
    with service.schedules() as schedules:
        [row] = schedules.list()
    shown = json.loads(service.invoke("show", row.key, "--json").stdout)
    assert shown["options"]["on_failed"] == ["mail-ops-example-org"]

    service.configure(hooks={"mail-ops-example-org": {"mail": ["ops@example.org"]}})
    again = service.invoke(*words)
    assert "MAILTO" not in again.output
    assert "1 unchanged" in again.stdout
    exported = service.invoke("export")
    assert "    on_failed:\n    - mail-ops-example-org\n" in exported.stdout


def test_a_file_that_names_an_unknown_hook_is_refused(configured):
    service = configured({"ops": {"mail": "ann"}})
    file = service.write(
        "s.yml", "label: team\nschedules:\n  s1: {type: t, cron: '@daily', on_failed: nope}\n"
    )
    done = service.invoke("apply", str(file))
    assert done.exit_code == 1
    assert "on_failed: there is no hook nope; there are ops" in done.stderr
    file.write_text(
        "label: team\nschedules:\n  s1: {type: t, cron: '@daily', on_failed: [ops], on_late: []}\n"
    )
    assert service.invoke("apply", str(file)).exit_code == 0
