"""What an error of Redis, or of its driver, says about the request that met it."""

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
"""It is no primary, or not any more: the one that is must be looked for."""

_PASSING = {
    "BUSY": "somebody's script keeps it busy",
    "CLUSTERDOWN": "it does not serve",
    "LOADING": "it reads its data",
    "MASTERDOWN": "it is a replica",
    "MISCONF": "it cannot save its data",
    "NOREPLICAS": "too few replicas follow it",
    "OOM": "its memory is full",
    "READONLY": "it is a replica",
    "TRYAGAIN": "it does not serve",
}
"""The words with which it refuses what it may take later, and what they mean."""

_CODES = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""The driver takes these words away, and has an exception for each."""

_CLUSTER = (AskError, ClusterCrossSlotError)

# What a server adds for programmers: where in a script it happened, and what it was sent.
_ASIDE = re.compile(r"\.? ?script: \w{40}.*|, with args beginning with:.*", re.DOTALL)


def breaks(error: RedisError) -> bool:
    """Whether the connection is no use any more."""
    # If no replica follows it, they may follow another.
    if isinstance(error, _LOST) or _code(error) == "NOREPLICAS":
        return True
    # All others come from the driver, which has closed it.
    return not isinstance(error, ResponseError)


def exception_of(error: RedisError, *, writing: bool) -> StoreError:
    """What to raise.

    Args:
        error: the driver's.
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
    # The driver's own: there was no answer, or none that can be understood.
    kind = UnknownOutcomeError if writing else StoreUnavailableError
    return kind(f"the connection to the database broke: {explain(error)}")


def explain(error: BaseException) -> str:
    """An error in a line, without what was sent."""
    text = _ASIDE.sub("", " ".join(str(error).split()))
    code = _code(error)
    return text if code is None or text.startswith(code) else f"{code} {text}"


def _code(error: BaseException) -> str | None:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    first = str(error).partition(" ")[0]
    return first if first.isupper() else None
