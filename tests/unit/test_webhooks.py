import hashlib
import hmac
import json
import re
from pathlib import Path

import pytest

from psched.base.clock import SystemClock
from psched.config import from_mapping
from psched.core.alerts.alert import Alert
from psched.notify.hooks import deliverers
from psched.notify.notification import DeliveryError, Notification
from support.receiver import fixed, in_turn, receiving, status

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"

NOTIFICATION = Notification(
    event="raised",
    alert=Alert(key="nightly", rule="failed", since=1_000, text="exited with status 1"),
    installation="psched",
    host="web1",
)


def deliverer(hook, **settings):
    given = {"allow_private_addresses": ["127.0.0.0/8"], "hooks": {"a": hook}, **settings}

    def no_store():
        raise AssertionError("a webhook needs no store")

    return deliverers(from_mapping(given), no_store, SystemClock())["a"]


def failure(hook, **settings):
    with pytest.raises(DeliveryError) as error:
        deliverer(hook, **settings)(NOTIFICATION)
    return error.value


def test_a_notification_is_posted_as_json():
    with receiving() as server:
        hook = {"webhook": server.url("/a?b=c"), "headers": {"X-Team": "ops"}}
        deliverer(hook)(NOTIFICATION)
    [request] = server.requests
    assert request.line == "POST /a?b=c HTTP/1.1"
    assert request.json == NOTIFICATION.body
    assert request.headers["content-type"] == "application/json"
    assert request.headers["psched-id"] == NOTIFICATION.id
    assert request.headers["x-team"] == "ops"
    assert "psched-signature" not in request.headers


def test_the_signature_is_an_hmac_of_time_and_body(tmp_path):
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    with receiving() as server:
        deliverer({"webhook": server.url(), "secret": SECRET})(NOTIFICATION)
        in_file = deliverer({"webhook": server.url(), "secret_file": str(file)})
        in_file(NOTIFICATION)
        file.write_text("another\n")
        in_file(NOTIFICATION)
    for request, secret in zip(server.requests, (SECRET, SECRET, "another"), strict=True):
        timestamp = request.headers["psched-timestamp"]
        assert abs(int(timestamp) - SystemClock().wall()) < 300
        signed = timestamp.encode() + b"." + request.body
        digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        assert request.headers["psched-signature"] == f"sha256={digest}"


def test_the_page_shows_how_to_check_the_signature():
    page = (ROOT / "docs/alerts.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [snippet] = [each for each in found if "is_genuine" in each]
    names = {}
    exec(snippet, names)  # noqa: S102  # what a reader would copy
    is_genuine = names["is_genuine"]

    with receiving() as server:
        deliverer({"webhook": server.url(), "secret": SECRET})(NOTIFICATION)
    [request] = server.requests
    headers = {name.title(): value for name, value in request.headers.items()}

    assert is_genuine(headers, request.body, SECRET)
    assert not is_genuine(headers, request.body, "another")
    assert not is_genuine(headers, request.body + b" ", SECRET)
    later = headers | {"Psched-Timestamp": str(int(headers["Psched-Timestamp"]) + 1)}
    assert not is_genuine(later, request.body, SECRET)
    assert not is_genuine(headers, request.body, SECRET, tolerance=-1)
    assert not is_genuine({}, request.body, SECRET)


def test_the_page_shows_the_body_as_it_is():
    page = (ROOT / "docs/alerts.md").read_text()
    [shown] = re.findall(r'^    (\{"version".*?\}\})$', page, re.MULTILINE | re.DOTALL)
    shown, real = json.loads(shown), NOTIFICATION.body
    assert [*shown] == [*real]
    assert [*shown["alert"]] == [*real["alert"]]


def test_all_tries_have_one_id():
    with receiving(in_turn(status(503, b"busy"), status(200))) as server:
        hook = deliverer({"webhook": server.url()})
        with pytest.raises(DeliveryError) as error:
            hook(NOTIFICATION)
        assert error.value.retry
        assert error.value.problem == f"127.0.0.1:{server.port}: answered 503: busy"
        hook(NOTIFICATION)
    first, second = server.requests
    assert first.headers["psched-id"] == second.headers["psched-id"]
    assert first.body == second.body


@pytest.mark.parametrize(("number", "retry"), [(400, False), (404, False), (429, True)])
def test_a_refusal_says_whether_another_try_is_of_use(number, retry):
    with receiving(fixed(status(number))) as server:
        assert failure({"webhook": server.url()}).retry is retry


def test_an_answer_that_repeats_the_request_reveals_no_secret():
    def respond(connection, server):
        [request] = server.requests
        answer = f"{request.line} {request.headers} {SECRET} b34rer".encode()
        connection.sendall(status(500, answer))

    with receiving(respond) as server:
        failed = failure(
            {
                "webhook": server.url("/p4th?t0ken"),
                "secret": SECRET,
                "headers": {"Authorization": "Bearer b34rer", "X-Priority": "5"},
            }
        )
    assert "answered 500: POST *** HTTP/1.1" in failed.problem
    for secret in "p4th", "t0ken", SECRET, "b34rer":
        assert secret not in failed.problem


def test_a_private_address_is_refused_unless_it_is_allowed():
    with receiving() as server:
        for allowed in False, ["10.0.0.0/8"]:
            failed = failure({"webhook": server.url()}, allow_private_addresses=allowed)
            assert "the loopback address 127.0.0.1" in failed.problem
            assert not failed.retry
        assert server.requests == []
        deliverer({"webhook": server.url()}, allow_private_addresses=True)(NOTIFICATION)
    assert len(server.requests) == 1


def test_a_redirect_is_a_failure():
    with receiving(fixed(status(302, headers="Location: http://127.0.0.1/\r\n"))) as server:
        failed = failure({"webhook": server.url()})
    assert "redirects are not followed" in failed.problem
    assert not failed.retry


def test_the_time_limit_of_the_hook_holds():
    with receiving(lambda _, server: server.ending.wait()) as server:
        failed = failure({"webhook": server.url(), "timeout": 0.2})
    assert "no answer within 0.2 s" in failed.problem
    assert failed.retry


def test_a_secret_that_cannot_be_read_is_a_failure(tmp_path):
    failed = failure({"webhook": "http://127.0.0.1/", "secret_file": str(tmp_path / "nope")})
    assert failed.problem == "secret_file: cannot be read: No such file or directory"
    assert failed.retry


def test_pagerdutys_key_is_sent_in_the_body_and_not_shown():
    refused = status(400, b'{"errors": ["routing_key s3cret is invalid"]}')
    with receiving(fixed(refused)) as server:
        hook = {"webhook": server.url(), "template": "pagerduty", "secret": SECRET}
        failed = failure(hook)
    [request] = server.requests
    assert request.json["routing_key"] == SECRET
    assert "psched-signature" not in request.headers
    assert SECRET not in failed.problem
    assert "routing_key ***" in failed.problem


def test_without_hooks_nothing_delivers():
    assert deliverers(from_mapping({}), lambda: None, SystemClock()) == {}
