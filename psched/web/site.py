"""The WSGI application of the command web: it answers a request with a page, or refuses it."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

import jinja2

from psched.base.errors import InvalidError, NotFoundError, PschedError
from psched.base.texts import storable, visible
from psched.cli.daemon.masters import table_of
from psched.cli.time_format import local_times
from psched.cli.top.snapshot import Reader
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.reports.redaction import Redaction
from psched.web.asked import Asked, Page
from psched.web.pages import PAGES

_FILES = Path(__file__).parent / "templates"

_STYLE = "/style.css"
_PATHS = {"/": "timeline"} | {f"/{name}": name for name in PAGES if name != "timeline"}
_API_PREFIX = "/api/v1/"
_API = {f"{_API_PREFIX}{name}.json": name for name in PAGES}
"""The names of the pages, by their paths as HTML and as JSON."""

_MOST_FIELDS = 20  # the most fields of a query; the pages know fewer

_POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
"""No script runs, and no other site shows a page in a frame."""

_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)


class StartResponse(Protocol):
    """The function that a WSGI server passes, see PEP 3333."""

    def __call__(self, status: str, headers: list[tuple[str, str]], /) -> object:
        """Begin the response."""


class Site:
    """A WSGI application that shows the schedules of one table, and changes nothing.

    One thread at a time can call it, because it has one connection to the store. The connection is
    closed after each request: a page that nobody reads costs the database nothing.

    ``hosts`` are the host names that a request may be addressed to; None means every name. A page
    of another site could otherwise let a browser read this one, by a name that it makes resolve to
    this address (DNS rebinding).
    """

    def __init__(
        self,
        schedules: ScheduleCollection,
        settings: Config,
        reader: Reader,
        *,
        hosts: Collection[str] | None,
    ) -> None:
        self._schedules = schedules
        self._settings = settings
        self._reader = reader
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._redaction = Redaction(settings.redact)
        # Read once: after an upgrade, the files are those of another version, or are gone.
        files = {each.name: each.read_text("utf-8") for each in _FILES.glob("*.html")}
        environment = jinja2.Environment(
            loader=jinja2.DictLoader(files),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates = {name: environment.get_template(name) for name in files}
        self._style = (_FILES / "style.css").read_bytes()
        self._store = table_of(settings)

    def __call__(
        self, environ: Mapping[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request, as PEP 3333 defines it."""
        try:
            status, kind, body, refresh = self._answer(environ)
        finally:
            self._schedules.close()
        headers = [
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            *_HEADERS,
        ]
        if refresh:
            headers.append(("Refresh", str(refresh)))
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{status.value} {status.phrase}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _answer(self, environ: Mapping[str, Any]) -> tuple[HTTPStatus, str, bytes, int]:
        """The status, the media type and the body of a response, and when the page is read again.

        The latter is in seconds; 0 means never.
        """
        path = environ.get("PATH_INFO") or "/"
        if not self._is_addressed(environ):
            page = _refusal(
                HTTPStatus.FORBIDDEN,
                "This host name is not allowed. Start psched web with --allowed-host NAME.",
            )
        elif environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            page = _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "These pages change nothing.")
        elif path == _STYLE:
            return HTTPStatus.OK, "text/css", self._style, 0
        elif (name := _PATHS.get(path) or _API.get(path)) is None:
            page = _refusal(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            is_gone = environ.get("waitress.client_disconnected", bool)
            page = self._made(PAGES[name], environ.get("QUERY_STRING", ""), is_gone)
        if path.startswith(_API_PREFIX):
            return page.status, "application/json", json.dumps(page.document()).encode(), 0
        query = environ.get("QUERY_STRING", "")
        text = self._templates[f"{page.name}.html"].render(
            page.values,
            page=page.name,
            store=self._store,
            json=f"api/v1/{page.name}.json{'?' if query else ''}{query}",
        )
        return page.status, "text/html", text.encode(errors="replace"), page.refresh

    def _is_addressed(self, environ: Mapping[str, Any]) -> bool:
        """Whether a request names an allowed host."""
        host = str(environ.get("HTTP_HOST", ""))
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return self._hosts is None or name.lower() in self._hosts

    def _made(self, make: Callable[[Asked], Page], query: str, is_gone: Callable[[], bool]) -> Page:
        """The page that is asked for, or one that says why there is none."""
        try:
            pairs = parse_qsl(query, max_num_fields=_MOST_FIELDS)
        except ValueError:
            return _refusal(HTTPStatus.BAD_REQUEST, "There are too many fields in the query.")
        fields = {name: storable(value) for name, value in pairs}
        asked = Asked(
            self._schedules,
            self._settings,
            self._reader,
            self._redaction,
            fields,
            is_gone,
        )
        try:
            return make(asked)
        except InvalidError as error:
            return self._refused(HTTPStatus.BAD_REQUEST, error)
        except NotFoundError as error:
            return self._refused(HTTPStatus.NOT_FOUND, error, key=fields.get("key", ""))
        except (PschedError, OSError) as error:
            return self._refused(HTTPStatus.SERVICE_UNAVAILABLE, error)

    def _refused(self, status: HTTPStatus, error: Exception, key: str = "") -> Page:
        return _refusal(
            status, visible(local_times(self._redaction.text(str(error))), lines=True), key
        )


def _refusal(status: HTTPStatus, text: str, key: str = "") -> Page:
    values = {"title": status.phrase, "text": text, "key": key}
    return Page("error", values, lambda: {"error": text}, status=status)
