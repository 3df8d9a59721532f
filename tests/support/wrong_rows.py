"""Random rows with wrong or malicious columns, and a second judge of which columns are wrong."""

import json
import unicodedata
import zoneinfo

from support.fuzzing import TERMINAL

CRONS = ("* * * * *", "30 2 * * MON", "@daily", "@every 90", "0 0 L * *")
BAD_CRONS = (
    "", "61 * * * *", "@reboot", "@every 0", "* * * *", "0 0 30 2 *", "@call os:system {}",
    "@call test.__main__:x", "* * * * *\x1b[31m", "@every 99999999999",
)  # fmt: skip
ZONES = ("UTC", "Asia/Tokyo", "Europe/Paris", "")
STATUSES = ("finished", "cancelled", "failed", "expired", "paused", "migrating", "whatever")
OPTIONS = ("{}", '{"catchup": "latest"}', '{"retry_wait": 5, "of a newer psched": [1]}', "")

TEXTS = ("owner", "settled_by", "reason")
COUNTERS = ("fence", "version", "attempt", "created_at", "alive_time", "retain_until")

ODD = {
    "type": lambda case: case.choice((*TERMINAL, "", " x", "t" * 300, case.text())),
    "data": lambda case: case.json_text(),
    "cron": lambda case: case.choice((*CRONS, *BAD_CRONS, case.text())),
    "timezone": lambda case: case.choice((*ZONES, "Mars/Olympus", "../../etc/passwd", case.text())),
    "delay": lambda case: case.number(),
    "next_time": lambda case: case.choice((None, case.number())),
    "status": lambda case: case.choice((*STATUSES, case.text())),
    "options": lambda case: case.choice((*OPTIONS, case.json_text())),
    **dict.fromkeys(TEXTS, lambda case: case.text()),
    **dict.fromkeys(COUNTERS, lambda case: case.number()),
}
"""Odd values for each column."""


def wrong_row(case, number):
    """Columns of a row, some of them odd."""
    columns = {"id": f"odd{number}", "type": "t", "next_time": 1, "next_run_time": 1}
    if case.maybe(0.2):
        columns["id"] += case.choice((*TERMINAL, case.text(300)))
    for column in case.sample([*ODD], case.randint(1, 3)):
        columns[column] = ODD[column](case)
    if case.maybe(0.1):
        columns["data"] = case.bytes()
    return columns


BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

# --- the judge ---------------------------------------------------------------------------


def problems(columns):
    """The columns that are invalid, judged without psched."""
    return {name for name, is_sound in SOUND.items() if not is_sound(columns.get(name))}


def is_name(name):
    return bool(name) and name.isprintable() and name == name.strip() and len(name) <= 255


def is_object(stored):
    try:
        text = stored.decode() if isinstance(stored, bytes) else stored
        return not text or isinstance(json.loads(text, parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


def refuse(constant):
    raise ValueError(constant)


SOUND = {
    # A key that plain SQL inserted may be longer than psched allows, or end with a blank.
    "id": lambda key: not any(unicodedata.category(c) == "Cc" or c in BIDI for c in key),
    "type": lambda type_: type_ is None or is_name(type_),
    "data": is_object,
    "options": is_object,
    # Only texts that are known to be invalid are recognised, because there is no second parser of
    # cron lines here.
    "cron": lambda cron: cron not in BAD_CRONS,
    "timezone": lambda zone: not zone or zone in zoneinfo.available_timezones(),
    "delay": lambda delay: delay is None or 0 <= delay <= 366 * 86_400,
    "next_time": lambda instant: instant is None or 0 <= instant < 253_402_300_800,
    "status": lambda status: status in (None, "", "waiting"),
}
