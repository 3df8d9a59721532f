"""PyMySQL's connection, with three habits of its own changed."""

import ssl
from typing import Any

import pymysql
from pymysql.connections import Connection

from psched.config.tls import Tls
from psched.stores import encryption

_UNCHECKED = Tls(verify="none", ca=None, cert=None, key=None)

_SURELY_TAKEN = 200_000
"""Characters; of at most four bytes each. No server is asked about statements below."""


class MeasuredConnection(Connection):
    """A connection that does not send what its server would answer by hanging up.

    Of a statement that is broken off nobody knows whether it was applied; this error says that it
    was not, and why. It has the number that servers give to it, where they can say so.

    It sends nothing of its own when it connects: each answer to wait for makes a slow link slower.

    Nor does it read the certificates of all the world's authorities (25 ms, and their memory in
    every worker) to encrypt, where the server offers it, without checking anybody.
    """

    _most: int | None = None

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """See PyMySQL's Connection.set_character_set; `Dialect.begin_session` sends it."""
        del charset, collation

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

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:  # noqa: ANN401  # PyMySQL's
        """PyMySQL's; no options are how it asks for encryption that checks nothing."""
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # not in its stubs
            return context
        return encryption.context_of(_UNCHECKED)

    def _largest(self) -> int:
        if self._most is None:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                ((self._most,),) = cursor.fetchall()
        return self._most
