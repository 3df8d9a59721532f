"""Hooks that send a request to a server."""

import hmac
import json
from collections.abc import Iterator

from psched.base.clock import Clock
from psched.config.kinds import read_password
from psched.config.monitoring.hooks import Webhook
from psched.config.monitoring.http_url import parse
from psched.config.problems import InvalidValueError
from psched.notify.delivery import DeliveryError
from psched.notify.http_client import HttpClient, HttpError
from psched.notify.notification import Notification
from psched.notify.templates import render

ID = "Psched-Id"
TIMESTAMP = "Psched-Timestamp"
SIGNATURE = "Psched-Signature"
"""The headers of a webhook: see `signature`."""

_HIDDEN = "***"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What stands in the header ``Psched-Signature``.

    It is the HMAC-SHA256 of the text in the header ``Psched-Timestamp``, a full stop, and the body.
    A receiver that checks it knows that the sender has the secret, and when it has sent the
    request.
    """
    signed = timestamp.encode() + b"." + body
    return f"sha256={hmac.new(secret.encode(), signed, 'sha256').hexdigest()}"


class WebhookDeliverer:
    """Sends notifications to a server."""

    def __init__(self, hook: Webhook, http: HttpClient, clock: Clock) -> None:
        self._hook = hook
        self._http = http
        self._clock = clock
        self.tries = hook.tries

    def deliver(self, notification: Notification) -> None:
        """Send a request; see `psched.notify.delivery.Deliverer`."""
        hook = self._hook
        secret = self._secret()
        url, content = render(hook.template, hook.url, notification, secret)
        body = json.dumps(content, separators=(",", ":")).encode()
        timestamp = str(int(self._clock.wall()))
        headers = {"Content-Type": "application/json", ID: notification.id, TIMESTAMP: timestamp}
        # PagerDuty's secret is a part of the body.
        if secret is not None and hook.template != "pagerduty":
            headers[SIGNATURE] = signature(secret, timestamp, body)
        try:
            answer = self._http.send(
                "POST", url, headers=headers | dict(hook.headers), body=body, seconds=hook.timeout
            )
        except HttpError as error:
            raise DeliveryError(str(error), retry=error.retry) from None
        if not answer.ok:
            # The answer of a server can repeat the request.
            problem = answer.text
            for hidden in self._secrets(secret):
                problem = problem.replace(hidden, _HIDDEN)
            raise DeliveryError(f"{parse(url).shown}: {problem}", retry=answer.retry)

    def _secret(self) -> str | None:
        """The secret; read anew for each request, so that the file can be replaced at any time."""
        file = self._hook.secret_file
        if file is None:
            return self._hook.secret
        try:
            return read_password(file)
        except InvalidValueError as error:
            raise DeliveryError(f"secret_file: {error}", retry=True) from None

    def _secrets(self, secret: str | None) -> Iterator[str]:
        target = parse(self._hook.url)
        values = {*self._hook.secrets, secret, target.authorization, target.path}
        # The longest first, because one of them can be a part of another.
        yield from sorted((each for each in values if each and each != "/"), key=len, reverse=True)
