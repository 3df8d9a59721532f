"""A request to the web pages, and its answer."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

from psched.base.errors import InvalidError
from psched.base.texts import storable

LONGEST_BODY = 65_536
"""The most bytes of a form: the server of psched web accepts no more, either."""

_MOST_FIELDS = 30  # the most fields of a query or a form; the pages know fewer
_SAFE = frozenset({"GET", "HEAD"})


class Request:
    """What a browser or a program asks for.

    Attributes:
        environ: the request as PEP 3333 defines it.
        method: such as ``GET``.
        path: the path below that of the pages.
    """

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self.environ = environ
        self.method = str(environ["REQUEST_METHOD"])
        self.path = str(environ.get("PATH_INFO") or "/")

    def header(self, name: str) -> str:
        """The value of a header; empty if there is none."""
        key = name.upper().replace("-", "_")
        value = self.environ.get(key if key.startswith("CONTENT_") else f"HTTP_{key}", "")
        return str(value).strip()

    @property
    def remote(self) -> str:
        """The address that has sent the request, such as that of a proxy; empty if unknown."""
        return str(self.environ.get("REMOTE_ADDR") or "")

    @property
    def is_safe(self) -> bool:
        """Whether the request asks for nothing but a page."""
        return self.method in _SAFE

    @property
    def query_text(self) -> str:
        """The query as the address has it."""
        return str(self.environ.get("QUERY_STRING", ""))

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The fields of the query."""
        return _fields(self.query_text, "query")

    @cached_property
    def body(self) -> bytes:
        """The body; it can be read once."""
        text = self.header("Content-Length")
        length = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0  # noqa: PLR2004
        if length > LONGEST_BODY:
            raise InvalidError("body", f"has more than {LONGEST_BODY:,} bytes")
        found: bytes = self.environ["wsgi.input"].read(length) if length else b""
        return found

    @cached_property
    def form(self) -> Mapping[str, str]:
        """The fields of a form that was sent."""
        if self.header("Content-Type").partition(";")[0] != "application/x-www-form-urlencoded":
            return {}
        return _fields(self.body.decode(errors="replace"), "form")

    @cached_property
    def json(self) -> Mapping[str, str]:
        """The fields of a JSON object that was sent, as texts."""
        if self.header("Content-Type").partition(";")[0] != "application/json":
            raise InvalidError("body", "must be a JSON object (Content-Type: application/json)")
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidError("body", f"is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidError("body", "must be a JSON object")
        fields = dict[str, str]()
        for name, value in found.items():
            if not isinstance(value, str | int | None):
                raise InvalidError(name, "must be a text, a number, true or false")
            if value is not None and value is not False:
                fields[name] = storable("1" if value is True else str(value))
        return fields

    @cached_property
    def cookies(self) -> Mapping[str, str]:
        """The cookies of the browser."""
        # Not http.cookies: one cookie of another program of this host, such as with JSON in it,
        # would make it drop all others. The first of a name is that of the longest path.
        pairs = (each.strip().partition("=") for each in self.header("Cookie").split(";"))
        return {name: value for name, _, value in reversed([*pairs])}


KEEP_OPEN = "psched.keep_open"
"""The function in a WSGI environment by which an answer goes on after its thread has ended. It
takes a function, which is called with the `Kept` connection. Without it, open pages poll."""


class Kept(Protocol):
    """A connection on which the answer goes on."""

    def is_open(self) -> bool:
        """Whether the client is still there."""

    def send(self, data: bytes) -> None:
        """Send something soon, or raise an `OSError` if nobody reads it."""

    def close(self) -> None:
        """End the answer."""


class Response(NamedTuple):
    """The answer: its status, media type, body and further headers.

    ``follow`` is called with the connection if the answer goes on after its body; often None.
    """

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Sequence[tuple[str, str]] = ()
    follow: Callable[[Kept], None] | None = None


def _fields(text: str, what: str) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidError(what, f"has too many fields; there may be {_MOST_FIELDS}") from None
    return {name: storable(value) for name, value in pairs}
