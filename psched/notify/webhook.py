"""Hooks that send a request to a server: with psched's own body, or as a known receiver wants it.

Texts of alerts come from rows and from tasks. So no template lets them become markup: in Slack
``<!channel>`` would alert everybody, and in Teams ``[text](url)`` would be a link.
"""

import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from psched.base.clock import Clock
from psched.base.texts import cut
from psched.config.kinds import read_password
from psched.config.monitoring import Webhook, parse_url
from psched.config.problems import InvalidValueError
from psched.core.alerts.alert import Rule
from psched.notify.http_client import HttpClient, HttpError
from psched.notify.notification import CLOSED, DeliveryError, Notification

WARNINGS = frozenset({Rule.LATE, Rule.LONGEST, Rule.UNUSUAL, Rule.NO_SLOT})
"""Rules of which nothing has failed yet."""

_LONGEST_NTFY = 1500  # characters: ntfy makes a message of more than 4096 bytes an attachment
_LONGEST_SUMMARY = 1024  # the longest summary that PagerDuty accepts, in characters

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|<>~-])")


class Request(NamedTuple):
    """Where a notification is sent, and its JSON."""

    url: str
    body: Mapping[str, Any]


def render(template: str, url: str, notification: Notification, secret: str | None) -> Request:
    """The request of a webhook."""
    return _TEMPLATES[template](url, notification, secret)


def _json(url: str, notification: Notification, _: str | None) -> Request:
    return Request(url, notification.body)


def _message(notification: Notification) -> str:
    lines = (f"{name}: {value}" for name, value in notification.facts)
    return "\n".join([notification.text, *lines])


def _slack(url: str, notification: Notification, _: str | None) -> Request:
    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    text = f"{notification.title}\n{_message(notification)}"
    # `text` is what Slack's notification shows, and `blocks` are the message. A text of the kind
    # plain_text has no markup.
    return Request(
        url,
        {
            "text": escaped(notification.title),
            "blocks": [
                {
                    "type": "section",
                    "text": {"type": "plain_text", "text": cut(text, 2900), "emoji": False},
                }
            ],
        },
    )


def _teams(url: str, notification: Notification, _: str | None) -> Request:
    def escaped(text: str) -> str:
        return _MARKDOWN.sub(r"\\\1", text)

    colour = "Good" if notification.event == CLOSED else "Attention"
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {
                "type": "TextBlock",
                "text": escaped(notification.title),
                "weight": "Bolder",
                "color": colour,
                "wrap": True,
            },
            {"type": "TextBlock", "text": escaped(notification.text), "wrap": True},
            {
                "type": "FactSet",
                "facts": [
                    {"title": escaped(name), "value": escaped(value)}
                    for name, value in notification.facts
                ],
            },
        ],
    }
    return Request(
        url,
        {
            "type": "message",
            "attachments": [
                {
                    "contentType": "application/vnd.microsoft.card.adaptive",
                    "contentUrl": None,
                    "content": card,
                }
            ],
        },
    )


def _ntfy(url: str, notification: Notification, _: str | None) -> Request:
    # ntfy reads JSON only at the root; the topic is then a field.
    parts = urlsplit(url)
    folder, _, topic = parts.path.rstrip("/").rpartition("/")
    root = urlunsplit(parts._replace(path=f"{folder}/"))
    closed = notification.event == CLOSED
    urgent = not closed and notification.alert.rule not in WARNINGS
    return Request(
        root,
        {
            "topic": unquote(topic),
            "title": notification.title,
            "message": cut(_message(notification), _LONGEST_NTFY),
            "tags": ["white_check_mark" if closed else "warning"],
            "priority": 4 if urgent else 3,
        },
    )


def _pagerduty(url: str, notification: Notification, secret: str | None) -> Request:
    alert = notification.alert
    event = {
        "routing_key": secret or "",
        "event_action": "resolve" if notification.event == CLOSED else "trigger",
        "dedup_key": f"psched-{notification.alert_id}",
    }
    if notification.event == CLOSED:
        return Request(url, event)
    severity = "warning" if alert.rule in WARNINGS else "error"
    return Request(
        url,
        {
            **event,
            "client": "psched",
            "payload": {
                "summary": cut(f"{notification.title}: {notification.text}", _LONGEST_SUMMARY - 50),
                "source": alert.host or notification.host,
                "severity": "info" if notification.test else severity,
                "timestamp": notification.since,
                "component": notification.subject,
                "group": notification.installation,
                "class": alert.rule,
                "custom_details": notification.body,
            },
        },
    )


_TEMPLATES: Mapping[str, Callable[[str, Notification, str | None], Request]] = {
    "json": _json,
    "slack": _slack,
    "teams": _teams,
    "ntfy": _ntfy,
    "pagerduty": _pagerduty,
}


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


def send_request(hook: Webhook, http: HttpClient, clock: Clock, notification: Notification) -> None:
    """Send a notification to a server."""
    secret = _secret(hook)
    url, content = render(hook.template, hook.url, notification, secret)
    body = json.dumps(content, separators=(",", ":")).encode()
    timestamp = str(int(clock.wall()))
    headers = {"Content-Type": "application/json", ID: notification.id, TIMESTAMP: timestamp}
    # PagerDuty's secret is a part of the body.
    if secret is not None and hook.template != "pagerduty":
        headers[SIGNATURE] = signature(secret, timestamp, body)
    try:
        answer = http.send(
            "POST", url, headers=headers | dict(hook.headers), body=body, seconds=hook.timeout
        )
    except HttpError as error:
        raise DeliveryError(str(error), retry=error.retry) from None
    if not answer.ok:
        # The answer of a server can repeat the request.
        problem = answer.text
        for hidden in _secrets(hook, secret):
            problem = problem.replace(hidden, _HIDDEN)
        raise DeliveryError(f"{parse_url(url).shown}: {problem}", retry=answer.retry)


def _secret(hook: Webhook) -> str | None:
    """The secret; read anew for each request, so that the file can be replaced at any time."""
    file = hook.secret_file
    if file is None:
        return hook.secret
    try:
        return read_password(file)
    except InvalidValueError as error:
        raise DeliveryError(f"secret_file: {error}", retry=True) from None


def _secrets(hook: Webhook, secret: str | None) -> Iterator[str]:
    target = parse_url(hook.url)
    values = {*hook.secrets, secret, target.authorization, target.path}
    # The longest first, because one of them can be a part of another.
    yield from sorted((each for each in values if each and each != "/"), key=len, reverse=True)
