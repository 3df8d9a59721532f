"""URLs and headers of requests to servers that the configuration names."""

import base64
import re
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

PORTS = {"http": 80, "https": 443}
"""The schemes that psched requests, each with its standard port."""

_SHORTEST_SECRET = 16
"""A part of a URL with fewer characters, such as ``ping``, is no secret. The identifier of a check
has 36 characters, a ping key has 22, and the last part of a URL of Slack 24."""

_HOST = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?|[0-9a-f:.]*:[0-9a-f:.]*")
"""A name, or an IPv6 address without the name of an interface."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


class Target(NamedTuple):
    """A URL, taken apart."""

    encrypted: bool
    host: str
    port: int
    path: str  # with the query
    authorization: str | None  # the header for user and password

    @property
    def shown(self) -> str:
        """Host and port, for messages."""
        return f"{self.authority}:{self.port}"

    @property
    def authority(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse(url: str) -> Target:
    """Take a URL apart."""
    if not re.fullmatch(r"[!-~]+", url):
        raise ValueError("must have no spaces and only ASCII characters; percent-encode the others")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("has a host or a port that is invalid") from None
    if parts.scheme not in PORTS:
        raise ValueError("must begin with https:// or http://")
    if not host or not _HOST.fullmatch(host) or port == 0:
        raise ValueError("must name a host, and a port other than 0 if any")
    authorization = None
    if parts.username is not None:
        login = b":".join(unquote_to_bytes(each or "") for each in (parts.username, parts.password))
        authorization = f"Basic {base64.b64encode(login).decode()}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme == "https", host, port or PORTS[parts.scheme], path, authorization)


def header_problem(name: str, value: str) -> str | None:
    """Why a header cannot be sent; None if it can be."""
    if not _HEADER_NAME.fullmatch(name):
        return "has an invalid name"
    if not _HEADER_VALUE.fullmatch(value):
        return "contains a line break or another control character"
    return None


def secret_words(url: str) -> set[str]:
    """The parts of a URL's path and query that are so long that they may be secret, also decoded.

    Many receivers trust whoever knows such a part.
    """
    parts = urlsplit(url)
    words = re.split("[/?&=]", f"{parts.path}?{parts.query}")
    found = {word for word in words if len(word) >= _SHORTEST_SECRET}
    return found | {*map(unquote, found)}
