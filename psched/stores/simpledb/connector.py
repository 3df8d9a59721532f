"""SimpleDB's protocol: an action and its parameters in a form, signed by version 2; XML answers."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from botocore.auth import SigV2Auth
from botocore.awsrequest import AWSRequest
from typing_extensions import override

from psched.stores.conditional.aws import AwsConnector

_VERSION = "2009-04-15"


class Connector(AwsConnector):
    """Sends requests to SimpleDB."""

    name = "SimpleDB"

    def ask(
        self, action: str, parameters: Mapping[str, str], *, writing: bool = False
    ) -> ET.Element:
        """Send a request about the domain."""
        body = {"DomainName": self.table, **parameters}
        found: ET.Element = self.request(action, body, writing=writing)
        return found

    @override
    def host(self) -> str:
        # Its first region has no name in the address.
        return (
            "sdb.amazonaws.com"
            if self.region == "us-east-1"
            else f"sdb.{self.region}.amazonaws.com"
        )

    @override
    def prepare(self, request: AWSRequest, action: str, body: Mapping[str, Any]) -> None:
        request.data = {"Action": action, "Version": _VERSION, **body}
        request.headers["Content-Type"] = "application/x-www-form-urlencoded; charset=utf-8"
        SigV2Auth(self.frozen_credentials()).add_auth(request)

    @override
    def parse(self, content: bytes) -> ET.Element | None:
        try:
            # AWS is trusted: its answers also decide what is run.
            root = ET.fromstring(content)  # noqa: S314
        except ET.ParseError:
            return None
        for each in root.iter():
            each.tag = each.tag.rpartition("}")[2]  # without the namespace
        return root

    @override
    def refusal_in(self, found: Any) -> tuple[str, str]:
        if found is None:
            return "", ""
        text = " ".join((found.findtext(".//Message") or "").split())
        return found.findtext(".//Code") or "", text
