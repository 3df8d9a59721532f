"""A service whose database is reached with certificates, and a password from a file."""

import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

NEW_PASSWORD = {
    "mariadb": "ALTER USER ann IDENTIFIED BY '{}'",
    "postgresql": "ALTER ROLE ann PASSWORD '{}'",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
)
def test_tasks_run_and_the_password_can_be_changed_and_is_never_shown(
    kind, request, certificates, make_service, monkeypatch
):
    server = request.getfixturevalue(f"start_{kind}")(certificates=certificates)
    server.create_user("ann", "c4n4ry1", proof="certificate")
    scheme, _, place = server.url(server.create_database()).partition("://")
    service = make_service(
        f"{scheme}://ann@{place.partition('@')[2]}",
        password_file="${CREDENTIALS_DIRECTORY}/password",
        ssl_ca=str(certificates.authority),
        ssl_cert=str(certificates.client_certificate),
        ssl_key=str(certificates.client_key),
    )
    service.env["CREDENTIALS_DIRECTORY"] = str(service.folder)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(service.folder))
    password = service.write("password", "c4n4ry1\n")
    password.chmod(0o600)

    service.init()
    checked = service.psched("check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "  encrypted: TLSv1." in checked.stdout

    master = service.start()
    service.add("s1")
    service.wait_for_finish("s1")

    server.query(NEW_PASSWORD[kind].format("c4n4ry2"))
    password.write_text("c4n4ry2\n")
    master.send(signal.SIGHUP)
    master.wait_for_generation(2)
    service.add("s2")
    service.wait_for_finish("s2")

    shown = [checked.stdout, service.psched("status", "--all").stdout, master.text]
    shown += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (master.pid, *master.workers())]
    assert all(shown)
    assert not [text for text in shown if "c4n4ry" in text]
