"""The setting ``pings``: names, each with the URL of a check of a ping server.

A URL contains the identifier of its check, and whoever knows it can ping. So no error text, listing
or log shows a URL.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from psched.base.stable_hash import stable_hash
from psched.config import urls
from psched.config.kinds import FrozenMapping, MatchingText, Parts
from psched.config.monitoring.http_url import parse, secret_words
from psched.config.problems import InvalidValueError, safe_name
from psched.config.references import Context

NO_PING = "none"
"""The value of the setting ``ping`` that means that nothing is pinged."""

KEY = "{key}"
"""In the path of a URL, this stands for the slug of the schedule's key."""

LONGEST_NAME = 64
"""The most characters in the name of a ping."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")

_LONGEST_SLUG = 100
_DIGITS = 8

PING_NAME = MatchingText(
    f"the name of a ping in pings (letters, digits, _, . and -, at most {LONGEST_NAME}), or none",
    _NAME,
)
"""The kind of value of the setting ``ping``."""


class Pings(FrozenMapping[str]):
    """The URLs of pings by their names."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Only the names are shown, because the URLs are secrets.
        return f"<{', '.join(self)}>"

    @property
    def secrets(self) -> set[str]:
        """The URLs, and those parts of them that are secret."""
        found = set[str]()
        for url in self.values():
            parts = urlsplit(url)
            if parts.path != f"/{KEY}":
                found.add(url.partition(f"/{KEY}")[0])
            found |= secret_words(url) | urls.secrets(url)
        return (found | {*map(unquote, found)}) - {""}


NO_PINGS = Pings()


class PingUrls(Parts[Pings]):
    """A mapping from names to URLs."""

    description = "a mapping from names to URLs, as in backup: https://hc-ping.com/UUID"
    empty = NO_PINGS

    @override
    def part(self, context: Context, name: object, value: object) -> tuple[str, str]:
        return _read_name(name), _read_url(self.text(value, context))


def slug_of(key: str) -> str:
    """The slug of a schedule's check: lower-case letters, digits, - and _, at most 100.

    Other characters become hyphens. A slug that says less than its key ends with digits that depend
    on the key, because two schedules must not have the same check.
    """
    slug = re.sub("[^a-z0-9_-]+", "-", key.lower()).strip("-")
    if slug == key.lower() and len(slug) <= _LONGEST_SLUG:
        return slug
    digits = f"{stable_hash(key, 16**_DIGITS):0{_DIGITS}x}"
    return f"{slug[: _LONGEST_SLUG - _DIGITS - 1]}-{digits}".lstrip("-")


def undefined_pings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Find the pings that a configuration names and does not define."""
    pings: Mapping[str, str] = values["pings"]
    if values["ping"] not in {NO_PING, *pings}:
        yield "ping", _undefined(values["ping"], pings)
    for of_type, own in values["types"].items():
        name = own.get("ping", NO_PING)
        if name not in {NO_PING, *pings}:
            yield "types", f"{safe_name(of_type)}.ping: {_undefined(name, pings)}"


def _undefined(name: str, pings: Mapping[str, str]) -> str:
    there_are = f"there are {', '.join(pings)}" if pings else "there are none"
    return f"names the ping {safe_name(name)}, which is not in pings; {there_are}"


def _read_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == NO_PING:
        raise InvalidValueError(
            "must have a name of letters, digits, _, . and -, at most"
            f" {LONGEST_NAME} of them, and not none"
        )
    return name


def _read_url(url: str) -> str:
    """Check a URL, and return it without a slash at the end of its path."""
    try:
        parse(url)
    except ValueError as error:
        raise InvalidValueError(str(error)) from None
    parts = urlsplit(url)
    if "#" in url:
        raise InvalidValueError("has a #; remove it and what follows")
    if "rid=" in parts.query:
        raise InvalidValueError("has the option rid, which psched adds itself; remove it")
    path = parts.path.rstrip("/")
    if not path:
        raise InvalidValueError("has no path, so it names no check")
    if re.search("[{}]", url.replace(f"/{KEY}", "", 1)) or (
        KEY in path and not path.endswith(f"/{KEY}")
    ):
        raise InvalidValueError(f"has a brace; only {KEY} can stand in it, at the end of its path")
    return parts._replace(path=path).geturl()
