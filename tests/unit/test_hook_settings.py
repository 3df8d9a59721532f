from ipaddress import ip_network

import pytest

from psched.base.errors import ConfigError, InvalidError
from psched.config import from_mapping, load
from psched.config.kinds import EVERYWHERE
from psched.config.monitoring import CommandHook, MailHook, TaskHook, Webhook, problems_here
from psched.core.alerts.alert import Rule
from psched.core.declare import declare
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.notify.notification import DeliveryError
from psched.notify.program import run
from psched.reports.raising import hooks_of
from psched.reports.redaction import Redaction

CANARY = "c4n4ry"

OPEN = "may be read or changed by everybody on this host; run `chmod o= FILE` on it"

TWO = {"ops": {"mail": "ops@example.org"}, "chat": {"webhook": f"https://example.org/{CANARY}"}}


def take(mapping, **environ):
    return from_mapping({"url": "sqlite:////tmp/p.db", **mapping}, environ=environ)


def problem(mapping, **environ):
    with pytest.raises(ConfigError) as error:
        take(mapping, **environ)
    assert CANARY not in str(error.value)
    return str(error.value)


def test_hooks_need_the_monitor():
    assert problem({"hooks": TWO, "on_failed": "ops", "monitor": False}) == (
        "hooks: are told by the monitor; set monitor to on, or remove them"
    )
    assert take({"hooks": {}, "on_failed": [], "monitor": False}).hooks == {}
    # A row is run by each host, whichever of them have a monitor.
    assert take({"monitor": False}).with_settings(on_failed="ops").on_failed == ("ops",)


def test_hooks_are_read(tmp_path):
    file = tmp_path / "psched.yml"
    file.write_text("""\
        url: sqlite:////tmp/p.db
        hooks:
          chat:
            webhook: "https://example.org/${PART}"
            template: slack
            timeout: 5s
            headers: {Authorization: "Bearer ${TOKEN}"}
          own: {command: [bin/tell, --now], tries: 3}
          ops: {mail: [ops@example.org, ann], from: psched@example.org}
          clean: {task: cleanup, data: {deep: [1, 2]}}
        on_failed: [chat, ops]
        on_recovered: ops
        types:
          report: {on_late: own}
        """)

    settings = load(file, environ={"PART": "part", "TOKEN": "token"}, cwd=tmp_path)

    assert dict(settings.hooks) == {
        "chat": Webhook(
            url="https://example.org/part",
            template="slack",
            timeout=5.0,
            headers=(("Authorization", "Bearer token"),),
        ),
        "own": CommandHook(command=(f"{tmp_path}/bin/tell", "--now"), tries=3),
        "ops": MailHook(to=("ops@example.org", "ann"), sender="psched@example.org"),
        "clean": TaskHook(type="cleanup", data={"deep": [1, 2]}),
    }
    assert (settings.on_failed, settings.on_recovered) == (("chat", "ops"), ("ops",))
    assert settings.types["report"] == {"on_late": ("own",)}
    assert settings.withheld == {"PART", "TOKEN"}


def test_a_problem_names_the_line_and_the_field(tmp_path):
    file = tmp_path / "psched.yml"
    file.write_text(f"hooks:\n  a:\n    webhook: https://example.org/\n    timeout: {CANARY}\n")
    with pytest.raises(ConfigError) as error:
        load(file, environ={"HOME": "/home/ann"}, cwd=tmp_path)
    assert f"{file}:4: hooks.a.timeout: must be a number of seconds" in str(error.value)


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ({}, "hooks.a: must be a mapping with one of webhook, command, mail, task"),
        ("https://example.org", "hooks.a: must be a mapping with one of webhook, command"),
        ({"mail": "ann", "task": "t"}, "hooks.a: must be a mapping with one of"),
        ({"webhook": f"ftp://{CANARY}"}, "hooks.a.webhook: must begin with https:// or http://"),
        ({"webhook": f"https://a b/{CANARY}"}, "hooks.a.webhook: must have no spaces"),
        ({"webhook": "https://a", "template": "irc"}, "hooks.a.template: must be json, slack"),
        ({"webhook": "https://a", "cwd": "/"}, "hooks.a.cwd: is no field of a webhook"),
        ({"webhook": "https://a", "timeout": 61}, "hooks.a.timeout: must be a number"),
        ({"webhook": "https://a", "tries": 13}, "hooks.a.tries: must be a whole number of tries"),
        ({"webhook": "https://a", "headers": ["b"]}, "hooks.a.headers: must be a mapping"),
        (
            {"webhook": "https://a", "headers": {"b c": CANARY}},
            "hooks.a.headers: one of them has an invalid name",
        ),
        (
            {"webhook": "https://a", "secret": CANARY, "secret_file": "/f"},
            "hooks.a: has secret and secret_file",
        ),
        ({"webhook": "https://a", "template": "pagerduty"}, "hooks.a: needs PagerDuty's routing"),
        ({"webhook": "https://ntfy.sh/?a", "template": "ntfy"}, "hooks.a: needs the topic"),
        ({"command": []}, "hooks.a.command: must be"),
        ({"command": ["a", 1]}, "hooks.a.command: must be"),
        ({"mail": []}, "hooks.a.mail: must be"),
        ({"mail": "ann@example.org, eve@example.org"}, "hooks.a.mail: must be an address"),
        ({"mail": "-X/etc/passwd"}, "hooks.a.mail: must be an address"),
        ({"mail": "ann", "from": "ann\neve"}, "hooks.a.from: holds a line break"),
        ({"task": ""}, "hooks.a.task: is empty"),
        ({"task": "t", "data": [1]}, "hooks.a.data: must be a mapping, not a list"),
    ],
)
def test_an_invalid_hook_is_refused(hook, text):
    assert text in problem({"hooks": {"a": hook}})


@pytest.mark.parametrize("name", ["a b", "", "-a", "a/b", "a" * 65])
def test_the_name_of_a_hook_is_short_and_plain(name):
    assert "must be a name of letters, digits" in problem({"hooks": {name: {"mail": "ann"}}})


@pytest.mark.parametrize("setting", ["on_failed", "on_late", "on_lost", "on_recovered"])
def test_a_hook_that_is_not_defined_is_refused_where_settings_name_it(setting):
    assert problem({"hooks": TWO, setting: ["ops", "nope"]}) == (
        f"{setting}: names the hook nope, which is not in hooks; there are ops, chat"
    )
    assert problem({setting: "nope"}) == (
        f"{setting}: names the hook nope, which is not in hooks, which is empty"
    )
    of_type = problem({"hooks": TWO, "types": {"report": {setting: "nope"}}})
    assert of_type.startswith(f"types: report.{setting}: names the hook nope")


def test_names_of_hooks_have_a_form_and_a_limit():
    assert "must be the name of a hook" in problem({"on_failed": f"https://{CANARY}"})
    assert "names more than 20 hooks" in problem({"on_failed": [f"a{n}" for n in range(21)]})
    assert take({"hooks": TWO, "on_failed": ["ops", "ops"]}).on_failed == ("ops",)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        (
            "https://hooks.slack.com/services/T0/B0/abcdefghijklmnopqrstuvwx",
            {"abcdefghijklmnopqrstuvwx"},
        ),
        ("https://example.org/notify?key=abcdefgh%2Fjklmnopq", {"abcdefgh/jklmnopq"}),
    ],
)
def test_the_long_parts_of_a_webhook_s_url_are_secrets_too(url, parts):
    found = take({"hooks": {"chat": {"webhook": url}}}).secrets
    assert parts | {url} <= found
    assert not {"services", "notify", "key", "hooks.slack.com"} & found


@pytest.mark.parametrize("hook", [{"command": "./run"}, {"mail": "ops", "sendmail": "./run"}])
def test_a_program_of_a_hook_that_everybody_may_write_is_told_and_not_run(
    tmp_path, monkeypatch, hook
):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    [told] = problems_here(take({"hooks": {"ops": hook}}).hooks)
    assert told == f"ops: {program} may be written by everybody on this host; run `chmod o-w` on it"
    with pytest.raises(DeliveryError, match=r"is not run: .* may be written by everybody"):
        run([str(program)], b"", {}, seconds=1, redaction=Redaction(()))


def test_secrets_of_hooks_are_not_shown():
    hooks = {
        "a": {"webhook": f"https://u:{CANARY}1@example.org/{CANARY}2", "secret": f"{CANARY}3"},
        "b": {
            "webhook": "https://example.org/",
            "headers": {"Authorization": f"Bearer {CANARY}4", "X-Priority": "high"},
        },
    }
    settings = take({"hooks": hooks})
    assert CANARY not in repr(settings)
    assert CANARY not in "".join(hook.shown for hook in settings.hooks.values())
    assert settings.hooks["a"].shown == "webhook (json) to example.org:443"
    secrets = settings.secrets
    for number in "1234":
        assert any(f"{CANARY}{number}" in each for each in secrets), number
    assert "high" not in secrets


def test_only_variables_that_can_be_secret_are_withheld():
    hooks = {
        "a": {"webhook": "https://a/${ONE}", "secret": "${TWO}"},
        "b": {"command": ["a", "${THREE}"]},
    }
    names = {"ONE": "1", "TWO": "2", "THREE": "3"}
    settings = take({"hooks": hooks}, **names)
    assert settings.withheld == {"ONE", "TWO"}
    assert settings.hooks["b"].command == ("a", "3")


def test_a_credential_is_a_file_for_secret_file_and_a_text_elsewhere(tmp_path):
    (tmp_path / "key").write_text(f"{CANARY}\n")
    reference = "${CREDENTIALS_DIRECTORY}/key"
    url = "https://example.org/"
    settings = take(
        {
            "hooks": {
                "a": {"webhook": url, "secret_file": reference},
                "b": {"webhook": url, "secret": reference},
            }
        },
        CREDENTIALS_DIRECTORY=str(tmp_path),
    )
    assert settings.hooks["a"].secret_file == tmp_path / "key"
    assert settings.hooks["b"].secret == CANARY


def test_users_who_cannot_read_a_secret_can_use_the_configuration():
    hooks = {"a": {"webhook": "https://example.org/", "secret_file": "/no/such/file"}}
    assert take({"hooks": hooks}).hooks["a"].secret_file


def test_a_configuration_with_hooks_can_be_changed_and_can_be_a_key():
    settings = take({"hooks": TWO, "on_failed": "ops"})
    changed = settings.with_settings(retry_wait=5)
    assert (changed.hooks, changed.on_failed) == (settings.hooks, ("ops",))
    assert len({settings, changed, take({"hooks": TWO, "on_failed": "ops"})}) == 2
    with pytest.raises(ConfigError, match="nope"):
        settings.with_settings(hooks={"nope": {"mail": "ann"}})


@pytest.mark.parametrize(
    ("value", "networks"),
    [
        (False, ()),
        ("off", ()),
        (True, EVERYWHERE),
        ("on", EVERYWHERE),
        ([], ()),
        (["10.1.0.0/16", "::1"], (ip_network("10.1.0.0/16"), ip_network("::1/128"))),
    ],
)
def test_private_networks_can_be_allowed(value, networks):
    assert take({"allow_private_addresses": value}).allow_private_addresses == networks


@pytest.mark.parametrize("value", ["10.0.0.0/8", ["10.1.2.3/8"], ["localhost"], 3])
def test_what_is_no_network_is_refused(value):
    assert "allow_private_addresses: must be on, off or a list" in problem(
        {"allow_private_addresses": value}
    )


def test_what_hooks_lack_on_this_host_is_told(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o644)
    url = "https://example.org/"
    hooks = {
        "fine": {"command": "/bin/sh"},
        "a": {"command": str(tmp_path / "nope")},
        "b": {"mail": "ann", "sendmail": str(secret)},
        "c": {"webhook": url, "secret_file": str(secret)},
        "d": {"webhook": url, "secret_file": str(tmp_path / "nope")},
    }
    told = [*problems_here(take({"hooks": hooks}).hooks)]
    assert told == [
        f"a: {tmp_path}/nope is not on this host, or not executable",
        f"b: {secret} is not on this host, or not executable",
        f"c: secret_file: {OPEN}",
        "d: secret_file: cannot be read: No such file or directory",
    ]


# --- rows ----------------------------------------------------------------------------


def declared(settings, **fields):
    return declare("k", {"type": "report", "cron": "@daily", **fields}, settings, lambda: 0)


def test_a_schedule_overrides_its_type_and_that_the_installation():
    settings = take(
        {"hooks": TWO, "on_failed": "ops", "types": {"report": {"on_failed": ["ops", "chat"]}}}
    )
    for given, names in ((None, ("ops", "chat")), ("chat", ("chat",)), (["chat"], ("chat",))):
        row = declared(settings, on_failed=given)
        assert parse_row(row, settings).settings.on_failed == names
    assert parse_row(declared(settings, on_failed=[]), settings).settings.on_failed == ()


def test_a_schedule_that_names_an_unknown_hook_is_refused_where_hooks_are_known():
    with pytest.raises(InvalidError) as error:
        declared(take({"hooks": TWO}), on_late=["ops", "nope"])
    assert str(error.value) == "on_late: there is no hook nope; there are ops, chat"
    assert declared(take({}), on_late=["nope"]).options == '{"on_late":["nope"]}'


def test_a_row_that_names_an_unknown_hook_runs():
    row = Row(key="k", type="report", options='{"on_failed": ["nope"]}')
    for settings in take({"hooks": TWO}), take({}):
        assert parse_row(row, settings).settings.on_failed == ("nope",)


@pytest.mark.parametrize("value", ['{"command": "rm"}', '[["a"]]', "7", '"a b"', '["a", 1]'])
def test_a_row_contains_names_of_hooks_and_nothing_else(value):
    with pytest.raises(InvalidError):
        parse_row(Row(key="k", options=f'{{"on_failed": {value}}}'), take({}))
    with pytest.raises(InvalidError):
        parse_row(Row(key="k", options=f'{{"hooks": {value}, "on_late": {value}}}'), take({}))


# --- rules ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "setting"),
    [
        ((Rule.FAILED, Rule.GAVE_UP, Rule.QUARANTINED, Rule.UNREACHABLE), "on_failed"),
        (
            (Rule.LATE, Rule.SILENT, Rule.LONGEST, Rule.UNUSUAL, Rule.NO_SLOT, Rule.UNREACHABLE),
            "on_late",
        ),
        ((Rule.LOST, Rule.WORKER_DIED, Rule.UNREACHABLE), "on_lost"),
    ],
)
def test_each_rule_has_a_setting(rules, setting):
    settings = take({"hooks": TWO, setting: "chat", "on_recovered": "ops"})
    for rule in Rule:
        expected = (("chat",), ("ops",)) if rule in rules else ((), ())
        assert hooks_of(rule, settings) == expected


def test_every_rule_tells_somebody():
    settings = take({"hooks": TWO, "on_failed": "ops", "on_late": "ops", "on_lost": "ops"})
    assert [hooks_of(rule, settings) for rule in Rule] == [(("ops",), ())] * len(Rule)
    assert hooks_of("a rule of a newer version", settings) == ((), ())


def test_of_what_is_given_up_the_attempts_before_are_told_only_if_they_are_asked_for():
    own = {"hooks": TWO, "on_failed": "ops", "on_recovered": "ops", "on_lost": "ops"}
    told = (("ops",), ("ops",))
    patient, limited = take(own), take({**own, "max_attempts": 3})
    each = take({**own, "max_attempts": 3, "alert_on": "each_failure"})
    assert hooks_of(Rule.FAILED, limited) == ((), ())
    assert hooks_of(Rule.FAILED, patient) == hooks_of(Rule.FAILED, each) == told
    for rule in Rule.GAVE_UP, Rule.QUARANTINED, Rule.LOST:
        assert hooks_of(rule, limited) == told
    row = declared(limited, alert_on="each_failure")
    assert hooks_of(Rule.FAILED, parse_row(row, limited).settings) == told
