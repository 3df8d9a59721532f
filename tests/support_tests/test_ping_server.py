"""The ping server for tests behaves as Healthchecks documents it."""

import http.client

import pytest

from support.ping_server import PING_KEY, ping_server

CHECK = "5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"
UNKNOWN = "0b1a7d6e-94f2-4d4c-9d60-7d1c11c3a111"
RUN = "11111111-1111-5111-8111-111111111111"
OTHER_RUN = "22222222-2222-5222-8222-222222222222"


@pytest.fixture
def server():
    with ping_server(body_limit=10) as running:
        running.url(CHECK)
        yield running


def post(server, path, body=b""):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", f"/ping/{path}", body)
    answer = connection.getresponse()
    assert answer.headers["Ping-Body-Limit"] == "10"
    found = answer.status, answer.read().decode()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (CHECK, (200, "OK")),
        (f"{CHECK}/start", (200, "OK")),
        (f"{CHECK}/255", (200, "OK")),
        (f"{CHECK}/256", (400, "invalid uuid or url format")),
        (f"{CHECK}/other", (404, "not found")),
        (f"{CHECK}?rid={RUN}", (200, "OK")),
        (f"{CHECK}?rid=1", (400, "invalid uuid or url format")),
        (UNKNOWN, (200, "OK (not found)")),
        (f"{PING_KEY}/backup", (404, "not found")),
        (f"{PING_KEY}/backup?create=1", (201, "Created")),
    ],
)
def test_what_it_answers(server, path, answer):
    assert post(server, path) == answer


def test_the_state_of_a_check(server):
    check = server.check(CHECK)
    seen = []
    for path in "/start", "", "/0", "/start", "/log", "/1", "/start", "/fail":
        post(server, f"{CHECK}{path}")
        seen.append((check.status, check.started))
    assert seen == [
        ("new", True), ("up", False), ("up", False), ("up", True), ("up", True),
        ("down", False), ("down", True), ("down", False),
    ]  # fmt: skip


def test_runs_that_overlap_are_told_apart_by_their_ids(server):
    for path in f"/start?rid={RUN}", f"/start?rid={OTHER_RUN}", f"?rid={RUN}":
        post(server, f"{CHECK}{path}")
    check = server.check(CHECK)
    assert check.started
    assert check.signals[-1].duration is not None
    post(server, f"{CHECK}?rid={OTHER_RUN}")
    assert not check.started


def test_the_beginning_of_a_body_is_kept(server):
    post(server, CHECK, b"0123456789a")
    assert server.check(CHECK).signals[0].body == "0123456789"
