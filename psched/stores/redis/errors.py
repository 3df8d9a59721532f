"""Converts errors of Redis and of its driver to psched's exceptions."""

import re
from collections.abc import Sequence

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


class MemoryFullError(StoreUnavailableError):
    """The server has refused a script because its memory is full; nothing was applied."""


_LOST = (ReadOnlyError, MasterDownError)
"""Errors of a server that is not the primary.

The connection is closed after such an error, because a new connection finds the current primary.
"""

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
"""By the code of each error that has a temporary cause: a text that names the cause."""

_CODES = {
    AuthenticationError: "NOAUTH",
    BusyLoadingError: "LOADING",
    MasterDownError: "MASTERDOWN",
    NoPermissionError: "NOPERM",
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
}
"""The error codes of those exceptions from whose texts the driver removes the code."""

_CONNECTING_FIXES = {
    "WRONGPASS": "correct user and password in url, or password_file",
    "NOAUTH": "put the password into url or password_file: the server asks for one",
    "NOPERM": "give the user all rights on the keys that begin with the table's name",
    "MISCONF": "look into the server's log, which says why it cannot save",
    "LOADING": "wait until the server has read its data",
}
"""By the code of an error on connecting: how to correct its cause."""

_CLUSTER = (AskError, ClusterCrossSlotError)

# Details that a server adds to an error's text: the position in the script, and the arguments.
# `explain` removes these details, because arguments can contain payloads.
_DETAILS = re.compile(r"\.? ?script: \w{40}.*|, with args beginning with:.*", re.DOTALL)


def breaks(error: RedisError) -> bool:
    """Whether the connection must be closed after this error."""
    # NOREPLICAS: too few replicas follow the server. Another server may have become the primary,
    # so the connection is closed: a new connection finds the current primary.
    if isinstance(error, _LOST) or _code(error) == "NOREPLICAS":
        return True
    # A ResponseError comes from the server, and the connection still works. All other exceptions
    # come from the driver, whose connection is then unusable.
    return not isinstance(error, ResponseError)


def exception_of(error: RedisError, *, writing: bool) -> StoreError:
    """The exception of psched that is raised in place of an exception of the driver."""
    code = _code(error)
    if code in _PASSING:
        text = f"the database is unavailable: {_PASSING[code]}: {explain(error)}"
        return MemoryFullError(text) if code == "OOM" else StoreUnavailableError(text)
    if isinstance(error, AuthenticationError):
        return StoreError(f"the database refused: {explain(error)}")
    if isinstance(error, _CLUSTER):
        return StoreError(
            f"the database is a Redis Cluster, which cannot be used: {explain(error)}"
        )
    if isinstance(error, ResponseError):
        return StoreError(f"the database refused: {explain(error)}")
    # The driver itself raised the error, because no answer arrived or the answer cannot be parsed.
    # So a write may have been applied.
    kind = UnknownOutcomeError if writing else StoreUnavailableError
    return kind(f"the connection to the database broke: {explain(error)}")


def explain(error: BaseException) -> str:
    """Describe an error in one line of text, without the arguments of the request."""
    text = shortened(str(error))
    code = _code(error)
    return text if code is None or text.startswith(code) else f"{code} {text}"


def shortened(text: str) -> str:
    """The text of an error in one line, without the arguments of the request."""
    return _DETAILS.sub("", " ".join(text.split()))


def refusal(answer: Sequence[bytes]) -> str | None:
    """The fix, given commands that the server refuses, each followed by its reason; or None."""
    if not answer:
        return None
    commands = ", ".join(dict.fromkeys(command.decode() for command in answer[::2]))
    return (
        f"the server refuses {commands} ({answer[1].decode(errors='replace')}); give the user of"
        " url the rights that docs/redis.md lists"
    )


def connecting_fix(error: BaseException) -> str | None:
    """How to correct the cause of an error on connecting; None if its code does not tell."""
    return _CONNECTING_FIXES.get(_code(error) or "")


def _code(error: BaseException) -> str | None:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    first = str(error).partition(" ")[0]
    return first if first.isupper() else None
