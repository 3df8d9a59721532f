"""Hooks that run a program on the host of the monitor."""

import json
from collections.abc import Mapping

from psched.config.monitoring.hooks import CommandHook
from psched.notify.notification import Notification
from psched.notify.program import run


class CommandDeliverer:
    """Runs a program for each notification.

    The program gets the notification as JSON on its standard input, and as environment variables.
    No shell reads any of it. Exit status 0 means that the notification is delivered.

    Args:
        hook: the definition.
    """

    def __init__(self, hook: CommandHook) -> None:
        self._hook = hook
        self.tries = hook.tries

    def deliver(self, notification: Notification) -> None:
        """Run the program; see `psched.notify.delivery.Deliverer`."""
        content = json.dumps(notification.body).encode() + b"\n"
        run(
            self._hook.command,
            content,
            _environment(notification),
            seconds=self._hook.timeout,
            redaction=notification.redaction,
        )


def _environment(notification: Notification) -> Mapping[str, str]:
    body = notification.body
    alert = body["alert"]
    values = {
        "PSCHED_ID": body["id"],
        "PSCHED_EVENT": body["event"],
        "PSCHED_TEST": "1" if body["test"] else "",
        "PSCHED_TITLE": body["title"],
        "PSCHED_TEXT": body["text"],
        "PSCHED_INSTALLATION": body["installation"],
        "PSCHED_EXPLAIN": body["explain"],
        "PSCHED_RULE": alert["rule"],
        "PSCHED_KEY": alert["key"],
        "PSCHED_HOST": alert["host"],
        "PSCHED_TYPE": alert["type"],
        "PSCHED_LABEL": alert["label"],
        "PSCHED_SCHEDULED_TIME": alert["scheduled_time"],
        "PSCHED_SINCE": alert["since"],
    }
    return {name: value or "" for name, value in values.items()}
