"""Tests of encrypted connections, and of passwords from files, with real servers."""

import contextlib
import random
import shutil
import socket
import subprocess
import threading
from datetime import UTC, datetime

import pytest

from psched import app, config
from psched.base.clock import SystemClock
from psched.base.errors import StoreUnavailableError
from support.servers import LOOPBACK

KINDS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("postgresql", marks=pytest.mark.postgresql),
]
OWN_OPTIONS = {
    "mariadb": "ssl_ca={}",
    "postgresql": "sslmode=verify-full&sslrootcert={}",
}
NO_TLS = {
    "mariadb": "SSL is required but the server doesn't support it",
    "postgresql": "server does not support SSL, but SSL was required",
}
UNTRUSTED = {
    "mariadb": "certificate verify failed: ",
    "postgresql": "SSL error: certificate verify failed",
}
MISNAMED = {
    "mariadb": "certificate is not valid for '127.0.0.1'",
    "postgresql": 'does not match host name "127.0.0.1"',
}
WANTED = "Does the server offer TLS, is its certificate in date, by the authority in ssl_ca"
ITS_NAME = ", and for this host's name (ssl_verify: ca accepts any name)"


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def start(kind, request):
    """A function that starts a server of this kind."""
    return request.getfixturevalue(f"start_{kind}")


@pytest.fixture
def plain_server(kind, request):
    """A server without certificates."""
    return request.getfixturevalue(f"{kind}_server")


@pytest.fixture
def connect():
    """A function that creates and connects a store, which is closed at the end of the test."""
    with contextlib.ExitStack() as opened:

        def connect(url, **settings):
            given = {name: str(value) for name, value in settings.items()}
            store = app.create_store(
                config.from_mapping({"alive_time": 60, "url": url, **given}),
                clock=SystemClock(),
                rng=random.Random(),  # noqa: S311  # jitter
            )
            opened.callback(store.disconnect)
            store.init()
            store.now()
            return store

        yield connect


def refusal(connect, *place, **settings):
    """The text of the error if the server or the client refuses the connection."""
    with pytest.raises(StoreUnavailableError) as caught:
        connect(*place, **settings)
    return str(caught.value)


def encryption(store):
    return dict(store.examine())["encrypted"]


def url_of(server, user="", options=""):
    """Create a database; return its url for a user."""
    url = server.url(server.create_database())
    scheme, _, place = url.partition("://")
    return f"{scheme}://{user or place.partition('@')[0]}@{place.partition('@')[2]}{options}"


def test_a_connection_is_encrypted_if_the_server_is_whom_the_settings_trust(
    kind, start, certificates, connect
):
    server = start(certificates=certificates)
    trusting = {"ssl_ca": certificates.authority}
    url = url_of(server)
    for settings in (
        trusting,
        trusting | {"ssl_verify": "ca"},
        {"sslca": certificates.authority},
        {"ssl_verify": "none"},
    ):
        assert encryption(connect(url, **settings)).startswith("TLSv1.")
    own = connect(f"{url}?{OWN_OPTIONS[kind].format(certificates.authority)}")
    assert encryption(own).startswith("TLSv1.")
    # The connection is encrypted only because the server supports it; nothing is checked.
    assert encryption(connect(url)).startswith("TLSv1.")

    shown = refusal(connect, url, ssl_ca=certificates.stranger)
    assert UNTRUSTED[kind] in shown
    assert WANTED + ITS_NAME in shown
    assert UNTRUSTED[kind] in refusal(connect, url, ssl_ca=certificates.stranger, ssl_verify="ca")


@pytest.mark.mariadb
def test_no_authority_is_read_where_nobody_is_checked(start_mariadb, certificates, connect):
    store = connect(url_of(start_mariadb(certificates=certificates)))

    driver = store._connector._connection.connection.driver_connection
    assert encryption(store).startswith("TLSv1.")
    assert driver.ctx.cert_store_stats()["x509"] == 0


def test_a_server_with_a_certificate_for_another_host_is_refused_if_names_are_checked(
    kind, start, certificates, connect
):
    server = start(certificates=certificates.with_server("other", "db.example.com"))
    trusting = {"ssl_ca": certificates.authority}
    url = url_of(server)

    shown = refusal(connect, url, **trusting)
    assert MISNAMED[kind] in shown
    assert WANTED + ITS_NAME in shown
    assert connect(url, **trusting, ssl_verify="ca")


def test_a_server_with_a_certificate_out_of_date_is_refused(kind, start, certificates, connect):
    expired = certificates.with_server(
        "expired", LOOPBACK, not_after=datetime(2020, 2, 1, tzinfo=UTC)
    )
    url = url_of(start(certificates=expired))

    for verify in "full", "ca":
        shown = refusal(connect, url, ssl_ca=certificates.authority, ssl_verify=verify)
        assert UNTRUSTED[kind] in shown
        assert "is its certificate in date" in shown
        assert (ITS_NAME in shown) is (verify == "full")
    assert connect(url, ssl_verify="none")


def test_a_server_without_encryption_is_refused_if_it_is_demanded(
    kind, plain_server, certificates, connect
):
    url = url_of(plain_server)
    for settings in {"ssl_ca": certificates.authority}, {"ssl_verify": "none"}:
        shown = refusal(connect, url, **settings)
        assert NO_TLS[kind] in shown
        assert "Does the server offer TLS" in shown
    assert encryption(connect(url)) == "no"


def test_nothing_is_told_to_a_server_that_says_it_cannot_encrypt(
    kind, plain_server, certificates, connect
):
    # A man in the middle would remove the offer from the server's greeting.
    told = []
    with socket.create_server((LOOPBACK, 0)) as listener:

        def answer():
            client, _ = listener.accept()
            with client:
                client.settimeout(10)
                if kind == "mariadb":
                    with socket.create_connection((LOOPBACK, plain_server.port)) as real:
                        client.sendall(real.recv(4096))
                else:
                    client.recv(8)  # the client's request for encryption
                    client.sendall(b"N")
                told.append(client.recv(4096))

        thread = threading.Thread(target=answer)
        thread.start()
        scheme = plain_server.url().partition("://")[0]
        url = f"{scheme}://ann:s3cret@{LOOPBACK}:{listener.getsockname()[1]}/x"
        shown = refusal(connect, url, ssl_ca=certificates.authority)
        thread.join()

    assert NO_TLS[kind] in shown
    assert "s3cret" not in shown
    assert told == [b""]


def test_a_server_that_asks_for_a_certificate_gets_ours(start, certificates, connect):
    server = start(certificates=certificates)
    server.create_user("ann", "s3cret", proof="certificate")
    url = url_of(server, "ann:s3cret")
    trusting = {"ssl_ca": certificates.authority}
    ours = {"ssl_cert": certificates.client_certificate, "ssl_key": certificates.client_key}
    strange = {"ssl_cert": certificates.stranger_certificate, "ssl_key": certificates.stranger_key}

    assert connect(url, **trusting, **ours)
    assert connect(url, ssl_verify="none", **ours)
    missing = refusal(connect, url, **trusting)
    assert "does it want a client's certificate (set ssl_cert and ssl_key)?" in missing
    assert "does it accept the one in ssl_cert?" in refusal(connect, url, **trusting, **strange)


def test_certificates_are_read_again_for_each_connection(start, certificates, connect, tmp_path):
    server = start(certificates=certificates)
    files = {"ssl_ca": tmp_path / "ca", "ssl_cert": tmp_path / "cert", "ssl_key": tmp_path / "key"}
    good = certificates.authority, certificates.client_certificate, certificates.client_key
    for file, source in zip(files.values(), good, strict=True):
        shutil.copy(source, file)
    store = connect(url_of(server), **files)

    for broken, source in ("ssl_ca", good[0]), ("ssl_key", certificates.stranger_key):
        shutil.copy(certificates.stranger if broken == "ssl_ca" else source, files[broken])
        store.disconnect()
        with pytest.raises(StoreUnavailableError, match="cannot connect to"):
            store.now()
        shutil.copy(good[list(files).index(broken)], files[broken])
        assert store.now()


@pytest.mark.mariadb
def test_a_file_that_holds_no_certificate_is_named(mariadb_server, certificates, connect, tmp_path):
    url = url_of(mariadb_server)
    (tmp_path / "file").write_text("c4n4ry\n")
    (tmp_path / "file").chmod(0o600)
    for settings, said in (
        ({"ssl_ca": tmp_path / "file"}, "ssl_ca cannot be used: "),
        (
            {"ssl_cert": certificates.client_certificate, "ssl_key": tmp_path / "file"},
            "ssl_cert and ssl_key cannot be used: ",
        ),
        (
            {"ssl_cert": certificates.client_certificate, "ssl_key": certificates.stranger_key},
            "ssl_cert and ssl_key cannot be used: ",
        ),
    ):
        shown = refusal(connect, url, **{"ssl_ca": certificates.authority, **settings})
        assert said in shown
        assert "c4n4ry" not in shown


@pytest.mark.mariadb
def test_nobody_is_asked_for_the_password_of_a_key(certificates, connect, tmp_path):
    locked = tmp_path / "locked"
    command = ["openssl", "pkey", "-in", certificates.client_key, "-aes256", "-passout", "pass:x"]
    subprocess.run([*command, "-out", locked], check=True)
    locked.chmod(0o600)

    shown = refusal(
        connect,
        f"mysql://ann@{LOOPBACK}:1/x",
        ssl_ca=certificates.authority,
        ssl_cert=certificates.client_certificate,
        ssl_key=locked,
    )

    assert "ssl_key is encrypted; decrypt it: openssl pkey" in shown


@pytest.mark.postgresql
def test_a_unix_socket_is_refused_if_encryption_is_demanded(
    start_postgresql, certificates, connect
):
    server = start_postgresql("--unix-socket-directories=.", certificates=certificates)
    with (server.data / "pg_hba.conf").open("a") as access:
        access.write("local all all trust\n")
    server.restart()
    url = f"{url_of(server)}?host={server.data}&port={server.port}"
    assert connect(url)
    shown = refusal(connect, url, ssl_ca=certificates.authority)
    assert "a Unix socket is never encrypted; name a host in the url, or remove" in shown


@pytest.mark.postgresql
def test_nothing_in_the_users_home_decides(
    start_postgresql, certificates, connect, tmp_path, monkeypatch
):
    server = start_postgresql(certificates=certificates)
    home = tmp_path / ".postgresql"
    home.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(certificates.stranger, home / "root.crt")
    shutil.copy(certificates.stranger_certificate, home / "postgresql.crt")
    (home / "postgresql.key").write_text("no key")

    assert connect(url_of(server), ssl_verify="none")
    assert connect(url_of(server), ssl_ca=certificates.authority)


def test_a_password_comes_from_a_file(start, certificates, connect, tmp_path):
    server = start(certificates=certificates)
    server.create_user("ann", "p@ss: /%?#")
    file = tmp_path / "password"
    file.write_text("p@ss: /%?#\n")
    file.chmod(0o640)
    assert connect(url_of(server, "ann"), password_file=file)


@pytest.mark.postgresql
def test_libpqs_password_file_does_too(postgresql_server, connect, tmp_path, monkeypatch):
    postgresql_server.create_user("ann", "s3cret")
    file = tmp_path / "pgpass"
    file.write_text("*:*:*:ann:s3cret\n")
    file.chmod(0o600)
    url = url_of(postgresql_server, "ann")
    assert connect(f"{url}?passfile={file}")
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert connect(url)


@pytest.mark.mariadb
def test_an_option_file_of_mysqls_does_too(start_mariadb, certificates, connect, tmp_path):
    server = start_mariadb(certificates=certificates)
    server.create_user("ann", "s3cret")
    file = tmp_path / "my.cnf"
    file.write_text(f"[client]\npassword=s3cret\nssl-ca={certificates.authority}\n")
    assert connect(f"{url_of(server, 'ann')}?read_default_file={file}")
    file.write_text(f"[client]\npassword=s3cret\nssl-ca={certificates.stranger}\n")
    url = f"{url_of(server, 'ann')}?read_default_file={file}"
    assert "certificate verify failed" in refusal(connect, url)
    assert connect(url, ssl_ca=certificates.authority)
