"""Which hosts run a schedule: the fields ``hosts`` and ``each_host``, as the column ``lane``.

A lane is one text, so that a claim finds the due rows of its host through an index:

===============  ================================================================================
NULL             every host runs it
``db1``          the host of this name, and those with this label
``*db1 web*``    the hosts of which a name or label matches one of these texts: after the asterisk
                 several names, or patterns, sorted and with blanks between them
``&db1 web*``    none: it is a template (``each_host``); each host that matches has its own row
``@db1``         the host of this name; the key of its row is that of the template and ``@db1``
===============  ================================================================================

So a host knows its exact lanes without asking, and finds all others between two texts
(`PATTERNS`). It learns which of those match it; nothing is rewritten when a host comes or goes.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from psched.base.errors import InvalidError
from psched.base.texts import HOST_NAME

LONGEST_LANE = 64
"""The most characters of the column ``lane``."""

MOST_LANES = 8
"""The most lanes of one host besides NULL: each of its claims looks into all of them."""

LOOK_INTERVAL = 5.0
"""Seconds after which a worker looks again which lanes there are."""

MOST_PATTERNS = 200
"""The most lanes of several names and of patterns that a look reads; the next one continues."""

PATTERNS = ("*", "+")
"""The lanes of several names, and of patterns, lie between these two texts: '+' follows '*'."""

TEMPLATES = ("&", "'")
"""The lanes of templates lie between these two texts."""

ROWS_OF_HOSTS = ("@", "A")
"""The lanes of the rows of single hosts lie between these two texts."""

_EVERY_HOST = "&*"
"""The lane of a template whose field ``hosts`` is left out."""

_WANTED = re.compile(r"[a-z0-9_*?][a-z0-9_.*?-]{0,62}")


AFTER_LANES = "\x7f"
"""Every lane comes before this text."""


def lane_of(hosts: object, *, each_host: bool = False) -> str | None:
    """The lane for the field ``hosts``: a name, a label or a pattern, or several; None for None."""
    if hosts is None:
        return _EVERY_HOST if each_host else None
    listed = [hosts] if isinstance(hosts, str) or not isinstance(hosts, Iterable) else [*hosts]
    if not listed:
        raise InvalidError("hosts", "must name at least one host; leave it out for every host")
    wanted = set[str]()
    for each in listed:
        if not isinstance(each, str) or not _WANTED.fullmatch(each.lower()):
            raise InvalidError(
                "hosts",
                "must be names or labels of hosts, such as db1, or patterns such as web*, not"
                f" {each!r}",
            )
        wanted.add(each.lower())
    joined = " ".join(sorted(wanted))
    lane = f"&{joined}" if each_host else joined if HOST_NAME.fullmatch(joined) else f"*{joined}"
    if len(lane) > LONGEST_LANE:
        raise InvalidError(
            "hosts",
            f"takes {len(lane)} characters, and may take {LONGEST_LANE}; give these hosts a label"
            " in common (the setting host_labels), and name the label",
        )
    return lane


def hosts_of(lane: str | None) -> Sequence[str] | None:
    """The field ``hosts`` of a lane; None if every host runs the schedule."""
    if lane is None or lane == _EVERY_HOST:
        return None
    return (lane[1:] if lane[:1] in {"*", "&", "@"} else lane).split(" ")


def serves(names: Sequence[str], lane: str | None) -> bool:
    """Whether a host with these names, its own one first, runs what has this lane."""
    if lane is None or lane in names or lane in map(own_lane, names[:1]):
        return True
    return lane.startswith("*") and has_name(names, lane)


def has_name(names: Sequence[str], lane: str) -> bool:
    """Whether a host with these names is among those that a lane of several or a template names."""
    return any(fnmatchcase(name, wanted) for wanted in lane[1:].split(" ") for name in names)


def own_lane(host: str) -> str:
    """The lane of what only the host of this name runs, for templates."""
    return f"@{host}"


def is_template(lane: str | None) -> bool:
    """Whether a row with this lane is a template, which runs nowhere."""
    return lane is not None and lane.startswith("&")


def template_of(key: str, lane: str) -> str | None:
    """The key of the template of which a row is that of one host; None if it is no such row."""
    return key.removesuffix(lane) if lane.startswith("@") and key.endswith(lane) else None


def absent(lane: str, between: str) -> str:
    """What no host is if none may run what has this lane, such as ``is db1 or web*``."""
    named = between.join(hosts_of(lane) or ())
    what = f"is {named}" if named else "has a name"
    return f"{what} in its host_name" if is_template(lane) else what


def too_many_lanes(host: str, left: Sequence[str]) -> str:
    """What to tell about lanes that a host does not serve, because it has too many."""
    some = ", ".join(lane.removeprefix("*") for lane in left[:3])
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""  # noqa: PLR2004  # as shown
    return (
        f"{host} runs nothing whose hosts are {some}{more}: a host serves {MOST_LANES} different"
        " values of hosts, its name and labels among them; name a label in place of patterns"
    )


def lanes_served(names: Sequence[str], patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """The lanes that a host claims from besides NULL, and those that are too many.

    The host has these `psched.config.Config.host_names`. ``patterns`` are the lanes of several
    names and of patterns that there are.
    """
    found = [*names[:1], *map(own_lane, names[:1]), *names[1:]]
    found += [lane for lane in patterns if serves(names, lane)]
    return found[:MOST_LANES], found[MOST_LANES:]
