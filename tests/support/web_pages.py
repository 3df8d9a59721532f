"""Pages of psched web, without a server: asked for as a WSGI server would."""

import html
import json
import re
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from psched.base.clock import SystemClock
from psched.cli.top.snapshot import Reader
from psched.web.site import Site


class _Tags(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


class Response(NamedTuple):
    """A response: its status, headers and body."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def text(self):
        """What a reader sees, in words."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.body)).split())

    @property
    def json(self):
        """The document."""
        assert self.headers["Content-Type"].startswith("application/json")
        return json.loads(self.body)

    @property
    def tags(self):
        """All elements, as pairs of their names and attributes."""
        parser = _Tags()
        parser.feed(self.body)
        return parser.found

    def links(self, page):
        """The queries of the links to a page."""
        found = (html.unescape(href) for href in re.findall(r'href="([^"]*)"', self.body))
        parts = (urlsplit(href) for href in found)
        queries = (parse_qs(each.query) for each in parts if each.path == page and each.query)
        return [{name: values[0] for name, values in query.items()} for query in queries]


def site_of(schedules, settings, hosts=("localhost",)):
    reader = Reader(schedules, settings, ask_masters=list, clock=SystemClock())
    return Site(schedules, settings, reader, hosts=hosts)


def get(site, page="", /, method="GET", host="localhost:8080", is_gone=bool, **query):
    """Ask for a page."""
    begun = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": f"/{page}",
        "QUERY_STRING": urlencode(query),
        "HTTP_HOST": host,
        "waitress.client_disconnected": is_gone,
    }
    body = b"".join(site(environ, lambda *answer: begun.append(answer)))
    [(status, headers)] = begun
    assert method == "HEAD" or int(dict(headers)["Content-Length"]) == len(body)
    return Response(int(status.partition(" ")[0]), dict(headers), body.decode())
