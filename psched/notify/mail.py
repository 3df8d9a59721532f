"""Hooks that send a mail through sendmail, or through a program that is called like it."""

import os
import pwd
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import formatdate

from psched.base.clock import Clock
from psched.config.monitoring.hooks import MailHook
from psched.notify.notification import CLOSED, RAISED, Notification
from psched.notify.program import run

# sendmail reads lines that end in a line feed, and passes the mail on with the ends that SMTP
# wants. A header is folded at 78 characters.
_POLICY = EmailPolicy(linesep="\n", cte_type="7bit")


class MailDeliverer:
    """Sends a mail for each notification.

    Args:
        hook: the definition.
        clock: tells the time of the mail.
    """

    def __init__(self, hook: MailHook, clock: Clock) -> None:
        self._hook = hook
        self._clock = clock
        self.tries = hook.tries

    def deliver(self, notification: Notification) -> None:
        """Send a mail; see `psched.notify.delivery.Deliverer`."""
        hook = self._hook
        # -i: a line with a single full stop does not end the mail. The addresses stand in the
        # command, so no header decides who gets the mail.
        command = (str(hook.sendmail), "-i", "--", *hook.to)
        run(
            command,
            self._message(notification),
            {},
            seconds=hook.timeout,
            redaction=notification.redaction,
        )

    def _message(self, notification: Notification) -> bytes:
        message = EmailMessage(policy=_POLICY)
        # The texts of a notification contain no line break, so that no text can add a header. The
        # message refuses line breaks, too.
        message["Subject"] = notification.title
        message["From"] = self._hook.sender or _own_address()
        message["To"] = ", ".join(self._hook.to)
        message["Date"] = formatdate(self._clock.wall())
        # All tries have the same number, so that a mail that arrives twice can be recognized; and
        # the mail of the end belongs to that of the beginning.
        message["Message-ID"] = _number(notification, notification.event)
        if notification.event == CLOSED:
            message["In-Reply-To"] = message["References"] = _number(notification, RAISED)
        message["Auto-Submitted"] = "auto-generated"
        facts = (f"{name}: {value}" for name, value in notification.facts)
        message.set_content("\n".join([notification.text, "", *facts, ""]))
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
