"""PyMySQL's connections, which know how much a server takes and read no more than they need."""

import ssl
from collections.abc import Mapping
from typing import Any

import pymysql
from pymysql.connections import Connection

from psched.backends import encryption
from psched.config.tls import Tls

_SURELY_TAKEN = 200_000
"""Characters; of at most four bytes each. No server is asked about statements below."""


class MeasuredConnection(Connection):
    """A connection that does not send what its server would answer by hanging up.

    Of a statement that is broken off nobody knows whether it was applied; this error says that it
    was not, and why. It has the number that servers give to it, where they can say so.
    """

    _most: int | None = None

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002  # PyMySQL's
        """See PyMySQL's Connection.query."""
        if len(sql) > _SURELY_TAKEN:
            content = (
                sql if isinstance(sql, bytes) else sql.encode(self.encoding, "surrogateescape")
            )
            most = self._largest()
            # The command's own byte is one of them.
            if len(content) + 1 > most:
                raise pymysql.err.DataError(
                    1153,
                    f"the statement has {len(content):,} bytes, and the server takes {most:,}:"
                    " raise its max_allowed_packet, or keep less in data",
                )
        return super().query(sql, unbuffered)

    def _create_ssl_ctx(self, sslp: Mapping[str, Any]) -> ssl.SSLContext:
        # Where it has not been asked for, PyMySQL encrypts if the server can, and believes any
        # certificate. It would read all of the system's authorities for that: 25 ms.
        if not sslp:
            return encryption.context_of(Tls(verify="none", ca=None, cert=None, key=None))
        context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
        return context

    def _largest(self) -> int:
        if self._most is None:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                ((self._most,),) = cursor.fetchall()
        return self._most
