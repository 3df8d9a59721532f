"""DynamoDB's protocol: JSON in the body of a request, and its action in a header."""

import json
from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from typing_extensions import override

from psched.stores.conditional.aws import AwsConnector


class Connector(AwsConnector):
    """Sends requests to DynamoDB."""

    name = "DynamoDB"

    def ask(self, action: str, *, writing: bool = False, **body: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Send a request about the table."""
        return self.send(action, {"TableName": self.table, **body}, writing=writing)

    def send(
        self, action: str, body: Mapping[str, Any], *, writing: bool = False
    ) -> Mapping[str, Any]:
        """Send a request that names the table itself."""
        found: Mapping[str, Any] = self.request(action, body, writing=writing)
        return found

    @override
    def host(self) -> str:
        china = ".cn" if self.region.startswith("cn-") else ""
        return f"dynamodb.{self.region}.amazonaws.com{china}"

    @override
    def prepare(self, request: AWSRequest, action: str, body: Mapping[str, Any]) -> None:
        request.data = json.dumps(body).encode()
        request.headers["Content-Type"] = "application/x-amz-json-1.0"
        request.headers["X-Amz-Target"] = f"DynamoDB_20120810.{action}"
        SigV4Auth(self.frozen_credentials(), "dynamodb", self.region).add_auth(request)

    @override
    def parse(self, content: bytes) -> dict[str, Any] | None:
        found = json.loads(content)
        return found if isinstance(found, dict) else None

    @override
    def refusal_in(self, found: Any) -> tuple[str, str]:
        said = found or {}
        code = str(said.get("__type", "")).rpartition("#")[2]
        return code, " ".join(str(said.get("message") or said.get("Message") or "").split())
