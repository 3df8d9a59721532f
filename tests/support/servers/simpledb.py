"""A fake of Amazon SimpleDB, for which there is no server to install.

It holds what the service's documentation says of the requests that psched sends: conditions on one
attribute, at most 256 attributes of at most 1,024 bytes, at most 20 values in a list, texts that
are compared as texts, and pages. A read that does not ask to be consistent gets the state before
the last writes. A request with a wrong signature is refused.
"""

import base64
import hmac
import itertools
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from typing_extensions import override

from support.servers.base import LOOPBACK, Server
from support.servers.dynalite import CREDENTIALS, REGION

_SELECT = re.compile(
    r"select \* from `(?P<domain>\w+)` where (?P<which>.*?)"
    r"(?: order by at asc)? limit (?P<limit>\d+)",
    re.DOTALL,
)
_TEXT = r"'((?:[^']|'')*)'"

Attributes = dict[str, str]


class RefusedError(Exception):
    """A request that the service refuses."""

    def __init__(self, status: int, code: str, text: str = "") -> None:
        super().__init__(code)
        self.status = status
        self.answer = f"<Response><Errors><Error><Code>{code}</Code><Message>{text}</Message>"
        self.answer += "</Error></Errors></Response>"


class _Service(ThreadingHTTPServer):
    """The service, in memory."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((LOOPBACK, port), _Request)
        self.domains: dict[str, dict[str, Attributes]] = {}
        self._earlier: dict[str, dict[str, Attributes]] = {}
        self._lock = Lock()

    def answer(self, host: str, form: Mapping[str, str]) -> str:
        """Answer a request, one at a time."""
        with self._lock:
            _check_signature(host, form)
            if form["Action"] == "CreateDomain":
                self.domains.setdefault(form["DomainName"], {})
                return "<CreateDomainResponse/>"
            if form["DomainName"] not in self.domains:
                raise RefusedError(400, "NoSuchDomain")
            answers = {
                "DomainMetadata": self._describe,
                "PutAttributes": self._put,
                "DeleteAttributes": self._delete,
                "GetAttributes": self._get,
                "Select": self._select,
            }
            return answers[form["Action"]](form)

    def _describe(self, form: Mapping[str, str]) -> str:
        count = len(self.domains[form["DomainName"]])
        return f"<R><DomainMetadataResult><ItemCount>{count}</ItemCount></DomainMetadataResult></R>"

    def _put(self, form: Mapping[str, str]) -> str:
        item = self._expected(form)
        new, number = dict(item), 1
        while f"Attribute.{number}.Name" in form:
            name, value = (form[f"Attribute.{number}.{part}"] for part in ("Name", "Value"))
            assert form[f"Attribute.{number}.Replace"] == "true"
            if len(value.encode()) > 1024:
                raise RefusedError(400, "InvalidParameterValue", "longer than 1024 bytes")
            new[name] = value
            number += 1
        if not 1 < number <= 257 or len(new) > 256:
            raise RefusedError(409, "NumberItemAttributesExceeded")
        self._write(form, new)
        return "<PutAttributesResponse/>"

    def _delete(self, form: Mapping[str, str]) -> str:
        self._expected(form)
        self._write(form, None)
        return "<DeleteAttributesResponse/>"

    def _expected(self, form: Mapping[str, str]) -> Attributes:
        """The item, if it is as the request expects."""
        assert "Expected.2.Name" not in form
        assert len(form["ItemName"].encode()) <= 1024
        item = self.domains[form["DomainName"]].get(form["ItemName"], {})
        name = form.get("Expected.1.Name")
        if name is None:  # a person's
            return item
        if form.get("Expected.1.Exists") == "false":
            if name in item:
                raise RefusedError(409, "ConditionalCheckFailed")
        elif name not in item:
            raise RefusedError(404, "AttributeDoesNotExist")
        elif item[name] != form["Expected.1.Value"]:
            raise RefusedError(409, "ConditionalCheckFailed")
        return item

    def _write(self, form: Mapping[str, str], item: Attributes | None) -> None:
        domain = self.domains[form["DomainName"]]
        self._earlier[form["DomainName"]] = dict(domain)
        domain.pop(form["ItemName"], None)
        if item is not None:
            domain[form["ItemName"]] = item

    def _read(self, form: Mapping[str, str]) -> Mapping[str, Attributes]:
        is_consistent = form.get("ConsistentRead") == "true"
        return (self.domains if is_consistent else self._earlier).get(form["DomainName"], {})

    def _get(self, form: Mapping[str, str]) -> str:
        found = _xml(self._read(form).get(form["ItemName"], {}))
        return f"<R><GetAttributesResult>{found}</GetAttributesResult></R>"

    def _select(self, form: Mapping[str, str]) -> str:
        query = _SELECT.fullmatch(form["SelectExpression"])
        assert query, form["SelectExpression"]
        items = self._read({**form, "DomainName": query["domain"]})
        wanted = _predicate(query["which"])
        found = [(key, item) for key, item in items.items() if wanted(key, item)]
        if " order by at" in form["SelectExpression"]:
            found.sort(key=lambda each: each[1]["at"])
        else:
            found.sort()
        # The real token is a place, too; here it is the number of items before it.
        start, most = int(form.get("NextToken", "0")), min(int(query["limit"]), 2500)
        page = found[start : start + most]
        rows = "".join(f"<Item><Name>{escape(k)}</Name>{_xml(item)}</Item>" for k, item in page)
        more = start + most < len(found)
        token = f"<NextToken>{start + most}</NextToken>" if more else ""
        namespace = "http://sdb.amazonaws.com/doc/2009-04-15/"
        result = f"<SelectResult>{rows}{token}</SelectResult>"
        return f'<SelectResponse xmlns="{namespace}">{result}</SelectResponse>'


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer waits for 40 ms
    server: _Service

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status = 200
        try:
            answer = self.server.answer(self.headers["Host"], dict(parse_qsl(content, True)))  # noqa: FBT003
        except RefusedError as error:
            status, answer = error.status, error.answer
        sent = answer.encode()
        self.send_response_only(status)
        self.send_header("Date", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        pass


class SimpleDB(Server):
    """The service in a process of its own."""

    kind = "simpledb"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._numbers = itertools.count(1)

    def url(self) -> str:
        """The url of the service, in psched's form."""
        return f"simpledb://{REGION}?endpoint=http://{LOOPBACK}:{self.port}"

    def new_domain(self) -> str:
        """A name that no domain has yet."""
        return f"psched_{next(self._numbers)}"

    @override
    @classmethod
    def _initialise(cls, data: Path) -> None:
        data.mkdir()

    @override
    def _command(self) -> list[str]:
        return [sys.executable, "-m", __name__, str(self.port)]

    @override
    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    @override
    def _answers(self) -> bool:
        try:
            socket.create_connection((LOOPBACK, self.port)).close()
        except OSError:
            return False
        return True


def _predicate(which: str) -> Callable[[str, Attributes], bool]:
    """Whether an item fulfils a condition, of those that psched sends."""
    if which == "parts is not null":
        return lambda _, item: "parts" in item
    if which.startswith("itemName() in ("):
        names = {*_values(which)}
        assert len(names) <= 20
        return lambda key, _: key in names
    found = re.fullmatch(rf"queue in (\(.*\)) and at <= {_TEXT}", which)
    assert found, which
    queues = {*_values(found[1])}
    return lambda _, item: item.get("queue") in queues and item["at"] <= found[2]


def _values(text: str) -> list[str]:
    return [each.replace("''", "'") for each in re.findall(_TEXT, text)]


def _xml(item: Attributes) -> str:
    return "".join(
        f"<Attribute><Name>{name}</Name><Value>{escape(value)}</Value></Attribute>"
        for name, value in item.items()
    )


def _check_signature(host: str, form: Mapping[str, str]) -> None:
    signed = {name: value for name, value in form.items() if name != "Signature"}
    query = "&".join(
        f"{quote(k, safe='-_~')}={quote(signed[k], safe='-_~')}" for k in sorted(signed)
    )
    key = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    digest = hmac.new(key, f"POST\n{host}\n/\n{query}".encode(), "sha256").digest()
    if base64.b64encode(digest).decode() != form["Signature"]:
        raise RefusedError(403, "SignatureDoesNotMatch")


if __name__ == "__main__":
    _Service(int(sys.argv[1])).serve_forever()
