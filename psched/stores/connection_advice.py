"""The fix that is recommended when a connection to a server cannot be opened.

The fix is chosen by the class and the number of the error, never by its text, because servers and
systems translate their texts.
"""

import errno
import socket
import ssl
from collections.abc import Iterator

from psched.config.urls import Tls

_FIXES = {
    errno.ECONNREFUSED: "start the server, or correct host and port in url",
    errno.ENOENT: "start the server, or correct the path of its socket in url",
    errno.ECONNRESET: "look into the server's log: it has closed the connection",
    errno.EHOSTUNREACH: "correct the host in url, or the route to it",
    errno.ENETUNREACH: "correct the host in url, or the route to it",
    errno.EACCES: "give this user the right to write to the server's socket",
}

_TIMED_OUT = "find out what drops the packets: a wrong host in url, a firewall, a stopped server"


def network_fix(error: BaseException, tls: Tls | None) -> str | None:
    """The fix for an error of the network or of its encryption; None if it is neither's."""
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLError):
            return tls_fix(tls)
        if isinstance(cause, socket.gaierror):
            return "correct the host in url, or the name server's entry for it"
        if isinstance(cause, TimeoutError):
            return _TIMED_OUT
        if isinstance(cause, ConnectionResetError) and tls is not None:
            # A server that refuses the client's certificate can close the connection at once.
            return tls_fix(tls)
        if isinstance(cause, OSError) and cause.errno in _FIXES:
            return _FIXES[cause.errno]
    return None


def tls_fix(tls: Tls | None) -> str:
    """What to check if the server and psched do not agree on encryption."""
    if tls is None:
        return "set ssl_ca to the certificate of the server's authority, or correct it in url"
    return tls.checklist


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and the exceptions that have caused it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
