"""PerfectSched's next times, found by trying one minute after the other, without psched.

This second reading of cron lines, made from what chrono does, is compared with
`psched.triggers.chrono`.
"""

import itertools
import re
from datetime import datetime
from zoneinfo import ZoneInfo

_NAMES = (
    (),
    (),
    (),
    ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
)
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def next_time(cron, before, timezone="UTC", *, minutes=4 * 366 * 1440):
    """The first minute after an instant that the line matches; None: none of so many matches.

    Raises:
        ValueError: chrono refuses the line.
    """
    fields = _SHORT.get(cron, cron).strip(" \t").split()
    if len(fields) != 5:
        raise ValueError(cron)
    sets = [_numbers(place, text) for place, text in enumerate(fields)]
    zone = ZoneInfo(timezone or "UTC")
    first = before - before % 60 + 60
    for ts in range(first, first + minutes * 60, 60):
        wall = datetime.fromtimestamp(ts, zone)
        if (
            wall.minute in sets[0]
            and wall.hour in sets[1]
            and wall.month in sets[3]
            and _is_day(fields, sets, wall)
        ):
            return ts
    return None


def _is_day(fields, sets, wall):
    by_date = wall.day in sets[2]
    by_weekday = (wall.weekday() + 1) % 7 in sets[4]
    if fields[2] == "L":
        return datetime.fromordinal(wall.toordinal() + 1).day == 1
    if fields[2] != "*" and fields[4] != "*":
        return by_date or by_weekday
    return by_date and by_weekday


def _numbers(place, text):
    if place == 2 and text == "L":
        return set()
    items = text.split(",")
    if len(items) > 1 and place != 4:
        # Ruby's split omits empty parts at the end.
        items = [*itertools.dropwhile(lambda item: not item, reversed(items))]
    if len(items) == 1 and "," in text:
        raise ValueError(text)
    return {number for item in items for number in _item(place, item)}


def _item(place, item):
    low, high = _BOUNDS[place]
    if place == 2 and item == "L":
        return ()
    if place == 4:
        item = item.replace("7", "0")
    if place >= 3 and re.search(r"[0-9a-zA-Z]\*|\*[^/]", item):
        raise ValueError(item)
    words = item.replace("*", f"{low}-{high}").lower()
    for number, name in enumerate(_NAMES[place]):
        if name:
            words = words.replace(name, str(number))
    match = re.fullmatch(r"([0-9]+)(-[0-9]+)?(/[0-9]+)?", words)
    if match is None:
        raise ValueError(item)
    begin = int(match[1])
    end = int(match[2][1:]) if match[2] else begin
    step = int(match[3][1:]) if match[3] else 1
    if begin < low or end > high or end < begin or step == 0:
        raise ValueError(item)
    return range(begin, end + 1, step)
