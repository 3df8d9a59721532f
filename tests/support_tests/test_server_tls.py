import psycopg
import pymysql
import pytest

from support.servers import LOOPBACK

REFUSED = pymysql.err.OperationalError, psycopg.OperationalError


def ask_mariadb(port, user, authority, certificate, key):
    """Connect by the driver's own means; the version of TLS."""
    with pymysql.connect(
        host=LOOPBACK,
        port=port,
        user=user,
        password="open sesame",
        ssl_disabled=authority is None,
        ssl_ca=authority,
        ssl_verify_cert=True,
        ssl_verify_identity=True,
        ssl_cert=certificate,
        ssl_key=key,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        return cursor.fetchone()[1]


def ask_postgresql(port, user, authority, certificate, key):
    """Connect by the driver's own means; the version of TLS."""
    with psycopg.connect(
        host=LOOPBACK,
        port=port,
        user=user,
        password="open sesame",
        dbname="postgres",
        sslmode="verify-full" if authority else "disable",
        sslrootcert=authority,
        sslcert=certificate,
        sslkey=key,
    ) as connection:
        query = "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        return connection.execute(query).fetchone()[0]


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ]
)
def ask(request, certificates):
    """A function that connects to a server with certificates, as a user of one sort."""
    server = request.getfixturevalue(f"start_{request.param}")(certificates=certificates)
    for proof in "", "tls", "certificate":
        server.create_user(f"by_{proof}", "open sesame", proof=proof)
    ask_server = {"mariadb": ask_mariadb, "postgresql": ask_postgresql}[request.param]

    def ask(proof, *, authority=None, certificate=None, key=None):
        return ask_server(server.port, f"by_{proof}", authority, certificate, key)

    return ask


def test_a_server_with_certificates_encrypts_for_those_who_ask_and_those_who_must(
    ask, certificates
):
    assert not ask("")
    assert ask("", authority=certificates.authority).startswith("TLS")
    assert ask("tls", authority=certificates.authority).startswith("TLS")
    with pytest.raises(REFUSED):
        ask("tls")
    with pytest.raises(REFUSED, match="certificate verify failed"):
        ask("", authority=certificates.stranger)


def test_a_server_asks_some_for_a_certificate_of_its_own_authority(ask, certificates):
    trusting = {"authority": certificates.authority}
    own = {"certificate": certificates.client_certificate, "key": certificates.client_key}
    strange = {"certificate": certificates.stranger_certificate, "key": certificates.stranger_key}

    assert ask("certificate", **trusting, **own)
    for proofs in {}, trusting, trusting | strange:
        with pytest.raises(REFUSED):
            ask("certificate", **proofs)
