"""The settings about pings: names, URLs that stay secret, and slugs."""

import re
from pathlib import Path

import pytest

from psched.base.errors import ConfigError
from psched.config import from_mapping
from psched.monitor.pinging import slug_of

UUID = "5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"
URL = f"https://hc-ping.com/{UUID}"
PING_KEY = "fqOOd6-F4MMNuCEnzTU01w"


def take(environ=None, **settings):
    return from_mapping(
        {"url": "memory:", **settings}, environ={"HOME": "/", **(environ or {})}, cwd=Path("/")
    )


def problem(**settings):
    with pytest.raises(ConfigError) as caught:
        take(**settings)
    return str(caught.value)


def test_by_default_nothing_is_pinged():
    settings = take()
    assert (settings.ping, dict(settings.pings), settings.ping_output) == ("none", {}, 10_240)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (URL, URL),
        (f"{URL}/", URL),
        ("http://127.0.0.1:8000/ping/x", "http://127.0.0.1:8000/ping/x"),
        (
            f"https://hc-ping.com/{PING_KEY}/{{key}}?create=1",
            f"https://hc-ping.com/{PING_KEY}/{{key}}?create=1",
        ),
    ],
)
def test_a_url_is_taken_without_a_slash_at_its_end(written, meant):
    assert dict(take(pings={"backup": written}).pings) == {"backup": meant}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (3, "must be .*not a number"),
        ("hc-ping.com/secret", "must begin with https:// or http://"),
        ("ftp://hc-ping.com/secret", "must begin with https:// or http://"),
        ("https:///secret", "must name a host"),
        ("https://hc-ping.com:99999/secret", "has a host or a port that is invalid"),
        ("https://hc-ping.com", "has no path"),
        ("https://hc-ping.com/?secret=1", "has no path"),
        ("https://hc-ping.com/secret#x", "has a #"),
        ("https://hc-ping.com/secret?rid=1", "has the option rid"),
        ("https://hc-ping.com/secreté", "only ASCII characters"),
        ("https://hc-ping.com/secret b", "no spaces"),
        ("https://hc-ping.com/secret/{key}/x", "only {key} can stand in it, at the end"),
        ("https://hc-ping.com/secret{key}", "only {key} can stand in it, at the end"),
        ("https://hc-ping.com/secret/{type}", "only {key} can stand in it, at the end"),
        ("https://hc-ping.com/secret?b={key}", "only {key} can stand in it, at the end"),
        ("https://hc-ping.com/secret/{key}/{key}", "only {key} can stand in it, at the end"),
    ],
)
def test_a_url_that_cannot_be_valid_is_refused_and_not_shown(url, reason):
    told = problem(pings={"backup": url})
    assert re.search(f"pings.backup: .*{reason}", told)
    assert "secret" not in told


@pytest.mark.parametrize("name", ["none", "a b", "-a", "a" * 65, "a/b", ""])
def test_a_name_is_a_word(name):
    assert "must have a name of letters" in problem(pings={name: URL})


def test_a_ping_that_a_configuration_names_must_be_defined():
    assert problem(ping="backup", pings={"other": URL}) == (
        "ping: names the ping backup, which is not in pings; there are other"
    )
    assert problem(types={"report": {"ping": "backup"}}) == (
        "types: report.ping: names the ping backup, which is not in pings; there are none"
    )
    settings = take(ping="backup", pings={"backup": URL}, types={"report": {"ping": "none"}})
    assert settings.types["report"]["ping"] == "none"


def test_the_options_of_a_row_can_name_a_ping_that_this_host_does_not_define():
    assert take(pings={"backup": URL}).with_settings(ping="elsewhere").ping == "elsewhere"


def test_pings_need_the_monitor():
    assert problem(pings={"backup": URL}, monitor=False) == (
        "pings: are sent by the monitor; set monitor to on, or remove them"
    )


def test_a_url_is_a_secret():
    settings = take(
        pings={
            "backup": URL,
            "slugs": f"https://hc.example.com/ping/{PING_KEY}/{{key}}",
            "short": "https://hc.example.com/ping/short",
            "none_in_it": "https://hc.example.com/{key}",
            "login": "https://ann:pass%2Fword@hc.example.com/{key}",
        }
    )
    assert UUID not in repr(settings)
    assert PING_KEY not in repr(settings)
    assert "pings=<backup, slugs, short, none_in_it, login>" in repr(settings)
    assert settings.pings.secrets <= settings.secrets
    assert settings.pings.secrets == {
        UUID,
        URL,
        PING_KEY,
        f"https://hc.example.com/ping/{PING_KEY}",
        "https://hc.example.com/ping/short",
        "pass%2Fword",
        "pass/word",
    }


def test_the_variables_that_a_url_refers_to_are_kept_from_tasks():
    environ = {"PING": UUID, "HOST": "hc.example.com"}
    settings = take(environ, pings={"backup": "https://${HOST}/ping/${PING}"})
    assert settings.withheld == {"PING", "HOST"}
    assert settings.pings["backup"] == f"https://hc.example.com/ping/{UUID}"


@pytest.mark.parametrize("key", ["backup", "a-b_c", "0", "a" * 100])
def test_the_slug_of_a_key_that_is_a_slug_is_the_key(key):
    assert slug_of(key) == key


def test_the_slug_of_a_key_in_upper_case_is_in_lower_case():
    assert slug_of("Backup") == "backup"


@pytest.mark.parametrize(
    ("key", "begin"),
    [("db/main", "db-main-"), ("a.b", "a-b-"), ("über", "ber-"), ("b" * 101, "b" * 91 + "-")],
)
def test_any_other_key_has_a_slug_that_no_other_key_has(key, begin):
    slug = slug_of(key)
    assert re.fullmatch("[0-9a-f]{8}", slug.removeprefix(begin))
    assert len(slug) <= 100
    assert slug_of(key) == slug != slug_of(f"{key}.")


def test_the_slug_of_a_key_without_a_letter_is_of_digits():
    assert re.fullmatch("[0-9a-f]{8}", slug_of("…"))
