"""Hooks that send a mail to a server, or through a program that is called like sendmail."""

import os
import pwd
import smtplib
import socket
import ssl
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import formatdate
from functools import partial

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.config.kinds import read_password
from psched.config.monitoring import MailHook
from psched.config.problems import InvalidValueError
from psched.notify.notification import CLOSED, RAISED, DeliveryError, Digest, Notification
from psched.notify.program import run

# sendmail reads lines that end in a line feed, and passes the mail on with the ends that SMTP
# wants. A header is folded at 78 characters.
_POLICY = EmailPolicy(cte_type="7bit")

_PORTS = {"starttls": 587, "tls": 465, "off": 25}  # the usual ports


def send_mail(hook: MailHook, clock: Clock, notification: Notification) -> None:
    """Send a mail about a notification."""
    message = partial(_message, hook, clock, notification)
    if hook.smtp is not None:
        _send(hook, clock, hook.smtp, message("\r\n"))
        return
    # -i: a line with a single full stop does not end the mail. The addresses stand in the
    # command, so no header decides who gets the mail.
    command = (str(hook.sendmail), "-i", "--", *hook.to)
    run(
        command,
        message("\n"),
        {},
        seconds=hook.timeout,
        redaction=notification.redaction,
    )


def _send(hook: MailHook, clock: Clock, host: str, message: bytes) -> None:
    """Send a mail to the server. Each answer may take as long as the time limit leaves."""
    begun, context = clock.monotonic(), ssl.create_default_context()
    port = hook.port or _PORTS[hook.tls]
    name = socket.gethostname()

    def left() -> float:
        return max(begun + hook.timeout - clock.monotonic(), 0.1)

    try:
        password = None if hook.password_file is None else read_password(hook.password_file)
        server: smtplib.SMTP
        if hook.tls == "tls":
            server = smtplib.SMTP_SSL(host, port, name, timeout=left(), context=context)
        else:
            server = smtplib.SMTP(host, port, name, timeout=left())
        with server:
            if hook.tls == "starttls":
                server.starttls(context=context)
            if server.sock is not None:
                server.sock.settimeout(left())
            if hook.user is not None and password is not None:
                server.login(hook.user, password)
            refused = server.sendmail(hook.sender or "", hook.to, message)
    except InvalidValueError as error:
        raise DeliveryError(f"password_file: {error}", retry=True) from None
    except (OSError, UnicodeError, smtplib.SMTPException) as error:
        # The texts of smtplib contain answers of the server, but no password.
        what = brief(str(error) or type(error).__name__)
        if isinstance(error, UnicodeError):  # its text can contain a letter of the password
            what = "no server can have this name, or user or password are not ASCII"
        raise DeliveryError(f"{host}:{port}: {what}", retry=True) from None
    if refused:
        text = f"{host}:{port} refused {', '.join(sorted(refused))}; the others have got it"
        raise DeliveryError(brief(text), retry=False)


def _message(hook: MailHook, clock: Clock, notification: Notification, linesep: str) -> bytes:
    message = EmailMessage(policy=_POLICY.clone(linesep=linesep))
    # The texts of a notification contain no line break, so that no text can add a header. The
    # message refuses line breaks, too.
    message["Subject"] = notification.title
    message["From"] = hook.sender or _own_address()
    message["To"] = ", ".join(hook.to)
    message["Date"] = formatdate(clock.wall())
    # All tries have the same number, so that a mail that arrives twice can be recognized; and
    # the mail of the end belongs to that of the beginning.
    message["Message-ID"] = _number(notification, notification.event)
    if notification.event == CLOSED and not isinstance(notification, Digest):
        message["In-Reply-To"] = message["References"] = _number(notification, RAISED)
    message["Auto-Submitted"] = "auto-generated"
    facts = (f"{name}: {value}" for name, value in notification.facts)
    output = notification.output
    printed = ["", "The end of its output:", output] if output else []
    message.set_content("\n".join([notification.text, "", *facts, *printed, ""]))
    return message.as_bytes()


def _own_address() -> Address:
    """The user of this process; sendmail adds the domain, as it does for cron."""
    number = os.geteuid()
    try:
        return Address("psched", pwd.getpwuid(number).pw_name)
    except (KeyError, ValueError):  # the user has no name, or one that is not ASCII
        return Address("psched", f"uid-{number}")


def _number(notification: Notification, event: str) -> str:
    return f"<{notification.alert_id}.{event}@psched.invalid>"
