"""A server between psched and dynalite, which answers some requests as AWS would in trouble.

It can also be before the fake of SimpleDB.
"""

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

from support.servers.base import LOOPBACK
from support.servers.certificates import Certificates
from support.servers.dynalite import REGION

Fault = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request; a fault can answer it, pass it on, or end its connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer waits for 40 ms
    server: "Troubled"

    def do_POST(self) -> None:
        """Pass the request on, unless a fault deals with it."""
        self.content = self.rfile.read(int(self.headers["Content-Length"]))
        target = self.headers.get("X-Amz-Target")
        # SimpleDB has the action in the form.
        form = dict(parse_qsl(self.content.decode())) if target is None else {}
        self.action = form["Action"] if target is None else target.partition(".")[2]
        self.server.actions.append(self.action)
        if f"Credential={self.server.accepted}" not in self.headers.get(
            "Authorization", "Credential="
        ):
            refusing("ExpiredTokenException", "the security token is expired")(self)
            return
        for fault in [*self.server.faults.get(self.action, ())][:1]:
            self.server.faults[self.action].remove(fault)
            fault(self)
            return
        self.answer(*self.passed_on())

    def passed_on(self) -> tuple[int, bytes]:
        """Send the request to dynalite; return its answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self.server.port)
        with contextlib.closing(connection):
            headers = {**self.headers, "Content-Length": str(len(self.content))}
            connection.request("POST", "/", self.content, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def answer(self, status: int, content: bytes) -> None:
        """Send an answer, with the time of this server's clock."""
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.server.ahead, usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Troubled(ThreadingHTTPServer):
    """The server.

    Attributes:
        faults: by the name of an action, what becomes of its next requests.
        actions: the requests so far.
        ahead: the seconds by which its clock is ahead of this host's.
        accepted: what the access keys begin with that have not expired; empty: all keys.
    """

    daemon_threads = True

    def __init__(self, port: int, certificates: Certificates | None = None) -> None:
        super().__init__((LOOPBACK, 0), Request)
        self._scheme = "http"
        if certificates is not None:
            self._scheme = "https"
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificates.certificate, certificates.key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.port = port
        self.faults: dict[str, list[Fault]] = {}
        self.actions: list[str] = []
        self.ahead = 0.0
        self.accepted = ""

    @property
    def url(self) -> str:
        """The url of the server, in psched's form."""
        return f"dynamodb://{REGION}?endpoint={self._scheme}://{LOOPBACK}:{self.server_port}"


@contextlib.contextmanager
def troubled(port: int, certificates: Certificates | None = None) -> Iterator[Troubled]:
    """Runs such a server within the block; with certificates, requests must be encrypted."""
    with Troubled(port, certificates) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def write_credentials(file: Path, name: str) -> None:
    """Write such a file as AWS' tools do; each key in it begins with the name."""
    words = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    lines = [f"{word} = {name}{word[4:].replace('_', '')}" for word in words]
    file.write_text("\n".join(["[default]", *lines, ""]))


def refusing(code: str, message: str = "", *, status: int = 400) -> Fault:
    """Refuse a request."""

    def fault(request: Request) -> None:
        said = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}
        request.answer(status, json.dumps(said).encode())

    return fault


def losing_the_answer(request: Request) -> None:
    """Apply a request, and end the connection without an answer."""
    request.passed_on()
    request.close_connection = True


def passing_on(request: Request) -> None:
    """Pass a request on, as if there were no fault."""
    request.answer(*request.passed_on())


def ignoring_the_condition(request: Request) -> None:
    """Apply an update without its condition, as moto does if requests race."""
    body = json.loads(request.content)
    del body["ConditionExpression"]
    # What is named and not used would be refused.
    for named in "ExpressionAttributeNames", "ExpressionAttributeValues":
        body[named] = {
            name: value for name, value in body[named].items() if name in body["UpdateExpression"]
        }
    request.content = json.dumps(body).encode()
    passing_on(request)


def leaving_out(request: Request) -> None:
    """Answer only the first item of a request for several, and name the others as left out."""
    body: Mapping[str, Any] = json.loads(request.content)
    ((table, wanted),) = body["RequestItems"].items()
    first, *left = wanted["Keys"]
    request.content = json.dumps({"RequestItems": {table: {**wanted, "Keys": [first]}}}).encode()
    status, content = request.passed_on()
    answer = json.loads(content)
    answer["UnprocessedKeys"] = {table: {**wanted, "Keys": left}}
    request.answer(status, json.dumps(answer).encode())
