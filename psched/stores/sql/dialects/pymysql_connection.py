"""PyMySQL's connection, changed in three respects."""

import ssl
from typing import Any

import pymysql
from pymysql.connections import Connection
from typing_extensions import override

from psched.config.tls import Tls
from psched.stores import encryption

_UNCHECKED = Tls(verify="none", ca=None, cert=None, key=None)

_SURELY_ACCEPTED = 200_000
"""Characters: every server accepts a statement that has no more; each has at most four bytes."""


class PyMySQLConnection(Connection):
    """A connection that checks a statement's size, and takes fewer requests and less memory.

    If a statement is too large, a server may close the connection, and the client cannot know
    whether the statement was applied. So this connection does not send such a statement, but raises
    the error that servers use for it.

    On connecting, it sends no statement, because each round trip takes time on a slow link.

    If it encrypts without checking the server, it does not load the system's certificate
    authorities, which would take 25 ms, and memory in every worker.
    """

    _max_packet: int | None = None

    @override
    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        del charset, collation  # `Dialect.begin_session` sets them

    @override
    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # PyMySQL's own method
        if len(sql) > _SURELY_ACCEPTED:
            content = (
                sql if isinstance(sql, bytes) else sql.encode(self.encoding, "surrogateescape")
            )
            largest = self._largest_statement()
            # One is added for the byte of the command, which counts as part of the packet.
            if len(content) + 1 > largest:
                raise pymysql.err.DataError(
                    1153,
                    f"the statement has {len(content):,} bytes, and the server accepts {largest:,}:"
                    " raise its max_allowed_packet, or keep less in data",
                )
        return super().query(sql, unbuffered)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:  # noqa: ANN401  # PyMySQL's
        """The SSL context for PyMySQL's options; without options, it checks nothing."""
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # not in its stubs
            return context
        return encryption.ssl_context(_UNCHECKED)

    def _largest_statement(self) -> int:
        if self._max_packet is None:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                ((self._max_packet,),) = cursor.fetchall()
        return self._max_packet
