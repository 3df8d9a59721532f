"""Which of psched's exceptions an error of Redis or of its driver becomes."""

import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from psched.base.errors import StoreError, StoreUnavailableError, UnknownOutcomeError

_LOST = (ReadOnlyError, MasterDownError)
"""Errors of a server that is not the primary; a new connection finds the current primary."""

_PASSING = {
    "BUSY": "somebody's script keeps it busy",
    "CLUSTERDOWN": "it accepts no requests",
    "LOADING": "it reads its data",
    "MASTERDOWN": "it is a replica",
    "MISCONF": "it cannot save its data",
    "NOREPLICAS": "too few replicas follow it",
    "OOM": "its memory is full",
    "READONLY": "it is a replica",
    "TRYAGAIN": "it accepts no requests now",
}
"""Error codes of temporary refusals, and the meaning of each."""

_CODES = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""Exceptions for which the driver removes the code from the text."""

_CLUSTER = (AskError, ClusterCrossSlotError)

# Details that a server adds to an error's text: the position in the script, and the arguments.
# `explain` removes them, because arguments may contain payloads.
_DETAILS = re.compile(r"\.? ?script: \w{40}.*|, with args beginning with:.*", re.DOTALL)


def breaks(error: RedisError) -> bool:
    """Whether the connection must be closed after this error."""
    # NOREPLICAS: the replicas may have left because another server was promoted. A new connection
    # finds the current primary.
    if isinstance(error, _LOST) or _code(error) == "NOREPLICAS":
        return True
    # Other exceptions come from the driver itself, which has closed the connection.
    return not isinstance(error, ResponseError)


def exception_of(error: RedisError, *, writing: bool) -> StoreError:
    """The exception to raise in place of the driver's.

    Args:
        error: the driver's exception.
        writing: whether the request may have changed something.
    """
    code = _code(error)
    if code in _PASSING:
        text = f"the database is unavailable: {_PASSING[code]}: {explain(error)}"
        return StoreUnavailableError(text)
    if isinstance(error, AuthenticationError):
        return StoreError(f"the database refused: {explain(error)}")
    if isinstance(error, _CLUSTER):
        return StoreError(
            f"the database is a Redis Cluster, which cannot be used: {explain(error)}"
        )
    if isinstance(error, ResponseError):
        return StoreError(f"the database refused: {explain(error)}")
    # The driver itself raised the error, because no answer arrived or the answer cannot be parsed.
    kind = UnknownOutcomeError if writing else StoreUnavailableError
    return kind(f"the connection to the database broke: {explain(error)}")


def explain(error: BaseException) -> str:
    """An error in one line, without the arguments of the request."""
    text = _DETAILS.sub("", " ".join(str(error).split()))
    code = _code(error)
    return text if code is None or text.startswith(code) else f"{code} {text}"


def _code(error: BaseException) -> str | None:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    first = str(error).partition(" ")[0]
    return first if first.isupper() else None
