"""The connection to a service of AWS: one request at a time, signed with AWS' credentials.

The driver, botocore, finds the credentials and signs requests. It does not send them: its own
client would repeat a request by itself, and a time limit for a whole request is not known to it.
"""

import logging
import os
import random
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, ClassVar

from botocore.awsrequest import AWSRequest
from botocore.config import Config as AwsConfig
from botocore.exceptions import BotoCoreError
from botocore.session import Session, get_session
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import (
    MissingTableError,
    StoreBusyError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config import Config
from psched.config.urls import aws_address
from psched.stores import deadline_socket
from psched.stores.connection_advice import network_fix
from psched.stores.deadline_socket import Budget
from psched.stores.forks import Ownership

# At its most talkative, it writes whole requests to the log, with the session's token.
logging.getLogger("botocore.auth").setLevel(logging.INFO)

_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "LimitExceededException",
}
"""Codes of refusals that end by themselves; nothing was applied."""

_CREDENTIALS = {
    "ExpiredTokenException": "the AWS credentials have expired; renew them",
    "RequestExpired": "the AWS credentials have expired, or this host's clock is wrong",
    "InvalidSignatureException": (
        "AWS does not accept the signature: correct the secret key, or this host's clock"
    ),
    "UnrecognizedClientException": (
        "AWS does not know these credentials; correct AWS_ACCESS_KEY_ID, or renew them"
    ),
    "MissingAuthenticationTokenException": "AWS has received no credentials",
    # Those of SimpleDB:
    "InvalidClientTokenId": "AWS does not know these credentials; correct AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "AWS does not accept the signature: correct the secret key",
    "AuthFailure": "AWS does not accept these credentials",
}
"""By the code of a refusal: its cause and fix. What AWS says itself can contain a token."""

_CONDITION = {"ConditionalCheckFailedException", "ConditionalCheckFailed", "AttributeDoesNotExist"}

_MISSING = {"ResourceNotFoundException", "NoSuchDomain"}

_FIRST_PAUSE = 0.05
"""Seconds before a throttled request is repeated for the first time, at most."""

_OK = 200

_SERVER_ERROR, _OVERLOADED = 500, 503
"""Statuses. SimpleDB throttles with the second; whether a write was applied is not documented."""


class ConditionFailedError(StoreError):
    """The item is not as it was seen, so nothing was applied."""


class AwsConnector(ABC):
    """Sends requests, and raises psched's exceptions when they fail.

    Attributes:
        name: the name of the service.
        table: the name of the table.
        region: the region; empty until the first connection if the url names none.
        offset: see `psched.stores.conditional.items.Table`.
        shown: the service and its region, or its address, for messages.
    """

    name: ClassVar[str]

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        self._address = aws_address(settings.url)
        self.table = settings.table
        self._timeout = settings.driver_timeout
        self._budget = Budget(clock, self._timeout)
        self._clock = clock
        self._rng = rng
        self._session: Session | None = None
        self._connection: _Connection | None = None
        self._ownership = Ownership()
        self.region = self._address.region or ""
        self.shown = self.name
        self.offset: float | None = None

    @property
    def encryption(self) -> str | None:
        """The TLS version of the connection; None if it is not encrypted."""
        opened = None if self._connection is None else self._connection.sock
        return opened.version() if isinstance(opened, ssl.SSLSocket) else None

    def begin(self) -> None:
        """Begin a request of a caller, which can need several of the service."""
        self._budget.begin()

    def request(self, action: str, body: Mapping[str, Any], *, writing: bool) -> Any:  # noqa: ANN401
        """Send a request; if the service refuses it for its load, again after a pause."""
        most = _FIRST_PAUSE
        while True:
            try:
                return self._send(action, body, writing=writing)
            except StoreSlowError:
                self.pause(most)
                most *= 2

    def pause(self, most: float) -> None:
        """Wait for a random time, if the request has that much time left."""
        wait = self._rng.uniform(most / 2, most)
        self._step(ahead=wait)
        self._clock.sleep(wait)

    def disconnect(self) -> None:
        """Close the connection; the next request opens a new one."""
        connection, self._connection = self._connection, None
        if self._ownership.lost:
            self._ownership.leave(connection)
            self._session = None
        elif connection is not None:
            connection.close()

    @abstractmethod
    def prepare(self, request: AWSRequest, action: str, body: Mapping[str, Any]) -> None:
        """Put an action and its arguments into a request, and sign it with `frozen_credentials`."""

    @abstractmethod
    def parse(self, content: bytes) -> Any:  # noqa: ANN401  # of the service's protocol
        """Parse an answer."""

    @abstractmethod
    def refusal_in(self, found: Any) -> tuple[str, str]:  # noqa: ANN401
        """The code and the text of a refusal, in a parsed answer."""

    def _send(self, action: str, body: Mapping[str, Any], *, writing: bool) -> Any:  # noqa: ANN401
        connection = self._connected()
        request = AWSRequest("POST", f"{connection.url}/")
        self.prepare(request, action, body)
        sent = request.prepare()
        before = self._clock.wall()
        try:
            connection.request("POST", "/", sent.body, dict(sent.headers.items()))
            response = connection.getresponse()
            answer = response.read()
        except ValueError:  # its text would show the header, and so a token
            self.disconnect()
            raise StoreError(
                "the AWS credentials contain a line break, or another character that they cannot"
                " have; correct AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN"
            ) from None
        except (OSError, HTTPException) as error:
            self.disconnect()
            kind = UnknownOutcomeError if writing else StoreUnavailableError
            raise kind(f"the connection to {self.shown} broke: {error}") from None
        except BaseException:
            self.disconnect()
            raise
        self._note_clock(response, (before + self._clock.wall()) / 2)
        try:
            found = self.parse(answer)
        except ValueError:
            found = None
        if response.status == _OK:
            if found is None:  # a proxy may have answered, after the service or in its place
                kind = UnknownOutcomeError if writing else StoreUnavailableError
                raise kind(f"{self.shown} has sent an answer that cannot be read")
            return found
        raise self._failure(response.status, *self.refusal_in(found), writing=writing)

    def _note_clock(self, response: HTTPResponse, middle: float) -> None:
        try:
            date = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (TypeError, ValueError):
            return  # a proxy can have answered
        self.offset = date + 0.5 - middle  # the header has whole seconds

    def _failure(self, status: int, code: str, text: str, *, writing: bool) -> StoreError:
        if code in _CONDITION:
            return ConditionFailedError(text)
        if code in _THROTTLED or status == _OVERLOADED:
            is_unsure = writing and code not in _THROTTLED
            slow = UnknownOutcomeError if is_unsure else StoreSlowError
            return slow(f"{self.shown} is overloaded, or its limits are too low: {text or code}")
        if status >= _SERVER_ERROR:
            kind = UnknownOutcomeError if writing else StoreUnavailableError
            return kind(f"{self.shown} has an internal error: {code} {text}")
        if code in _CREDENTIALS:
            self._session = None  # so that renewed credentials are found
            return StoreUnavailableError(f"{self.shown}: {_CREDENTIALS[code]} ({code})")
        if code in _MISSING:
            return self.missing_table()
        return StoreError(f"{self.shown} refused: {code} {text or status}")

    def missing_table(self) -> MissingTableError:
        """The error that tells that there is no table."""
        return MissingTableError(
            f"there is no table {self.table!r} in {self.shown}; run `psched init`, or correct"
            " table, url or the AWS account"
        )

    def frozen_credentials(self) -> Any:  # noqa: ANN401  # botocore's
        """The present credentials; they are renewed if they are about to expire."""
        try:
            credentials = self._opened().get_credentials()
            if credentials is None:
                raise StoreError(
                    "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
                    " or give this host a role"
                )
            return credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise StoreUnavailableError(f"cannot get AWS credentials: {error}") from None

    def _opened(self) -> Session:
        if self._session is None:
            self._session = get_session()
            # Roles and single sign-on need requests of botocore's own.
            limits = {"connect_timeout": self._timeout, "read_timeout": self._timeout}
            once = {"total_max_attempts": 1}
            self._session.set_default_client_config(AwsConfig(**limits, retries=once))
        return self._session

    def _connected(self) -> "_Connection":
        """Begin a step of the request, and open a connection if there is none."""
        if self._ownership.lost:
            self.disconnect()
        if self._connection is not None and self._connection.has_ended:
            self.disconnect()
        if self._connection is None:
            self._step(answers=True)
            self._connection = self._dialled()
        self._step()
        return self._connection

    def _dialled(self) -> "_Connection":
        try:
            url = self._url()
        except BotoCoreError as error:
            raise StoreError(f"url: {error}") from None
        connection = _Connection(url, self._budget)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            fix = network_fix(error, None) or "correct the endpoint in url"
            if isinstance(error, ssl.SSLError):
                fix = "correct the system's certificates, or find out who answers in AWS' place"
            raise StoreUnavailableError(f"cannot connect to {url}: {error}; {fix}") from None
        return connection

    def _url(self) -> str:
        """The service's address in the region; the region is found if the url names none."""
        address = self._address
        # botocore does not read AWS_REGION, which AWS' newer tools and containers set.
        named = address.region or os.environ.get("AWS_REGION")
        self.region = named or self._opened().get_config_variable("region") or ""
        if not self.region:
            raise StoreError(
                f"url: names no region, and AWS_REGION is not set; {address.kind}://REGION"
            )
        if address.endpoint is not None:
            self.shown = f"{self.name} at {address.endpoint}"
            return address.endpoint
        self.shown = f"{self.name} in {self.region}"
        return f"https://{self.host()}"

    @abstractmethod
    def host(self) -> str:
        """The service's host in the region."""

    def _step(self, *, answers: bool = False, ahead: float = 0.0) -> None:
        try:
            self._budget.step(answers=answers, ahead=ahead)
        except TimeoutError as error:
            raise StoreBusyError(f"{self.shown} answers too slowly: {error}") from None


class _Connection(HTTPConnection):
    """A connection whose requests end in time."""

    def __init__(self, url: str, budget: Budget) -> None:
        self.url = url
        scheme, _, place = url.partition("://")
        host, _, port = place.partition(":")
        self._budget = budget
        self._tls = ssl.create_default_context() if scheme == "https" else None
        super().__init__(host, int(port or (80 if self._tls is None else 443)))

    @property
    def has_ended(self) -> bool:
        """Whether the server has closed the connection, for example because it was idle."""
        return self.sock is None or deadline_socket.has_ended(self.sock.fileno())

    @override
    def connect(self) -> None:
        self.sock = deadline_socket.connect(self.host, self.port, self._budget)
        if self._tls is not None:
            deadline_socket.limit(self._tls, self._budget)
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
