"""Pages of psched web, without a server: asked for as a WSGI server would."""

import html
import io
import json
import re
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from psched.base.clock import SystemClock
from psched.base.errors import of_replica
from psched.cli.top.snapshot import Reader
from psched.web.gate import Gate, Rules
from psched.web.secret import Secret, new_token
from psched.web.site import Site, Source


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
    cookies: tuple[str, ...] = ()

    def form(self, stage):
        """The fields of the form of an action with this stage; empty if the page has none."""
        forms = []
        for tag, attributes in self.tags:
            if tag == "form":
                forms.append({})
            elif tag == "input":
                forms[-1][attributes["name"]] = attributes.get("value") or ""
        return next((form for form in forms if "do" in form and form.get("stage") == stage), {})

    @property
    def refresh(self):
        """After how many seconds a browser without JavaScript reads the page again, as text."""
        found = re.findall(r'<noscript><meta http-equiv="refresh" content="(\d+)">', self.body)
        return found[0] if found else None

    @property
    def main(self):
        """What differs from page to page, as HTML."""
        return self.body.partition("<main")[2]

    @property
    def area(self):
        """The text in a field of several lines."""
        [text] = re.findall(r"<textarea[^>]*>(.*?)</textarea>", self.body, re.DOTALL)
        return html.unescape(text)

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

    def cells(self):
        """The numbers that lead to schedules, with the queries of these links."""
        pairs = re.findall(r'<a href="schedules\?([^"]*)">(\d+)</a>', self.body)
        return [(number, dict(parse_qsl(html.unescape(query)))) for query, number in pairs]

    def links(self, page):
        """The queries of the links to a page."""
        found = (html.unescape(href) for href in re.findall(r'href="([^"]*)"', self.body))
        parts = (urlsplit(href) for href in found)
        queries = (parse_qs(each.query) for each in parts if each.path == page and each.query)
        return [{name: values[0] for name, values in query.items()} for query in queries]


def site_of(
    schedules, settings, hosts=("localhost",), secret=None, clock=None, *, replica=None, **rules
):
    """The pages; without a secret, everybody may read."""
    clock = clock or SystemClock()

    def source(of, told=str):
        return Source(of, Reader(of, settings, ask_masters=list, clock=clock, told=told), told)

    if secret is None:
        rules = {"is_open": True, **rules}
        secret = Unkept()
    gate = Gate(Rules(hosts=hosts, **rules), secret, clock)
    read = None if replica is None else source(replica, of_replica)
    return Site(source(schedules), settings, gate, replica=read)


class Unkept(Secret):
    """A secret that no file keeps."""

    def __init__(self):
        self.token = new_token()


def get(site, page="", /, method="GET", **query):
    """Ask for a page."""
    more = {name: query.pop(name) for name in ("host", "is_gone", "headers") if name in query}
    return ask(site, page, method, query=urlencode(query), **more)


def ask(site, page, method, *, query="", host="localhost:8080", is_gone=bool, headers=(), body=b""):
    """Send a request."""
    begun = []
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": f"/{page}",
        "QUERY_STRING": query,
        "HTTP_HOST": host,
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_PORT": "8080",
        "waitress.client_disconnected": is_gone,
        "wsgi.input": io.BytesIO(body),
        "CONTENT_LENGTH": str(len(body)),
        **dict(headers),
    }
    body = b"".join(site(environ, lambda *answer: begun.append(answer)))
    [(status, headers)] = begun
    assert method == "HEAD" or int(dict(headers)["Content-Length"]) == len(body)
    return Response(
        int(status.partition(" ")[0]),
        dict(headers),
        body.decode(),
        tuple(value for name, value in headers if name == "Set-Cookie"),
    )


class Browser:
    """Sends forms as a browser does: with its cookies, and from where they come."""

    def __init__(self, site, **environ):
        self.site = site
        self.environ = environ
        self.cookies = {}
        self.origin = "http://localhost:8080"

    def get(self, page="", **query):
        return self._kept(get(self.site, page, headers=self._headers(), **query))

    def post(self, page, **fields):
        sent = {"CONTENT_TYPE": "application/x-www-form-urlencoded"}
        if self.origin:
            sent["HTTP_ORIGIN"] = self.origin
        body = urlencode(fields).encode()
        return self._kept(
            ask(self.site, page, "POST", headers={**self._headers(), **sent}, body=body)
        )

    def log_in(self, token):
        response = self.post("login", token=token)
        assert response.status == 303, response.text
        return self

    def act(self, name, **fields):
        """Open the page of an action, fill in its form, and send it."""
        given = {each: fields.pop(each) for each in ("note", "until") if each in fields}
        page = self.get("act", do=name, **fields)
        assert page.status == 200, page.text
        return self.send(page, **given)

    def send(self, page, **given):
        """Send the form of a page that does what the page says."""
        return self.post("act", **{**page.form("do"), **given})

    def _headers(self):
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**self.environ, **({"HTTP_COOKIE": cookies} if cookies else {})}

    def _kept(self, response):
        for each in response.cookies:
            name, _, rest = each.partition("=")
            value, _, more = rest.partition(";")
            self.cookies[name] = value
            if "Max-Age=0" in more:
                del self.cookies[name]
        return response
