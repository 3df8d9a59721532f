"""Tests of mails that are sent to an SMTP server."""

import email
from email import policy

import pytest

from psched.base.clock import SystemClock
from psched.config import from_mapping
from psched.config.monitoring import MailHook, problems_here
from psched.core.alerts.alert import Alert
from psched.errors import ConfigError
from psched.notify.mail import send_mail
from psched.notify.notification import Context, DeliveryError, Digest, Notification
from support.smtp_server import smtp_server


def told(**more):
    alert = Alert(key="nightly", rule="failed", since=1_000, text="exited: ÄÖ\n.\n.. 日本")
    return Notification(event="raised", alert=alert, installation="psched", host="web1", **more)


def send(server, notification=None, **hook):
    given = {"smtp": "127.0.0.1", "port": server.port, "tls": "off", "sender": "psched@x.org"}
    hook = MailHook(to=("ops@example.org", "ann@example.org"), **{**given, **hook})
    send_mail(hook, SystemClock(), notification or told())


@pytest.fixture
def password_file(tmp_path):
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    return file


def test_a_mail_is_sent_to_the_server():
    with smtp_server() as server:
        send(server, told(context=Context(output="one\n.\nlast \x1b words")))
    [raw] = server.mails
    mail = email.message_from_bytes(raw, policy=policy.default)
    assert (mail["Subject"], mail["To"]) == (
        "psched: failed: nightly", "ops@example.org, ann@example.org",
    )  # fmt: skip
    assert "MAIL FROM:<PSCHED@X.ORG>" in server.commands
    assert [each for each in server.commands if each.startswith("RCPT")] == [
        "RCPT TO:<OPS@EXAMPLE.ORG>", "RCPT TO:<ANN@EXAMPLE.ORG>",
    ]  # fmt: skip
    assert raw.isascii()
    assert b"\n" not in raw.replace(b"\r\n", b"")
    lines = mail.get_content().splitlines()
    assert lines[0].startswith("exited: ÄÖ")
    assert lines[-4] == "The end of its output:"
    assert (lines[-3], lines[-1]) == ("one", r"last \x1b words")


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_the_connection_is_encrypted_and_the_password_is_read_from_its_file(
    tls, certificates, password_file, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with smtp_server(certificates, tls) as server:
        send(server, tls=tls, user="ann", password_file=password_file)
        assert (server.encrypted, server.logins) == ([True], [("ann", "s3cret")])
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.stranger))
        with pytest.raises(DeliveryError, match="certificate"):
            send(server, tls=tls, user="ann", password_file=password_file)
    assert len(server.mails) == 1


def test_a_server_without_tls_gets_neither_mail_nor_password(password_file):
    with smtp_server() as server, pytest.raises(DeliveryError, match="STARTTLS") as error:
        send(server, tls="starttls", user="ann", password_file=password_file)
    assert error.value.retry
    assert not server.mails
    assert not server.logins


def test_what_the_server_refuses_is_tried_again_without_showing_the_password(
    certificates, password_file, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with smtp_server(certificates, "tls") as server:
        server.refuses["AUTH"] = "535 wrong"
        with pytest.raises(DeliveryError, match="535") as error:
            send(server, tls="tls", user="ann", password_file=password_file)
    assert "s3cret" not in str(error.value)
    assert error.value.retry


def test_an_address_that_is_refused_alone_is_named_and_the_others_get_the_mail_once():
    with smtp_server() as server:
        server.refuses["RCPT TO:<ANN"] = "550 unknown"
        with pytest.raises(DeliveryError, match=r"refused ann@example\.org") as error:
            send(server)
    assert not error.value.retry
    assert len(server.mails) == 1


def test_a_server_that_is_away_or_hangs_is_tried_again():
    with smtp_server() as server:
        pass
    with pytest.raises(DeliveryError, match=r"127\.0\.0\.1:[0-9]+: ") as error:
        send(server, timeout=0.2)
    assert error.value.retry


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"port": 25}, "has port without smtp"),
        ({"smtp": "mx"}, "needs from"),
        ({"smtp": "mx", "from": "a@x.org", "sendmail": "/bin/true"}, "has smtp and sendmail"),
        ({"smtp": "mx", "from": "a@x.org", "user": "ann"}, "needs both user and password_file"),
        (
            {"smtp": "mx", "from": "a@x.org", "user": "ann", "password_file": "/p", "tls": "off"},
            "would send the password in clear text",
        ),
        ({"smtp": "mx", "from": "a@x.org", "tls": "maybe"}, "tls"),
        ({"smtp": "mx:25", "from": "a@x.org"}, "without a port"),
        ({"smtp": "[::1]:25", "from": "a@x.org"}, "without a port"),
        ({"smtp": "mail..example.org", "from": "a@x.org"}, "the name of a server"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        from_mapping({"url": "sqlite:////x.db", "hooks": {"ops": {"mail": "ops", **fields}}})


@pytest.mark.parametrize("server", ["mx", "mail.example.org", "10.0.0.1", "::1", "fd00::a:1"])
def test_a_server_has_a_name_or_an_address(server):
    own = {"mail": "ops", "smtp": server, "from": "a@x.org"}
    assert from_mapping({"url": "sqlite:////x.db", "hooks": {"ops": own}}).hooks["ops"].smtp == (
        server
    )


def test_what_smtp_cannot_send_is_named_and_does_not_end_the_monitor(password_file):
    with smtp_server() as server, pytest.raises(DeliveryError, match="no server can have this"):
        send(server, smtp=f"{'x' * 64}.example.org")
    password_file.write_text("s\u00e4cret\n")
    with smtp_server() as server, pytest.raises(DeliveryError) as error:
        send(server, user="ann", password_file=password_file)
    assert "not ASCII" in str(error.value)
    assert "e4" not in str(error.value)


def test_the_end_of_several_alerts_answers_no_mail():
    alert = Alert(key="k", rule="failed", since=1, text="x", closed=2, closed_text="over")
    about = {"event": "closed", "alert": alert, "installation": "psched", "host": "web1"}
    one = Notification(**about)
    with smtp_server() as server:
        send(server, one)
        send(server, Digest(**about, members=[one, one]))
    answers = [email.message_from_bytes(each)["In-Reply-To"] for each in server.mails]
    assert answers == [f"<{one.alert_id}.raised@psched.invalid>", None]


def test_a_missing_password_is_named():
    own = {"mail": "ops", "smtp": "mx", "from": "a@x.org", "user": "ann", "password_file": "gone"}
    settings = from_mapping({"url": "sqlite:////x.db", "hooks": {"ops": own}})
    [line] = problems_here(settings.hooks)
    assert line.startswith("ops: password_file: cannot be read")
    assert settings.hooks["ops"].shown == "mail to ops by mx"
