import select
import socket
import struct
import threading
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest

from psched.base.clock import SystemClock
from psched.config.kinds import EVERYWHERE
from psched.config.monitoring import parse_url
from psched.notify.addresses import refusal
from psched.notify.http_client import HttpClient, HttpError, addresses_of
from psched.stores import deadline_socket
from psched.stores.deadline_socket import Budget
from support.receiver import OK, drip, fixed, receiving, status
from support.servers.certificates import Certificates
from support.waiting import PATIENCE

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


@pytest.fixture
def client():
    return HttpClient(allowed=LOOPBACK)


def send(client, url, *, seconds=30.0, **more):
    return client.send("POST", url, body=b"{}", seconds=seconds, **more)


def failure(client, url, **more):
    with pytest.raises(HttpError) as error:
        send(client, url, **more)
    return error.value


# --- addresses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.8.9.10", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("192.168.7.7", "private"),
        ("169.254.169.254", "link-local"),
        ("100.64.0.1", "reserved"),
        ("0.0.0.0", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "private"),
        ("198.18.0.1", "private"),
        ("192.0.2.7", "private"),
        ("192.0.0.8", "private"),
        ("192.0.0.170", "private"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fc00::1", "private"),
        ("3fff::1", "private"),
        ("3fff:fff:ffff::1", "private"),
        ("fd12:3456::1", "private"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "private"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:10.0.0.1", "private"),
        ("::127.0.0.1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("64:ff9b::a00:1", "private"),
        ("4000::1", "reserved"),
    ],
)
def test_an_address_that_is_not_public_is_refused(address, kind):
    assert refusal(address).startswith(f"the {kind} address ")
    assert refusal(address, EVERYWHERE) is None


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_a_public_address_is_allowed(address):
    assert refusal(address) is None


def test_only_the_networks_that_are_named_are_allowed():
    allowed = [ip_network("10.1.0.0/16")]
    assert refusal("10.1.2.3", allowed) is None
    assert refusal("::ffff:10.1.2.3", allowed) is None
    assert refusal("10.2.2.3", allowed) == "the private address 10.2.2.3"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0", "2130706433"]
)
def test_a_server_on_this_machine_is_refused_whatever_its_name(host):
    with receiving() as server:
        refused = failure(HttpClient(), server.url("/secret-path", host=host))
        assert "allow_private_addresses" in str(refused)
        assert not refused.retry
        assert "secret-path" not in str(refused)
    assert server.requests == []


def test_the_judged_address_is_the_one_that_is_connected_to():
    """A name that leads elsewhere when it is asked for again does not help."""
    answers = [["192.0.2.1", "127.0.0.1"], ["127.0.0.1"]]
    with receiving() as server:

        def find(_, port):
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers.pop(0)
            ]

        client = HttpClient(allowed=[ip_network("192.0.2.0/24")], find=find)
        failure(client, server.url(host="rebinding.example.org"), seconds=0.2)
        assert len(answers) == 1, "the name is asked for once"
        assert failure(client, server.url(host="rebinding.example.org")).retry is False
    assert server.requests == []


def test_an_address_that_is_refused_leaves_the_others():
    def find(_, port):
        return [*addresses_of("10.0.0.1", port), *addresses_of("127.0.0.1", port)]

    with receiving() as server:
        assert send(HttpClient(allowed=LOOPBACK, find=find), server.url(host="two")).ok


def test_after_an_address_without_a_server_the_next_one_is_tried():
    def find(_, port):
        return [*addresses_of("127.0.0.2", port), *addresses_of("127.0.0.1", port)]

    with receiving() as server:
        assert send(HttpClient(allowed=LOOPBACK, find=find), server.url(host="two")).ok


# --- requests and answers ------------------------------------------------------------


def test_a_request_has_what_it_was_given(client):
    with receiving() as server:
        answer = client.send(
            "PUT",
            server.url("/a/b?c=d#part"),
            headers={"X-One": "café", "user-agent": "mine"},
            body=b'{"a":1}',
            seconds=30,
        )
    assert (answer.status, answer.body, answer.ok) == (200, b"ok", True)
    [request] = server.requests
    assert request.line == "PUT /a/b?c=d HTTP/1.1"
    assert request.body == b'{"a":1}'
    assert request.headers["x-one"] == "café"
    assert request.headers["user-agent"] == "mine"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["connection"] == "close"


def test_the_password_of_a_url_becomes_a_header(client):
    with receiving() as server:
        url = f"http://ann:p%40ss@127.0.0.1:{server.port}/"
        send(client, url)
        send(client, url, headers={"authorization": "Bearer t"})
    first, second = server.requests
    assert first.headers["authorization"] == "Basic YW5uOnBAc3M="
    assert second.headers["authorization"] == "Bearer t"


@pytest.mark.parametrize("number", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_failure_and_is_not_followed(client, number):
    with (
        receiving() as elsewhere,
        receiving(fixed(status(number, headers=f"Location: {elsewhere.url()}\r\n"))) as server,
    ):
        failed = failure(client, server.url())
        assert f"answered {number}, a redirect" in str(failed)
        assert not failed.retry
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("number", "retry"),
    [(400, False), (404, False), (410, False), (408, True), (429, True), (500, True), (503, True)],
)
def test_the_status_says_whether_to_try_again(client, number, retry):
    with receiving(fixed(status(number, b"why\x1b[2J\nnot"))) as server:
        answer = send(client, server.url())
    assert not answer.ok
    assert answer.retry is retry
    assert answer.text == rf"answered {number}: why\x1b[2J not"


def test_only_the_begin_of_an_answer_is_read(client):
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000
    with receiving(fixed(endless)) as server:
        assert send(client, server.url(), largest=10).body == b"x" * 10


def test_a_body_in_chunks_is_read(client):
    chunks = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    with receiving(fixed(chunks)) as server:
        assert send(client, server.url()).body == b"abcde"


def test_a_body_that_is_cut_off_leaves_the_status(client):
    with receiving(fixed(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")) as server:
        assert send(client, server.url()).body == b"abc"


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: " + b"b" * 70_000]
)
def test_a_server_that_does_not_speak_http_is_a_failure(client, answer):
    with receiving(fixed(answer)) as server:
        failed = failure(client, server.url("/secret"))
    assert failed.retry
    assert "OpenSSH" not in str(failed)
    assert str(failed).startswith(f"127.0.0.1:{server.port}: ")


def test_a_port_without_a_server_is_a_failure(client):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    failed = failure(client, f"http://127.0.0.1:{port}/")
    assert str(failed) == f"127.0.0.1:{port}: Connection refused"
    assert failed.retry


def test_a_name_without_an_address_is_a_failure(client):
    failed = failure(client, "http://nothing.invalid/")
    assert str(failed).startswith("nothing.invalid:80: ")
    assert failed.retry


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Key": "s3cret\r\nInjected: 1"},
        {"X-Key\r\nInjected": "s3cret"},
        {"X Key": "s3cret"},
        {"X-Key": "s3cret\0"},
    ],
)
def test_a_header_cannot_inject_another_one(client, headers):
    with receiving() as server:
        failed = failure(client, server.url(), headers=headers)
    assert "s3cret" not in str(failed)
    assert server.requests == []


# --- time ----------------------------------------------------------------------------


def check_time_limit(client, url, seconds):
    """Check that a request is given up that would be answered later, or never."""
    failed = failure(client, url, seconds=seconds)
    assert f"no answer within {seconds:g} s" in str(failed)
    assert failed.retry


@pytest.mark.parametrize(
    "answer", [OK, b"HTTP/1.1 200 OK\r\nA: b", b"HTTP/1.1 100 Continue\r\n\r\n" * 500]
)
def test_a_server_that_sends_one_byte_at_a_time_has_one_time_limit(client, answer):
    with receiving(drip(answer, pause=0.2)) as server:
        check_time_limit(client, server.url(), 0.5)


def test_a_server_that_does_not_answer_has_a_time_limit(client):
    with receiving(lambda _, server: server.ending.wait()) as server:
        check_time_limit(client, server.url(), 0.3)


def test_a_server_that_reads_nothing_has_a_time_limit(client):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with pytest.raises(HttpError, match="no answer within"):
            client.send("POST", url, body=b"x" * 50_000_000, seconds=0.3)


def test_a_server_without_a_handshake_has_a_time_limit(client):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/"
        check_time_limit(client, url, 0.3)


def test_a_dns_that_does_not_answer_has_a_time_limit():
    answer = threading.Event()

    def find(host, port):
        answer.wait()
        return addresses_of(host, port)

    try:
        check_time_limit(HttpClient(find=find), "http://slow.example.org/", 0.3)
    finally:
        answer.set()


def test_a_body_that_never_ends_leaves_the_status(client):
    def respond(connection, server):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nabc")
        drip(b"x", pause=0.1)(connection, server)

    with receiving(respond) as server:
        answer = send(client, server.url(), seconds=0.6)
    assert answer.status == 200
    assert answer.body.startswith(b"abc")


# --- TLS -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_a_server_is_trusted_by_the_authorities_of_the_system(client, certificates, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with receiving(certificates=certificates) as server:
        for host in "127.0.0.1", "localhost":
            assert send(client, server.url(scheme="https", host=host)).body == b"ok"
    assert server.requests[1].headers["host"] == f"localhost:{server.port}"


def test_a_server_of_another_authority_is_not_trusted(client, certificates, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.stranger))
    with receiving(certificates=certificates) as server:
        failed = failure(client, server.url(scheme="https"))
        assert "its certificate is not trusted: " in str(failed)
    assert server.requests == []


@pytest.mark.parametrize(
    "changed",
    [
        {"hosts": ["other.example.org"]},
        {"hosts": ["127.0.0.1"], "not_after": datetime(2020, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_certificate_for_another_host_or_time_is_not_trusted(
    client, certificates, monkeypatch, changed
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    other = certificates.with_server("other", *changed.pop("hosts"), **changed)
    with receiving(certificates=other) as server:
        failed = failure(client, server.url(scheme="https"))
        assert "its certificate is not trusted: " in str(failed)
        assert failed.retry
    assert server.requests == []


# Python 3.11 leaves the socket to the garbage collector, which closes it at once.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_server_that_resets_the_connection_before_the_handshake_is_a_failure(client):
    budget = Budget(SystemClock(), 30.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        plain = deadline_socket.connect("127.0.0.1", server.getsockname()[1], budget)
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()  # sends RST
    poll = select.poll()
    poll.register(plain, select.POLLIN)
    poll.poll(PATIENCE * 1000)
    with plain, pytest.raises(OSError, match=r"reset|closed|EOF|not connected|Broken pipe"):
        client._encrypt(plain, "localhost", budget)


def test_a_slow_server_with_tls_has_one_time_limit(client, certificates, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with receiving(drip(OK, pause=0.2), certificates=certificates) as server:
        check_time_limit(client, server.url(scheme="https"), 1)


def test_no_proxy_of_the_environment_is_used(client, monkeypatch):
    with receiving() as proxy, receiving() as server:
        for name in "http_proxy", "HTTP_PROXY", "all_proxy":
            monkeypatch.setenv(name, proxy.url())
        assert send(client, server.url()).ok
    assert proxy.requests == []


# --- URLs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/s3cret",
        "example.org/s3cret",
        "file:///etc/s3cret",
        "https:///s3cret",
        "https://example.org:0/s3cret",
        "https://example.org:99999/s3cret",
        "https://example.org:s3cret/",
        "https://example.org/s3cret path",
        "https://example.org/s3cret\r\nX: 1",
        "https://exämple.org/s3cret",
        "https://[::1/s3cret",
        "https://[fe80::1%25eth0]/s3cret",
        "https://.example.org/s3cret",
        "https://a..b/s3cret",
        f"https://{'a' * 64}.org/s3cret",
    ],
)
def test_an_invalid_url_is_refused_and_not_shown(client, url):
    failed = failure(client, url)
    assert "s3cret" not in str(failed)
    assert not failed.retry


def test_a_url_is_taken_apart():
    target = parse_url("https://[2606:4700::1]:8443/a?b")
    assert (target.encrypted, target.host, target.port, target.path) == (
        True,
        "2606:4700::1",
        8443,
        "/a?b",
    )
    assert target.shown == "[2606:4700::1]:8443"
    assert parse_url("http://EXAMPLE.org").path == "/"
