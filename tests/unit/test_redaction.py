"""Which values are hidden where payloads, results and errors are shown."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.base.errors import ConfigError
from psched.config import from_mapping
from psched.reports.redaction import HIDDEN, Redaction

REDACTION = Redaction(["password", "*token*", "API key"])

SECRET = "s3cr3t"


@pytest.mark.parametrize("name", ["password", "PassWord", "token", "api_token_2", "API key"])
def test_a_name_matches_as_a_whole_in_any_case(name):
    assert REDACTION.hides(name)


@pytest.mark.parametrize("name", ["passwords", "db_password", "toke", "", "pass.word"])
def test_other_names_do_not_match(name):
    assert not REDACTION.hides(name)


def test_only_the_asterisk_is_a_wildcard():
    assert Redaction(["a?c", "[x]", "a.b"]).hides("A?C")
    assert not Redaction(["a?c"]).hides("abc")
    assert not Redaction(["a.b"]).hides("axb")
    assert Redaction(["*"]).hides("anything")


def test_a_value_of_any_type_is_hidden_at_any_depth():
    value = {
        "user": "ann",
        "password": {"old": SECRET, "new": [SECRET]},
        "list": [{"Api_Token": 7, "n": 1}, None, True],
        "command": ["curl", f"--password={SECRET}", "-v"],
        "words": ["curl", "--Password", SECRET, "-v", f"https://u:{SECRET}@h", "--password"],
    }
    assert REDACTION.value(value) == {
        "user": "ann",
        "password": HIDDEN,
        "list": [{"Api_Token": HIDDEN, "n": 1}, None, True],
        "command": ["curl", f"--password={HIDDEN}", "-v"],
        "words": ["curl", "--Password", HIDDEN, "-v", f"https://u:{HIDDEN}@h", "--password"],
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=s3cr3t rest", "password=[redacted] rest"),
        ("--password=s3cr3t", "--password=[redacted]"),
        ("PASSWORD='s3 cr3t' rest", "PASSWORD=[redacted] rest"),
        (r'password="s3\"cr3t" rest', "password=[redacted] rest"),
        ("db.password=s3cr3t, user=x", "db.password=[redacted] user=x"),
        ("https://h/p?user=x&token=s3cr3t&s3cr3t", "https://h/p?user=x&token=[redacted]"),
        ("password = s3 cr3t\nnext", "password = [redacted]\nnext"),
        ("password: s3 cr3t\nnext", "password: [redacted]\nnext"),
        ("X-Token: Bearer s3cr3t", "X-Token: [redacted]"),
        ("{'password': 's3cr3t', 'user': 'x'}", "{'password': [redacted], 'user': 'x'}"),
        ('{"token": 12, "user": "x"}', '{"token": [redacted], "user": "x"}'),
        ("{'token': b's3cr3t', 'user': 1}", "{'token': [redacted], 'user': 1}"),
        ('{"token": {"a": ["s3}cr3t"]}, "user": 1}', '{"token": [redacted], "user": 1}'),
        ('{"api key": "s3cr3t"}', '{"api key": [redacted]}'),
        ("{:token => :s3cr3t}", "{:token => [redacted]"),
        ("f(token='s3cr3t', x=1)", "f(token=[redacted], x=1)"),
        ('"password": "s3cr', '"password": [redacted]'),
        ('"password": {"a": "s3cr', '"password": [redacted]'),
        ('password="s3cr3t\\', "password=[redacted]"),
        ("user=x password=s3cr3t", "user=x password=[redacted]"),
        ("url=http://h?password=s3cr3t", "url=http://h?password=[redacted]"),
        ("pg --password s3cr3t -v", "pg --password [redacted] -v"),
        ("pg --my-token 's3 cr3t' -v", "pg --my-token [redacted] -v"),
        ('["pg", "--password", "s3cr3t", "-v"]', '["pg", "--password", [redacted], "-v"]'),
        ('["pg","--password","s3cr3t"]', '["pg","--password",[redacted]]'),
        ("pg --user ann --password", "pg --user ann --password"),
        ("to pg://ann:s3cr3t@h/db, pg://ann@h", "to pg://ann:[redacted]@h/db, pg://ann@h"),
        ("redis://:s3cr3t@h:1/2", "redis://:[redacted]@h:1/2"),
        ("http://h:80/a@b", "http://h:80/a@b"),
        ("the password is wrong", "the password is wrong"),
        ("password", "password"),
        ("password=", "password="),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("user: ann", "user: ann"),
        ("", ""),
    ],
)
def test_a_value_is_hidden_in_a_text(text, shown):
    assert REDACTION.text(text) == shown


@pytest.mark.parametrize("setting", [None, ("ssn",)])
def test_changes_never_show_what_is_named_like_a_secret(setting):
    redaction = Redaction.of_changes(setting)
    names = (
        "password apikey API-KEY api_key DB_PASS PGPASS MYSQL_PWD PRIVATE_KEY PASSPHRASE"
        " CREDENTIALS Authorization access_token client_secret"
    )
    assert [name for name in names.split() if not redaction.hides(name)] == []
    shown = ("key", "command", "user", "timezone", "alive_time", "passive", "label", "max_attempts")
    assert not any(map(redaction.hides, shown))
    assert redaction.hides("ssn") is bool(setting)
    assert not Redaction.of_changes(())


def test_without_patterns_nothing_changes():
    nothing = Redaction([])
    value = {"password": SECRET}
    assert not nothing
    assert nothing.value(value) is value
    assert nothing.text("password=x") == "password=x"


@given(
    before=st.text(max_size=30),
    name=st.sampled_from(["password", "my_token", "Token2"]),
    secret=st.text(st.characters(categories=["L", "N"]), min_size=8, max_size=20),
    form=st.sampled_from(["{}={}", "{}: {}", '"{}": "{}"', "'{}': '{}'", "--{}={}", "{} = {}"]),
    after=st.text(max_size=30),
)
def test_a_secret_is_hidden_whatever_stands_around_it(before, name, secret, form, after):
    text = f"{before}\n{form.format(name, secret)}\n{after}"
    if secret not in before + after:
        assert secret not in REDACTION.text(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "token", "b"]), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
@pytest.mark.slow
def test_the_rest_of_a_value_keeps_its_shape(value):
    def without(value):
        if isinstance(value, dict):
            return {k: HIDDEN if k == "token" else without(v) for k, v in value.items()}
        return [without(v) for v in value] if isinstance(value, list) else value

    assert Redaction(["token"]).value(value) == without(value)


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a.",
        "'",
        "a ",
        '"a"',
        "{",
        "password=",
        "'password",
        "=:",
        "-",
        "--",
        "--password",
        '--password "',
        "://",
        "://:",
    ],
)
def test_a_long_text_takes_no_longer_than_its_length(unit):
    began = time.process_time()
    REDACTION.text(unit * (400_000 // len(unit)))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["a" * 1000, "token" * 200, "token" * 80_000])
def test_asterisks_take_no_longer_than_the_length_of_the_name(name):
    redaction = Redaction(["*a*a*a*a*b", "*token*key*token*x", "*to*ke*nt*ok*!"])
    began = time.process_time()
    assert redaction.hides(name) == (len(name) > 1000)
    redaction.text(f"{name}=1 " * 3)
    redaction.value({name: [{name: name}]})
    assert time.process_time() - began < 5


def test_the_value_of_a_name_that_is_too_long_to_be_compared_is_hidden():
    name = f"{'x' * 1000}password"
    assert REDACTION.value({name: SECRET, name[:1000]: 1}) == {name: HIDDEN, name[:1000]: 1}
    assert REDACTION.text(f"{name}={SECRET}") == f"{name}={HIDDEN}"


@pytest.mark.parametrize(
    ("given", "names"),
    [("password", ("password",)), (["password", "*token*"], ("password", "*token*")), ([], ())],
)
def test_the_setting_is_a_name_or_a_list(given, names):
    assert from_mapping({"url": "sqlite:///x.db", "redact": given}).redact == names


@pytest.mark.parametrize("given", ["password, token", "a: b", 7, [""], {"password": True}])
def test_a_mistaken_setting_is_refused(given):
    with pytest.raises(ConfigError, match="redact"):
        from_mapping({"url": "sqlite:///x.db", "redact": given})
