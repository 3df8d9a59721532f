import json

import pytest

from psched.config.monitoring import READ_TEMPLATES
from psched.core.alerts.alert import Alert, Rule
from psched.notify.notification import Digest, Notification, next_wait
from psched.notify.webhook import render
from psched.reports.redaction import Redaction

ALERT = Alert(
    key="nightly",
    rule=Rule.LATE,
    since=1_795_660_200_000,
    type="report",
    label="team",
    scheduled_time=1_795_660_200,
    text="has not started within 5 min",
    raised=1_795_660_501_250,
)


def told(event="raised", *, alert=ALERT, test=False, redact=(), **changes):
    fields = {name: getattr(alert, name) for name in Alert.__slots__}
    return Notification(
        event=event,
        alert=Alert(**fields | changes),
        installation="psched",
        host="web1",
        test=test,
        redaction=Redaction(redact),
    )


def closed(**changes):
    return told("closed", closed=1_795_660_600_000, closed_text="it runs", **changes)


def test_the_body_is_what_the_page_documents():
    notification = told()
    assert notification.body == {
        "version": 1,
        "id": f"{notification.alert_id}-raised",
        "event": "raised",
        "test": False,
        "title": "psched: late: nightly",
        "text": "has not started within 5 min",
        "installation": "psched",
        "host": "web1",
        "explain": "psched why nightly",
        "note": None,
        "next_run": None,
        "output": "",
        "alert": {
            "id": notification.alert_id,
            "rule": "late",
            "key": "nightly",
            "host": "",
            "type": "report",
            "label": "team",
            "scheduled_time": "2026-11-26T02:30:00Z",
            "since": "2026-11-26T02:30:00.000Z",
            "raised": "2026-11-26T02:35:01.250Z",
            "closed": None,
            "text": "has not started within 5 min",
        },
    }


def test_the_end_of_an_alert_says_why_it_is_over():
    body = closed().body
    assert (body["event"], body["title"]) == ("closed", "psched: recovered from late: nightly")
    assert body["text"] == "it runs"
    assert body["alert"]["text"] == "has not started within 5 min"
    assert body["alert"]["closed"] == "2026-11-26T02:36:40.000Z"


def test_a_closed_alert_whose_beginning_is_still_to_be_told_is_told_as_it_began():
    body = told(closed=1_795_660_600_000, closed_text="it runs").body
    assert (body["text"], body["alert"]["closed"]) == ("has not started within 5 min", None)


def test_an_alert_about_a_host_names_the_host():
    body = told(key="", host="web2", rule=Rule.NO_SLOT, type=None, scheduled_time=None).body
    assert body["title"] == "psched: no slot: host web2"
    assert body["explain"] == "psched status"
    assert body["alert"]["scheduled_time"] is None


def test_the_id_differs_between_alerts_and_events_only():
    ids = {told().id, told(text="other", fence=3).id}
    assert len(ids) == 1
    for other in (
        closed(),
        told(since=1),
        told(raised=ALERT.raised + 1),  # for example of another database
        told(key="other"),
        told(rule=Rule.LOST),
        told(host="web2"),
        told(key="nightly\0", host=""),
    ):
        ids.add(other.id)
    assert len(ids) == 8
    assert closed().alert_id == told().alert_id


def digest(*members, event="raised"):
    return Digest(
        event=event, alert=members[0].alert, installation="psched", host="web1", members=members
    )


def test_many_events_are_told_as_one_list():
    mine = digest(told(), told(key="weekly<!channel>"), closed(key="hourly"))
    assert mine.title == "psched: 3 events: 2 late, 1 recovered from late"
    assert [*mine.facts][:3] == [
        ("late: nightly", "has not started within 5 min"),
        ("late: weekly<!channel>", "has not started within 5 min"),
        ("recovered from late: hourly", "it runs"),
    ]
    assert mine.id == digest(*mine.members).id != digest(*mine.members[:2]).id
    for template in READ_TEMPLATES:
        body = json.dumps(render(template, "https://x.example/y", mine, None).body)
        assert mine.title in body
        # The texts of Slack's and ntfy's messages are plain, and have no markup.
        assert template in {"slack", "ntfy"} or "<!channel>" not in body


def test_a_test_says_so():
    assert told(test=True).title == "psched: TEST: late: nightly"
    assert told(test=True).body["test"] is True


def test_texts_are_made_safe():
    text = "password=s3cret \x1b[2J\r\nBcc: eve " + "x" * 100_000
    notification = told(text=text, key="a\u202eb", redact=["password"])
    shown = json.dumps(notification.body)
    assert "s3cret" not in shown
    assert "[redacted]" in notification.text
    assert "\x1b" not in notification.text
    assert "\n" not in notification.text
    assert len(notification.text) < 21_000
    assert notification.title == r"psched: late: a\u202eb"
    assert len(told(key="k" * 5000).title) < 250


def test_the_command_that_explains_can_be_copied_to_a_shell():
    assert told(key="a; rm -rf 'x'").explain == """psched why 'a; rm -rf '"'"'x'"'"''"""


def test_a_row_that_cannot_be_understood_does_no_harm():
    body = told(type="t" * 10**6, label="l" * 10**6, scheduled_time=10**18, since=-(10**19)).body
    assert len(json.dumps(body)) < 5000
    assert body["alert"]["scheduled_time"] == "1" + 18 * "0"
    assert [*told(scheduled_time=10**18).facts]


def test_halves_of_characters_do_no_harm():
    body = told(key="a\ud800", type="\0", text="\ud800").body
    assert json.dumps(body, ensure_ascii=False).encode()


# --- retries -------------------------------------------------------------------------


def test_pauses_grow_to_an_hour_and_end_after_twelve_tries():
    waits = [next_wait(tries) for tries in range(1, 13)]
    assert waits == [*(60 * 2**n for n in range(6)), *[3600] * 5, None]
    assert sum(waits[:-1]) == 6 * 3600 + 3 * 60
    assert [next_wait(tries, 2) for tries in (1, 2, 3)] == [60, None, None]
    assert next_wait(10**6, 10**7) == 3600


# --- templates -----------------------------------------------------------------------


def rendered(template, notification, url="https://example.org/a/b?c=d", secret=None):
    return render(template, url, notification, secret)


@pytest.mark.parametrize("template", ["json", "slack", "teams", "pagerduty"])
def test_most_templates_leave_the_url(template):
    assert rendered(template, told()).url == "https://example.org/a/b?c=d"


def test_slack_gets_plain_text():
    body = rendered("slack", told(key="<!channel> & co")).body
    assert body["text"] == "psched: late: &lt;!channel&gt; &amp; co"
    [block] = body["blocks"]
    assert block["text"]["type"] == "plain_text"
    assert block["text"]["text"] == (
        "psched: late: <!channel> & co\nhas not started within 5 min\ntype: report\nlabel: team\n"
        "scheduled time: 2026-11-26T02:30:00Z\nsince: 2026-11-26T02:30:00.000Z\n"
        "installation: psched (told by web1)\nto see more: psched why '<!channel> & co'"
    )
    assert len(rendered("slack", told(text="x" * 9000)).body["blocks"][0]["text"]["text"]) <= 3000


def test_teams_gets_an_adaptive_card_without_links():
    body = rendered("teams", told(text="[click](https://evil.example)")).body
    assert body["type"] == "message"
    [attachment] = body["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    title, text, facts = card["body"]
    assert (title["text"], title["color"]) == ("psched: late: nightly", "Attention")
    assert text["text"] == r"\[click\]\(https://evil.example\)"
    assert facts["facts"][0] == {"title": "type", "value": "report"}
    assert rendered("teams", closed()).body["attachments"][0]["content"]["body"][0]["color"] == (
        "Good"
    )


def test_ntfy_gets_json_at_its_root():
    request = rendered("ntfy", told(), url="https://user:p@example.org/folder/my%2Dtopic?x=1")
    assert request.url == "https://user:p@example.org/folder/?x=1"
    assert request.body == {
        "topic": "my-topic",
        "title": "psched: late: nightly",
        "message": "has not started within 5 min\ntype: report\nlabel: team\n"
        "scheduled time: 2026-11-26T02:30:00Z\nsince: 2026-11-26T02:30:00.000Z\n"
        "installation: psched (told by web1)\nto see more: psched why nightly",
        "tags": ["warning"],
        "priority": 3,
    }
    assert rendered("ntfy", told(), url="https://ntfy.sh/topic/").url == "https://ntfy.sh/"
    assert rendered("ntfy", told(rule=Rule.FAILED)).body["priority"] == 4
    assert rendered("ntfy", closed(rule=Rule.FAILED)).body["priority"] == 3
    long = rendered("ntfy", told(text="é" * 9000)).body["message"]
    assert len(long.encode()) <= 4096


def test_pagerduty_triggers_and_resolves_one_incident():
    trigger = rendered("pagerduty", told(), secret="r" * 32).body
    resolve = rendered("pagerduty", closed(), secret="r" * 32).body
    assert resolve == {
        "routing_key": "r" * 32,
        "event_action": "resolve",
        "dedup_key": trigger["dedup_key"],
    }
    assert (trigger["routing_key"], trigger["event_action"]) == ("r" * 32, "trigger")
    assert len(trigger["dedup_key"]) <= 255
    payload = trigger["payload"]
    assert payload["summary"] == "psched: late: nightly: has not started within 5 min"
    assert (payload["source"], payload["severity"]) == ("web1", "warning")
    assert payload["timestamp"] == "2026-11-26T02:30:00.000Z"
    assert payload["custom_details"] == told().body
    assert rendered("pagerduty", told(rule=Rule.LOST)).body["payload"]["severity"] == "error"
    assert rendered("pagerduty", told(test=True)).body["payload"]["severity"] == "info"
    long = rendered("pagerduty", told(text="x" * 9000)).body["payload"]["summary"]
    assert len(long) <= 1024
