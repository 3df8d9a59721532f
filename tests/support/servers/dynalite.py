"""Private servers that speak DynamoDB's protocol, and honour its conditions: dynalite, from npm."""

import http.client
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typing_extensions import override

from support.servers.base import LOOPBACK, MissingServerError, Server, find_binary

REGION = "eu-west-1"

PROGRAM = Path(sys.prefix, "dynalite/node_modules/dynalite/cli.js")
"""Where bin/test installs it."""

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIATEST",
    "AWS_SECRET_ACCESS_KEY": "a secret of the tests",
    # No other credentials, or regions, are looked for.
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment variables: the server accepts any keys."""


@contextmanager
def credentials() -> Iterator[None]:
    """Within the block, this process and those it starts have `CREDENTIALS`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        for name in "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE":
            patch.delenv(name, raising=False)
        yield


class Dynalite(Server):
    """A server that keeps its tables in memory; each test gets a table of its own."""

    kind = "dynalite"

    def __init__(self, home: Path, *flags: str) -> None:
        super().__init__(home, *flags)
        self._numbers = itertools.count(1)

    def url(self) -> str:
        """The url of the server, in psched's form."""
        return f"dynamodb://{REGION}?endpoint=http://{LOOPBACK}:{self.port}"

    def new_table(self) -> str:
        """A name that no table has yet."""
        return f"psched_{next(self._numbers)}"

    def ask(self, action: str, **body: object) -> Mapping[str, object]:
        """Send a request; the server does not check its signature."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port)
        scope = f"Credential=AKIATEST/20260101/{REGION}/dynamodb/aws4_request"
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"DynamoDB_20120810.{action}",
            "X-Amz-Date": "20260101T000000Z",
            "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
        }
        try:
            connection.request("POST", "/", json.dumps(body), headers)
            found: Mapping[str, object] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return found

    @override
    @classmethod
    def _initialise(cls, data: Path) -> None:
        data.mkdir()

    @override
    def _command(self) -> list[str]:
        if not PROGRAM.exists():
            raise MissingServerError(
                f"dynalite is missing: npm install --prefix {sys.prefix}/dynalite dynalite@4.0.0"
            )
        node = find_binary("node", "nodejs", folders=[Path(sys.prefix, "dynalite")])
        times = [f"--{name}TableMs=0" for name in ("create", "update", "delete")]
        place = ["--host", LOOPBACK, "--port", str(self.port)]
        # It would end if a client is killed in the middle of a request, and would close a
        # connection that is idle for five seconds, just when a slow test sends a request.
        code = (
            "process.on('uncaughtException', console.error);"
            "const http = require('http'), create = http.createServer;"
            "http.createServer = (...given) =>"
            " Object.assign(create(...given), {keepAliveTimeout: 3600_000});"
            f"require({json.dumps(str(PROGRAM))})"
        )
        return [node, "-e", code, "--", "dynalite", *place, *times, *self.flags]

    @override
    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath)}

    @override
    def _answers(self) -> bool:
        try:
            return "TableNames" in self.ask("ListTables")
        except OSError:
            return False
